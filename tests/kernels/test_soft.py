"""Soft energies in compiled code, in rows on torch, and by Newton's method: one answer."""

import pytest
import torch
from helpers import ODD, ODD_NODES, batch_of, chain, complete, cycle, star
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import Inputs
from hogwild.kernels import soft as rows_module
from hogwild.kernels.native import library
from hogwild.kernels.soft import chebyshev_steps, momentum_steps
from hogwild.linalg.krylov import System, cg
from hogwild.models import SoftEnergyConv
from hogwild.problems import soft
from hogwild.solvers import Newton, TripleMomentum, solve
from hogwild_node.tree import arrays

compiled = pytest.mark.skipif(library() is None, reason="there is no compiled library")


def problem_on(edge_index, n, batch=None, dtype=torch.float64, spread=1.0, **options):
    """A problem with random features, edge weights and parameters."""
    conv = SoftEnergyConv(3, **{"hidden_channels": 5} | options).to(dtype)
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(torch.randn_like(p), alpha=spread)
    weight = torch.rand(edge_index.size(1), dtype=dtype)
    attr = None
    if conv.edge_dim is not None:
        attr = torch.randn(edge_index.size(1), conv.edge_dim, dtype=dtype)
    x = torch.randn(n, 3, dtype=dtype)
    problem = conv.problem(Inputs(x, edge_index, attr, batch, edge_weight=weight)).detach()
    k = conv.hidden_channels
    own = min(3, k)  # node-local terms, which the layer may be without
    inner = torch.linalg.qr(torch.randn(k, own, dtype=dtype))[0].mT.expand(problem.replicas, -1, -1)
    most = problem.local.steepest.amax(1, keepdim=True).expand(-1, own, 1)
    local = problem.local
    fields = {name: getattr(local, name) for name in local.__dataclass_fields__}
    fields |= {
        "inner": inner.contiguous(), "offset": torch.randn(problem.replicas, own, n, dtype=dtype),
        "inner_low": 0.0 * most, "inner_high": 0.1 * most,
    }  # fmt: skip
    return soft.SoftProblem(problem.graph, type(local)(**fields), 1.1 * conv.condition)


GRAPHS = {
    "one": (torch.zeros(2, 0, dtype=torch.long), 1, None),
    "odd": (ODD, ODD_NODES, None),
    "star": (star(40), 40, None),
    "batch": (*(lambda e, b: (e, b.numel(), b))(*batch_of((chain(9), 9), (complete(6), 6))),),
}
OPTIONS = [
    {},
    {"replicas": 2},
    {"edge_dim": 2, "width": 19},
    {"hidden_channels": 5, "condition": 900.0},
]


@compiled
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "replicas", "wide", "stiff"])
def test_answers_agree(name, options, monkeypatch):
    """Compiled steps, steps on torch and Newton's method; on every graph as many steps as alone."""
    problem = problem_on(*GRAPHS[name], **options)
    exact = solve(problem, Newton(atol=1e-11), problem.start())
    found = solve(problem, TripleMomentum(atol=1e-10), problem.start())
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, exact.value, rtol=0, atol=1e-9)
    monkeypatch.setattr(soft, "compiled", lambda h: None)
    slow = solve(problem, TripleMomentum(atol=1e-10), problem.start())
    torch.testing.assert_close(slow.value, found.value, rtol=0, atol=1e-9)
    assert bool((slow.iterations - found.iterations).abs().le(1).all())


@compiled
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "replicas", "wide", "stiff"])
def test_adjoints_agree(name, options):
    """Compiled conjugate gradients solve with the Hessian, as those of torch do."""
    problem = problem_on(*GRAPHS[name], **options)
    h = torch.randn_like(problem.start())
    hessian, b = problem.evaluate(h).hessian(), torch.randn_like(h)
    found = hessian.iterate(b, 1e-12)
    assert bool(found.converged.all())
    other = cg(System(hessian.apply, b, problem.graph, 1e-13)).value
    torch.testing.assert_close(found.value, other, rtol=0, atol=1e-10)


@compiled
@pytest.mark.parametrize("name", GRAPHS)
def test_adjoints_of_tiny_gradients(name):
    """Gradients whose squares single precision does not hold, as those of sure predictions."""
    problem = problem_on(*GRAPHS[name], dtype=torch.float32)
    h = torch.randn_like(problem.start())
    hessian, b = problem.evaluate(h).hessian(), torch.randn_like(h)
    found, tiny = hessian.iterate(b, 1e-5), hessian.iterate(1e-30 * b, 1e-5)
    assert bool(tiny.converged.all())
    torch.testing.assert_close(1e30 * tiny.value, found.value, rtol=1e-3, atol=1e-4)
    assert not hessian.iterate(0.0 * b, 1e-5).value.any()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "replicas", "wide", "stiff"])
