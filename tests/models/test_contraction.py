"""IGNN and EIGNN: conformance, references that share no code with them, and what keeps them
contractions."""

import numpy as np
import pytest
import torch
from adjacencies import GRAPHS, OnWeights, dense, radius
from helpers import DOUBLE, bare, chain, complete, cycle, edges, star
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import root

from hogwild import IGNN, Inputs
from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.linalg import direct
from hogwild.models import EIGNNConv, IGNNConv
from hogwild.models.contraction import adjacency
from hogwild.nn import Nonexpansive, leaky_relu
from hogwild.problems import FixedPoint
from hogwild.solvers import Anderson, Picard, SemismoothNewton
from hogwild.testing import check_model, random_graph

NAN = float("nan")
TIGHT = SemismoothNewton(atol=1e-12)


class Weighted(OnWeights):
    """A model on edge weights that are a function of the features at both ends."""

    def weigh(self, sender, receiver):
        return 0.5 + torch.sigmoid(sender[:, 0] + sender[:, 1] * receiver[:, 2])


# -- conformance ----------------------------------------------------------------------------------

VARIANTS = {
    "relu": (IGNNConv, {}),
    "leaky": (IGNNConv, {"act": leaky_relu(0.3)}),
    "tanh": (IGNNConv, {"act": "tanh"}),
    "identity": (IGNNConv, {"act": "identity"}),
    "wide": (IGNNConv, {"hidden_channels": 5, "widths": (4,)}),
    "affine encoder": (IGNNConv, {"widths": ()}),
    "small kappa": (IGNNConv, {"kappa": 0.3}),
    "picard": (IGNNConv, {"solver": Picard(atol=1e-11)}),
    "anderson": (IGNNConv, {"solver": Anderson(atol=1e-11)}),
    "direct": (IGNNConv, {"solver": SemismoothNewton(atol=1e-11, linear="direct")}),
    "krylov": (IGNNConv, {"solver": SemismoothNewton(atol=1e-11, linear="cg")}),
    "eignn": (EIGNNConv, {"gamma": 0.99}),
    "eignn, no encoder": (EIGNNConv, {"hidden_channels": 3}),
    "eignn, picard": (EIGNNConv, {"solver": Picard(atol=1e-12)}),
}


@pytest.mark.parametrize(("conv", "options"), VARIANTS.values(), ids=VARIANTS)
def test_conv(conv, options, device):
    check_model(lambda **kw: conv(3, **options, **kw), device=device)


@pytest.mark.parametrize("conv", [IGNNConv, EIGNNConv])
def test_edge_weights(conv, device):
    """Gradients reach the features through the weights and degrees, too."""
    check_model(lambda **kw: Weighted(conv(3, solver=TIGHT, **kw)), device=device)


