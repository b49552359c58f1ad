r"""Smooth, convex, nondecreasing activations with their first two derivatives in closed form.

On the ``z`` path of a PICNN an activation must be convex *and* nondecreasing, so that the
composition :math:`g(a(y))` with a convex :math:`a` is convex. The paper's appendix only requires
"nondecreasing", which is not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hogwild_node.ops import Array, namespace


@dataclass(frozen=True)
class Activation:
    r"""A scalar function :math:`g` with :math:`g', g'' \ge 0` and both bounded.

    Attributes:
        value: :math:`g`.
        slope: :math:`g'`.
        curvature: :math:`g''` as a function of :math:`(a, g'(a))`, because the slope is always
            known and often gives the curvature.
        majoriser: The curvature, as a function of :math:`(a, g'(a))`, of a parabola that touches
            :math:`g` at a and lies above :math:`g` everywhere.
        max_slope: :math:`\sup g'`.
        max_curvature: :math:`\sup g''`.
        c: The same in C, for exported nodes: the body of a function that sets ``*value`` and
            ``*slope`` from ``a``, and one that returns the majoriser from ``a`` and ``slope``.
    """

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curvature: Callable[[Array, Array], Array]
    majoriser: Callable[[Array, Array], Array]
    max_slope: float
    max_curvature: float
    c: tuple[str, str] | None = None

    def growth(self, a: Array, slope: Array, reach: Array) -> Array:
        r"""The curvature of the parabola that touches :math:`g` at a and lies above :math:`g` up to
        the distance ``reach`` on both sides. It grows from :math:`g''(a)` at reach zero to the
        majoriser.

        .. math:: \frac{2}{r^2} \bigl(g(a - s r) - g(a) + s r\, g'(a)\bigr), \qquad
                  s = \operatorname{sign} a, \quad r = \min(\text{reach}, 2 |a|).

        The critical point lies toward zero, because :math:`g''` is even and largest at zero.
        """
        xp = namespace(a)
        true, most = self.curvature(a, slope), self.majoriser(a, slope)
        r = xp.minimum(reach, 2.0 * xp.abs(a))
        far = r > 1e-3  # for smaller r the difference is mostly rounding error
        r = xp.where(far, r, 1.0) * xp.sign(a)
        chord = 2.0 * (self.value(a - r) - self.value(a) + r * slope) / (r * r)
        return xp.minimum(xp.where(far, xp.maximum(chord, true), true), most)

    def ranges(self, a: Array, slope: Array, reach: Array) -> tuple[Array, Array, Array]:
        r"""How far :math:`g`, :math:`g'` and :math:`g''` can be from their values at a within the
        distance ``reach`` of a, at most. :math:`g''` is even and falls with the distance from zero.
        """
        xp = namespace(a)
        high, low = self.slope(a + reach), self.slope(a - reach)
        size = xp.abs(a)
        near, far = xp.clip(size - reach, 0.0, None), size + reach
        true = self.curvature(a, slope)
        most, least = self.curvature(near, self.slope(near)), self.curvature(far, self.slope(far))
        return (
            high * reach,
            xp.maximum(high - slope, slope - low),
            xp.maximum(most - true, true - least),
        )


# Named functions instead of lambdas, so that models can be pickled.


def _softplus(a: Array) -> Array:
    return namespace(a).softplus(a)


def _sigmoid(a: Array) -> Array:
    return namespace(a).sigmoid(a)


def _softplus_curvature(a: Array, slope: Array) -> Array:
    return slope * (1.0 - slope)


def _even_majoriser(a: Array, slope: Array) -> Array:
    r""":math:`(g'(a) - \tfrac12) / a`, for g(a) = a/2 + φ(|a|) with φ'(r)/r nonincreasing."""
    xp = namespace(a)
    near = xp.abs(a) < 1e-4
    return xp.where(near, 0.25, (slope - 0.5) / xp.where(near, 1.0, a))


def _squareplus(a: Array) -> Array:
    return 0.5 * (a + namespace(a).sqrt(a * a + 4.0))


def _squareplus_slope(a: Array) -> Array:
    return 0.5 * (1.0 + a / namespace(a).sqrt(a * a + 4.0))


def _squareplus_curvature(a: Array, slope: Array) -> Array:
    return 2.0 * (a * a + 4.0) ** -1.5


SOFTPLUS_C = (
    """\
    hog_real small = HOG_EXP(-HOG_ABS(a)); /* never overflows */
    *value = (a > 0 ? a : 0) + HOG_LOG1P(small);
    *slope = (a >= 0 ? 1 : small) / (1 + small);
""",
    """\
    if (HOG_SINGLE && HOG_ABS(a) < (hog_real)0.1) { /* the difference below would lose digits */
        hog_real square = a * a;
        return (hog_real)0.25 + square * (square / 480 - (hog_real)(1.0 / 48.0));
    }
    if (HOG_ABS(a) < (hog_real)1e-4) return (hog_real)0.25;
    return (slope - (hog_real)0.5) / a;
""",
)
SOFTPLUS = Activation(
    "softplus", _softplus, _sigmoid, _softplus_curvature, _even_majoriser, 1.0, 0.25, SOFTPLUS_C
)
r""":math:`\log(1 + e^a)`, the default."""

SQUAREPLUS_C = (
    """\
    hog_real root = HOG_SQRT(a * a + 4);
    *value = (hog_real)0.5 * (a + root);
    *slope = (hog_real)0.5 * (1 + a / root);
""",
    """\
    (void)slope;
    return (hog_real)0.5 / HOG_SQRT(a * a + 4);
""",
)
SQUAREPLUS = Activation(
    "squareplus", _squareplus, _squareplus_slope, _squareplus_curvature, _even_majoriser, 1.0, 0.25,
    SQUAREPLUS_C,
)  # fmt: skip
r""":math:`(a + \sqrt{a^2 + 4}) / 2`, whose curvature has heavier tails."""

ACTIVATIONS = {act.name: act for act in (SOFTPLUS, SQUAREPLUS)}


# -- nonexpansive functions: a contraction followed by one on every entry is a contraction ---------


def identity(a: Array) -> Array:
    return a


def _identity_slope(a: Array) -> Array:
    return namespace(a).ones_like(a)


def tanh(a: Array) -> Array:
    return namespace(a).tanh(a)


def _tanh_slope(a: Array) -> Array:
    return 1.0 - namespace(a).tanh(a) ** 2


def leaky_relu(a: Array, negative_slope: float = 0.0) -> Array:
    """:math:`\\max(a, 0) + s \\min(a, 0)`; a ReLU by default."""
    return namespace(a).leaky_relu(a, negative_slope)


def _leaky_relu_slope(a: Array, negative_slope: float = 0.0) -> Array:
    return namespace(a).where(a > 0.0, namespace(a).ones_like(a), negative_slope)


class Nonexpansive(NamedTuple):
    r"""A function with :math:`|\phi(a) - \phi(b)| \le |a - b|`, its slope, and the function in C,
    where ``{s}`` is the negative slope."""

    value: Callable[..., Array]
    slope: Callable[..., Array]
    c: str


NONEXPANSIVE = {
    "identity": Nonexpansive(identity, _identity_slope, "(a)"),
    "relu": Nonexpansive(leaky_relu, _leaky_relu_slope, "hog_leaky(a, {s})"),
    "leaky_relu": Nonexpansive(leaky_relu, _leaky_relu_slope, "hog_leaky(a, {s})"),
    "tanh": Nonexpansive(tanh, _tanh_slope, "HOG_TANH(a)"),
}
