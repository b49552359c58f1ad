"""Adjacencies, scaled: λ_pf = 1, graph by graph, and differentiable."""

import numpy as np
import pytest
import torch
from adjacencies import GRAPHS, dense, radius
from helpers import DOUBLE, batch_of, chain, complete, cycle, edges, star

from hogwild.errors import UnsupportedError
from hogwild.graph import Graph
from hogwild.models.adjacency import adjacency


def matrix_of(adjacency, graph):
    """The dense Ã, column by column."""
    return adjacency.apply(torch.eye(graph.num_nodes, **DOUBLE), graph).T.numpy()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["chain", "star", "odd cycle", "directed"])
def test_perron_eigenvalue_is_one(name, weighted, normalize):
    """λ_pf(Ã) = 1, also on directed and weighted graphs, with a positive certificate."""
    edge_index, n = GRAPHS[name]
    graph = Graph.of(edge_index, n)
    weight = 0.1 + 2.0 * torch.rand(edge_index.size(1), **DOUBLE) if weighted else None
    a = adjacency(graph, weight, torch.float64, normalize=normalize)
    np.testing.assert_allclose(
        matrix_of(a, graph), dense(edge_index, n, weight, normalize=normalize), rtol=1e-9
    )
    assert radius(matrix_of(a, graph)) == pytest.approx(1.0, abs=1e-9)
    assert float(a.perron.min()) > 0.0
    assert float(a.growth(graph)) == pytest.approx(1.0, abs=1e-9)


def test_the_largest_eigenvalue_has_no_second_derivative():
    """Never a silent zero: its eigenvectors are constants of the gradient."""
    edge_index, n = GRAPHS["odd cycle"]
    weight = (0.5 + torch.rand(edge_index.size(1), **DOUBLE)).requires_grad_()
    a = adjacency(Graph.of(edge_index, n), weight, torch.float64, normalize=False)
    (slope,) = torch.autograd.grad(a.edge[0], weight, create_graph=True)
    with pytest.raises(UnsupportedError, match="normalize=True"):
        torch.autograd.grad(slope.sum(), weight)


@pytest.mark.parametrize("normalize", [True, False])
def test_scaling_does_not_depend_on_the_batch(normalize):
    parts = [(star(9), 9), (chain(3), 3), (edges(), 1), (complete(5), 5), (chain(30), 30)]
    edge_index, batch = batch_of(*parts)
    whole = adjacency(Graph.of(edge_index, 48, batch), None, torch.float64, normalize=normalize)
    start = 0
    for own, n in parts:
        alone = adjacency(Graph.of(own, n), None, torch.float64, normalize=normalize)
        end = start + own.size(1)
        torch.testing.assert_close(alone.edge, whole.edge[start:end], rtol=1e-14, atol=0)
        start = end


def test_scaled_graphs_without_cycles():
    """λ_pf = 0: scaled by the largest weight. Without edges: nothing to scale."""
    graph = Graph.of(edges((0, 1), (1, 2)), 3)
    a = adjacency(graph, torch.tensor([0.5, 2.0], **DOUBLE), torch.float64, normalize=False)
    assert a.edge.tolist() == [0.25, 1.0]
    assert float(a.growth(graph)) <= 1.0
    lonely = Graph.of(edges(), 2)
    assert float(adjacency(lonely, None, torch.float64, normalize=False).growth(lonely)) == 0.0


def test_disconnected_graph_is_bounded_by_its_largest_part():
    graph = Graph.of(torch.cat([star(10), complete(5) + 10], 1), 16)  # λ = 3 and 4
    a = adjacency(graph, None, torch.float64, normalize=False)
    assert float(a.edge[0]) == pytest.approx(0.25, rel=1e-10)
    assert float(a.growth(graph)) <= 1.0 + 1e-10


@pytest.mark.parametrize("normalize", [True, False])
def test_gradient_of_the_adjacency(normalize):
    edge_index, n = GRAPHS["directed"]
    graph = Graph.of(edge_index, n)
    weight = (0.2 + torch.rand(edge_index.size(1), **DOUBLE)).requires_grad_()

    def entries(w):
        return adjacency(graph, w, torch.float64, normalize=normalize).edge

    assert torch.autograd.gradcheck(entries, weight, rtol=1e-5)


PARTS = {
    "isolated node": [(complete(4), 5)],
    "smaller part": [(torch.cat([complete(5), star(4) + 5], 1), 10)],
    "smaller part first": [(torch.cat([star(4), complete(5) + 5], 1), 10)],
    "several graphs": [
        (torch.cat([chain(3), complete(4) + 3], 1), 8),
        GRAPHS["directed"],
        (torch.cat([cycle(5), star(9) + 5], 1), 15),
        (edges(), 2),
    ],
}


@pytest.mark.parametrize("name", PARTS)
def test_gradient_of_a_graph_in_several_parts(name):
    """The leading part alone decides λ_pf: against finite differences."""
    edge_index, batch = batch_of(*PARTS[name])
    graph = Graph.of(edge_index, batch.numel(), batch)
    weight = (0.9 + 0.2 * torch.rand(edge_index.size(1), **DOUBLE)).requires_grad_()

    def entries(w):
        return adjacency(graph, w, torch.float64, normalize=False).edge

    assert torch.autograd.gradcheck(entries, weight, rtol=1e-5)


def test_gradient_where_parts_tie():
    """Two equal parts: the mean of their gradients, whichever of them comes first."""
    graph = Graph.of(torch.cat([complete(3), complete(3) + 3], 1), 6)
    weight = torch.ones(graph.num_edges, **DOUBLE, requires_grad=True)
    a = adjacency(graph, weight, torch.float64, normalize=False)
    (grad,) = torch.autograd.grad(a.edge[0], weight)
    # edge₀ = w₀ / λ with λ = 2, and ∂λ/∂w = 1/3 on the edges of one part: half of it on both.
    expected = torch.full_like(weight, -1.0 / 24.0)
    expected[0] += 0.5
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)