# -- references that share no code ----------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_identity_equals_a_linear_solve(name):
    """vec H = (I − Ã ⊗ W)⁻¹ vec g(X), its gradient being that of the dense solve."""
    edge_index, n = GRAPHS[name]
    conv = IGNNConv(3, hidden_channels=3, act="identity").double()
    x = torch.randn(n, 3, **DOUBLE)
    a = torch.from_numpy(dense(edge_index, n))
    system = torch.eye(3 * n, **DOUBLE) - torch.kron(a, conv.matrix)
    expected = torch.linalg.solve(system, conv.encoder(x).reshape(-1)).view(n, 3)
    got = conv(x, edge_index)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    coefficient = torch.randn(n, 3, **DOUBLE)
    grads = [
        torch.autograd.grad((coefficient * h).sum(), list(conv.parameters()))
        for h in (got, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("act", ["relu", "tanh"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_scipy(act, weighted):
    """SciPy's root finder on H = φ(W H Ã + g(X)), written in NumPy."""
    edge_index, n = chain(6), 6
    conv = IGNNConv(3, hidden_channels=2, act=act).double()
    x = torch.randn(n, 3, **DOUBLE)
    weight = 0.1 + 2.0 * torch.rand(edge_index.size(1), **DOUBLE) if weighted else None
    a = dense(edge_index, n, weight)
    w, g = conv.matrix.detach().numpy(), conv.encoder(x).detach().numpy()
    phi = {"relu": lambda z: np.maximum(z, 0.0), "tanh": np.tanh}[act]

    def gap(flat):
        h = flat.reshape(n, 2)
        return (phi(a @ h @ w.T + g) - h).reshape(-1)

    found = root(gap, np.zeros(2 * n), method="hybr", tol=1e-13)
    assert np.abs(found.fun).max() < 1e-10
    got = conv(x, edge_index, edge_weight=weight)
    expected = torch.from_numpy(found.x.reshape(n, 2))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    assert float(expected.abs().max()) > 0.1


@pytest.mark.parametrize("edge_index", [complete(5), star(6), cycle(6), chain(1)], ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_eignn_equals_a_dense_solve_with_its_gradient(edge_index, special):
    """vec Z = (I − S ⊗ γ g(F))⁻¹ vec f(X), as printed, also where g(F) has multiple eigenvalues."""
    n = max(int(edge_index.max()) + 1, 1) if edge_index.numel() else 1
    conv = EIGNNConv(3, solver=TIGHT).double()
    if special:
        with torch.no_grad():
            conv.weight.copy_(torch.eye(2))
    x = torch.randn(n, 3, **DOUBLE, requires_grad=True)
    weight = torch.rand(edge_index.size(1), **DOUBLE, requires_grad=True)
    coefficient = torch.randn(n, 2, **DOUBLE)
    a = torch.eye(n, **DOUBLE).index_put((edge_index[1], edge_index[0]), weight, accumulate=True)
    degree = a.sum(1)
    s = a / (degree[:, None] * degree).sqrt()
    square = conv.weight.T @ conv.weight
    g = square / (square.square().sum().sqrt() + 1e-12)
    f = conv.encoder(x)
    system = torch.eye(2 * n, **DOUBLE) - conv.gamma * torch.kron(s, g)
    expected = torch.linalg.solve(system, f.reshape(-1)).view(n, 2)
    got = conv(x, edge_index, edge_weight=weight)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    leaves = [*conv.parameters(), x, weight]
    one = torch.autograd.grad((coefficient * got).sum(), leaves)
    two = torch.autograd.grad((coefficient * expected).sum(), leaves)
    torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-9)


# -- the adjacency --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["chain", "star", "odd cycle", "directed"])
def test_perron_eigenvalue_is_one(name, weighted):
    """λ_pf(Ã) = 1, also on directed and weighted graphs, with a positive certificate."""
    edge_index, n = GRAPHS[name]
    graph = Graph.of(edge_index, n)
    weight = 0.1 + 2.0 * torch.rand(edge_index.size(1), **DOUBLE) if weighted else None
    a = adjacency(graph, weight, torch.float64)
    matrix = a.apply(torch.eye(n, **DOUBLE), graph).T.numpy()
    np.testing.assert_allclose(matrix, dense(edge_index, n, weight), rtol=1e-9)
    assert radius(matrix) == pytest.approx(1.0, abs=1e-9)
    assert float(a.perron.min()) > 0.0
    assert float(a.growth(graph)) == pytest.approx(1.0, abs=1e-9)


def test_gradient_of_the_adjacency():
    edge_index, n = GRAPHS["directed"]
    graph = Graph.of(edge_index, n)
    weight = (0.2 + torch.rand(edge_index.size(1), **DOUBLE)).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: adjacency(graph, w, torch.float64).edge, weight)


# -- contraction by construction ------------------------------------------------------------------

FINITE = st.floats(-1e300, 1e300, allow_nan=False)


@given(st.integers(1, 4), st.data(), st.floats(1e-3, 0.999))
@settings(max_examples=60, deadline=None)
def test_parametrised_norm_is_below_kappa(k, data, kappa):
    """For any raw parameters whatsoever."""
    raw = data.draw(st.lists(FINITE, min_size=k * k, max_size=k * k))
    conv = IGNNConv(1, hidden_channels=k, kappa=kappa, widths=()).double()
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(raw, **DOUBLE).view(k, k))
    norm = float(conv.matrix.detach().abs().sum(-1).max())
    assert norm <= kappa * (1 + 1e-14)


def test_parametrised_matrix_fills_the_ball():
    """Short rows are kept, long ones reach the sphere."""
    conv = IGNNConv(1, hidden_channels=2, kappa=0.9, widths=()).double()
    for size, expected in ((1e-3, 0.9e-3), (1e3, 0.9)):
        with torch.no_grad():
            conv.weight.fill_(size / 2)
        assert float(conv.matrix.detach().sum(-1)[0]) == pytest.approx(expected, rel=1e-9)


def posed(seed, *, replicas=2, sizes=(1, 4, 7), **options):
    """A problem with random embeddings to look at it from."""
    torch.manual_seed(seed)
    graph = random_graph(list(sizes), seed=seed)
    conv = IGNNConv(3, replicas=replicas, **options).double()
    with torch.no_grad():
        conv.weight.mul_(4.0)
    x = torch.randn(graph.num_nodes, 3, **DOUBLE)
    weight = 0.1 + torch.rand(graph.num_edges, **DOUBLE)
    edge_index = torch.stack([graph.src, graph.dst])
    problem = conv.problem(Inputs(x, edge_index, None, graph.batch, edge_weight=weight)).detach()
    return conv, problem, torch.randn(replicas, conv.hidden_channels, graph.num_nodes, **DOUBLE)


@pytest.mark.parametrize("act", ["relu", "tanh", "identity"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_modulus_bounds_the_jacobian(act, seed):
    """ρ(|J|) ≤ modulus ≤ κ on every replica and graph."""
    conv, problem, h = posed(seed, act=act, hidden_channels=3)
    modulus = problem.modulus()
    assert modulus.shape == (2, 3)
    assert float(modulus.max()) <= conv.kappa * (1 + 1e-9)
    for r in range(2):
        for g in range(3):
            sub, nodes = problem.select(torch.tensor([r]), torch.tensor([g]))
            at = h[r : r + 1][..., nodes]
            jacobian = torch.autograd.functional.jacobian(sub.step, at)
            size = at.numel()
            dense = jacobian.view(size, size).abs().numpy()
            assert radius(dense) <= float(modulus[r, g]) * (1 + 1e-9)
            torch.testing.assert_close(sub.modulus()[0, 0], modulus[r, g])


@given(seed=st.integers(0, 10**6), gamma=st.floats(0.01, 0.99))
@settings(max_examples=15, deadline=None)
def test_modulus_of_eignn_bounds_the_blocks(seed, gamma):
    """The spectral radius of the matrix of block norms, which is what asynchrony needs."""
    torch.manual_seed(seed)
    graph = random_graph([1, 6], seed=seed)
    inputs = Inputs(torch.randn(7, 3, **DOUBLE), graph.ends.view(2, -1).flip(0), None, graph.batch)
    conv = EIGNNConv(3, gamma=gamma, hidden_channels=3).double()
    problem = conv.problem(inputs).detach()
    modulus = problem.modulus()
    assert float(modulus.max()) <= gamma * (1 + 1e-9)
    h = torch.randn(1, 3, 7, **DOUBLE)
    jacobian = torch.autograd.functional.jacobian(problem.step, h).view(3, 7, 3, 7)
    norms = torch.linalg.matrix_norm(jacobian.permute(1, 3, 0, 2), ord=2).numpy()
    assert radius(norms) <= float(modulus.max()) * (1 + 1e-9)


def test_modulus_is_attained():
    """With W = κ I and no activation the bound is the spectral radius."""
    _, problem, h = posed(0, act="identity", replicas=1, sizes=(6,))
    problem.weight.copy_(0.95 * torch.eye(2, **DOUBLE))
    jacobian = torch.autograd.functional.jacobian(problem.step, h).view(12, 12).abs().numpy()
    assert radius(jacobian) == pytest.approx(0.95, rel=1e-9)
    assert float(problem.modulus()) == pytest.approx(0.95, rel=1e-9)


def test_asynchronous_updates_converge_at_the_modulus():
    """Random nodes, each hearing values up to four ticks old, contract as the theorem says."""
    _, problem, _ = posed(3, replicas=1, sizes=(12,))
    graph, weight = problem.graph, problem.adjacency.perron
    answer = problem.step(torch.zeros(1, 2, 12, **DOUBLE))
    for _ in range(2000):
        answer = problem.step(answer)
    rng = torch.Generator().manual_seed(0)
    history = [torch.randn(1, 2, 12, generator=rng, **DOUBLE)] * 5

    def distance(h):
        return float(((h - answer).abs().amax(1) / weight).max())

    start, modulus = distance(history[0]), float(problem.modulus())
    rounds, waiting = 0, set(range(12))
    for tick in range(3000):
        nodes = torch.randperm(12, generator=rng)[:3]
        at = graph.star(nodes)
        past = torch.stack(history[-5:])[torch.randint(5, (graph.num_edges,), generator=rng)]
        heard = past[torch.arange(graph.num_edges), :, :, graph.src].permute(1, 2, 0)
        new = history[-1].clone()
        new[..., nodes] = problem.node.update(new[..., nodes], heard[..., at.edges], at)
        history.append(new)
        waiting -= set(nodes.tolist())
        if not waiting:  # everyone has updated, and what it heard is at most four ticks older
            rounds, waiting = rounds + 1, set(range(12))
        assert distance(new) <= start * modulus ** (rounds // 2) * (1 + 1e-9) + 1e-12, tick
    assert distance(history[-1]) < 1e-9


# -- the problem ----------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "tanh", "identity"])
def test_pullback_equals_autograd(act):
    _, problem, h = posed(6, act=act)
    v = torch.randn_like(h)
    slow = FixedPoint.pullback(problem, h, v)
    torch.testing.assert_close(problem.pullback(h, v), slow)


def test_problem_of_a_model():
    model = IGNN(3, out_channels=1).double()
    x = torch.randn(4, 3, **DOUBLE)
    assert float(model.problem(Inputs(x, cycle(4))).modulus().detach().max()) < 0.95
    model.require_asynchronous(bare(edges((0, 1)), 2))  # nothing travels against the edges
    stack = IGNN(3, out_channels=1, num_layers=2).double().problem(Inputs(x, cycle(4)))
    assert stack.widths == [2, 2]
    assert all(float(level.modulus().max()) < 0.95 for level in stack.problems())


def test_adjoint_reuses_the_last_factor(monkeypatch):
    """One factorisation a training step where no activation changes after the first Newton step."""
    calls, factor = [], direct.factor
    monkeypatch.setattr(direct, "factor", lambda *a: calls.append(1) or factor(*a))
    conv = IGNNConv(3, act="identity").double()
    found = conv.embed(Inputs(torch.randn(30, 3, **DOUBLE), chain(30)))
    found.value.sum().backward()
    assert int(found.iterations) == len(calls) == 1


# -- bad input ------------------------------------------------------------------------------------


def test_expansive_activations_are_refused():
    with pytest.raises(ConfigError, match=r"'twice' has slope 2"):
        Nonexpansive("twice", lambda a: 2.0 * a)
    with pytest.raises(ConfigError, match=r"slope 1\.5"):
        leaky_relu(-1.5)
    with pytest.raises(ConfigError, match="nonexpansive"):
        leaky_relu(NAN)
    with pytest.raises(ConfigError, match="num_layers=0"):
        IGNN(3, out_channels=1, num_layers=0)
