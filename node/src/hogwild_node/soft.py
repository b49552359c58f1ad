r"""Soft energies as a node computes them.

.. math::
    e^i = \tfrac\beta2 \|h_i - g_i\|^2 + \mathbf 1^\top \psi\bigl(U h_i + b_i\bigr)
        + \sum_{j \in N(i)} w_{ij}\, \mathbf 1^\top \psi\bigl(z_{ij}\bigr), \qquad
    z_{ij} = s_{ij} W h_i + t_{ij} V h_j + c_{ij},

with an anchor :math:`g_i`, biases :math:`b_i, c_{ij}` and edge weights from features, scales
:math:`s_{ij}, t_{ij}` from the degrees in the *whole* graph, and in channel a the convex function

.. math::
    \psi_a(z) = \tfrac12 v^-_a z^2 + (v^+_a - v^-_a)\, r(z), \qquad
    r''(z) = \min\Bigl(\max\Bigl(\frac{z}{\varepsilon} + \frac12, 0\Bigr), 1\Bigr), \qquad
    v^-_a, v^+_a \ge 0.

Its curvature is :math:`v^-_a` for :math:`z \le -\varepsilon/2`, is :math:`v^+_a` for
:math:`z \ge \varepsilon/2`, and goes straight from one to the other between: :math:`\psi_a'` is a
leaky ReLU with two learned slopes and a rounded kink. The energy has continuous second derivatives,
and needs no root, exponential or division. The curvature stays between the two *everywhere*.
:mod:`hogwild.models.soft` bounds the condition number with that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hogwild_node.local import LocalEnergy, LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over

WIDTH = 0.1
r""":math:`\varepsilon`, the width of the transition between the two slopes."""
QUICK = 100.0
"""The largest condition number for which gradient steps are the default rule. They need at most two
updates for each unit of the condition number, in packets of k numbers. Messages need fewer updates,
in packets of more than k² numbers."""


@dataclass(frozen=True)
class Soft(LocalEnergy):
    """Local soft energies.

    The coupling has w channels: H heads of w / H channels each. Every head has its own scales and
    weights of edges; without attention there is one head. There are o node-local terms, o may be
    zero.
    """

    anchor: Array = over(NODES)  # [R, k, N] g
    bias: Array = over(EDGES)  # [R, w, E] c
    here: Array = over(EDGES)  # [R or 1, H, E] s, at the receiver
    there: Array = over(EDGES)  # [R or 1, H, E] t, at the sender
    weight: Array = over(EDGES)  # [R or 1, H, E] w
    receiver: Array = over(SHARED)  # [R, w, k] W
    sender: Array = over(SHARED)  # [R, w, k] V
    low: Array = over(SHARED)  # [R, w, 1] v⁻
    high: Array = over(SHARED)  # [R, w, 1] v⁺
    inner: Array = over(SHARED)  # [R, o, k] U
    offset: Array = over(NODES)  # [R, o, N] b
    inner_low: Array = over(SHARED)  # [R, o, 1] u⁻
    inner_high: Array = over(SHARED)  # [R, o, 1] u⁺
    beta: float = over(FIXED)
    pairwise = True

    # -- the terms along edges and their derivatives, from the arguments z [R, w, E'] --------------

    def energies(self, z: Array) -> Array:
        r""":math:`\sum_a w_{ija} \psi_a(z_{ija})`, [R, E']."""
        return by_head(self.weight, psi(z, self.low, self.high)).sum(1)

    def slopes(self, z: Array) -> Array:
        r""":math:`w_{ij}\, \psi'(z_{ij})`, [R, w, E']."""
        return by_head(self.weight, psi_slope(z, self.low, self.high))

    def curvatures(self, z: Array) -> Array:
        r""":math:`w_{ij}\, \psi''(z_{ij})`, [R, w, E']."""
        return by_head(self.weight, psi_curvature(z, self.low, self.high))

    @property
    def steepest(self) -> Array:
        """A bound on the curvature of ψ in each channel of the coupling, [R, w, 1]."""
        return namespace(self.low).maximum(self.low, self.high)

    @property
    def inner_steepest(self) -> Array:
        """The same bound in each node-local term, [R, o, 1]."""
        return namespace(self.low).maximum(self.inner_low, self.inner_high)

    # -- the terms of single nodes -----------------------------------------------------------------

    def inside(self, h: Array) -> Array:
        """The arguments of the node-local terms, [R, k, A] -> [R, o, A]."""
        found: Array = self.inner @ h + self.offset
        return found

    def alone(self, h: Array) -> Array:
        r""":math:`\tfrac\beta2 \|h_i - g_i\|^2 + \mathbf 1^\top \psi(U h_i + b_i)`, [R, A]."""
        near = 0.5 * self.beta * ((h - self.anchor) ** 2).sum(1)
        found: Array = near + psi(self.inside(h), self.inner_low, self.inner_high).sum(1)
        return found

    def alone_slope(self, h: Array) -> Array:
        """The gradient of :meth:`alone`, [R, k, A]."""
        slope = psi_slope(self.inside(h), self.inner_low, self.inner_high)
        return self.beta * (h - self.anchor) + self.inner.mT @ slope

    def around(self, h: Array, move: Array) -> Soft:
        """The energy of the distances from some embeddings [R, k, A], whose arguments without
        biases are ``move`` [R, w, E']: anchors move there, and arguments read what is left."""
        offset = self.offset - self.inner @ h
        return replace(self, anchor=self.anchor + h, bias=self.bias - move, offset=offset)

    # -- as nodes see it ---------------------------------------------------------------------------

    def arguments(self, h: Array, inbox: Array, at: Star) -> Array:
        """z [R, w, E'] from the embeddings [R, k, A] and what the nodes heard [R, k, E']."""
        xp = namespace(h)
        own = by_head(self.here, at.spread(xp.product(self.receiver, h)))
        return own + by_head(self.there, xp.product(self.sender, inbox)) + self.bias

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        here, xp = self.at(at), namespace(h)
        slope = here.slopes(here.arguments(h, inbox, at))
        pull = xp.product(here.receiver.mT, at.collect(by_head(here.here, slope)))
        toward = xp.product(here.sender.mT, by_head(here.there, slope))
        return here.alone_slope(h) + pull, toward

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        here, xp, (r, k) = self.at(at), namespace(h), h.shape[:2]
        z = here.arguments(h, inbox, at)
        slope, curvature = here.slopes(z), here.curvatures(z)
        bend = psi_curvature(here.inside(h), here.inner_low, here.inner_high)
        if majorise:
            most = by_head(here.weight, here.steepest)
            curvature = curvature + majorise * (most - curvature)
            bend = bend + majorise * (here.inner_steepest - bend)
        w, v = here.receiver, here.sender
        own = here.alone_slope(h) + xp.product(w.mT, at.collect(by_head(here.here, slope)))
        b = sandwich(w, at.collect(by_head(here.here**2, curvature)), w)
        b = b + sandwich(here.inner, bend, here.inner)
        x = sandwich(w, by_head(here.here * here.there, curvature), v)
        c = sandwich(v, by_head(here.there**2, curvature), v)
        uncoupled = xp.filled((r, 0, k, at.degree), 0.0, h), xp.filled((r, 0, 0, at.size), 0.0, h)
        return LocalQuadratic(
            own, xp.product(v.mT, by_head(here.there, slope)), xp.add_diagonal(b, self.beta), x, c,
            *uncoupled, at,
        )  # fmt: skip

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        here, xp = self.at(at), namespace(self.anchor)
        heads = self.weight.shape[1]

        def rows(left: Array, right: Array, most: Array, groups: int) -> Array:
            """Row sums of |L|ᵀ diag(most) |R| for each group of channels, [R, k, groups]."""
            parts = abs(left) * most * abs(right).sum(2)[:, :, None]  # [R, w, k]
            r, w, k = parts.shape
            return xp.reshape(parts, (r, groups, w // groups, k)).sum(2).mT

        w, v, most = self.receiver, self.sender, self.steepest
        across = here.weight * here.here * here.there
        own = rows(w, w, most, heads) @ (here.weight * here.here**2)
        own = own + rows(w, v, most, heads) @ across
        toward = rows(v, v, most, heads) @ (here.weight * here.there**2)
        toward = toward + rows(v, w, most, heads) @ across
        alone = rows(self.inner, self.inner, self.inner_steepest, 1)
        return self.beta + alone + at.collect(own), toward


def psi(z: Array, low: Array, high: Array) -> Array:
    r""":math:`\psi(z)` with the curvatures :math:`v^-` (``low``) and :math:`v^+` (``high``)."""
    u, beyond = _across(z)
    ramp = u**3 / (6.0 * WIDTH) + 0.5 * beyond * (WIDTH + beyond)
    return 0.5 * low * z * z + (high - low) * ramp


def psi_slope(z: Array, low: Array, high: Array) -> Array:
    r""":math:`\psi'(z)`."""
    u, beyond = _across(z)
    return low * z + (high - low) * (0.5 / WIDTH * u * u + beyond)


def psi_curvature(z: Array, low: Array, high: Array) -> Array:
    r""":math:`\psi''(z)`, between ``low`` and ``high``."""
    return low + (high - low) * (_across(z)[0] / WIDTH)


def _across(z: Array) -> tuple[Array, Array]:
    """How far z is in the transition, from 0 to :data:`WIDTH`, and how far beyond it."""
    xp = namespace(z)
    return xp.clip(z + 0.5 * WIDTH, 0.0, WIDTH), xp.clip(z - 0.5 * WIDTH, 0.0, None)


def by_head(factor: Array, channels: Array) -> Array:
    """Multiply the channels of each head by the number of the head: [R or 1, H, E'] and
    [R, w, E' or 1] -> [R, w, E']."""
    xp, (r, w, n), (_, heads, size) = namespace(channels), channels.shape, factor.shape
    if heads == 1:
        return factor * channels
    grouped = factor[:, :, None] * xp.reshape(channels, (r, heads, w // heads, n))
    return xp.reshape(grouped, (r, w, size))


def bounded(matrix: Array) -> Array:
    r""":math:`2 M (I + M^\top M)^{-1}` [..., w, k], whose spectral norm is at most one: a singular
    value :math:`\sigma` becomes :math:`2 \sigma / (1 + \sigma^2)`."""
    xp = namespace(matrix)
    gram = xp.identity(matrix.shape[-1], matrix) + matrix.mT @ matrix
    found: Array = 2.0 * xp.solve(gram, matrix.mT).mT
    return found


class Aggregation(NamedTuple):
    r"""How the edges of a soft energy are scaled: :math:`1 / s_{ij}^2` and :math:`1 / t_{ij}^2` of
    an edge j → i, from the degree :math:`d_i` of its receiver (one plus the weights of the edges
    into i), :math:`d_j'` of its sender (one plus the weights of the edges out of j), and the limit
    1 + D, D = ``max_degree``. The condition number holds if they are at least :math:`d_i` and
    :math:`d_j'`."""

    squares: Callable[[Array, Array, float], tuple[Array, Array]]
    c: tuple[str, str]
    """The same in C, from ``d``, ``e`` and ``HOG_LIMIT``."""


def _own(here: Array, there: Array, limit: float) -> tuple[Array, Array]:
    return here, there


def _largest(here: Array, there: Array, limit: float) -> tuple[Array, Array]:
    xp = namespace(here)
    both = xp.clip(xp.maximum(here, there), limit, None)
    return both, both


LARGEST = "hog_largest(d, hog_largest(e, HOG_LIMIT))"
AGGREGATIONS = {
    "symmetric": Aggregation(_own, ("d", "e")),
    "mean": Aggregation(_largest, (LARGEST, LARGEST)),
    "sum": Aggregation(_largest, (LARGEST, LARGEST)),
}
r"""By name: :math:`s_{ij} = d_i^{-1/2}` and :math:`t_{ij} = d_j'^{-1/2}`; both
:math:`\max(d_i, d_j')^{-1/2}`, the weights of Metropolis and Hastings; both
:math:`\max(d_i, d_j', 1 + D)^{-1/2}`."""


def scales(
    aggr: str, here: Array, there: Array, max_degree: float | None = None
) -> tuple[Array, Array]:
    r"""s and t of every edge j → i from the degrees of its receiver and of its sender, all
    [..., E']. So :math:`\sum_{j \to i} w_{ij} s_{ij}^2 \le 1` and
    :math:`\sum_{i \to j} w_{ji} t_{ji}^2 \le 1` at every node i."""
    s, t = AGGREGATIONS[aggr].squares(here, there, 1.0 + (max_degree or 0.0))
    return s**-0.5, t**-0.5


def knowing(x: Array, degree: Array) -> Array:
    r"""Features [1 or R, p, n] beside :math:`1 / \sqrt{d}` [n]: [1 or R, p + 1, n]."""
    xp, (r, _, n) = namespace(x), x.shape
    return xp.concat([x, xp.broadcast_to(degree**-0.5, (r, 1, n))], axis=1)


def biases(weight: Array, own: Array, near: Array, edges: Array | None, rows: Array) -> Array:
    """c [R, w, E'], affine in the features at both ends and on the edge.

    Args:
        weight: [R, w, 2 (p + 1) + r].
        own: What the receivers know of themselves (:func:`knowing`), [1 or R, p + 1, A].
        near: The same of the sender of each edge, [1 or R, p + 1, E'].
        edges: Features of the edges, [1, r, E'].
        rows: The receiver of each edge, [E'].
    """
    xp, p = namespace(own), own.shape[1]
    out = xp.gather(xp.project(weight[..., :p], own), rows)
    out = out + xp.project(weight[..., p : 2 * p], near)
    return out if edges is None else out + xp.project(weight[..., 2 * p :], edges)


def sandwich(left: Array, diagonal: Array, right: Array) -> Array:
    """Lᵀ diag(d) R for every column of d: [R, w, k], [R, w, n], [R, w, l] → [R, k, l, n]."""
    xp, (r, w, k), size = namespace(diagonal), left.shape, right.shape[2]
    pairs = xp.reshape(left[:, :, :, None] * right[:, :, None, :], (r, w, k * size))
    found = xp.product(pairs.mT, diagonal)
    return xp.reshape(found, (r, k, size, diagonal.shape[-1]))
