r"""The activations by name: those of PICNNs (:mod:`hogwild_node.activations`), and nonexpansive
ones, :math:`|\phi(a) - \phi(b)| \le |a - b|`. A contraction followed by a nonexpansive activation
on every entry is a contraction with the same modulus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

import hogwild.ops  # noqa: F401 (the functions below take tensors)
from hogwild.errors import ConfigError
from hogwild_node.activations import ACTIVATIONS, SOFTPLUS, SQUAREPLUS, Activation
from hogwild_node.activations import NONEXPANSIVE as FUNCTIONS

__all__ = [
    "ACTIVATIONS", "NONEXPANSIVE", "SOFTPLUS", "SQUAREPLUS", "Activation", "Nonexpansive",
    "leaky_relu", "nonexpansive", "resolve",
]  # fmt: skip

A = TypeVar("A")


def resolve(act: str | Activation) -> Activation:
    """The activation of that name, or the given :class:`Activation` itself."""
    return _named(act, ACTIVATIONS, Activation, "smooth, convex and nondecreasing")


def nonexpansive(act: str | Nonexpansive) -> Nonexpansive:
    """The activation of that name, or the given :class:`Nonexpansive` itself."""
    why = "with an expansive one, GELU or SiLU, the map may not be a contraction"
    return _named(act, NONEXPANSIVE, Nonexpansive, why)


def _named(act: str | A, known: Mapping[str, A], kind: type[A], why: str) -> A:
    """The activation of that name, or the given one, if it is of this kind."""
    if isinstance(act, kind):
        return act
    if not isinstance(act, str) or act not in known:
        raise ConfigError(
            f"activation {act!r}; expected one of {sorted(known)} or an "
            f"hogwild.nn.{kind.__name__} ({why})"
        )
    return known[act]


NEAR, FAR = 100.0, 1e12
"""The test grid has a spacing of 0.01 within ±NEAR and of 1 % from there to ±FAR."""
STEPS = 20_000
"""Number of steps of the grid within ±NEAR."""


@cache
def _pairs() -> tuple[Tensor, Tensor]:
    """Pairs of points a < b: neighbours on the test grid, those within ±NEAR first, and random
    pairs at all distances."""
    near = torch.linspace(-NEAR, NEAR, STEPS + 1, dtype=torch.float64)
    far = torch.logspace(math.log10(NEAR), math.log10(FAR), 2_400, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    draw = torch.rand(3, 20_000, generator=random, dtype=torch.float64)
    size = FAR ** (2.0 * draw[0] - 1.0)  # from 1e-12 to 1e12
    start = torch.where(draw[2] < 0.5, -size, size)
    apart = size * 10.0 ** (-6.0 * draw[1])
    low = torch.cat([near[:-1], far[:-1], -far[1:], start])
    return low, torch.cat([near[1:], far[1:], -far[:-1], start + apart])


@dataclass(frozen=True)
class Nonexpansive:
    r"""A scalar function :math:`\phi` with :math:`|\phi'| \le 1`.

    The constructor tests the function in float64: at neighbouring points of a grid with a spacing
    of 0.01 on ±100 and of 1 % up to :math:`\pm 10^{12}`, and at 20,000 random pairs of all sizes
    and distances. The test is not a proof: it may miss a steep piece between these points, a steep
    piece beyond :math:`10^{12}`, or a random function. The guarantees of
    :func:`hogwild.certify` assume :math:`|\phi'| \le 1`.

    Attributes:
        name: The name of the function.
        value: :math:`\phi`, in operations that autograd differentiates.

    Raises:
        ConfigError: ``value`` is expansive.
    """

    name: str
    value: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        a, b = _pairs()
        low, high = self.value(a), self.value(b)
        noise = 4.0 * torch.finfo(torch.float64).eps * (low.abs() + high.abs() + a.abs())
        steep = ((high - low).abs() - noise) / (b - a)
        if not bool((steep <= 1.0 + 1e-9).all()):
            at = int(torch.nan_to_num(steep, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r} has slope {float(steep[at]):.4g} near "
                f"{float(a[at]):.4g}; expected a nonexpansive one, with slopes between -1 and 1: "
                f"with steeper slopes the map may not be a contraction"
            )

    def slope(self, a: Tensor) -> Tensor:
        r""":math:`\phi'`, detached; at a kink, a value between the one-sided derivatives."""
        with torch.inference_mode(False), torch.enable_grad():
            a = a.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self.value(a).sum(), a, materialize_grads=True)
        return found


def leaky_relu(negative_slope: float = 0.1) -> Nonexpansive:
    """A leaky ReLU; its negative slope lies between -1 and 1."""
    value = FUNCTIONS["leaky_relu"].value
    return Nonexpansive("leaky_relu", partial(value, negative_slope=negative_slope))


NONEXPANSIVE = {
    name: leaky_relu() if name == "leaky_relu" else Nonexpansive(name, act.value)
    for name, act in FUNCTIONS.items()
}
