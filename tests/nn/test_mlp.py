"""The readout MLP: replicas and living units."""

import pytest
import torch
from helpers import DOUBLE
from torch import nn
from torch_geometric.nn import AttentionalAggregation

from hogwild.errors import ConfigError
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


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize(
    ("pool", "reduced"),
    [("mean", torch.mean), ("add", torch.sum), ("sum", torch.sum), ("max", torch.amax)],
)
def test_pooled_readout_is_a_second_mlp(pool, reduced, replicas):
    """Graph predictions are graph-MLP(pool of node-MLP), per replica, with or without ``batch``.
    The pool of a graph without nodes is zero."""
    net = Readout(2, out_channels=3, pool=pool, replicas=replicas).double()
    lead = () if replicas is None else (replicas,)
    h, batch = torch.randn(*lead, 5, 2, **DOUBLE), torch.tensor([0, 0, 0, 1, 1])
    y = net.node(h)
    parts = [reduced(part, -2) for part in (y[..., :3, :], y[..., 3:, :])]
    expected = net.graph(torch.stack([*parts, torch.zeros_like(parts[0])], -2))
    torch.testing.assert_close(net(h, batch, 3), expected)
    torch.testing.assert_close(net(h), net.graph(reduced(y, -2).unsqueeze(-2)))


@pytest.mark.parametrize("replicas", [None, 2])
def test_attention_pools_as_pygs(replicas):
    """AttentionalAggregation with the readout's score and its MLP on nodes."""
    net = Readout(3, out_channels=2, pool="attention", pooled=5, replicas=replicas).double()
    lead = () if replicas is None else (replicas,)
    h, batch = torch.randn(*lead, 6, 3, **DOUBLE), torch.tensor([0, 0, 0, 2, 2, 2])
    for r in range(replicas or 1):
        one = Readout(3, out_channels=2, pool="attention", pooled=5).double()
        one.load_state_dict({k: v[r] if replicas else v for k, v in net.state_dict().items()})
        x = h[r] if replicas else h
        exact = one.graph(AttentionalAggregation(one.score, one.node)(x, batch, dim_size=3))
        out = net(h, batch, 3)
        torch.testing.assert_close(out[r] if replicas else out, exact)
        whole = net(h[..., :3, :])
        torch.testing.assert_close(whole[r] if replicas else whole, exact[:1])


@pytest.mark.parametrize("pool", ["mean", "sum", "max", "attention"])
def test_what_is_pooled_has_a_width_of_its_own(pool):
    net = Readout(3, out_channels=2, widths=(4,), pool=pool, pooled=7)
    assert (net.node.channels, net.graph.channels) == ((3, 4, 7), (7, 4, 2))
    assert f"pool={pool!r}, pooled=7" in repr(net)
    before = [p.clone() for p in net.parameters()]
    net.reset_parameters()
    assert not any(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    with pytest.raises(ConfigError, match="pooled=7 was given with pool=None"):
        Readout(3, out_channels=2, pooled=7)
    with pytest.raises(ConfigError, match=r"pool='median'.* 'attention'"):
        Readout(3, out_channels=2, pool="median")


def test_dropout_of_hidden_units():
    """In training hidden units are zero with probability p, or 1 / (1 − p) times as large."""
    net = MLP(2, (1000, 1), dropout=0.25).double()
    x = torch.randn(1, 2, **DOUBLE)
    with torch.no_grad():
        net.weight = nn.ParameterList([net.weight[0], nn.Parameter(torch.eye(1000, **DOUBLE))])
        net.bias = nn.ParameterList([net.bias[0], nn.Parameter(torch.zeros(1000, **DOUBLE))])
    ratio = (net(x) / net.eval()(x)).detach()
    kept = ratio > 0.5
    torch.testing.assert_close(ratio[kept], torch.full_like(ratio[kept], 4 / 3))
    assert float(ratio[~kept].abs().max()) == 0.0
    assert 650 < int(kept.sum()) < 850
    for wrong in (-0.1, 1.0, "half", float("nan")):
        with pytest.raises(ConfigError, match=r"dropout=.*from 0 to below 1"):
            MLP(2, (3,), dropout=wrong)
