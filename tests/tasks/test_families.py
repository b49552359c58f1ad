"""Graph families: connected, undirected, of the size asked for."""

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.errors import ConfigError
from hogwild.tasks.synthetic import FAMILIES, edges


def networkx_graph(family, n, seed=0):
    edge_index = edges(family, n, np.random.default_rng(seed))
    pairs = edge_index.T.tolist()
    assert len({tuple(p) for p in pairs}) == len(pairs)
    assert {(i, j) for i, j in pairs} == {(j, i) for i, j in pairs}
    assert edge_index[1].tolist() == sorted(edge_index[1].tolist())
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(pairs)
    assert graph.number_of_nodes() == n
    assert networkx.number_of_selfloops(graph) == 0
    return graph


@given(st.sampled_from(FAMILIES), st.integers(1, 60), st.integers(0, 5))
def test_connected_at_any_size(family, n, seed):
    assert networkx.is_connected(networkx_graph(family, n, seed))


def test_shapes():
    same = networkx.is_isomorphic
    assert same(networkx_graph("chain", 7), networkx.path_graph(7))
    assert same(networkx_graph("grid", 12), networkx.grid_2d_graph(3, 4))
    assert same(networkx_graph("grid", 25), networkx.grid_2d_graph(5, 5))
    assert networkx.is_tree(networkx_graph("tree", 40))
    assert 4 < 2 * networkx_graph("rgg", 400).number_of_edges() / 400 < 16


def test_unknown():
    with pytest.raises(ConfigError, match="chain, tree, grid, rgg"):
        edges("star", 3, np.random.default_rng())
