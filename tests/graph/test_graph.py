"""Graphs: reductions, selection, degrees and reverse links."""

import numpy as np
import pytest
import torch
from helpers import ODD, ODD_NODES, batch_of, chain, cycle, edges

from hogwild.errors import AsynchronyError, GraphError
from hogwild.graph import Graph
from hogwild.testing import random_graph


def test_reductions_equal_loops():
    g = random_graph([1, 4, 2])
    x = torch.randn(3, 2, 7, dtype=torch.float64)
    parts = x.split([1, 4, 2], -1)
    torch.testing.assert_close(g.sum(x), torch.stack([p.sum(-1) for p in parts], -1))
    torch.testing.assert_close(g.max(x.abs()), torch.stack([p.abs().amax(-1) for p in parts], -1))
    torch.testing.assert_close(g.dot(x, x), torch.stack([p.square().sum((1, 2)) for p in parts], 1))
    torch.testing.assert_close(g.norm(x), torch.stack([p.abs().amax((1, 2)) for p in parts], 1))
    y = torch.randn(3, 3)
    assert torch.equal(g.spread(y), y[:, g.batch])
    assert g.sizes.tolist() == [1, 4, 2]


def test_single_graph_shortcuts_equal_the_general_path():
    """A graph that pretends to have an empty second companion takes the general path."""
    one = Graph.of(chain(5), 5)
    general = Graph(one.src, one.dst, one.batch, 5, 2)
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(one.sum(x), general.sum(x)[..., :1])
    assert torch.equal(one.max(x.abs()), general.max(x.abs())[..., :1])
    assert torch.equal(one.norm(x), general.norm(x)[..., :1])
    torch.testing.assert_close(one.dot(x, x), general.dot(x, x)[..., :1])
    y = torch.randn(3, 2, dtype=torch.float64)
    assert torch.equal(one.spread(y[:, :1]).expand(3, 5), general.spread(y))


@pytest.mark.parametrize("sizes", [[4], [2, 4, 1]], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_norm_keeps_nan_and_infinity(sizes, bad):
    """A NaN must not be lost in a maximum, nor reach another graph."""
    g = random_graph(sizes)
    x = torch.randn(2, 3, sum(sizes), dtype=torch.float64)
    x[1, 2, 1] = bad
    norm = g.norm(x)
    assert not bool(torch.isfinite(norm[1, 0]))
    assert bool(norm[1, 0].isnan()) == (bad != bad)
    assert int((~torch.isfinite(norm)).sum()) == 1


# -- connectivity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
def test_select(chosen):
    """The selected graphs, renumbered, with the node and edge indices that lead back."""
    edge_index, batch = batch_of((ODD, ODD_NODES), (edges(), 2), (cycle(3), 3))
    g = Graph.of(edge_index, 11, batch)
    sub, nodes, kept = g.select(torch.tensor(chosen))
    assert nodes.tolist() == [v for v in range(11) if int(batch[v]) in chosen]
    assert torch.equal(nodes[sub.src], edge_index[0, kept])
    assert torch.equal(nodes[sub.dst], edge_index[1, kept])
    assert sub.num_edges == sum(int(batch[i]) in chosen for i in edge_index[1])
    assert (sub.num_nodes, sub.num_graphs) == (len(nodes), len(chosen))
    assert [chosen[b] for b in sub.batch.tolist()] == batch[nodes].tolist()


def test_degrees_and_ends():
    g = Graph.of(ODD, ODD_NODES)
    assert g.in_degree.tolist() == [2, 4, 1, 2, 1, 0]
    assert torch.equal(g.ends, torch.cat([ODD[1], ODD[0]]))
    assert g.num_edges == ODD.size(1)


def test_missing_reverse_links():
    missing = Graph.of(ODD, ODD_NODES).missing_reverse_links()
    assert missing.T.tolist() == [[4, 0], [2, 4]]
    assert Graph.of(cycle(4), 4).missing_reverse_links().numel() == 0
    assert Graph.of(edges((1, 1)), 2).missing_reverse_links().numel() == 0


def test_require_reverse_links():
    with pytest.raises(AsynchronyError) as caught:
        Graph.of(ODD, ODD_NODES).require_reverse_links()
    for word in ("2 of 10", "4 -> 0", "undirected", "to_undirected"):
        assert word in str(caught.value)
    for edge_index, n in ((cycle(4), 4), (edges(), 2), (edges((0, 1), (0, 1), (1, 0)), 2)):
        Graph.of(edge_index, n).require_reverse_links()


def test_edges_that_are_written_through_numpy_or_data_are_seen():
    """Torch counts neither: a buffer that a program fills again would be the graph before."""
    buffer = np.array([[0, 1], [1, 0]])
    edges, batch = torch.from_numpy(buffer), torch.tensor([0, 0, 1])
    before = Graph.of(edges, 3, batch)
    assert Graph.of(edges, 3, batch) is before
    buffer[:, 1] = 1, 1
    after = Graph.of(edges, 3, batch)
    assert after.src.tolist() == [0, 1]
    assert after.dst.tolist() == [1, 1]
    assert before.dst.tolist() == [1, 0]
    assert Graph.of(edges, 3, batch) is after
    batch.data[1:] = 1
    with pytest.raises(GraphError, match="join different graphs"):
        Graph.of(edges, 3, batch)
