r"""Activations that bring no two points further apart, :math:`|\phi(a) - \phi(b)| \le |a - b|`.

Applied entry by entry after a contraction they leave it a contraction, with the same modulus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild_node import nonexpansive as functions

FINE, FAR = 100.0, 1e12
"""The probe's grid has steps of 0.01 within ±FINE and of 1 % from there to ±FAR."""
APART, CLOSE = 1e-4, 1e-3
"""The slope is compared with differences over this distance, up to this error."""


def _probe() -> tuple[Tensor, Tensor]:
    """Pairs of points a < b: neighbours on a grid, fine near zero and wide as numbers go, and pairs
    at random, from very close to far apart."""
    near = torch.linspace(-FINE, FINE, 20_001, dtype=torch.float64)
    far = torch.logspace(math.log10(FINE), math.log10(FAR), 2_400, dtype=torch.float64)[1:]
    grid = torch.cat([-far.flip(0), near, far])
    random = torch.Generator().manual_seed(0)
    draw = torch.rand(3, 20_000, generator=random, dtype=torch.float64)
    size = FAR ** (2.0 * draw[0] - 1.0)  # from 1e-12 to 1e12
    start = torch.where(draw[2] < 0.5, -size, size)
    apart = size * 10.0 ** (-6.0 * draw[1])
    return torch.cat([grid[:-1], start]), torch.cat([grid[1:], start + apart])


def _slope_probe() -> tuple[Tensor, Tensor]:
    """Pairs of points APART at random, of sizes from 0.001 to 1,000 and both signs."""
    random = torch.Generator().manual_seed(1)
    draw = torch.rand(2, 4_000, generator=random, dtype=torch.float64)
    size = 10.0 ** (6.0 * draw[0] - 3.0)
    a = torch.where(draw[1] < 0.5, -size, size)
    return a, a + APART


@dataclass(frozen=True)
class Nonexpansive:
    r"""A scalar function :math:`\phi` with :math:`|\phi'| \le 1`.

    A new one is probed in float64: at neighbouring points of a grid on ±100 with steps of 0.01 and
    on to :math:`\pm 10^{12}` with steps of 1 %, and at 20,000 random pairs of all sizes and
    distances. ``slope`` is compared with differences of ``value`` at 4,000 random points within
    ±1,000. A probe is no proof. It cannot see a steep piece that is narrower than the steps
    there and that no random pair hits, nor one beyond :math:`10^{12}`, nor a function that is not
    the same at every call. Whoever passes a function of their own vouches for
    :math:`|\phi'| \le 1`; the guarantees of :func:`hogwild.certify` rest on it.

    Attributes:
        value: :math:`\phi`.
        slope: :math:`\phi'`, any value between the one-sided ones at a kink.

    Raises:
        ConfigError: Where the probe finds ``value`` to be expansive, or ``slope`` not to be its
            derivative.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        a, b = _probe()
        low, high = self.value(a), self.value(b)
        # What rounding makes of the numbers themselves is no slope.
        noise = 4.0 * torch.finfo(torch.float64).eps * (low.abs() + high.abs() + a.abs())
        rise = ((high - low).abs() - noise) / (b - a)
        if not bool((rise <= 1.0 + 1e-9).all()):
            at = int(torch.nan_to_num(rise, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r} has slope {float(rise[at]):.4g} near {float(a[at]):.4g};"
                f" expected a nonexpansive one, slopes between -1 and 1: anything steeper can undo "
                f"the contraction"
            )
        self._check_slope()

    def _check_slope(self) -> None:
        """Refuse a slope that is not that of the value: the difference quotient over a short
        interval lies between the slopes at its ends, with a kink in between, too."""
        a, b = _slope_probe()
        low, high = self.value(a), self.value(b)
        first, second = self.slope(a), self.slope(b)
        noise = 4.0 * torch.finfo(torch.float64).eps * (low.abs() + high.abs() + a.abs()) / (b - a)
        rise = (high - low) / (b - a)
        over = rise - torch.maximum(first, second) - noise
        under = torch.minimum(first, second) - rise - noise
        wrong = torch.maximum(over, under)
        if not bool((wrong <= CLOSE).all()):
            at = int(torch.nan_to_num(wrong, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r}: slope gives {float(first[at]):.4g} at "
                f"{float(a[at]):.4g}, where value rises by {float(rise[at]):.4g} for each unit; "
                f"expected the derivative of value: solvers and gradients rely on it"
            )


def leaky_relu(negative_slope: float = 0.1) -> Nonexpansive:
    """A leaky ReLU; its negative slope lies between -1 and 1."""
    return Nonexpansive(
        "leaky_relu",
        partial(functions.leaky_relu, negative_slope=negative_slope),
        partial(functions.leaky_relu_slope, negative_slope=negative_slope),
    )


NONEXPANSIVE = {
    act.name: act
    for act in (
        Nonexpansive("relu", functions.leaky_relu, functions.leaky_relu_slope),
        leaky_relu(),
        Nonexpansive("tanh", functions.tanh, functions.tanh_slope),
        Nonexpansive("identity", functions.identity, functions.identity_slope),
    )
}


def resolve(act: str | Nonexpansive) -> Nonexpansive:
    """The activation of that name, or the given :class:`Nonexpansive` itself."""
    if isinstance(act, Nonexpansive):
        return act
    if act not in NONEXPANSIVE:
        raise ConfigError(
            f"activation {act!r}; expected one of {sorted(NONEXPANSIVE)} or an "
            f"hogwild.nn.Nonexpansive: an expansive one (GELU, SiLU) can undo the contraction"
        )
    return NONEXPANSIVE[act]
