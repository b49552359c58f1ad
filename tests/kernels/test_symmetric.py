"""Compiled solves with symmetric matrices on the edges of graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.graph import Graph
from hogwild.kernels.native import library
from hogwild.kernels.symmetric import solve_symmetric

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels are not compiled")


def posed(seed, sizes, density):
    """Graphs with self-loops and parallel edges, and a diagonally dominant matrix on them."""
    rng = torch.Generator().manual_seed(seed)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    edges = [
        torch.randint(0, n, (2, int(density * n)), generator=rng) + at
        for n, at in zip(sizes, starts, strict=True)
    ]
    edge_index = torch.cat(edges, 1)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=rng)]
    batch = torch.repeat_interleave(torch.tensor(sizes))
    graph = Graph.of(edge_index, sum(sizes), batch, len(sizes))
    edge = torch.rand(edge_index.size(1), generator=rng).double() - 0.5
    diagonal = 0.1 + torch.rand(sum(sizes), generator=rng).double()
    for end in edge_index:
        diagonal = diagonal.index_add(0, end, edge.abs())
    dense = torch.diag(diagonal)
    off = edge_index[0] != edge_index[1]
    for i, j in (edge_index, edge_index.flip(0)):
        dense.index_put_((i[off], j[off]), edge[off], accumulate=True)
    b = torch.randn(2, 5, sum(sizes), generator=rng).double()
    return graph, diagonal, edge, b, dense


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.floats(0.0, 3.0),
)
def test_equals_the_dense_solution(seed, sizes, density):
    graph, diagonal, edge, b, dense = posed(seed, sizes, density)
    found = solve_symmetric(graph, diagonal, edge, b)
    assert torch.allclose(found, torch.linalg.solve(dense, b.mT).mT, rtol=1e-9, atol=1e-11)


def test_a_matrix_that_is_not_positive_definite_gives_nan_on_its_graph_only():
    graph, diagonal, edge, b, _ = posed(0, [6, 7], 1.5)
    diagonal[0] = -1.0
    found = solve_symmetric(graph, diagonal, edge, b)
    assert bool(found[..., :6].isnan().all())
    assert bool(found[..., 6:].isfinite().all())
