r"""Nonexpansive functions, :math:`|\phi(a) - \phi(b)| \le |a - b|`, and their slopes.

A contraction followed by a nonexpansive function on every entry is a contraction.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace

# Named functions instead of lambdas, so that models can be pickled.


def identity(a: Array) -> Array:
    return a


def identity_slope(a: Array) -> Array:
    return namespace(a).ones_like(a)


def tanh(a: Array) -> Array:
    return namespace(a).tanh(a)


def tanh_slope(a: Array) -> Array:
    return 1.0 - namespace(a).tanh(a) ** 2


def leaky_relu(a: Array, negative_slope: float = 0.0) -> Array:
    """:math:`\\max(a, 0) + s \\min(a, 0)`; a ReLU by default."""
    return namespace(a).leaky_relu(a, negative_slope)


def leaky_relu_slope(a: Array, negative_slope: float = 0.0) -> Array:
    return namespace(a).where(a > 0.0, namespace(a).ones_like(a), negative_slope)
