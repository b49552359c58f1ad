"""Stars: some nodes with the edges into them."""

import torch

from hogwild.graph import Graph


def test_graphs_without_loops_have_no_labels():
    simple = Graph.of(torch.tensor([[0, 1], [1, 0]]), 2).everyone
    assert simple.loops is None
    looped = Graph.of(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2).everyone
    assert looped.loops.tolist() == [False, False, True]
