"""Options that a convolution does not take: the error names the option and what is expected.
``check_model`` tries the options that all convolutions have."""

import pytest
from helpers import refused

from hogwild import EnergyConv
from hogwild.errors import ConfigError
from hogwild.models import EIGNNConv, GSDConv, IGNNConv, ScarselliConv

NAN = float("nan")
WIDTHS = [
    ({"widths": (4, 0)}, ["widths=(4, 0)", "positive"]),
    ({"widths": 4}, ["widths=4", "(4, 4)"]),
]
OWN = {
    EnergyConv: [
        ({"message": "both"}, ["'both'", "edge, node"]),
        ({"aggr": "max"}, ["'max'", "'sum' (or 'add') or 'mean'", "convex"]),
        ({"message_channels": 0}, ["message_channels=0", "positive integer"]),
        ({"heads": 0}, ["heads=0", "positive integer"]),
        ({"edge_dim": 0}, ["edge_dim=0", "positive integer"]),
        ({"beta": 0.0}, ["beta=0.0", "positive"]),
        ({"beta": -1.0}, ["beta=-1.0", "positive"]),
        ({"beta": NAN}, ["beta=nan", "positive"]),
        ({"heads": 2, "aggr": "mean"}, ["heads", "aggr='mean'"]),
        ({"heads": 2, "normalize": True}, ["heads", "normalize=True"]),
        ({"message": "node", "edge_dim": 2}, ["node-wise", "message='edge'"]),
        ({"act": "relu"}, ["'relu'", "softplus"]),
        ({"gate": "abs"}, ["'abs'", "softplus"]),
        *WIDTHS,
    ],
    GSDConv: [
        ({"gamma": 0.0}, ["gamma=0.0", "positive"]),
        ({"gamma": NAN}, ["gamma=nan", "positive"]),
        ({"beta": -1.0}, ["beta=-1.0", "nonnegative"]),
        ({"beta": float("inf")}, ["beta=inf", "nonnegative"]),
        *WIDTHS,
    ],
    IGNNConv: [
        ({"kappa": 1.0}, ["kappa=1.0", "between 0 and 1", "contraction"]),
        ({"kappa": 0.0}, ["kappa=0.0", "between 0 and 1"]),
        ({"kappa": -0.5}, ["kappa=-0.5", "between 0 and 1"]),
        ({"kappa": NAN}, ["kappa=nan", "between 0 and 1"]),
        ({"act": "gelu"}, ["'gelu'", "relu", "tanh", "expansive"]),
        *WIDTHS,
    ],
    EIGNNConv: [
        ({"gamma": 1.0}, ["gamma=1.0", "between 0 and 1", "contraction"]),
        ({"gamma": 1.5}, ["gamma=1.5", "between 0 and 1"]),
        ({"gamma": 0.0}, ["gamma=0.0", "between 0 and 1"]),
        ({"gamma": NAN}, ["gamma=nan", "between 0 and 1"]),
    ],
    ScarselliConv: [
        ({"message_channels": 0}, ["message_channels=0"]),
        ({"edge_dim": 0}, ["edge_dim=0"]),
        *WIDTHS,
    ],
}
CASES = [(conv, *case) for conv, own in OWN.items() for case in own]


@pytest.mark.parametrize(("conv", "options", "words"), CASES, ids=str)
def test_constructor_errors(conv, options, words):
    refused(lambda: conv(**({"in_channels": 3} | options)), ConfigError, words)
