"""Stacked energies are their levels, composed."""

import pytest
import torch
from helpers import batch_of, chain, cycle, features

from hogwild import EnergyGNN, Inputs


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_stack_equals_composing_by_hand(replicas, pool):
    """H⁽ˢ⁾ = argmin E⁽ˢ⁾(H; [X ‖ H⁽ˢ⁻¹⁾]), with the gradients of the composition."""
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1, num_layers=3, replicas=replicas, pool=pool).double()
    edge_index, batch = batch_of((chain(3), 3), (cycle(4), 4))
    x = features(7)
    h = model.conv.levels[0](x, edge_index, None, batch)
    for conv in model.conv.levels[1:]:
        wide = x if replicas is None else x.expand(replicas, 7, 3)
        h = conv(torch.cat([wide, h], -1), edge_index, None, batch)
    expected = model.readout(h, batch)
    out = model(x, edge_index, None, batch)
    assert torch.equal(out, expected)
    parameters = list(model.parameters())
    one = torch.autograd.grad(out.sum(), parameters)
    two = torch.autograd.grad(expected.sum(), parameters)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_stack_diagnostics():
    """Iterations are summed over the levels; residuals and statuses are the worst."""
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1, num_layers=2).double()
    x = features(4)
    first = model.conv.levels[0].embed(Inputs(x, cycle(4)))
    second = model.conv.levels[1].embed(Inputs(torch.cat([x, first.value], 1), cycle(4)))
    found = model.embed(Inputs(x, cycle(4)))
    assert torch.equal(found.iterations, first.iterations + second.iterations)
    assert torch.equal(found.residual, torch.maximum(first.residual, second.residual))
