"""Scarselli's model against loops over nodes and Jacobians by automatic differentiation."""

import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, batch_of, chain, circulant, cycle

from hogwild import Inputs, ScarselliGNN
from hogwild.errors import ConfigError, ConvergenceError, FeatureError
from hogwild.models import ScarselliConv
from hogwild.models.base import Kind
from hogwild.models.scarselli import TanhMLP
from hogwild.solvers import Picard
from hogwild.testing import check_model
from hogwild.testing.problems import random_graph
from hogwild_node.networks import Slot
from hogwild_node.tree import NODES, SHARED, walk

VARIANTS = {
    "paper": {},
    "wide": {"hidden_channels": 3, "message_channels": 4, "widths": (5,)},
    "one layer": {"widths": ()},
    "picard": {"solver": Picard()},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_conv(options, device):
    check_model(lambda **kw: ScarselliConv(3, **options, **kw), device=device)


# -- the map --------------------------------------------------------------------------------------


def mlp(net, x, squash):
    """The network at one vector, written out."""
    for i, (weight, bias) in enumerate(zip(net.weight, net.bias, strict=True)):
        x = weight @ x + bias
        if squash or i < len(net.weight) - 1:
            x = torch.tanh(x)
    return x


def by_hand(conv, h, x, edge_index, edge_attr, edge_weight):
    """F(h) [N, k], node by node and edge by edge."""
    out = []
    for i in range(x.size(0)):
        m = torch.zeros(conv.message_channels, **DOUBLE)
        for e, (j, target) in enumerate(edge_index.T.tolist()):
            if target == i:
                inputs = torch.cat([h[i], h[j], x[i], x[j], edge_attr[e]])
                m = m + edge_weight[e] * mlp(conv.message_net, inputs, squash=False)
        out.append(mlp(conv.update_net, torch.cat([m, h[i], x[i]]), squash=True))
    return torch.stack(out)


def odd_inputs():
    x, attr = torch.randn(ODD_NODES, 3, **DOUBLE), torch.randn(ODD.size(1), 2, **DOUBLE)
    return x, ODD, attr, torch.rand(ODD.size(1), **DOUBLE)


@pytest.mark.parametrize("widths", [(4, 4), (5,), ()])
def test_map_and_fixed_point_by_hand(widths):
    """On a graph with a self-loop, a double edge, an isolated node and one-way edges."""
    conv = ScarselliConv(3, edge_dim=2, widths=widths).double()
    x, edge_index, attr, weight = odd_inputs()
    h = torch.randn(ODD_NODES, 2, **DOUBLE)
    problem = conv.problem(Inputs(x, edge_index, attr, edge_weight=weight))
    expected = by_hand(conv, h, x, edge_index, attr, weight)
    torch.testing.assert_close(problem.step(h.T.unsqueeze(0))[0].T, expected)
    solution = conv(x, edge_index, attr, edge_weight=weight)
    expected = by_hand(conv, solution, x, edge_index, attr, weight)
    torch.testing.assert_close(solution, expected, rtol=0, atol=1e-8)
    assert float(solution.detach().abs().max()) <= 1.0


# -- the Jacobian ---------------------------------------------------------------------------------


def odd_problem(**options):
    conv = ScarselliConv(3, edge_dim=2, **options).double()
    x, edge_index, attr, weight = odd_inputs()
    return conv.problem(Inputs(x, edge_index, attr, edge_weight=weight)).detach()


def dense_jacobian(problem, h):
    """[kN, kN] of a problem with one replica, rows and columns ordered [k, N]."""
    size = h.numel()
    j = torch.autograd.functional.jacobian(problem.step, h)
    return j.reshape(size, size)


@pytest.mark.parametrize("widths", [(4, 4), ()])
def test_jacobian_is_the_derivative(widths):
    problem = odd_problem(widths=widths)
    h = torch.randn(1, 2, ODD_NODES, **DOUBLE)
    dense = dense_jacobian(problem, h)
    torch.testing.assert_close(problem.columns(h).flatten(), dense.abs().sum(0))
    blocks, rows, cols = problem.jacobian(h)
    assembled = torch.zeros(2, ODD_NODES, 2, ODD_NODES, **DOUBLE)
    assembled[:, rows, :, cols] = blocks[0].permute(2, 0, 1)
    torch.testing.assert_close(assembled.view_as(dense), dense)


# -- Scarselli's penalty --------------------------------------------------------------------------


def test_penalty_is_the_squared_hinge_on_columns():
    conv = ScarselliConv(3, edge_dim=2).double()
    x, edge_index, attr, weight = odd_inputs()
    h = torch.rand(ODD_NODES, 2, **DOUBLE)
    problem = conv.problem(Inputs(x, edge_index, attr, edge_weight=weight)).detach()
    columns = dense_jacobian(problem, h.T.unsqueeze(0)).abs().sum(0)
    for target in (0.0, 0.05, 0.9):
        found = conv.penalty(h, Inputs(x, edge_index, attr, edge_weight=weight), target=target)
        expected = (columns - target).clamp_min(0).square().sum()
        torch.testing.assert_close(found, expected[None])
    assert float(columns.max()) < 0.9
    assert float(found.detach()) == 0.0  # ‖J‖₁ ≤ μ, and only then


def test_penalty_per_graph_and_replica():
    conv = ScarselliConv(3, replicas=2).double()
    edge_index, batch = batch_of((chain(3), 3), (cycle(4), 4))
    x, h = torch.randn(7, 3, **DOUBLE), torch.rand(2, 7, 2, **DOUBLE)
    found = conv.penalty(h, Inputs(x, edge_index, None, batch), target=0.0)
    assert found.shape == (2, 2)
    alone = conv.penalty(h[:, :3], Inputs(x[:3], chain(3)), target=0.0)
    torch.testing.assert_close(found[:, :1], alone)


def test_penalty_differentiates_through_the_solution():
    """d/dθ of the penalty at h*(θ), against central differences."""
    model = ScarselliGNN(3, out_channels=1, solver=Picard(atol=1e-13)).double()
    x, edge_index = torch.randn(5, 3, **DOUBLE), cycle(5)

    def loss():
        return model.penalty(
            model.embed(Inputs(x, edge_index)).value, Inputs(x, edge_index), target=0.0
        ).sum()

    parameters = list(model.conv.parameters())
    grads = torch.autograd.grad(loss(), parameters)
    for p, grad in zip(parameters, grads, strict=True):
        direction = torch.randn_like(p)
        with torch.no_grad():
            p.add_(direction, alpha=1e-5)
            up = loss()
            p.sub_(direction, alpha=2e-5)
            down = loss()
            p.add_(direction, alpha=1e-5)
        numeric = float(up - down) / 2e-5
        assert float((grad * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-8)


def columns(conv, h, x, edge_index):
    """‖J‖₁ at h."""
    problem = conv.problem(Inputs(x, edge_index)).detach()
    return float(problem.columns(h.detach().T.unsqueeze(0)).max())


def test_descending_the_penalty_restores_contraction():
    """From parameters that expand; the penalty alone brings the 1-norm below one."""
    conv = ScarselliConv(3, on_failure="ignore").double()
    with torch.no_grad():
        conv.update_net.weight[0][:, 2:4].mul_(10.0)
        conv.message_net.weight[0][:, :4].mul_(30.0)
    x, edge_index = torch.randn(8, 3, **DOUBLE), circulant(8, 4)
    assert columns(conv, conv(x, edge_index), x, edge_index) > 1.5
    optimiser = torch.optim.Adam(conv.parameters(), lr=0.01)
    for _ in range(100):
        optimiser.zero_grad()
        loss = conv.penalty(conv(x, edge_index), Inputs(x, edge_index)).sum()
        if float(loss.detach()) == 0.0:
            break
        loss.backward()
        optimiser.step()
    found = conv.embed(Inputs(x, edge_index))
    assert bool(found.converged.all())
    assert columns(conv, found.value, x, edge_index) <= 0.9 + 1e-9


def test_asynchronous_updates_return_where_the_diagnosis_says_so():
    """One random node at a time, on inboxes up to five updates old."""
    conv = ScarselliConv(3).double()
    graph = random_graph([10], extra=1.0)
    edge_index, x = torch.stack([graph.src, graph.dst]), torch.randn(10, 3, **DOUBLE)
    solution = conv(x, edge_index).detach()
    assert columns(conv, solution, x, edge_index) < 1.0
    problem = conv.problem(Inputs(x, edge_index)).detach()
    exact = solution.T.unsqueeze(0)
    history = [exact + 0.1 * torch.randn_like(exact)]
    for _ in range(1000):
        node = torch.randint(10, (1,))
        at = graph.star(node)
        past = [history[-1 - min(int(torch.randint(6, ())), len(history) - 1)] for _ in at.edges]
        inbox = torch.stack(
            [p[..., j] for p, j in zip(past, graph.src[at.edges].tolist(), strict=True)], -1
        )
        new = history[-1].clone()
        new[..., node] = problem.update(new[..., node], inbox, at)
        history.append(new)
    torch.testing.assert_close(history[-1], exact, rtol=0, atol=1e-8)


# -- convergence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "widths"), [(1, (4, 4)), (2, (16,)), (4, ()), (4, (4, 4))])
def test_fresh_models_contract_up_to_degree_ten(k, widths):
    """By plain iteration, from the corners of the cube, with ρ < 1 at the solution."""
    conv = ScarselliConv(
        3,
        hidden_channels=k,
        widths=widths,
        message_channels=k,
        replicas=10,
        solver=Picard(max_iter=300),
    ).double()
    graphs = [(circulant(22, d), 22) for d in (2, 5, 10)]
    random = random_graph([60], extra=1.5)
    assert 6 <= int(random.in_degree.max()) <= 10
    edge_index, batch = batch_of(*graphs, (torch.stack([random.src, random.dst]), 60))
    n = batch.numel()
    x = torch.randn(n, 3, **DOUBLE)
    found = conv.embed(Inputs(x, edge_index, None, batch))
    corner = conv.embed(Inputs(x, edge_index, None, batch), h0=torch.randn(n, k, **DOUBLE).sign())
    torch.testing.assert_close(corner.value, found.value, rtol=0, atol=1e-6)
    problem = conv.problem(Inputs(x, edge_index, None, batch)).detach()
    blocks, rows, cols = problem.jacobian(found.value.mT.detach())
    size = torch.zeros(10, k, n, k, n, **DOUBLE)
    size[:, :, rows, :, cols] = blocks.abs().permute(3, 0, 1, 2)
    assert float(torch.linalg.eigvals(size.view(10, k * n, k * n)).abs().max()) < 1.0


def test_nothing_is_proved():
    conv = ScarselliConv(3).double()
    problem = conv.problem(Inputs(torch.randn(4, 3, **DOUBLE), cycle(4)))
    assert conv.kind == Kind.FIXED_POINT
    assert problem.modulus() is None
    assert not problem.monotone


def test_failure_is_reported():
    """A map without a stable fixed point: plain iteration says that it did not converge."""
    conv = ScarselliConv(
        1, hidden_channels=1, message_channels=1, widths=(), solver=Picard(max_iter=200)
    ).double()
    with torch.no_grad():  # h_i = tanh(-5 Σ_j h_j): the two nodes chase each other
        for p in conv.parameters():
            p.zero_()
        conv.message_net.weight[0][:, 1] = -5.0
        conv.update_net.weight[0][:, 0] = 1.0
    x, start = torch.zeros(2, 1, **DOUBLE), torch.tensor([[0.1], [0.1]], **DOUBLE)
    with pytest.raises(ConvergenceError, match="200 iterations"):
        conv(x, chain(2), h0=start)
    conv.on_failure = "ignore"
    found = conv.embed(Inputs(x, chain(2)), h0=start)
    assert not bool(found.converged.any())
    assert columns(conv, torch.zeros(2, 1, **DOUBLE), x, chain(2)) == pytest.approx(5.0)


# -- what is refused ------------------------------------------------------------------------------


def test_bad_input():
    conv, x = ScarselliConv(3, edge_dim=2).double(), torch.randn(4, 3, **DOUBLE)
    attr = torch.randn(8, 2, **DOUBLE)
    h = torch.zeros(4, 2, **DOUBLE)
    for target in (1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="target"):
            conv.penalty(h, Inputs(x, cycle(4), attr), target=target)
    with pytest.raises(FeatureError, match=r"h has shape \(3, 2\)"):
        conv.penalty(h[:3], Inputs(x, cycle(4), attr))


# -- the tanh network ----------------------------------------------------------------------------

SHAPES = [((4, 4, 2), False), ((5, 3), True), ((2,), False), ((2,), True)]


@pytest.mark.parametrize(("channels", "squash"), SHAPES)
@pytest.mark.parametrize("replicas", [None, 3])
def test_networks_layer_by_layer(channels, squash, replicas):
    """Two inputs, the others given as features of nodes read at the edges and of edges."""
    net = TanhMLP(2 + 3 + 1, channels, squash=squash, replicas=replicas).double()
    r = replicas or 1
    nodes, at = torch.randn(1, 3, 4, **DOUBLE), torch.tensor([0, 3, 3, 1, 2, 0, 1])
    attr, y = torch.randn(1, 1, 7, **DOUBLE), torch.randn(r, 2, 7, **DOUBLE)
    applied = net([Slot(nodes, at), Slot(attr)])
    expected = torch.cat([y, nodes[..., at].expand(r, 3, 7), attr.expand(r, 1, 7)], 1)
    for i, (weight, bias) in enumerate(zip(net.weight, net.bias, strict=True)):
        w, b = (weight, bias) if replicas else (weight[None], bias[None])
        expected = w @ expected + b.unsqueeze(-1)
        expected = torch.tanh(expected) if squash or i < len(channels) - 1 else expected
    torch.testing.assert_close(applied(y), expected)
    some = torch.tensor([5, 2])
    picked = walk(applied, lambda x, what: x if what == SHARED else x[..., some], NODES)
    torch.testing.assert_close(picked(y[..., some]), expected[..., some])
    torch.testing.assert_close(applied(y[..., some], applied.given[..., some]), expected[..., some])


def test_product_of_the_weights():
    net = TanhMLP(3, (4, 2), replicas=2).double()
    one, two = net.weight
    torch.testing.assert_close(net.product(torch.positive), two @ one)
    torch.testing.assert_close(net.product(torch.abs), two.abs() @ one.abs())
