"""Graphs: reductions, selection, degrees, reverse links, block patterns, and what is refused."""

import numpy as np
import pytest
import torch
from helpers import ODD, ODD_NODES, batch_of, chain, complete, cycle, edges, star
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.errors import AsynchronyError, DTypeError, GraphError
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


MANY = {
    "odd": (ODD, ODD_NODES),
    "empty": (edges(), 3),
    "one": (edges(), 1),
    "loop": (edges((0, 0), (0, 0)), 1),
    "star": (star(5), 5),
    "complete": (complete(4), 4),
    "cycle": (cycle(5), 5),
    "directed": (edges((0, 2), (1, 2), (3, 2), (2, 0)), 4),
}


def check_pattern(g):
    """Every edge and every pair of edges into one node, exactly once, loops set aside."""
    pairs = list(zip(g.src.tolist(), g.dst.tolist(), strict=True))
    wedges = {
        frozenset((a, b))
        for a, (_, i) in enumerate(pairs)
        for b, (_, other) in enumerate(pairs)
        if a < b and i == other
    }
    pattern = g.pattern
    found = list(zip(pattern.left.tolist(), pattern.right.tolist(), strict=True))
    assert len(found) == len(wedges)
    assert {frozenset(w) for w in found} == wedges
    assert g.num_blocks == len(pairs) + len(wedges)
    every = [(i, j) for j, i in pairs] + [(pairs[a][0], pairs[b][0]) for a, b in found]
    off = [p for p in every if p[0] != p[1]]
    same = [at for at, p in enumerate(every) if p[0] == p[1]]
    assert list(zip(pattern.rows.tolist(), pattern.cols.tolist(), strict=True)) == off
    if same:
        assert pattern.loops.tolist() == same
        assert pattern.loop_nodes.tolist() == [every[at][0] for at in same]
        assert pattern.keep.tolist() == [at for at in range(len(every)) if at not in same]
    else:
        assert pattern.loops is pattern.keep is pattern.loop_nodes is None


@pytest.mark.parametrize("name", MANY)
def test_pattern_by_brute_force(name):
    check_pattern(Graph.of(*MANY[name]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14))
def test_pattern_of_random_multigraphs(pairs):
    check_pattern(Graph.of(edges(*pairs), 6))


PAIR = [0, 0, 1, 1]


def test_unvalidated_graphs_do_not_escape_validation():
    """What was accepted with ``validate=False`` is still checked when asked to validate."""
    bad = edges((0, 7))
    Graph.of(bad, 2, validate=False)
    with pytest.raises(GraphError, match="7"):
        Graph.of(bad, 2)


@pytest.mark.parametrize(
    ("edge_index", "n", "batch", "size", "error", "words"),
    [
        (torch.zeros(4, 2).long(), 3, None, None, GraphError, ["(4, 2)", "[2, num_edges]"]),
        (torch.zeros(2).long(), 3, None, None, GraphError, ["(2,)", "[2, num_edges]"]),
        (torch.zeros(2, 2), 3, None, None, DTypeError, ["torch.float32", "torch.int64"]),
        (torch.zeros(2, 2).int(), 3, None, None, DTypeError, ["torch.int32", "torch.int64"]),
        (torch.zeros(2, 0).long(), 0, None, None, GraphError, ["no nodes", "at least one"]),
        (edges((0, 5)), 3, None, None, GraphError, ["0 to 5", "0 to 2", "3 rows"]),
        (edges((0, -1)), 3, None, None, GraphError, ["-1 to 0", "0 to 2"]),
        (chain(3), 3, None, 2, GraphError, ["batch_size=2", "expected batch [N]"]),
        (chain(3), 3, [0, 0], None, GraphError, ["(2,)", "[3]"]),
        (chain(3), 3, [[0, 0, 0]], None, GraphError, ["(1, 3)", "[3]"]),
        (chain(3), 3, [0.0, 0.0, 0.0], None, DTypeError, ["torch.float32", "torch.int64"]),
        (edges((0, 1)), 4, [0, 1, 0, 1], None, GraphError, ["not sorted", "node 1", "node 2"]),
        (edges((0, 1)), 4, PAIR, 1, GraphError, ["0 to 1", "0 to 0"]),
        (edges((0, 1)), 4, [-1, 0, 0, 0], None, GraphError, ["-1 to 0", "0 to 0"]),
        (edges((0, 1)), 4, [0, 0, 2, 2], None, GraphError, ["1 of 3", "graph 1", "remove empty"]),
        (edges((0, 1)), 4, PAIR, 4, GraphError, ["2 of 4", "graph 2"]),
        (edges((0, 1), (1, 2)), 4, PAIR, None, GraphError, ["1 -> 2", "0 and 1", "within one"]),
    ],
    ids=lambda v: None,
)
def test_every_error_says_given_and_expected(edge_index, n, batch, size, error, words):
    batch = None if batch is None else torch.tensor(batch)
    with pytest.raises(error) as caught:
        Graph.of(edge_index, n, batch, size)
    for word in words:
        assert word in str(caught.value)


def test_value_checks_can_be_skipped():
    """``validate=False`` reads no values, only shapes and dtypes."""
    batch = torch.tensor([0, 1, 0, 2])
    assert Graph.of(edges((0, 9)), 4, batch, 3, validate=False).num_graphs == 3
    with pytest.raises(GraphError):
        Graph.of(edges((0, 9)), 3, batch, 3, validate=False)
