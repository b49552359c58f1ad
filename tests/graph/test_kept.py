"""Values that are kept with a graph."""

import pytest
import torch
from helpers import chain

from hogwild.graph import Graph, kept


def test_kept_once_for_each_function_graph_and_arguments():
    """Two functions do not share a place, whatever their names; values go with the graph."""
    calls = []

    def degree(graph, power=1):
        calls.append(power)
        return graph.in_degree**power

    one, other, g, h = kept(degree), kept(degree), Graph.of(chain(3), 3), Graph.of(chain(4), 4)
    assert one(g) is one(g)
    assert one(g) is not other(g)
    assert one(g, 2).tolist() == [1, 4, 1]
    assert one(g, power=2) is one(g, power=2)
    assert one(h).tolist() == [1, 2, 2, 1]
    assert calls == [1, 1, 2, 2, 1]
    assert one.__name__ == "degree"


def test_kept_in_inference_mode_serves_training():
    g, weight = Graph.of(chain(3), 3), torch.ones(3, requires_grad=True)
    found = kept(lambda graph: graph.in_degree.double())
    with torch.inference_mode():
        found(g)
    (found(g) * weight).sum().backward()
    assert weight.grad.tolist() == [1.0, 2.0, 1.0]


def test_kept_keeps_no_failure():
    fail = [True]

    @kept
    def analysis(graph):
        if fail.pop():
            raise ValueError("not now")
        fail.append(False)

    g = Graph.of(chain(3), 3)
    with pytest.raises(ValueError, match="not now"):
        analysis(g)
    fail.append(False)
    assert analysis(g) is analysis(g) is None
    assert fail == [False]
