"""EIGNN: the closed form, the iteration and a dense solve are one and the same."""

import pytest
import torch
from adjacencies import OnWeights
from helpers import DOUBLE, batch_of, chain, complete, cycle, edges, star
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import EIGNN, Inputs
from hogwild.errors import FeatureError, GraphError
from hogwild.models import EIGNNConv
from hogwild.ops import gather
from hogwild.problems import FixedPoint
from hogwild.solvers import Anderson, Picard, SemismoothNewton
from hogwild.testing import check_model, random_graph

NAN = float("nan")
TIGHT = Picard(atol=1e-12)
VARIANTS = {
    "closed": {},
    "closed, no encoder": {"hidden_channels": 3},
    "iterate": {"method": "iterate", "solver": TIGHT},
    "iterate, no encoder": {"method": "iterate", "hidden_channels": 3, "solver": TIGHT},
    "anderson": {"method": "iterate", "solver": Anderson(atol=1e-11), "hidden_channels": 5},
    "newton": {"method": "iterate", "solver": SemismoothNewton(), "gamma": 0.99},
}


class Weighted(OnWeights):
    """A model on symmetric edge weights that are a function of the features."""

    def weigh(self, sender, receiver):
        return torch.sigmoid(sender * receiver).sum(-1)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_conv(options, device):
    check_model(lambda **kw: EIGNNConv(3, **options, **kw), device=device)


@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_gnn(pool, num_layers, device):
    check_model(
        lambda **kw: EIGNN(3, out_channels=2, pool=pool, num_layers=num_layers, **kw), device=device
    )


@pytest.mark.parametrize("method", ["closed", "iterate"])
def test_edge_weights(method, device):
    solver = None if method == "closed" else TIGHT
    check_model(
        lambda **kw: Weighted(EIGNNConv(3, method=method, solver=solver, **kw)), device=device
    )


# -- one fixed point, three ways ------------------------------------------------------------------


def pose(sizes, seed=0, **options):
    torch.manual_seed(seed)
    graph = random_graph(sizes, seed=seed)
    conv = EIGNNConv(3, **options).double()
    x = torch.randn(graph.num_nodes, 3, **DOUBLE)
    return conv, graph, (x, torch.stack([graph.src, graph.dst]), None, graph.batch)


def dense(conv, x, edge_index, weight=None):
    """vec Z = (I − S ⊗ γ g(F))⁻¹ vec f(X) of one graph, from the formulas as printed."""
    n, k = len(x), conv.hidden_channels
    a = torch.eye(n, **DOUBLE)
    ones = torch.ones(edge_index.size(1), **DOUBLE) if weight is None else weight
    a = a.index_put((edge_index[1], edge_index[0]), ones, accumulate=True)
    degree = a.sum(1)
    s = a / (degree[:, None] * degree).sqrt()
    square = conv.weight.T @ conv.weight
    g = square / (square.square().sum().sqrt() + 1e-12)
    f = x if conv.encoder is None else x @ conv.encoder.weight[0].T + conv.encoder.bias[0]
    system = torch.eye(n * k, **DOUBLE) - conv.gamma * torch.kron(s, g)
    return torch.linalg.solve(system, f.reshape(-1)).view(n, k)