def test_rows_take_as_many_steps_as_the_condition_needs(name, options):
    """What a GPU does: a number of steps that is known beforehand, for any parameters."""
    problem = problem_on(*GRAPHS[name], **options)
    rows, graph = problem.rows, problem.graph
    h = torch.randn_like(problem.start())
    torch.testing.assert_close(rows.gradient(h.mT).mT, problem.evaluate(h).gradient)
    for rtol in (1e-5, 1e-9):
        y, count = rows.steps(problem.start().mT, rtol)
        assert count == momentum_steps(problem.condition, rtol)
        at = problem.evaluate(y.mT)
        assert bool((graph.norm(at.gradient) <= rtol * at.scale).all())
        b = torch.randn_like(y)
        x, left, count = rows.chebyshev(y, b, rtol)
        assert count == chebyshev_steps(problem.condition, rtol)
        product = at.hessian().apply(x.mT)
        torch.testing.assert_close(left, b - product.mT)
        norm = graph.dot(left.mT, left.mT).sqrt()
        assert bool((norm <= rtol * graph.dot(b.mT, b.mT).sqrt()).all())


@compiled
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(1.01, 9000), st.sampled_from([1, 2, 16, 33, 200]))
def test_single_precision_arrives(seed, condition, k):
    """In float32 the default tolerance is above the rounding of all widths and conditions."""
    torch.manual_seed(seed)
    single = problem_on(
        cycle(30), 30, dtype=torch.float32, spread=0.3, hidden_channels=k, condition=condition,
    )  # fmt: skip
    double = single.map(torch.Tensor.double)
    found = solve(single, TripleMomentum(), single.start())
    assert bool(found.converged.all())
    h = found.value.double()
    residual = double.graph.norm(double.evaluate(h).gradient)
    assert bool((residual <= 1.5e-6 * double.size_of(h)).all())


@compiled
def test_threads_change_no_bit():
    """Threads that share a large graph, and threads that take small ones in turn."""
    torch.manual_seed(0)
    n, count = 3000, torch.get_num_threads()
    src = torch.randint(0, n, (9000,))
    large = torch.stack([src, (src + torch.randint(1, 40, (9000,))) % n])
    edges, batch = batch_of(*[(cycle(7), 7)] * 20)
    for args in ((large, n, None), (edges, batch.numel(), batch)):
        problem = problem_on(*args, hidden_channels=16)
        found = []
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                one = solve(problem, TripleMomentum(), problem.start())
                found.append(
                    (one.value, problem.evaluate(one.value).hessian().iterate(one.value, 1e-9))
                )
        finally:
            torch.set_num_threads(count)
        for value, dual in found[1:]:
            assert torch.equal(value, found[0][0])
            torch.testing.assert_close(dual.value, found[0][1].value, rtol=0, atol=1e-7)


@compiled
def test_not_finite():
    """A graph with NaN has no answer; the graph beside it has its own."""
    edges, batch = batch_of((chain(4), 4), (chain(4), 4))
    problem = problem_on(edges, 8, batch)
    alone = solve(problem, TripleMomentum(), problem.start())
    problem.local.anchor[..., 1] = torch.nan
    found = solve(problem, TripleMomentum(), problem.start())
    assert found.converged.tolist() == [[False, True]]
    assert torch.equal(found.value[..., 4:], alone.value[..., 4:])


@compiled
def test_beyond_moderate_conditions_newton_solves():
    """One problem, two engines, one answer: the condition number decides which one solves."""
    problem = problem_on(chain(20), 20, condition=5e3)
    few = solve(problem, TripleMomentum(most=1e3, atol=1e-11), problem.start())
    many = solve(problem, TripleMomentum(atol=1e-11), problem.start())
    assert int(few.iterations) < 30 < int(many.iterations)
    torch.testing.assert_close(few.value, many.value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [*OPTIONS, {"width": 6, "heads": 3, "replicas": 2}])
@pytest.mark.parametrize("by", ["compiled", "torch"])
def test_cotangents(name, options, by, monkeypatch):
    """The closed form agrees with autograd in every field of the energy."""
    if by == "torch":
        monkeypatch.setattr(rows_module, "compiled", lambda h: None)
    problem = problem_on(*GRAPHS[name], **options)
    attached = problem.map(lambda x: x.clone().requires_grad_())
    h, dual = torch.randn_like(problem.start()), torch.randn_like(problem.start())
    tensors = [x for x, _ in arrays(attached)]
    residual = attached.residual(h)
    expected = torch.autograd.grad(residual, tensors, dual, materialize_grads=True)
    found = [x for x, _ in arrays(problem.cotangents(h, dual))]
    assert len(found) == len(expected) == 13
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
