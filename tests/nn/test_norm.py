"""Norms equal those of torch, process nodes by themselves in evaluation, and refuse others."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hogwild.errors import ConfigError
from hogwild.nn.norm import BatchNorm, LayerNorm, norm
from hogwild_node.networks import normalised


def drawn(kind, channels, replicas=None):
    made = kind(channels, replicas=replicas).double()
    with torch.no_grad():
        for p in made.parameters():
            p.normal_()
    return made


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5), st.floats(-3, 3))
def test_layer_norm_is_torchs(seed, channels, n, log):
    torch.manual_seed(seed)
    x, made = 10.0**log * torch.randn(1, channels, n, **DOUBLE), drawn(LayerNorm, channels)
    expected = nn.functional.layer_norm(x[0].mT, (channels,), made.weight, made.bias)
    torch.testing.assert_close(made(x)[0].mT, expected)
    rows = [p.detach().numpy()[None, :, None] for p in (made.weight, made.bias)]
    np.testing.assert_allclose(normalised(x.numpy(), *rows), made(x).detach().numpy())


def test_batch_norm_is_torchs():
    """In training, with its running means, and in evaluation."""
    made, theirs = drawn(BatchNorm, 3), nn.BatchNorm1d(3).double()
    with torch.no_grad():
        theirs.weight.copy_(made.weight)
        theirs.bias.copy_(made.bias)
    for n in (5, 2, 9):
        x = 3.0 * torch.randn(1, 3, n, **DOUBLE) + 1.0
        torch.testing.assert_close(made(x)[0].mT, theirs(x[0].mT))
    running = theirs.running_mean, theirs.running_var
    torch.testing.assert_close((made.mean, made.variance), running)
    x = torch.randn(1, 3, 4, **DOUBLE)
    torch.testing.assert_close(made.eval()(x)[0].mT, theirs.eval()(x[0].mT))


@pytest.mark.parametrize("kind", [LayerNorm, BatchNorm])
def test_one_node_at_a_time_in_evaluation(kind):
    made, x = drawn(kind, 3), torch.randn(1, 3, 7, **DOUBLE)
    made(x)
    made.eval()
    each = torch.cat([made(x[..., i : i + 1]) for i in range(7)], -1)
    torch.testing.assert_close(made(x), each)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [LayerNorm, BatchNorm])
def test_replicas_equal_singles(kind, shared):
    together, x = drawn(kind, 3, replicas=2), torch.randn(1 if shared else 2, 3, 5, **DOUBLE)
    fresh = together.state_dict()
    alone = [kind(3).double() for _ in range(2)]
    for r, single in enumerate(alone):
        single.load_state_dict({k: v[r] for k, v in fresh.items()})
    for _ in range(2):
        out = together(x)
        for r, single in enumerate(alone):
            torch.testing.assert_close(out[r], single(x if shared else x[r : r + 1])[0])
    for name, value in together.state_dict().items():
        for r, single in enumerate(alone):
            torch.testing.assert_close(value[r], single.state_dict()[name])
    together.reset_parameters()
    for name, value in kind(3, replicas=2).state_dict().items():
        assert torch.equal(together.state_dict()[name], value.double())


def test_names():
    assert norm(None, 3) is None
    for name in ("layer", "LayerNorm", "layer_norm"):
        assert type(norm(name, 3)) is LayerNorm
    assert type(norm("batch_norm", 3)) is BatchNorm


@pytest.mark.parametrize("name", ["GraphNorm", "instance", "pair", nn.LayerNorm(3), 3, ""])
def test_norms_that_mix_nodes_are_refused(name):
    with pytest.raises(ConfigError, match=r"norm=.* expected None, 'layer' or 'batch'.* mix the"):
        norm(name, 3)
