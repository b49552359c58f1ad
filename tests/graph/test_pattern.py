"""Block patterns against brute force."""

import pytest
from helpers import ODD, ODD_NODES, complete, cycle, edges, star
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.graph import Graph

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
