"""R copies of a foreign module in one."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from hogwild.errors import ConfigError
from hogwild.nn import replicas


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


def single(stacked, r):
    """Replica r as a module of its own, through its state_dict."""
    out = network()
    out.load_state_dict({k: v[r] for k, v in stacked.state_dict().items()})
    return out


def test_replicas_equal_single_modules():
    """Values, gradients, and the running statistics that training leaves behind."""
    stacked = replicas.stack(network(), 3)
    singles = [single(stacked, r) for r in range(3)]
    x = torch.randn(3, 10, 3, dtype=torch.float64)
    for train in (True, False):
        for module in (stacked, *singles):
            module.train(train)
        out = replicas.apply(stacked, lambda one: stacked(one), x)
        out.square().sum().backward()
        for r, module in enumerate(singles):
            alone = module(x[r])
            alone.square().sum().backward()
            torch.testing.assert_close(out[r], alone, rtol=0, atol=1e-13)
            for a, b in zip(stacked.parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(a.grad[r], b.grad, rtol=1e-12, atol=1e-12)
            for a, b in zip(stacked.buffers(), module.buffers(), strict=True):
                torch.testing.assert_close(a[r], b)
    assert float(stacked[1].running_mean.abs().max()) > 0


def test_draws_are_independent_and_leave_the_pattern_alone():
    pattern = network()
    before = copy.deepcopy(pattern.state_dict())
    stacked = replicas.stack(pattern, 3)
    for name, value in pattern.state_dict().items():
        assert torch.equal(value, before[name])
    weight = stacked[0].weight
    draws = [pattern[0].weight, *weight.detach()]
    for i, a in enumerate(draws):
        assert all(float((a - b).detach().abs().min()) > 0 for b in draws[:i])
    bound = 3**-0.5  # of nn.Linear's initialisation
    assert float(weight.detach().abs().max()) <= bound
    old = weight.detach().clone()
    replicas.redraw_each(stacked, 3)
    assert weight is stacked[0].weight  # in place: an optimiser keeps its parameters
    assert float((weight.detach() - old).abs().min()) > 0


def test_shared_parameters_stay_shared():
    linear = nn.Linear(3, 3)
    stacked = replicas.stack(nn.Sequential(linear, nn.Tanh(), linear), 2)
    assert stacked[0] is stacked[2]
    assert stacked[0].weight.shape == (2, 3, 3)
    assert len(list(stacked.parameters())) == 2


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x * self.scale


def test_a_module_that_cannot_be_redrawn():
    with pytest.raises(ConfigError) as caught:
        replicas.stack(nn.Sequential(nn.Linear(3, 3), Scale()), 2)
    for word in ("replicas=2", "Scale (1)", "reset_parameters()"):
        assert word in str(caught.value)


def test_constant_parameters_need_no_draw():
    norm = replicas.stack(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), 2)[1]
    assert torch.equal(norm.weight, torch.ones(2, 3))


def test_threads_share_a_module():
    stacked = replicas.stack(network(), 3).eval()
    x = torch.randn(8, 3, 5, 3, dtype=torch.float64)

    def call(part):
        return replicas.apply(stacked, lambda one: stacked(one), part)

    expected = [call(part) for part in x]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, x))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
