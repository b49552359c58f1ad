"""Which nodes have the same features."""

import torch

from hogwild.kernels import alike as module
from hogwild.kernels.alike import alike

BEGIN = torch.tensor([0, 2, 2, 5])  # three nodes with 2, 0 and 3 edges


def copies(runs, replicas=2):
    """Rows of ``runs`` copies of a graph with three nodes and five edges."""
    rng = torch.Generator().manual_seed(0)
    nodes, edges = (
        torch.randn(replicas, n, 8, generator=rng, dtype=torch.float64).repeat(1, runs, 1)
        for n in (3, 5)
    )
    begin = torch.cat([BEGIN[:-1] + 5 * r for r in range(runs)] + [torch.tensor([5 * runs])])
    return nodes, edges, begin


def test_copies_of_a_graph_share_the_rows_of_the_first_one():
    assert torch.equal(alike(*copies(4)), torch.arange(12) % 3)


def test_a_node_that_differs_keeps_its_own_rows():
    nodes, edges, begin = copies(4)
    nodes[1, 4, 7] += 1e-16  # the last run but two, node 1, in one replica only
    edges[0, 13, 0] += 1e-9  # of node 8
    expected = torch.arange(12) % 3
    expected[4], expected[8] = 4, 8
    assert torch.equal(alike(nodes, edges, begin), expected)


def test_the_order_of_edges_counts():
    nodes, edges, begin = copies(4)
    edges[:, 5:7] = edges[:, 5:7].flip(1)  # of node 3
    assert alike(nodes, edges, begin).tolist() == [0, 1, 2, 3, 1, 2, 0, 1, 2, 0, 1, 2]


def test_graphs_without_copies_are_left_alone():
    assert alike(*copies(1)) is None


def test_hashes_that_collide_do_no_harm(monkeypatch):
    nodes, edges, begin = copies(4)
    expected = alike(nodes, edges, begin)
    monkeypatch.setattr(module, "_hash", lambda rows: torch.zeros(rows.shape[1], dtype=torch.long))
    found = alike(nodes, edges, begin)
    # Nodes of different degrees are told apart, and so are nodes whose rows differ.
    assert torch.equal(found, expected)
