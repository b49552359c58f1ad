"""Factorisations equal dense solves, compiled and on torch; they decline where they do not pay."""

import numpy as np
import pytest
import torch
from helpers import (
    DOUBLE,
    assemble,
    batch_of,
    chain,
    circulant,
    complete,
    cycle,
    edges,
    grid,
    star,
    tree,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import needs_library

from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.linalg import direct
from hogwild.solvers import LinearSolver
from hogwild.testing import Quadratic

GRAPHS = {
    "one node": (edges(), 1),
    "no edges": (edges(), 7),
    "chain": (chain(40), 40),
    "tree": (tree(45), 45),
    "star": (star(40), 40),
    "cycle": (cycle(37), 37),
    "grid": (grid(6, 7), 42),
    "complete": (complete(24), 24),
    "pieces": (torch.cat([chain(20), cycle(15) + 20, grid(3, 4) + 35], 1), 50),
    "odd": (torch.cat([cycle(25), edges((0, 0), (3, 4), (3, 9), (24, 7))], 1), 26),
}
MIXED = batch_of(*GRAPHS.values(), (chain(40), 40), (star(40), 40))
WAYS = [pytest.param("compiled", marks=needs_library), "dense"]


@pytest.fixture
def way(request, monkeypatch):
    """What factorises."""
    if request.param == "dense":
        monkeypatch.setattr(direct, "library", lambda: None)
    return request.param


def random_matrix(graph, k, replicas, seed=0):
    """Blocks of a random positive definite matrix on the graph's pattern, and the matrix."""
    rng = torch.Generator().manual_seed(seed)
    pattern = graph.pattern
    off = torch.randn(replicas, k, k, pattern.rows.numel(), generator=rng, **DOUBLE)
    diagonal = torch.randn(replicas, k, k, graph.num_nodes, generator=rng, **DOUBLE)
    diagonal = diagonal + diagonal.transpose(1, 2)
    dense = assemble(graph, diagonal, off)
    shift = 0.3 + dense.abs().sum(-1).view(replicas, k, graph.num_nodes)  # Gershgorin
    diagonal.diagonal(dim1=1, dim2=2).add_(shift.transpose(1, 2))
    return diagonal, off, dense + torch.diag_embed(shift.flatten(1))


def check(graph, k, replicas, seed=0):
    diagonal, off, dense = random_matrix(graph, k, replicas, seed)
    rhs = torch.randn(replicas, k, graph.num_nodes, **DOUBLE)
    before = rhs.clone()
    factor = direct.factor(graph, diagonal, off)
    expected = torch.linalg.solve(dense, rhs.flatten(1)).view_as(rhs)
    torch.testing.assert_close(factor.solve(rhs), expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(rhs, before)
    # The factor can be used again, and in single precision.
    torch.testing.assert_close(factor.solve(2.0 * rhs), 2.0 * expected, rtol=1e-9, atol=1e-12)
    single = direct.factor(graph, diagonal.float(), off.float()).solve(rhs.float())
    torch.testing.assert_close(single, expected.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("k", "replicas"), [(1, 3), (2, 1), (5, 2)])
@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("name", GRAPHS)
def test_solve_equals_dense(name, way, k, replicas):
    check(Graph.of(*GRAPHS[name]), k, replicas)


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_mixed_batch(way, k):
    """Graphs of all kinds at once, some of them equal."""
    edge_index, batch = MIXED
    check(Graph.of(edge_index, batch.numel(), batch), k, 2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    compiled=st.booleans(),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=4),
    density=st.floats(0.0, 2.5),
    k=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 10**6),
)
def test_random_multigraphs(compiled, sizes, density, k, seed):
    """Directed, with self-loops, multi-edges and isolated nodes."""
    rng = np.random.default_rng(seed)
    parts = [(edges(*rng.integers(n, size=(int(density * n), 2)).tolist()), n) for n in sizes]
    edge_index, batch = batch_of(*parts)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(direct, "library", lambda: None)
        check(Graph.of(edge_index, batch.numel(), batch), k, 1, seed)


