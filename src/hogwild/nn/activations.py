"""The activations of PICNNs by name (:mod:`hogwild_node.activations`)."""

from __future__ import annotations

from hogwild.errors import ConfigError
from hogwild_node.activations import ACTIVATIONS, SOFTPLUS, SQUAREPLUS, Activation

__all__ = ["ACTIVATIONS", "SOFTPLUS", "SQUAREPLUS", "Activation", "resolve"]


def resolve(act: str | Activation) -> Activation:
    """The activation of that name, or the given :class:`Activation` itself."""
    if isinstance(act, Activation):
        return act
    if act not in ACTIVATIONS:
        raise ConfigError(
            f"unknown activation {act!r}; expected one of {sorted(ACTIVATIONS)} or an "
            f"hogwild.nn.Activation (smooth, convex and nondecreasing)"
        )
    return ACTIVATIONS[act]
