"""Connectivity that is refused, and the words of the error."""

import pytest
import torch
from helpers import chain, edges

from hogwild.errors import DTypeError, GraphError
from hogwild.graph import Graph

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
