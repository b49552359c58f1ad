"""Graph signal denoising against dense linear algebra and PyG's APPNP."""

import pytest
import torch
from helpers import (
    DOUBLE,
    ODD,
    ODD_NODES,
    assemble,
    batch_of,
    chain,
    check_local_energies,
    columns,
    complete,
    cycle,
    edges,
    grid,
    star,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn import APPNP

from hogwild import GSDGNN, Inputs
from hogwild.graph import Graph
from hogwild.models import GSDConv, gsd
from hogwild.models.base import Kind
from hogwild.ops import gather, scatter
from hogwild.solvers import Anderson, LinearSolver, Newton, Picard, solve
from hogwild.testing import check_model
from hogwild.testing.problems import random_graph


def dense_laplacian(edge_index, n, weight=None):
    """I − D̂^(-1/2) (A + I) D̂^(-1/2) of the symmetric part of A, entry by entry."""
    a = torch.zeros(n, n, **DOUBLE)
    weights = [1.0] * edge_index.size(1) if weight is None else weight.tolist()
    for (j, i), w in zip(edge_index.T.tolist(), weights, strict=True):
        a[i, j] += w
    a = (a + a.T) / 2 + torch.eye(n, **DOUBLE)
    root = a.sum(1).rsqrt()
    return torch.eye(n, **DOUBLE) - root[:, None] * a * root


def minimiser(conv, x, edge_index, weight=None):
    """(γI + βL̃)⁻¹ γ g(X)."""
    n = x.size(0)
    matrix = conv.gamma * torch.eye(n, **DOUBLE)
    matrix = matrix + conv.beta * dense_laplacian(edge_index, n, weight)
    return torch.linalg.solve(matrix, conv.gamma * conv.encoder(x))


def conv_of(**options):
    return GSDConv(3, **options).double()


GRAPHS = {
    "chain": (chain(7), 7),
    "star": (star(6), 6),
    "grid": (grid(3, 4), 12),
    "complete": (complete(5), 5),
    "no edges": (edges(), 3),
    "odd": (ODD, ODD_NODES),
}


# -- the answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"hidden_channels": 5, "widths": ()}], ids=["paper", "5"])
def test_conv(options, device):
    check_model(lambda **kw: GSDConv(3, **options, **kw), device=device)


def test_the_papers_sizes():
    model = GSDGNN(3, out_channels=2)
    assert model.kind == Kind.OPTIMISATION
    assert model.conv.encoder.channels == (3, 16, 16, 16, 2)
    assert (model.conv.gamma, model.conv.beta) == (1.0, 5.0)
    assert model.readout.node.channels == (2, 4, 4, 2)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("solver", [Newton(), Newton(linear="cg"), Picard(), Anderson()])
def test_minimiser_is_the_dense_solution(name, solver):
    edge_index, n = GRAPHS[name]
    conv, x = conv_of(solver=solver), torch.randn(n, 3, **DOUBLE)
    weight = torch.rand(edge_index.size(1), **DOUBLE)
    for w in (None, weight):
        found = conv.embed(Inputs(x, edge_index, edge_weight=w))
        torch.testing.assert_close(
            found.value, minimiser(conv, x, edge_index, w), rtol=0, atol=1e-8
        )
        if solver == Newton():  # quadratic: one step, and perhaps one more for rounding
            assert int(found.iterations.max()) <= 2


def test_gradients_are_those_of_the_dense_solution():
    """Parameters, features and weights, through (γI + βL̃)⁻¹ by autograd."""
    conv, x = conv_of(), torch.randn(ODD_NODES, 3, **DOUBLE).requires_grad_()
    weight = torch.rand(ODD.size(1), **DOUBLE).requires_grad_()
    a = torch.zeros(ODD_NODES, ODD_NODES, **DOUBLE).index_put((ODD[1], ODD[0]), weight, True)
    a = (a + a.T) / 2 + torch.eye(ODD_NODES, **DOUBLE)
    root = a.sum(1).rsqrt()
    matrix = 6.0 * torch.eye(ODD_NODES, **DOUBLE) - 5.0 * root[:, None] * a * root
    exact = torch.linalg.solve(matrix, conv.encoder(x))
    h = conv(x, ODD, edge_weight=weight)
    leaves = [x, weight, *conv.parameters()]
    pick = torch.randn_like(h)
    ours = torch.autograd.grad((pick * h).sum(), leaves)
    theirs = torch.autograd.grad((pick * exact).sum(), leaves)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_graph(data):
    """Directed or not, with self-loops, multi-edges and weights: the dense solution, in one step,
    with every eigenvalue of the Hessian between 2γ and the bound."""
    n = data.draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=20))
    weight = data.draw(
        st.lists(st.floats(0, 100), min_size=len(pairs), max_size=len(pairs)).map(
            lambda w: torch.tensor(w, **DOUBLE)
        )
    )
    gamma, beta = data.draw(st.floats(0.1, 10)), data.draw(st.floats(0, 10))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    edge_index, x = edges(*pairs), torch.randn(n, 3, **DOUBLE)
    conv = conv_of(gamma=gamma, beta=beta, widths=(4,))
    found = conv.embed(Inputs(x, edge_index, edge_weight=weight))
    exact = minimiser(conv, x, edge_index, weight)
    torch.testing.assert_close(found.value, exact, rtol=1e-9, atol=1e-8)
    assert int(found.iterations) <= 2
    problem = conv.problem(Inputs(x, edge_index, edge_weight=weight)).detach()
    hessian = columns(problem.evaluate(problem.target).hessian().apply, problem.target)
    least, *_, most = torch.linalg.eigvalsh(hessian[0]).tolist()
    assert least >= 2 * gamma * (1 - 1e-9)
    assert most <= float(problem.lipschitz()) * (1 + 1e-9)