@needs_library
@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True)
@given(n=st.integers(1, 120), extra=st.floats(0.0, 1.0), seed=st.integers(0, 10**6))
def test_random_sparse_graphs(n, extra, seed):
    rng = np.random.default_rng(seed)
    more = edges(*rng.integers(n, size=(int(extra * n), 2)).tolist())
    check(Graph.of(torch.cat([tree(n, seed), more], 1), n), 2, 1, seed)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_matrix_that_is_not_positive_definite_gives_nan_on_its_graph_only(way):
    edge_index, batch = batch_of((chain(5), 5), (chain(30), 30))
    graph = Graph.of(edge_index, 35, batch)
    for broken in (float("nan"), -10.0):
        diagonal, off, dense = random_matrix(graph, 2, 1)
        diagonal[..., :5] = broken
        rhs = torch.randn(1, 2, 35, **DOUBLE)
        x = direct.factor(graph, diagonal, off).solve(rhs)
        own = torch.cat([torch.arange(5, 35), 35 + torch.arange(5, 35)])
        expected = torch.linalg.solve(dense[0][own][:, own], rhs[..., 5:].flatten())
        torch.testing.assert_close(x[..., 5:].flatten(), expected, rtol=1e-9, atol=1e-12)
        assert not bool(torch.isfinite(x[..., :5]).any())


@needs_library
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.floats(0.0, 3.0),
)
def test_one_matrix_for_all_channels_equals_the_dense_solution(seed, sizes, density):
    rng = np.random.default_rng(seed)
    parts = [(edges(*rng.integers(n, size=(int(density * n), 2)).tolist()), n) for n in sizes]
    edge_index, batch = batch_of(*parts)
    n, edge_index = batch.numel(), edge_index[:, rng.permutation(edge_index.size(1))]
    graph = Graph.of(edge_index, n, batch)
    edge = torch.from_numpy(rng.random(graph.num_edges) - 0.5)
    diagonal = 0.1 + torch.from_numpy(rng.random(n))
    for end in edge_index:
        diagonal = diagonal.index_add(0, end, edge.abs())
    dense, off = torch.diag(diagonal), edge_index[0] != edge_index[1]
    for i, j in (edge_index, edge_index.flip(0)):
        dense.index_put_((i[off], j[off]), edge[off], accumulate=True)
    b = torch.from_numpy(rng.standard_normal((2, 5, n)))
    found = direct.factor_of_edges(graph, diagonal, edge).solve(b)
    torch.testing.assert_close(found, torch.linalg.solve(dense, b.mT).mT, rtol=1e-9, atol=1e-11)


def expander(n):
    """A random 6-regular-ish graph: no small separators."""
    rng = np.random.default_rng(0)
    pairs = {tuple(sorted(p)) for p in rng.integers(n, size=(3 * n, 2)).tolist() if p[0] != p[1]}
    return torch.cat([cycle(n), *(edges((i, j), (j, i)) for i, j in sorted(pairs))], 1)


@needs_library
def test_where_it_pays():
    assert direct.is_factorised(Graph.of(chain(5000), 5000), 2, 1)
    assert direct.is_factorised(Graph.of(edges(), 3), 2, 1)
    for wide in (expander(3000), circulant(3000, 100)):
        assert not direct.is_factorised(Graph.of(wide, 3000), 2, 1)
        assert direct.is_factorised(Graph.of(wide, 3000), 2, 1, force=True)
    assert not direct.is_factorised(
        Graph.of(star(20_000), 20_000), 2, 1
    )  # a hub: all pairs of neighbours


@needs_library
def test_a_similar_graph_is_not_analysed(monkeypatch):
    graph, similar = (Graph.of(expander(3000)[:, 2 * i :], 3000) for i in (0, 1))
    assert not direct.is_factorised(graph, 2, 1)
    direct.resemble(similar, graph)
    monkeypatch.setattr(direct, "_is_cheaper", None)
    assert not direct.is_factorised(similar, 2, 1)


def test_small_graphs_are_dense_without_the_library(monkeypatch):
    monkeypatch.setattr(direct, "library", lambda: None)
    assert direct.is_factorised(Graph.of(expander(60), 60), 2, 1)
    assert not direct.is_factorised(Graph.of(chain(600), 600), 2, 1)
    monkeypatch.setattr(direct, "DENSE_NUMBERS", 60**2)
    assert not direct.is_factorised(Graph.of(expander(60), 60), 1, 2)


def test_what_cannot_be_factorised_is_refused(monkeypatch):
    monkeypatch.setattr(direct, "is_factorised", lambda *_, **__: False)
    problem = Quadratic.random(Graph.of(chain(4), 4))
    h = problem.start()
    with pytest.raises(ConfigError, match="no small separators"):
        LinearSolver("direct").solve(problem.evaluate(h).hessian(), h + 1.0, 1e-10)
