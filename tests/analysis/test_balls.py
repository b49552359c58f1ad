"""What is proved of balls, and that runs agree with it."""

import math

import pytest
import torch
from torch_geometric.data import Data

import hogwild
from hogwild.asynchrony import BernoulliLoss, Quantisation

PATH = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4], [1, 0, 2, 1, 3, 2, 4, 3]])


def data():
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return Data(x=x, edge_index=PATH)


def certified(model, **options):
    torch.manual_seed(0)
    return hogwild.certify(model(3, out_channels=1), data(), rule="balls", **options)


@pytest.mark.parametrize("model", [hogwild.EnergyGNN, hogwild.GSDGNN, hogwild.IGNN])
def test_balls_that_reach_every_node_are_proved_and_in_time(model):
    for radius in (None, 4):
        found = certified(model, radius=radius, stagger=3, delay=2)
        assert found.guaranteed
        assert found.constants["hops"] == 4
        assert found.constants["ticks_to_whole"] == 4 * 5
    torch.manual_seed(0)
    trained = model(3, out_channels=1)
    run = hogwild.simulate(
        trained, data(), rule="balls", stagger=3, delay=2, runs=20, ticks=20, tol=None
    )
    assert float(run.deviation.max()) < 1e-6


def test_without_a_bound_on_losses_it_is_a_matter_of_time():
    found = certified(hogwild.EnergyGNN, impairments=BernoulliLoss(0.5))
    assert found.guaranteed
    assert "with probability one" in found.reason or "with that probability" in found.reason
    assert not certified(hogwild.EnergyGNN, impairments=BernoulliLoss(1.0)).guaranteed
    assert not certified(hogwild.EnergyGNN, impairments=Quantisation(0.1)).guaranteed


def test_smaller_balls_have_the_rate_of_the_dominance():
    wide = certified(hogwild.GSDGNN, radius=0)
    assert wide.guaranteed
    rho = wide.constants["dominance"]
    assert wide.rate == pytest.approx(rho)
    two = certified(hogwild.GSDGNN, radius=2, stagger=5, delay=2)
    assert two.rate == pytest.approx(rho**2)
    assert two.period == 4 * 7 + 5
    maps = certified(hogwild.IGNN, radius=2)
    assert maps.rate == pytest.approx(maps.constants["modulus"] ** 3)
    assert math.isclose(maps.period, 3 * 7 + 5)


def test_smaller_balls_of_other_energies_are_measured():
    found = certified(hogwild.EnergyGNN, radius=1)
    assert not found.guaranteed
    assert "observed" in found.reason


def test_directed_graphs_and_stacks_are_refused():
    one_way = Data(x=torch.randn(3, 3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    found = hogwild.certify(hogwild.IGNN(3, out_channels=1), one_way, rule="balls")
    assert not found.guaranteed
    assert "cannot run under this rule" in found.reason
    stack = hogwild.EnergyGNN(3, out_channels=1, num_layers=2)
    assert not hogwild.certify(stack, data(), rule="balls").guaranteed
    with pytest.raises(hogwild.errors.ConfigError, match="whose problems move"):
        hogwild.simulate(stack, data(), rule="balls")
