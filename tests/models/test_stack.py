"""Stacked energies are their levels, composed."""

import pytest
import torch
from helpers import batch_of, chain, cycle, features
from torch_geometric.data import Data

from hogwild import GNN, EnergyGNN, Inputs, Readout, Stream, WarmStart, simulate
from hogwild.errors import ConfigError
from hogwild.models import GSDConv, Stack


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
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


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


def jumping(jk, widths=(2, 2), **options):
    first, second = widths
    levels = [GSDConv(3, hidden_channels=first), GSDConv(3 + first, hidden_channels=second)]
    return GNN(Stack(levels, jk=jk), out_channels=1, **options).double()


@pytest.mark.parametrize("jk", [None, "last", "cat"])
def test_jumping_knowledge(jk):
    """The readout reads the last layer, or all layers side by side."""
    torch.manual_seed(0)
    model, data = jumping(jk), Data(x=features(5), edge_index=cycle(5))
    one, two = (found.value for found in model.embed(data).levels)
    read = torch.cat([one, two], -1) if jk == "cat" else two
    found = model.embed(data).value
    assert torch.equal(found, read)
    out = model(data.x, data.edge_index)
    assert torch.equal(out, model.readout(read))
    assert torch.equal(model(data.x, data.edge_index, h0=found), out)
    assert torch.equal(Stream(model).predict(data), out)
    assert torch.equal(WarmStart(model)(*WarmStart.numbered([data])), out)
    run = simulate(model, data)
    torch.testing.assert_close(run.predictions[0], out, rtol=0, atol=1e-5)
    torch.testing.assert_close(run.h[0], found, rtol=0, atol=1e-5)
    assert repr(model.conv).endswith("], jk='cat')") is (jk == "cat")


def test_what_jumping_knowledge_needs():
    assert jumping("cat", (2, 3)).readout.in_channels == 5
    with pytest.raises(ConfigError, match="jk='lstm'; expected one of"):
        jumping("lstm")
    with pytest.raises(ConfigError, match=r"in_channels=2 and replicas=None, .*=4"):
        GNN(jumping("cat").conv, Readout(2, out_channels=1))
