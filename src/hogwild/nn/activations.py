"""The activations of PICNNs by name (:mod:`hogwild_node.activations`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hogwild.errors import ConfigError
from hogwild_node.activations import ACTIVATIONS, SOFTPLUS, SQUAREPLUS, Activation

__all__ = ["ACTIVATIONS", "SOFTPLUS", "SQUAREPLUS", "Activation", "resolve"]

A = TypeVar("A")


def resolve(act: str | Activation) -> Activation:
    """The activation of that name, or the given :class:`Activation` itself."""
    return named(act, ACTIVATIONS, Activation, "smooth, convex and nondecreasing")


def named(act: str | A, known: Mapping[str, A], kind: type[A], why: str) -> A:
    """The activation of that name, or the given one, if it is of this kind."""
    if isinstance(act, kind):
        return act
    if not isinstance(act, str) or act not in known:
        raise ConfigError(
            f"activation {act!r}; expected one of {sorted(known)} or an "
            f"hogwild.nn.{kind.__name__} ({why})"
        )
    return known[act]
