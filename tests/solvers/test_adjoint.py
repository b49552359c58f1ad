"""Implicit gradients: against finite differences, unrolling and dense linear algebra."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from helpers import (
    DOUBLE,
    ODD,
    ODD_NODES,
    assert_second_derivatives,
    batch_of,
    chain,
    columns,
    cycle,
    edges,
)
from kernel_cases import on_torch
from torch.func import functional_call

from hogwild import GSDGNN, IGNN, EnergyConv, EnergyGNN, Inputs
from hogwild.errors import ConfigError, ConvergenceError, ConvergenceWarning, UnsupportedError
from hogwild.models import EIGNNConv, GSDConv, IGNNConv, ScarselliConv
from hogwild.solvers import (
    LBFGS,
    Adjoint,
    Anderson,
    LinearSolver,
    Newton,
    Picard,
    SemismoothNewton,
    Solver,
    differentiable,
)
from hogwild.testing import Affine, Quadratic, random_graph

TIGHT = Newton(atol=1e-12)
SMALL = edges((0, 1), (1, 0), (2, 1), (2, 2))
KINDS = {
    "edge": {},
    "node": {"message": "node"},
    "heads": {"heads": 2},
    "normalize": {"normalize": True},
}


def pose(n=3, e=4, *, seed=0, solver=TIGHT, edge_dim=None, **options):
    """A small model with its node features, edge features and edge weights."""
    torch.manual_seed(seed)
    conv = EnergyConv(2, widths=(3,), solver=solver, edge_dim=edge_dim, **options).double()
    x = torch.randn(n, 2, **DOUBLE, requires_grad=True)
    attr = None if edge_dim is None else torch.randn(e, edge_dim, **DOUBLE, requires_grad=True)
    weight = (0.5 + torch.rand(e, **DOUBLE)).requires_grad_()
    return conv, x, attr, weight


def gradients(conv, h, *more):
    torch.manual_seed(5)
    loss = (torch.randn(h.shape, **DOUBLE) * h).sum()
    return torch.autograd.grad(loss, [*conv.parameters(), *more])


def close(one, two, tolerance):
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KINDS)
def test_gradcheck_inputs(name):
    """dh*/dx, dh*/d(edge_attr) and dh*/d(edge_weight) equal finite differences."""
    conv, x, attr, weight = pose(edge_dim=None if name == "node" else 1, **KINDS[name])
    inputs = [t for t in (x, attr, weight) if t is not None]

    def solve(x, *rest):
        attr, weight = rest if len(rest) == 2 else (None, rest[0])
        return conv(x, SMALL, attr, edge_weight=weight)

    assert torch.autograd.gradcheck(solve, inputs, eps=1e-5, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", ["edge", "heads"])
def test_gradcheck_parameters(name):
    """dh*/dθ equals finite differences, one parameter tensor at a time."""
    conv, x, attr, weight = pose(edge_dim=1, **KINDS[name])
    x, attr, weight = x.detach(), attr.detach(), weight.detach()
    for parameter, value in dict(conv.named_parameters()).items():

        def solve(value, parameter=parameter):
            args = (x, SMALL, attr)
            return functional_call(conv, {parameter: value}, args, {"edge_weight": weight})

        value = value.detach().requires_grad_()
        # fast_mode: one random projection of the Jacobian, enough for every entry to matter
        assert torch.autograd.gradcheck(
            solve, (value,), eps=1e-5, atol=1e-7, rtol=1e-5, fast_mode=True
        )


@pytest.mark.parametrize("name", ["edge", "heads"])
def test_equals_unrolled_differentiation(name):
    """The implicit gradient is the limit of differentiating through gradient descent."""
    conv, x, _, weight = pose(beta=1.0, **KINDS[name])
    problem = conv.problem(Inputs(x, SMALL, edge_weight=weight)).detach()
    h = torch.zeros(3, 2, **DOUBLE)
    at = problem.evaluate(h.T[None]).hessian()
    rate = 0.9 / float(torch.linalg.eigvalsh(columns(at.apply, h.T[None]))[0, -1])
    h.requires_grad_()
    for _ in range(250):
        energy = conv.energy(h, Inputs(x, SMALL, edge_weight=weight)).sum()
        (step,) = torch.autograd.grad(energy, h, create_graph=True)
        h = h - rate * step
    solution = conv(x, SMALL, edge_weight=weight)
    torch.testing.assert_close(h, solution, rtol=0, atol=1e-9)
    close(gradients(conv, solution, x, weight), gradients(conv, h, x, weight), 1e-7)


def test_batch_gradient_is_the_sum_over_graphs():
    """d Σ_g L_g / dθ over a batch equals the sum of the graphs' own gradients."""
    parts = [(ODD, ODD_NODES), (edges(), 1), (cycle(5), 5)]
    edge_index, batch = batch_of(*parts)
    conv, x, _, weight = pose(12, edge_index.size(1))
    together = conv(x, edge_index, None, batch, edge_weight=weight)
    coefficient = torch.randn_like(together)
    leaves = [*conv.parameters(), x, weight]
    whole = torch.autograd.grad((coefficient * together).sum(), leaves)
    total = [torch.zeros_like(g) for g in whole]
    node = edge = 0
    for own, n in parts:
        rows, cols = slice(node, node + n), slice(edge, edge + own.size(1))
        h = conv(x[rows], own, edge_weight=weight[cols])
        torch.testing.assert_close(h, together[rows], rtol=0, atol=1e-10)
        grads = torch.autograd.grad((coefficient[rows] * h).sum(), leaves, allow_unused=True)
        total = [t if g is None else t + g for t, g in zip(total, grads, strict=True)]
        node, edge = node + n, edge + own.size(1)
    close(total, whole, 1e-9)


