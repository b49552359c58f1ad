"""Models of fixed points with edge features, and with a readout."""

import pytest

from hogwild import MaxConv, MaxGNN, ScarselliConv, ScarselliGNN
from hogwild.testing import check_model


@pytest.mark.parametrize("conv", [MaxConv, ScarselliConv])
def test_edge_features(conv, device):
    check_model(lambda **kw: conv(3, edge_dim=2, **kw), edge_dim=2, device=device)


@pytest.mark.parametrize("model", [MaxGNN, ScarselliGNN])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_gnn(model, pool, device):
    check_model(lambda **kw: model(3, out_channels=2, pool=pool, **kw), device=device)
