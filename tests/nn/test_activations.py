"""The probe for nonexpansive activations: what it must catch, and what it must let through."""

import pytest
import torch
import torch.nn.functional as F

from hogwild.errors import ConfigError
from hogwild.nn.activations import NONEXPANSIVE, Nonexpansive


def bend(at, slope, width=float("inf")):
    """Slope 0.5, but ``slope`` on an interval of this width from ``at`` on."""
    return lambda a: 0.5 * a + (slope - 0.5) * (a - at).clamp(0.0, width)


STEEP = {
    "twice": lambda a: 2.0 * a,
    "beyond 20": bend(20.0, 1.5),
    "below -20": lambda a: -bend(20.0, 1.5)(-a),
    "beyond 1e6": bend(1e6, 1.1),
    "below -1e9": lambda a: -bend(1e9, 1.1)(-a),
    "falling beyond 50": bend(50.0, -1.2),
    "narrow, at 30": bend(30.0, 2.0, width=0.05),
    "narrow, at -77": lambda a: -bend(77.0, 3.0, width=0.02)(-a),
    "at 400, 8 wide": bend(400.0, 1.5, width=8.0),
    "root": lambda a: a.abs().sqrt(),
    "waves": lambda a: torch.sin(300.0 * a) / 100.0,
    "jump at 1e3": lambda a: 0.1 * a + 100.0 * (a > 1e3),
    "undefined beyond 90": lambda a: torch.where(a > 90.0, float("nan"), a),
    "GELU": F.gelu,
    "SiLU": F.silu,
}


@pytest.mark.parametrize("name", STEEP)
def test_expansive_functions_are_refused(name):
    with pytest.raises(ConfigError, match="expected a nonexpansive one"):
        Nonexpansive(name, STEEP[name])


FLAT = {
    "sigmoid": torch.sigmoid,
    "sine": torch.sin,
    "softplus": F.softplus,
    "ELU": F.elu,
    "minus": torch.neg,
    "shifted": lambda a: a - 1e3,
    "root, tamed": lambda a: torch.sqrt(1.0 + a * a),
    "three pieces": lambda a: a.clamp(-3.0, 2.0),
    "saw": lambda a: (a - 2.0 * torch.round(a / 2.0)).abs(),
}


@pytest.mark.parametrize("name", FLAT)
def test_nonexpansive_functions_are_accepted(name):
    """Slopes are the derivatives, also in inference mode."""
    found, a = Nonexpansive(name, FLAT[name]), torch.linspace(-4.05, 4.0, 50, dtype=torch.float64)
    rise = (found.value(a + 1e-6) - found.value(a - 1e-6)) / 2e-6
    torch.testing.assert_close(found.slope(a), rise, rtol=0, atol=1e-6)
    with torch.inference_mode():
        assert torch.equal(found.slope(a), found.slope(a.clone()))


def test_named_activations():
    assert set(NONEXPANSIVE) == {"relu", "leaky_relu", "tanh", "identity"}
