"""The tanh network in both layouts, and its Jacobian."""

import pytest
import torch
from helpers import DOUBLE

from hogwild.nn.tanh import TanhMLP
from hogwild_node.networks import Slot
from hogwild_node.tree import NODES, SHARED, walk

CASES = [((4, 4, 2), False), ((5, 3), True), ((2,), False), ((2,), True)]


@pytest.mark.parametrize(("channels", "squash"), CASES)
@pytest.mark.parametrize("replicas", [None, 3])
def test_forward_layer_by_layer(channels, squash, replicas):
    net = TanhMLP(5, channels, squash=squash, replicas=replicas).double()
    x = torch.randn(7, 5, **DOUBLE)
    out = net(x)
    assert out.shape == (*(() if replicas is None else (replicas,)), 7, channels[-1])
    for r in range(replicas or 1):
        y = x
        for i, (weight, bias) in enumerate(zip(net.weight, net.bias, strict=True)):
            w, b = (weight, bias) if replicas is None else (weight[r], bias[r])
            y = y @ w.T + b
            y = torch.tanh(y) if squash or i < len(channels) - 1 else y
        torch.testing.assert_close(out if replicas is None else out[r], y)


@pytest.mark.parametrize(("channels", "squash"), CASES)
@pytest.mark.parametrize("replicas", [None, 3])
def test_given_features_and_jacobian(channels, squash, replicas):
    """Two inputs, the others given as features of nodes read at the edges and of edges."""
    net = TanhMLP(2 + 3 + 1, channels, squash=squash, replicas=replicas).double()
    r = replicas or 1
    nodes, at = torch.randn(1, 3, 4, **DOUBLE), torch.tensor([0, 3, 3, 1, 2, 0, 1])
    attr, y = torch.randn(1, 1, 7, **DOUBLE), torch.randn(r, 2, 7, **DOUBLE)
    applied = net.given([Slot(nodes, at), Slot(attr)], torch.float64)
    whole = torch.cat([y, nodes[..., at].expand(r, 3, 7), attr.expand(r, 1, 7)], 1).mT
    expected = net(whole if replicas else whole[0]).mT.reshape(r, channels[-1], 7)
    torch.testing.assert_close(applied(y), expected)
    out, jacobian = applied.jacobian(y)
    torch.testing.assert_close(out, expected)
    assert jacobian.shape == (r, channels[-1], 2, 7)
    dense = torch.autograd.functional.jacobian(applied, y)  # [R, out, 7, R, 2, 7]
    for i in range(r):
        for n in range(7):
            torch.testing.assert_close(jacobian[i, ..., n], dense[i, :, n, i, :, n])
    some = torch.tensor([5, 2])
    picked = walk(applied, lambda x, what: x if what == SHARED else x[..., some], NODES)
    torch.testing.assert_close(picked(y[..., some]), expected[..., some])
    torch.testing.assert_close(applied(y[..., some], applied.given[..., some]), expected[..., some])


def test_product_of_the_weights():
    net = TanhMLP(3, (4, 2), replicas=2).double()
    one, two = net.weight
    torch.testing.assert_close(net.product(torch.positive), two @ one)
    torch.testing.assert_close(net.product(torch.abs), two.abs() @ one.abs())
