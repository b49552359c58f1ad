r"""Partially input-convex networks for fixed features, with derivatives in closed form.

A PICNN :math:`f(x, y)` is convex in :math:`y` and arbitrary in :math:`x` (Amos et al., 2017; the
paper's appendix B). For fixed features :math:`x` it is a convex function of :math:`y`, row by row:
with :math:`z_0 = 0`,

.. math::
    a_\ell &= W^{(z)}_\ell (z_\ell \circ \gamma^{(z)}_\ell)
            + W^{(y)}_\ell (y \circ \gamma^{(y)}_\ell) + b_\ell \\
    z_{\ell+1} &= g(a_\ell), \qquad f(y) = a_{L-1},

with gates :math:`\gamma` and biases :math:`b` that depend on the features (``hogwild.nn.PICNN``
computes them).

**Why it is convex.** The parameterisation gives :math:`W^{(z)} \ge 0` and
:math:`\gamma^{(z)} \ge 0`, :math:`g` is convex and nondecreasing, and the ``y`` term is affine in
``y``. In formulas: let
:math:`s_\ell = \partial (p^\top f) / \partial z_{\ell+1}` for weights :math:`p \ge 0`. Then
:math:`s_\ell \ge 0` and

.. math::
    \nabla_y^2 \, (p^\top f) = \sum_\ell J_\ell^\top
        \operatorname{diag}\bigl(s_\ell \circ g''(a_\ell)\bigr) J_\ell \succeq 0,
    \qquad J_\ell = \partial a_\ell / \partial y,

and this formula also computes the Hessian, with one small product per layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hogwild_node.activations import Activation
from hogwild_node.ops import Array, namespace
from hogwild_node.tree import FIXED, SHARED, OnGraph, over, walk


@dataclass(frozen=True)
class Layer:
    """One layer for fixed features: gates, bias and weights."""

    gy: Array  # [B, d, n]
    bias: Array  # [B, w', n]
    gz: Array | None  # [B, w, n], nonnegative; None in the first layer, where z = 0
    wy: Array = over(SHARED)  # [B, w', d]
    wz: Array | None = over(SHARED, None)  # [B, w', w], nonnegative


@dataclass(frozen=True)
class Context(OnGraph):
    """A PICNN for fixed features: a convex function of ``y``, row by row.

    It is computed once per solve. ``B`` counts independent parameter sets (replicas × heads) and
    ``n`` the rows (nodes or edges).
    """

    layers: tuple[Layer, ...]
    act: Activation = over(FIXED)

    def forward(self, y: Array) -> Tape:
        """Evaluate the network at ``y`` [B, d, n]; the tape gives value and derivatives."""
        xp = namespace(y)
        z: Array | None = None
        pre: list[Array] = []
        for layer in self.layers:
            a = xp.affine(layer.bias, layer.wy, layer.gy * y)
            if z is not None:
                a = xp.affine(a, layer.wz, layer.gz * z)
            if len(pre) < len(self.layers) - 1:
                z = self.act.value(a)
                pre.append(a)
        return Tape(self, a, pre, [self.act.slope(a) for a in pre])

    def bound(self) -> Tape:
        r"""A tape whose derivatives bound the absolute derivatives at *every* ``y``.

        Slopes and curvatures are replaced by their suprema, and weights by their absolute values.
        The derivatives of this tape are nonnegative and bound :math:`|J|` and :math:`|\nabla^2|`
        entry by entry for all ``y``.
        """
        absolute = self.map(abs)
        pre = [layer.bias for layer in absolute.layers]
        slopes, curvatures = (
            [namespace(a).full_like(a, most) for a in pre[:-1]]
            for most in (self.act.max_slope, self.act.max_curvature)
        )
        return Tape(absolute, pre[-1], pre[:-1], slopes, curvatures)


@dataclass
class Tape:
    """A forward pass at one ``y``, which gives all derivatives in closed form."""

    context: Context
    value: Array  # [B, out, n]
    pre: list[Array]  # a_ℓ of the hidden layers, [B, w, n]
    slopes: list[Array]  # g'(a_ℓ)
    curvatures: list[Array] | None = None  # instead of g''(a_ℓ); None: g''(a_ℓ)

    def rows(self, part: slice) -> Tape:
        """The tape of some rows, without copies."""

        def some(xs: list[Array]) -> list[Array]:
            return [x[..., part] for x in xs]

        # Fields of a layer count rows unless they are SHARED.
        context = walk(self.context, lambda x, what: x if what == SHARED else x[..., part], "rows")
        bent = None if self.curvatures is None else some(self.curvatures)
        return Tape(context, self.value[..., part], some(self.pre), some(self.slopes), bent)

    # -- other curvatures than the true ones ------------------------------------------------------

    def majorised(self, share: float) -> Tape:
        """The tape with curvatures ``true + share * (majoriser - true)``."""
        act = self.context.act
        bent = []
        for a, slope in zip(self.pre, self.slopes, strict=True):
            true = act.curvature(a, slope)
            bent.append(true + share * (act.majoriser(a, slope) - true))
        return replace(self, curvatures=bent)

    def reaching(self, reach: Array) -> Tape:
        """The tape with curvatures that bound the growth of the activations up to ``reach``
        [B, 1, n]; a reach of zero gives the true curvatures."""
        act = self.context.act
        bent = []
        for a, slope in zip(self.pre, self.slopes, strict=True):
            grown = act.growth(a, slope, reach)
            bent.append(namespace(a).where(reach > 0.0, grown, act.curvature(a, slope)))
        return replace(self, curvatures=bent)

    def as_far_as(self, there: Tape) -> Tape:
        """The tape with curvatures that bound the growth of the activations up to the point of
        another pass."""
        act = self.context.act
        return replace(
            self,
            curvatures=[
                act.growth(a, slope, abs(b - a))
                for a, slope, b in zip(self.pre, self.slopes, there.pre, strict=True)
            ],
        )

    def ranged(self, reach: Array) -> tuple[Tape, Tape, Array]:
        r"""Two tapes whose derivatives say how far the derivatives can be from those at this ``y``
        within the distance ``reach`` [B, d, n] of it, and how far the value can be.

        Every derivative is a polynomial in slopes and curvatures, with products of weights as
        coefficients. Let slopes and curvatures x change by at most δ. With the coefficients'
        absolute values, :math:`|P(x') - P(x)| \le |P|(x + \delta) - |P|(x)`, entry by entry. The
        tapes are those of :math:`|P|` at :math:`x + \delta` and at x.
        """
        act, xp, layers = self.context.act, namespace(reach), self.context.map(abs).layers
        absolute = replace(self.context, layers=layers)
        steeper: list[Array] = []
        bent: list[Array] = []
        wider: list[Array] = []
        z: Array | None = None
        for depth, layer in enumerate(layers):
            moved = xp.product(layer.wy, layer.gy * reach)
            if z is not None:
                moved = xp.affine(moved, layer.wz, layer.gz * z)
            if depth < len(self.pre):
                a, slope = self.pre[depth], self.slopes[depth]
                z, steep, curved = act.ranges(a, slope, moved)
                bent.append(act.curvature(a, slope))
                steeper.append(slope + steep)
                wider.append(bent[-1] + curved)
        upper = Tape(absolute, self.value, self.pre, steeper, wider)
        return upper, Tape(absolute, self.value, self.pre, self.slopes, bent), moved

    # -- derivatives ------------------------------------------------------------------------------

    def pullback(self, cotangent: Array) -> tuple[Array, list[Array]]:
        r"""The reverse pass: :math:`J^\top p` and the sensitivities :math:`s_\ell` of hidden
        layers.

        Args:
            cotangent: ``p`` [B, out, n].
        """
        xp, abar = namespace(cotangent), cotangent
        ybar: Array | None = None
        sensitivities: list[Array] = []
        for depth in range(len(self.context.layers) - 1, -1, -1):
            layer = self.context.layers[depth]
            term = layer.gy * xp.product(layer.wy.mT, abar)
            ybar = term if ybar is None else ybar + term
            if layer.wz is not None:
                s = layer.gz * xp.product(layer.wz.mT, abar)
                sensitivities.append(s)
                abar = s * self.slopes[depth - 1]
        return ybar, sensitivities[::-1]

    def jacobians(self) -> list[Array]:
        r""":math:`J_\ell = \partial a_\ell / \partial y` of every layer, [B, w, d, n]; the last is
        the Jacobian of the network."""
        xp = namespace(self.value)
        out: list[Array] = []
        for depth, layer in enumerate(self.context.layers):
            direct = xp.expand_dims(layer.wy, -1) * xp.expand_dims(layer.gy, -3)  # [B, w', d, n]
            if layer.wz is not None:
                hidden = out[-1] * xp.expand_dims(self.slopes[depth - 1] * layer.gz, -2)
                b, w, d, n = direct.shape
                flat = xp.affine(
                    xp.reshape(direct, (b, w, d * n)),
                    layer.wz,
                    xp.reshape(hidden, (b, hidden.shape[1], d * n)),
                )
                direct = xp.reshape(flat, (b, w, d, n))
            out.append(direct)
        return out

    def hessian(self, jacobians: list[Array], sensitivities: list[Array]) -> Array | None:
        r""":math:`\nabla_y^2 (p^\top f)`, [B, d, d, n]; ``None`` if it is zero (one layer)."""
        xp, act = namespace(self.value), self.context.act
        total: Array | None = None
        for i, s in enumerate(sensitivities):
            if self.curvatures is None:
                g2 = act.curvature(self.pre[i], self.slopes[i])
            else:
                g2 = self.curvatures[i]
            term = xp.mtm(xp.expand_dims(s * g2, -2) * jacobians[i], jacobians[i])
            total = term if total is None else total + term
        return total

    def pieces(self, sensitivities: list[Array]) -> Iterator[tuple[slice, Tape, list[Array]]]:
        """The pass in chunks of rows that fit the caches, because the Jacobians of all hidden units
        are much larger than the results; one chunk if chunks are not faster."""
        widest = max(layer.wy.shape[-2] * layer.wy.shape[-1] for layer in self.context.layers)
        parts = namespace(self.value).chunks(self.value.shape[0] * widest, self.value)
        if len(parts) == 1:
            yield parts[0], self, sensitivities
            return
        for part in parts:
            yield part, self.rows(part), [s[..., part] for s in sensitivities]

    def derivatives(self, sensitivities: list[Array]) -> tuple[Array, Array]:
        """Jacobian [B, out, d, n] and weighted curvature [B, d, d, n] of the network."""
        first: list[Array] = []
        second: list[Array] = []
        for _, some, s in self.pieces(sensitivities):
            jacobians = some.jacobians()
            first.append(jacobians[-1])
            second.append(some._curvature(jacobians, s))
        return join(first), join(second)

    def _curvature(self, jacobians: list[Array], sensitivities: list[Array]) -> Array:
        """:meth:`hessian`, with zeros instead of ``None``."""
        found = self.hessian(jacobians, sensitivities)
        if found is not None:
            return found
        batch, _, width, count = jacobians[-1].shape
        return namespace(self.value).filled((batch, width, width, count), 0.0, self.value)


def join(parts: list[Array]) -> Array:
    """Concatenate chunks of rows to [..., n]."""
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=-1)
