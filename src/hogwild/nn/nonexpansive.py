r"""Activations that bring no two points further apart, :math:`|\phi(a) - \phi(b)| \le |a - b|`.

Applied entry by entry after a contraction they leave it a contraction, with the same modulus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from hogwild.errors import ConfigError


@dataclass(frozen=True)
class Nonexpansive:
    r"""A scalar function :math:`\phi` with :math:`|\phi'| \le 1`.

    Attributes:
        value: :math:`\phi`.
        slope: :math:`\phi'`, any value between the one-sided ones at a kink.

    Raises:
        ConfigError: Where ``value`` is found to be expansive between points of a grid on [-20, 20].
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        a = torch.linspace(-20.0, 20.0, 4001, dtype=torch.float64)
        rise = self.value(a).diff().abs() / a.diff()
        if not bool((rise <= 1.0 + 1e-9).all()):
            at = int(torch.nan_to_num(rise, nan=torch.inf).argmax())
            raise ConfigError(
                f"activation {self.name!r} has slope {float(rise[at]):.4g} near {float(a[at]):.4g};"
                f" expected a nonexpansive one, slopes between -1 and 1: anything steeper can undo "
                f"the contraction"
            )


# Named functions, not lambdas: a model must survive pickling.


def _relu_slope(a: Tensor) -> Tensor:
    return (a > 0).to(a.dtype)


def _leaky_slope(a: Tensor, negative_slope: float) -> Tensor:
    return torch.where(a > 0, 1.0, negative_slope).to(a.dtype)


def _tanh_slope(a: Tensor) -> Tensor:
    return 1.0 - torch.tanh(a).square()


def _identity(a: Tensor) -> Tensor:
    return a


def leaky_relu(negative_slope: float = 0.1) -> Nonexpansive:
    """A leaky ReLU; its negative slope lies between -1 and 1."""
    return Nonexpansive(
        "leaky_relu",
        partial(F.leaky_relu, negative_slope=negative_slope),
        partial(_leaky_slope, negative_slope=negative_slope),
    )


NONEXPANSIVE = {
    act.name: act
    for act in (
        Nonexpansive("relu", torch.relu, _relu_slope),
        leaky_relu(),
        Nonexpansive("tanh", torch.tanh, _tanh_slope),
        Nonexpansive("identity", _identity, torch.ones_like),
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