# -- APPNP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain", "star", "grid", "complete"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("gamma", "beta"), [(1.0, 5.0), (2.0, 0.5)])
def test_gradient_steps_are_appnp(name, weighted, gamma, beta):
    """From h = g(x) with step 1/2(γ+β), iterate by iterate; teleport γ/(γ+β), 1/6 in the paper."""
    edge_index, n = GRAPHS[name]
    conv, x = conv_of(gamma=gamma, beta=beta), torch.randn(n, 3, **DOUBLE)
    weight = None
    if weighted:  # symmetric: PyG's normalisation is for undirected graphs
        weight = torch.rand(n, n, **DOUBLE)
        weight = (weight + weight.T)[edge_index[0], edge_index[1]]
    with torch.no_grad():
        problem = conv.problem(Inputs(x, edge_index, edge_weight=weight))
        h = stepped = problem.target
        for count in range(1, 11):
            stepped = problem.step(stepped)
            h = h - problem.evaluate(h).gradient / (2 * (gamma + beta))
            appnp = APPNP(count, gamma / (gamma + beta))
            expected = appnp(conv.encoder(x), edge_index, weight)
            torch.testing.assert_close(h[0].T, expected, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(stepped[0].T, expected, rtol=1e-12, atol=1e-13)


def test_the_step_contracts_in_the_weighted_maximum_norm():
    """By β/(γ+β) with weights √d, and the bound is attained."""
    graph = random_graph([9], seed=1)
    problem = (
        conv_of()
        .problem(Inputs(torch.randn(9, 3, **DOUBLE), torch.stack([graph.src, graph.dst])))
        .detach()
    )
    top = 1.0 / problem.root
    for h in (top.expand(1, 2, 9), torch.randn(1, 2, 9, **DOUBLE)):
        moved = problem.step(h) - problem.step(torch.zeros_like(h))
        ratio = float((moved * problem.root).abs().max() / (h * problem.root).abs().max())
        assert ratio <= 5 / 6 + 1e-12
    moved = problem.step(top.expand(1, 2, 9)) - problem.step(torch.zeros(1, 2, 9, **DOUBLE))
    torch.testing.assert_close(moved, (5 / 6) * top.expand(1, 2, 9))


# -- the problem ----------------------------------------------------------------------------------


def problem_on(edge_index, n, batch=None, **options):
    weight = torch.rand(edge_index.size(1), **DOUBLE)
    x = torch.randn(n, 3, **DOUBLE)
    return (
        conv_of(**options).problem(Inputs(x, edge_index, None, batch, edge_weight=weight)).detach()
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_energy_and_derivatives(name):
    """The value is the energy of the dense Laplacian; gradient and Hessian are its derivatives."""
    problem = problem_on(*GRAPHS[name], replicas=2)
    graph, n = problem.graph, problem.graph.num_nodes
    laplacian = dense_laplacian(torch.stack([graph.src, graph.dst]), n, problem.weight)
    h = torch.randn(2, 2, n, **DOUBLE).requires_grad_()
    fit = (h - problem.target).square().sum((1, 2))
    energy = fit + 5.0 * torch.einsum("rki,ij,rkj->r", h, laplacian, h)
    at = problem.evaluate(h.detach())
    torch.testing.assert_close(at.value[:, 0], energy)
    (gradient,) = torch.autograd.grad(energy.sum(), h)
    torch.testing.assert_close(at.gradient, gradient)
    hessian = columns(at.hessian().apply, h.detach())
    eye = torch.eye(2, **DOUBLE)
    full = torch.kron(eye, 2.0 * torch.eye(n, **DOUBLE) + 10.0 * laplacian)
    torch.testing.assert_close(hessian, full.expand_as(hessian))
    torch.testing.assert_close(assemble(graph, *at.hessian().blocks()), hessian)
    image = problem.step(h.detach())
    torch.testing.assert_close(
        problem.distance(h.detach(), image), graph.norm(problem.residual(h.detach()))
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_local_energies(name):
    """The docstring's eⁱ."""
    problem = problem_on(*GRAPHS[name], replicas=2)
    graph, root = problem.graph, problem.root

    def energies(h, inbox):
        gap = root[graph.dst] * h[..., graph.dst] - root[graph.src] * inbox
        along = 2.5 * problem.weight * gap.square().sum(1)
        return (h - problem.target).square().sum(1) + scatter(along, graph.dst, graph.num_nodes)

    h, *_ = check_local_energies(problem, energies)
    own, toward = problem.node.local(h, gather(h, graph.src), graph.everyone)
    total = own + scatter(toward, graph.src, graph.num_nodes)
    torch.testing.assert_close(total, problem.evaluate(h).gradient)


def test_lipschitz_is_tight_and_per_graph():
    """Exact on regular bipartite graphs and without edges, valid on others, at most 2γ + 4β."""
    graphs = [(edges(), 1), (chain(2), 2), (cycle(6), 6), (complete(5), 5), (star(9), 9)]
    edge_index, batch = batch_of(*graphs)
    x = torch.randn(batch.numel(), 3, **DOUBLE)
    problem = conv_of(replicas=2).problem(Inputs(x, edge_index, None, batch)).detach()
    bound = problem.lipschitz()
    assert bound.shape == (2, 5)
    top = [2.0 + 10.0 * float(torch.linalg.eigvalsh(dense_laplacian(e, n))[-1]) for e, n in graphs]
    torch.testing.assert_close(bound[0, :3], torch.tensor(top[:3], **DOUBLE))
    assert bool((bound[0] >= torch.tensor(top, **DOUBLE) - 1e-12).all())
    assert float(bound.max()) < 2.0 + 20.0
    found = solve(problem, Picard(max_iter=100_000), torch.zeros_like(problem.target))
    assert bool(found.converged.all())


def test_a_selected_piece_has_the_degrees_of_the_whole_graph():
    problem = problem_on(star(5), 5, None, replicas=3)
    piece = problem.gathered(Graph.of(star(3), 3), torch.arange(3), torch.arange(4))
    h = torch.randn(3, 2, 3, **DOUBLE)
    sub, _ = piece.select(torch.tensor([2, 0]), torch.tensor([0]))
    torch.testing.assert_close(sub.residual(h[[2, 0]]), piece.residual(h)[[2, 0]])


def test_a_self_loop_counts_beside_the_added_one():
    conv, x = conv_of(), torch.randn(3, 3, **DOUBLE)
    loop = torch.cat([chain(3), edges((1, 1))], 1)
    exact = minimiser(conv, x, loop)
    torch.testing.assert_close(conv(x, loop), exact)
    assert float((exact - conv(x, chain(3))).detach().abs().max()) > 1e-3
    torch.testing.assert_close(conv(x, edges()), conv.encoder(x))


def test_by_conjugate_gradients_where_factors_would_fill_in():
    graph = random_graph([500], extra=6.0)
    edge_index = torch.stack([graph.src, graph.dst])
    conv, x = conv_of(), torch.randn(500, 3, **DOUBLE)
    assert not LinearSolver().is_direct(conv.problem(Inputs(x, edge_index)))
    found = conv.embed(Inputs(x, edge_index))
    torch.testing.assert_close(found.value, minimiser(conv, x, edge_index), rtol=0, atol=1e-8)


def test_analysis_is_kept_on_the_graph():
    """The pairs of nodes are found once, and serve training after evaluation."""
    conv, x, edge_index = conv_of(), torch.randn(5, 3, **DOUBLE), cycle(5)
    with torch.inference_mode():
        conv(x, edge_index)
    links = gsd._links(Graph.of(edge_index, 5))
    conv(x, edge_index).sum().backward()
    assert gsd._links(Graph.of(edge_index, 5)) is links
