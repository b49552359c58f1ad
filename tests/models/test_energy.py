"""Every variant of the energy GNN through the one conformance suite."""

import pytest

from hogwild import EnergyConv, EnergyGNN
from hogwild.solvers import Newton
from hogwild.testing import check_model

VARIANTS = {
    "edge": {},
    "node": {"message": "node"},
    "mean": {"aggr": "mean"},
    "normalize": {"normalize": True},
    "heads": {"heads": 2},
    "heads-averaged": {"heads": 3, "concat": False},
    "node-heads": {"message": "node", "heads": 2},
    "two-rounds": {"num_layers": 2},
    "three-rounds": {"num_layers": 3, "heads": 2, "widths": (2,)},
    "wide": {"hidden_channels": 5, "message_channels": 3, "widths": (6,)},
    "deep": {"widths": (3, 4, 5)},
    "affine": {"widths": ()},
    "squareplus": {"act": "squareplus"},
    "relu-gates": {"gate": "relu"},
    "cg": {"solver": Newton(linear="cg")},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_conv(options, device):
    check_model(lambda **kw: EnergyConv(3, **options, **kw), device=device)


@pytest.mark.parametrize("name", ["edge", "heads", "node-heads", "two-rounds"])
def test_edge_features(name, device):
    options = {"widths": (2,), **VARIANTS[name]}  # deeper ones are in test_conv
    check_model(lambda **kw: EnergyConv(3, edge_dim=2, **options, **kw), edge_dim=2, device=device)


@pytest.mark.parametrize("pool", [None, "mean"])
def test_gnn(pool, device):
    check_model(lambda **kw: EnergyGNN(3, out_channels=2, pool=pool, **kw), device=device)


def test_stacked(device):
    check_model(
        lambda **kw: EnergyGNN(3, out_channels=2, num_layers=2, widths=(2,), **kw), device=device
    )
