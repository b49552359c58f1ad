r"""Nonexpansive activations: :math:`|\phi(a) - \phi(b)| \le |a - b|`.

A contraction followed by a nonexpansive activation on every entry is a contraction with the same
modulus.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.nn.activations import named
from hogwild_node.activations import NONEXPANSIVE as FUNCTIONS

FINE, FAR = 100.0, 1e12
"""The test grid has a spacing of 0.01 within ±FINE and of 1 % from there to ±FAR."""
APART, CLOSE = 1e-4, 1e-3
"""The slope is compared with difference quotients over the distance ``APART``, with the tolerance
``CLOSE``."""


def _probe() -> tuple[Tensor, Tensor]:
    """Pairs of points a < b: neighbours on the test grid, and random pairs at all distances."""
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
    """Random pairs of points at distance ``APART``, of sizes from 0.001 to 1,000 and both signs."""
    random = torch.Generator().manual_seed(1)
    draw = torch.rand(2, 4_000, generator=random, dtype=torch.float64)
    a = 10.0 ** (6.0 * draw[0] - 3.0) * torch.where(draw[1] < 0.5, -1.0, 1.0)
    return a, a + APART


@dataclass(frozen=True)
class Nonexpansive:
    r"""A scalar function :math:`\phi` with :math:`|\phi'| \le 1`.

    The constructor tests the function in float64: at neighbouring points of a grid with a spacing
    of 0.01 on ±100 and of 1 % up to :math:`\pm 10^{12}`, and at 20,000 random pairs of all sizes
    and distances. It compares ``slope`` with difference quotients of ``value`` at 4,000 random
    points within ±1,000. The test is not a proof: it may miss a steep piece between these points,
    a steep piece beyond :math:`10^{12}`, or a random function. The guarantees of
    :func:`hogwild.certify` assume :math:`|\phi'| \le 1`.

    Attributes:
        name: The name of the function.
        value: :math:`\phi`.
        slope: :math:`\phi'`; at a kink, any value between the one-sided derivatives.

    Raises:
        ConfigError: ``value`` is expansive, or ``slope`` is not its derivative.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        a, rise, noise = self._rises(*_probe())
        steep = rise.abs() - noise
        if not bool((steep <= 1.0 + 1e-9).all()):
            at = int(torch.nan_to_num(steep, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r} has slope {float(steep[at]):.4g} near "
                f"{float(a[at]):.4g}; expected a nonexpansive one, with slopes between -1 and 1: "
                f"with steeper slopes the map may not be a contraction"
            )
        # A difference quotient over a short interval lies between the slopes at its ends.
        a, rise, noise = self._rises(*(pair := _slope_probe()))
        first, second = self.slope(a), self.slope(pair[1])
        over = rise - torch.maximum(first, second)
        wrong = torch.maximum(over, torch.minimum(first, second) - rise) - noise
        if not bool((wrong <= CLOSE).all()):
            at = int(torch.nan_to_num(wrong, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r}: slope gives {float(first[at]):.4g} at "
                f"{float(a[at]):.4g}, where value rises by {float(rise[at]):.4g} for each unit; "
                f"expected the derivative of value: solvers and gradients rely on it"
            )

    def _rises(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The points a, the difference quotients from a to b, and their rounding errors."""
        low, high = self.value(a), self.value(b)
        noise = 4.0 * torch.finfo(torch.float64).eps * (low.abs() + high.abs() + a.abs())
        return a, (high - low) / (b - a), noise / (b - a)


def leaky_relu(negative_slope: float = 0.1) -> Nonexpansive:
    """A leaky ReLU; its negative slope lies between -1 and 1."""
    return Nonexpansive(
        "leaky_relu",
        partial(FUNCTIONS["leaky_relu"].value, negative_slope=negative_slope),
        partial(FUNCTIONS["leaky_relu"].slope, negative_slope=negative_slope),
    )


NONEXPANSIVE = {
    name: leaky_relu() if name == "leaky_relu" else Nonexpansive(name, act.value, act.slope)
    for name, act in FUNCTIONS.items()
}


def resolve(act: str | Nonexpansive) -> Nonexpansive:
    """The activation of that name, or the given :class:`Nonexpansive` itself."""
    why = "with an expansive one, GELU or SiLU, the map may not be a contraction"
    return named(act, NONEXPANSIVE, Nonexpansive, why)
