"""Attention weights equal the formula, one node at a time."""

import math

import pytest
import torch
from helpers import DOUBLE, edges

from hogwild.graph import Graph
from hogwild.nn import NeighbourhoodAttention

# Node 4 hears nobody; 0 -> 1 is doubled; 3 has a self-loop.
EDGES = edges((0, 1), (0, 1), (2, 1), (1, 0), (3, 3), (2, 3), (4, 0))
NODES = 5
GRAPH = Graph.of(EDGES, NODES)


def by_hand(net, index, x, edge_attr):
    """One parameter set, in plain Python: softmax over the edges into each node."""
    theta_x, theta_a = net.theta_x[index], net.theta_a[index].tolist()
    logits = []
    for e, (j, i) in enumerate(EDGES.T.tolist()):
        parts = [theta_x @ x[:, i], theta_x @ x[:, j]]
        if edge_attr is not None:
            parts.append(net.theta_e[index] @ edge_attr[:, e])
        total = sum(a * v for a, v in zip(theta_a, torch.cat(parts).tolist(), strict=True))
        logits.append(total if total > 0 else 0.2 * total)
    receivers = EDGES[1].tolist()
    into = [
        sum(math.exp(v) for v, other in zip(logits, receivers, strict=True) if other == i)
        for i in receivers
    ]
    return torch.tensor([math.exp(v) / s for v, s in zip(logits, into, strict=True)], **DOUBLE)


@pytest.mark.parametrize("batch_shape", [(3,), (1, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("own_features", [False, True])
def test_equals_a_plain_loop(batch_shape, edge_dim, own_features):
    net = NeighbourhoodAttention(3, edge_dim, 4, batch_shape=batch_shape).double()
    x = torch.randn(batch_shape[0] if own_features else 1, 3, NODES, **DOUBLE)
    attr = None if edge_dim is None else torch.randn(1, edge_dim, EDGES.size(1), **DOUBLE)
    with torch.no_grad():
        alpha = net(x, attr, GRAPH)
    assert alpha.shape == (math.prod(batch_shape), EDGES.size(1))
    for b, row in enumerate(alpha):
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(b), batch_shape))
        mine = x[index[0] if own_features else 0]
        expected = by_hand(net, index, mine, None if attr is None else attr[0])
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=1e-14)


def test_neighbourhoods_sum_to_one():
    net = NeighbourhoodAttention(3, None, 4, batch_shape=(2, 3)).double()
    alpha = net(10.0 * torch.randn(1, 3, NODES, **DOUBLE), None, GRAPH)
    into = torch.zeros(6, NODES, **DOUBLE).index_add(1, EDGES[1], alpha)
    expected = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0], **DOUBLE)
    torch.testing.assert_close(into, expected.expand(6, NODES), rtol=0, atol=1e-12)
    assert bool((alpha > 0).all())


@pytest.mark.parametrize("edge_dim", [None, 2])
def test_without_edges(edge_dim):
    net = NeighbourhoodAttention(3, edge_dim, 4, batch_shape=(2, 3)).double()
    none = Graph.of(torch.empty(2, 0, dtype=torch.long), NODES)
    attr = None if edge_dim is None else torch.empty(1, edge_dim, 0, **DOUBLE)
    assert net(torch.randn(1, 3, NODES, **DOUBLE), attr, none).shape == (6, 0)
