"""The readout MLP: replicas and living units."""

import torch
from helpers import DOUBLE

from hogwild.models import Readout
from hogwild.nn import MLP


def test_replicas_equal_singles():
    """R parameter sets in one computation equal R networks, on shared and on separate inputs."""
    net = MLP(3, (4, 4, 2), replicas=5).double()
    single = MLP(3, (4, 4, 2)).double()
    x = torch.randn(5, 6, 3, **DOUBLE)
    apart, shared = net(x), net(x[0])
    assert apart.shape == shared.shape == (5, 6, 2)
    for r in range(5):
        single.load_state_dict({k: v[r] for k, v in net.state_dict().items()})
        torch.testing.assert_close(apart[r], single(x[r]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(shared[r], single(x[0]), rtol=1e-12, atol=1e-12)


def dead_units(net, inputs):
    """Hidden units whose bias has a zero gradient on every input."""
    alive = [torch.zeros_like(b, dtype=torch.bool) for b in net.bias[:-1]]
    for x in inputs:
        grads = torch.autograd.grad(net(x[None]).sum(), list(net.bias)[:-1])
        alive = [a | (g.abs() > 1e-8) for a, g in zip(alive, grads, strict=True)]
    return sum(int((~a).sum()) for a in alive)


def test_no_fresh_unit_is_dead():
    """Every hidden unit of 200 fresh readouts has a gradient; with ReLU some would not."""
    inputs = torch.randn(16, 2, **DOUBLE)
    assert dead_units(MLP(2, (4, 4, 1), replicas=200).double(), inputs) == 0
    assert dead_units(MLP(2, (4, 4, 1), replicas=200, negative_slope=0.0).double(), inputs) > 0


def test_formula():
    """W₂ · leaky(W₁ x + b₁) + b₂."""
    net = MLP(2, (3, 1), negative_slope=0.25).double()
    x = torch.randn(7, 2, **DOUBLE)
    a = x @ net.weight[0].T + net.bias[0]
    expected = torch.where(a > 0, a, 0.25 * a) @ net.weight[1].T + net.bias[1]
    torch.testing.assert_close(net(x), expected)


def test_pooled_readout_is_the_mean_through_a_second_mlp():
    """Graph predictions are graph-MLP(mean of node-MLP), per replica, with or without ``batch``."""
    net = Readout(2, out_channels=3, pool="mean", replicas=2).double()
    h, batch = torch.randn(2, 5, 2, **DOUBLE), torch.tensor([0, 0, 0, 1, 1])
    y = net.node(h)
    expected = net.graph(torch.stack([y[:, :3].mean(1), y[:, 3:].mean(1)], 1))
    torch.testing.assert_close(net(h, batch), expected)
    torch.testing.assert_close(net(h), net.graph(y.mean(1, keepdim=True)))