@pytest.mark.parametrize("gamma", [0.3, 0.8, 0.99])
@pytest.mark.parametrize("channels", [2, 3])
def test_closed_equals_iterated(gamma, channels):
    """To 1e-9, with the same gradients."""
    conv, _, inputs = pose([1, 2, 9, 9, 30], gamma=gamma, hidden_channels=channels)
    other = EIGNNConv(
        3,
        hidden_channels=channels,
        gamma=gamma,
        method="iterate",
        solver=Picard(atol=1e-13, max_iter=100_000),
    ).double()
    other.load_state_dict(conv.state_dict())
    one, two = conv(*inputs), other(*inputs)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    grads = [
        torch.autograd.grad(h.square().sum(), list(c.parameters()))
        for c, h in ((conv, one), (other, two))
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("edge_index", [complete(5), star(6), cycle(6), chain(1)], ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_equals_a_dense_solve_with_its_gradient(edge_index, special):
    """Also where S, and g(F) for F = I, have multiple eigenvalues."""
    n = max(int(edge_index.max()) + 1, 1) if edge_index.numel() else 1
    torch.manual_seed(0)
    conv = EIGNNConv(3).double()
    if special:
        with torch.no_grad():
            conv.weight.copy_(torch.eye(2))
    x = torch.randn(n, 3, **DOUBLE, requires_grad=True)
    half = torch.rand(n, n, **DOUBLE)
    weight = (half + half.T)[edge_index[0], edge_index[1]].requires_grad_()
    coefficient = torch.randn(n, 2, **DOUBLE)
    leaves = [*conv.parameters(), x]
    for w in (None, weight):
        got, expected = conv(x, edge_index, edge_weight=w), dense(conv, x, edge_index, w)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        wanted = leaves if w is None else [*leaves, w]
        one = torch.autograd.grad((coefficient * got).sum(), wanted)
        two = torch.autograd.grad((coefficient * expected).sum(), wanted)
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_closed_form_takes_one_step_and_no_iteration():
    conv, _, inputs = pose([3, 5, 5, 40])
    found = conv.embed(Inputs(*inputs))
    assert found.iterations.tolist() == [1] * 4
    assert float(found.residual.max()) < 1e-13
    kept = conv.problem(Inputs(*inputs)).spectrum
    conv.embed(Inputs(*inputs))
    assert conv.problem(Inputs(*inputs)).spectrum is kept
    assert [tuple(q.shape) for *_, q in kept.groups] == [(1, 3, 3), (2, 5, 5), (1, 40, 40)]


def test_some_graphs_of_a_closed_problem():
    conv, _, inputs = pose([3, 6, 4], replicas=2)
    whole = conv(*inputs)
    sub, nodes = (
        conv.problem(Inputs(*inputs)).detach().select(torch.tensor([1]), torch.tensor([0, 2]))
    )
    tangent = sub.linearise(torch.zeros_like(sub.bias))
    torch.testing.assert_close(tangent.inverse(sub.bias, False), whole[1:, nodes].mT)


# -- contraction ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), gamma=st.floats(0.01, 0.99))
@settings(max_examples=15, deadline=None)
def test_modulus_is_at_most_gamma_and_bounds_the_blocks(seed, gamma):
    """The spectral radius of the matrix of block norms, which is what asynchrony needs."""
    conv, _, inputs = pose([1, 6], seed, gamma=gamma, hidden_channels=3, method="iterate")
    problem = conv.problem(Inputs(*inputs)).detach()
    modulus = problem.modulus()
    assert float(modulus.max()) <= gamma * (1 + 1e-9)
    h = torch.randn(1, 3, 7, **DOUBLE)
    jacobian = torch.autograd.functional.jacobian(problem.step, h).view(3, 7, 3, 7)
    norms = torch.linalg.matrix_norm(jacobian.permute(1, 3, 0, 2), ord=2)
    assert float(torch.linalg.eigvals(norms).abs().max()) <= float(modulus.max()) * (1 + 1e-9)


def test_update_of_some_nodes_equals_the_step():
    conv, graph, inputs = pose([1, 4, 9], replicas=2)
    problem = conv.problem(Inputs(*inputs)).detach()
    h = torch.randn(2, 2, 14, **DOUBLE)
    nodes = torch.tensor([13, 0, 3])
    at = graph.star(nodes)
    some = problem.node.update(h[..., nodes], gather(h, graph.src)[..., at.edges], at)
    torch.testing.assert_close(some, problem.step(h)[..., nodes])
    slow = FixedPoint.pullback(problem, h, h)
    torch.testing.assert_close(problem.pullback(h, h), slow)


# -- bad input ------------------------------------------------------------------------------------


def test_closed_form_refuses_what_is_not_symmetric():
    parts = [(chain(3), 3), (edges((0, 1), (1, 2), (2, 1)), 3)]
    edge_index, batch = batch_of(*parts)
    x = torch.randn(6, 3, **DOUBLE)
    with pytest.raises(GraphError) as caught:
        EIGNNConv(3).double()(x, edge_index, None, batch)
    for word in ("graph 1", "nodes 1 and 0", "to_undirected", "method='iterate'"):
        assert word in str(caught.value)
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0], **DOUBLE)
    with pytest.raises(GraphError, match="not symmetric"):
        EIGNNConv(3).double()(x[:3], chain(3), edge_weight=weight)
    found = EIGNNConv(3, method="iterate").double().embed(Inputs(x, edge_index, None, batch))
    assert bool(found.converged.all())


def test_closed_form_refuses_large_graphs():
    with pytest.raises(GraphError, match=r"graph 0 has 5001 nodes.*method='iterate'"):
        EIGNNConv(1).double()(torch.zeros(5001, 1, **DOUBLE), chain(5001))
    found = EIGNNConv(1, method="iterate").double()(torch.zeros(5001, 1, **DOUBLE), chain(5001))
    assert found.shape == (5001, 2)


def test_edge_features_are_refused():
    with pytest.raises(FeatureError, match="EIGNNConv"):
        EIGNNConv(3).double()(torch.zeros(4, 3, **DOUBLE), cycle(4), torch.ones(8, 1, **DOUBLE))