@pytest.mark.parametrize("n", [6, 40])
def test_cg_adjoint_equals_direct_adjoint(n):
    conv, x, _, weight = pose(n, 2 * n, replicas=2)
    edge_index = cycle(n)
    found = []
    for linear in ("direct", "cg"):
        conv.solver = Newton(atol=1e-12, linear=linear)
        h = conv(x, edge_index, edge_weight=weight)
        found.append(gradients(conv, h, x, weight))
    close(*found, 1e-8)


def test_any_solver_has_the_same_gradient():
    """The adjoint belongs to the answer, not to the way it was found."""
    conv, x, _, weight = pose()
    expected = gradients(conv, conv(x, SMALL, edge_weight=weight), x, weight)
    for solver in (LBFGS(atol=1e-11), Picard(max_iter=100_000, atol=1e-11)):
        conv.solver = solver
        close(gradients(conv, conv(x, SMALL, edge_weight=weight), x, weight), expected, 1e-7)


@pytest.fixture
def impatient(monkeypatch):
    """An adjoint solver that gives up after one iteration of CG."""
    monkeypatch.setattr(Solver, "adjoint", Adjoint(LinearSolver("cg", max_iter=1)))


def test_the_adjoint_follows_the_fields_of_any_solver():
    assert LBFGS(linear="cg", adjoint_rtol=1e-3).adjoint == Adjoint(LinearSolver("cg"), 1e-3)
    assert Newton().adjoint == Adjoint()
    assert [Adjoint().tolerance(d) for d in (torch.float64, torch.float32)] == [1e-10, 1e-5]
    for wrong in ({"linear": "qr"}, {"adjoint_rtol": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Picard(**wrong)


def test_adjoint_failure_raises(impatient):
    conv, x, *_ = pose(5, 10, solver=Newton(linear="cg"))
    h = conv(x, cycle(5))
    with pytest.raises(ConvergenceError) as caught:
        h.sum().backward()
    for word in ("adjoint solve", "graph 0", "residual", "after 1 iterations", "max_iter"):
        assert word in str(caught.value)
    assert x.grad is None


@pytest.mark.parametrize("on_failure", ["warn", "ignore"])
def test_adjoint_failure_can_be_a_warning(impatient, on_failure):
    conv, x, *_ = pose(5, 10, on_failure=on_failure, solver=Newton(linear="cg"))
    h = conv(x, cycle(5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        h.sum().backward()
    said = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert len(said) == (1 if on_failure == "warn" else 0)
    assert all("adjoint solve" in str(w.message) for w in said)
    assert bool(torch.isfinite(x.grad).all())


def test_memory_does_not_grow_with_iterations():
    """Bytes saved for backward are the same after 0, a few and hundreds of iterations."""
    conv, x, *_ = pose(30, 60)
    edge_index = cycle(30)
    answer = conv(x, edge_index).detach()

    def saved(solver, h0):
        total = 0

        def pack(t):
            nonlocal total
            total += t.numel() * t.element_size()
            return t

        conv.solver = solver
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            found = conv.embed(Inputs(x, edge_index), h0=h0)
        found.value.sum().backward()
        return int(found.iterations), total

    torch_newton = Newton(linear="cg")
    none, first = saved(torch_newton, answer)
    few, second = saved(torch_newton, None)
    many, third = saved(Picard(max_iter=100_000), None)
    assert none == 0 < few < 100 < many
    assert first == second == third > 0
    assert saved(Newton(), answer)[1] == saved(Newton(), None)[1] <= first  # compiled, if it is


def test_second_backward_says_why():
    conv, x, *_ = pose()
    h = conv(x, SMALL)
    h.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        h.sum().backward()
    h = conv(x, SMALL)
    one = torch.autograd.grad(h.sum(), x, retain_graph=True)
    assert torch.equal(one[0], torch.autograd.grad(h.sum(), x)[0])


# -- second derivatives ---------------------------------------------------------------------------

OPTIONS = KINDS | {
    "node, mean, squareplus": {"message": "node", "aggr": "mean", "act": "squareplus"},
    "mean of heads": {"heads": 2, "concat": False, "gate": "relu"},
    "replicas": {"replicas": 2, "heads": 2},
    "float32": {"dtype": torch.float32},
}
SOLVERS = {
    "cg": Newton(atol=1e-12, linear="cg"),
    "lbfgs": LBFGS(atol=1e-12),
    "gradient": Picard(max_iter=100_000, atol=1e-12),
}


def as_function(conv, x, attr, weight):
    """The embeddings as a function of features, weights and parameters; all of these."""
    names, parameters = zip(*conv.named_parameters(), strict=True)

    def solve(x, weight, *rest):
        attr_, rest = (None, rest) if attr is None else (rest[0], rest[1:])
        own = dict(zip(names, rest, strict=True))
        return functional_call(conv, own, (x, SMALL, attr_), {"edge_weight": weight})

    return solve, [x, weight, *([] if attr is None else [attr]), *parameters]


@pytest.mark.parametrize("way", [nullcontext, on_torch], ids=["compiled", "torch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_second_derivatives_of_energies(name, way):
    """In features, edge features, edge weights and all parameters; parameters may be float32."""
    options = dict(OPTIONS[name])
    dtype = options.pop("dtype", torch.float64)
    edge_dim = None if options.get("message") == "node" else 1
    conv, *given = pose(edge_dim=edge_dim, **options)
    conv = conv.to(dtype).double()
    with way():
        assert_second_derivatives(*as_function(conv, *given))


@pytest.mark.parametrize("name", SOLVERS)
def test_second_derivatives_of_any_solver(name):
    assert_second_derivatives(*as_function(*pose(solver=SOLVERS[name])))


MAPS = {
    "ignn": lambda: IGNNConv(2, widths=(3,), act="tanh", solver=SemismoothNewton(atol=1e-12)),
    "picard": lambda: IGNNConv(2, widths=(3,), act="tanh", solver=Picard(atol=1e-12)),
    "anderson": lambda: IGNNConv(2, widths=(3,), act="tanh", solver=Anderson(atol=1e-12)),
    "scarselli": lambda: ScarselliConv(2, widths=(3,), solver=Anderson(atol=1e-12)),
    "eignn": lambda: EIGNNConv(2, solver=Picard(atol=1e-12)),
    "gsd": lambda: GSDConv(2, widths=(3,)),
}


@pytest.mark.parametrize("name", MAPS)
def test_second_derivatives_of_other_models(name):
    torch.manual_seed(0)
    conv, (_, x, _, weight) = MAPS[name]().double(), pose()
    assert_second_derivatives(*as_function(conv, x, None, weight))


@pytest.mark.parametrize("way", [nullcontext, on_torch], ids=["compiled", "torch"])
def test_gradgradcheck(way):
    conv, x, attr, weight = pose(edge_dim=1)

    def solve(x, attr, weight):
        return conv(x, SMALL, attr, edge_weight=weight)

    with way():
        assert torch.autograd.gradgradcheck(solve, (x, attr, weight), eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [EnergyGNN, IGNN, GSDGNN])
def test_hessian(model):
    """Of a loss that is linear in the embeddings: its gradient alone does not depend on them."""
    torch.manual_seed(0)
    net = model(2, out_channels=1).double()
    x, weight = torch.randn(3, 2, **DOUBLE), 0.5 + torch.rand(4, **DOUBLE)

    def loss(weight):
        return net.embed(Inputs(x, SMALL, edge_weight=weight)).value.sum()

    found = torch.autograd.functional.hessian(loss, weight)
    unit = 1e-5 * torch.eye(4, **DOUBLE)
    up, down = (
        torch.stack([torch.autograd.functional.jacobian(loss, weight + s * u) for u in unit])
        for s in (1.0, -1.0)
    )
    torch.testing.assert_close(found, (up - down) / 2e-5, rtol=1e-4, atol=1e-6)
    assert float(found.abs().max()) > 1e-3


def test_third_derivatives():
    conv, x, *_ = pose()

    def gradient(x):
        return torch.autograd.grad(conv(x, SMALL).sum(), x, create_graph=True)[0]

    assert_second_derivatives(gradient, [x])


@pytest.mark.parametrize("solver", [TIGHT, LBFGS(atol=1e-12)], ids=["compiled", "torch"])
def test_gradient_penalty_of_a_module_around_the_layer(solver):
    """An encoder computes features, and edge weights from these features: the layer's inputs depend
    on each other. The same matrix reads the embeddings out."""
    conv, x, *_ = pose(solver=solver, heads=2)
    names, parameters = zip(*conv.named_parameters(), strict=True)

    def penalty(matrix, *parameters):
        own = dict(zip(names, parameters, strict=True))
        x_ = x.detach().requires_grad_()
        code = torch.tanh(x_ @ matrix)
        weight = code[SMALL[0], 0].sigmoid()
        h = functional_call(conv, own, (code, SMALL), {"edge_weight": weight})
        (slope,) = torch.autograd.grad((h @ matrix).square().sum(), x_, create_graph=True)
        return slope.square().sum()

    given = [torch.randn(2, 2, **DOUBLE).requires_grad_(), *parameters]
    assert torch.autograd.gradcheck(penalty, given, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


class Bent(Affine):
    """An affine map with a factor that is no field."""

    factor = torch.ones((), **DOUBLE, requires_grad=True)

    def update(self, h, inbox, at):
        return self.factor * super().update(h, inbox, at)


def test_what_a_problem_hides_is_an_error():
    """First derivatives reach a tensor that is no field; a second one would lack a term."""
    problem = Bent.random(random_graph([4]))
    problem.b.requires_grad_()
    h = differentiable(problem, problem.answer().detach())
    assert all(g.any() for g in torch.autograd.grad(h.sum(), [problem.b, problem.factor]))
    h = differentiable(problem, problem.answer().detach())
    with pytest.raises(UnsupportedError, match=r"shape \[\].*none of its fields"):
        torch.autograd.grad(h.sum(), problem.b, create_graph=True)


def test_many_gradients_at_once_are_refused():
    conv, x, *_ = pose()
    with pytest.raises(UnsupportedError, match="vectorize=False"):
        torch.autograd.functional.jacobian(lambda x: conv(x, SMALL), x, vectorize=True)
    h = conv(x, SMALL)
    with pytest.raises(UnsupportedError, match="vectorize=False"):
        torch.func.vmap(lambda v: torch.autograd.grad(h, x, v)[0])(torch.ones(2, *h.shape))


def test_failures_of_second_derivatives_raise(impatient):
    conv, x, *_ = pose(5, 10, solver=Newton(linear="cg"))
    with pytest.raises(ConvergenceError, match="adjoint solve"):
        torch.autograd.grad(conv(x, cycle(5)).sum(), x, create_graph=True)


def test_nothing_is_attached_where_nothing_is_needed():
    conv, x, *_ = pose()
    with torch.no_grad():
        assert not conv(x, SMALL).requires_grad
    frozen = copy.deepcopy(conv).requires_grad_(False)
    assert not frozen(x.detach(), SMALL).requires_grad
    assert frozen(x, SMALL).requires_grad


def test_solving_leaves_no_gradient_behind():
    """A forward pass touches no ``.grad``, and h0 receives none."""
    conv, x, *_ = pose()
    h0 = torch.randn(3, 2, **DOUBLE, requires_grad=True)
    conv(x, SMALL, h0=h0).sum().backward()
    assert h0.grad is None
    assert x.grad is not None


# -- problems with dense answers ------------------------------------------------------------------


def equals_dense(problem, leaves, adjoint):
    """The gradients of the solution are those of the dense solution."""
    for leaf in leaves:
        leaf.requires_grad_()
    dense = problem.answer()
    coefficient = torch.randn_like(dense)
    expected = torch.autograd.grad((coefficient * dense).sum(), leaves)
    h = differentiable(problem, dense.detach(), adjoint)
    assert torch.equal(h, dense)
    close(torch.autograd.grad((coefficient * h).sum(), leaves), expected, 1e-9)


@pytest.mark.parametrize("sizes", [[4], [1, 3, 6]], ids=str)
def test_fixed_point_adjoint_equals_dense(sizes):
    """h = F(h; b, W) affine, through GMRES."""
    problem = Affine.random(random_graph(sizes), replicas=2)
    equals_dense(problem, [problem.w, problem.b], Adjoint(rtol=1e-12))


@pytest.mark.parametrize("linear", ["auto", "direct", "cg"])
def test_objective_adjoint_equals_dense(linear):
    """The minimiser of a quadratic."""
    problem = Quadratic.random(random_graph([1, 3, 6]), replicas=2)
    equals_dense(problem, [problem.q, problem.b], Adjoint(LinearSolver(linear), 1e-12))


def test_fixed_point_adjoint_failure_raises():
    """A map with eigenvalue one has no adjoint: never a silent gradient."""
    graph = random_graph([3])
    problem = Affine.random(graph, channels=1, kappa=1.0)  # W = ±1, the mean keeps constants
    problem.w.fill_(1.0)
    problem.b.requires_grad_()
    h = differentiable(problem, torch.zeros(1, 1, 3, **DOUBLE))
    with pytest.raises(ConvergenceError, match="adjoint solve"):
        h.sum().backward()


def test_zero_gradient_is_solved_exactly():
    """A loss that does not look at h has gradient zero, not NaN, on the direct and the CG path."""
    for linear in ("direct", "cg"):
        conv, x, *_ = pose(5, 10, solver=Newton(linear=linear))
        edge_index, batch = batch_of((chain(3), 3), (chain(2), 2))
        h = conv(x, edge_index, None, batch)
        (g,) = torch.autograd.grad(h[:3].sum() + 0.0 * h[3:].sum(), x)
        assert torch.equal(g[3:], torch.zeros_like(g[3:]))
        assert float(g[:3].abs().min()) > 0.0
