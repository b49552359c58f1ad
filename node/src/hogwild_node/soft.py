r"""Soft energies as a node computes them.

.. math::
    e^i = \tfrac\beta2 \|h_i - g_i\|^2 + \sum_{j \in N(i)} w_{ij}\, \mathbf 1^\top
        \psi\bigl(z_{ij}\bigr), \qquad z_{ij} = s_{ij} W h_i + t_{ij} V h_j + c_{ij},

with an anchor :math:`g_i` and biases :math:`c_{ij}` from features, scales :math:`s_{ij}, t_{ij}`
from the degrees in the *whole* graph, and in channel a the convex function

.. math::
    \psi_a(z) = \tfrac12 v^-_a z^2 + (v^+_a - v^-_a)\, r(z), \qquad
    r'(z) = \tfrac12 \bigl(z + \sqrt{z^2 + \varepsilon^2}\bigr), \qquad v^-_a, v^+_a \ge 0.

Its curvature goes from :math:`v^-_a` for :math:`z \ll 0` to :math:`v^+_a` for :math:`z \gg 0`, so
that :math:`\psi_a'` is a smooth leaky ReLU with two learned slopes. The curvature stays between the
two *everywhere*. :mod:`hogwild.models.soft` bounds the condition number with that.
"""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.local import LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over

WIDTH = 0.5
r""":math:`\varepsilon`, the width of the transition between the two slopes."""


@dataclass(frozen=True)
class Soft(LocalEnergy):
    """Local soft energies; w is the width of the coupling."""

    anchor: Array = over(NODES)  # [R, k, N] g
    bias: Array = over(EDGES)  # [R, w, E] c
    here: Array = over(EDGES)  # [E] s, at the receiver
    there: Array = over(EDGES)  # [E] t, at the sender
    weight: Array = over(EDGES)  # [E] w
    receiver: Array = over(SHARED)  # [R, w, k] W
    sender: Array = over(SHARED)  # [R, w, k] V
    low: Array = over(SHARED)  # [R, w, 1] v⁻
    high: Array = over(SHARED)  # [R, w, 1] v⁺
    beta: float = over(FIXED)
    pairwise = True

    # -- ψ and its derivatives, weighted, from the arguments z [R, w, E'] --------------------------

    def energies(self, z: Array) -> Array:
        r""":math:`w_{ij}\, \mathbf 1^\top \psi(z_{ij})`, [R, E']."""
        xp = namespace(z)
        root = xp.sqrt(z * z + WIDTH**2)
        ramp = 0.25 * (z * z + z * root + WIDTH**2 * xp.asinh(z / WIDTH))
        return self.weight * (0.5 * self.low * z * z + (self.high - self.low) * ramp).sum(1)

    def slopes(self, z: Array) -> Array:
        r""":math:`w_{ij}\, \psi'(z_{ij})`, [R, w, E']."""
        ramp = 0.5 * (z + namespace(z).sqrt(z * z + WIDTH**2))
        return self.weight * (self.low * z + (self.high - self.low) * ramp)

    def curvatures(self, z: Array) -> Array:
        r""":math:`w_{ij}\, \psi''(z_{ij})`, [R, w, E']."""
        rise = 0.5 * (1.0 + z / namespace(z).sqrt(z * z + WIDTH**2))
        return self.weight * (self.low + (self.high - self.low) * rise)

    @property
    def steepest(self) -> Array:
        """A bound on the curvature of ψ in each channel, [R, w, 1]."""
        return namespace(self.low).maximum(self.low, self.high)

    # -- as nodes see it ---------------------------------------------------------------------------

    def arguments(self, h: Array, inbox: Array, at: Star) -> Array:
        """z [R, w, E'] from the embeddings [R, k, A] and what the nodes heard [R, k, E']."""
        xp = namespace(h)
        own = at.spread(xp.product(self.receiver, h))
        return self.here * own + self.there * xp.product(self.sender, inbox) + self.bias

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        here, xp = self.at(at), namespace(h)
        slope = here.slopes(here.arguments(h, inbox, at))
        pull = xp.product(here.receiver.mT, at.collect(here.here * slope))
        own = self.beta * (h - here.anchor) + pull
        return own, xp.product(here.sender.mT, here.there * slope)

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        here, xp, (r, k) = self.at(at), namespace(h), h.shape[:2]
        z = here.arguments(h, inbox, at)
        slope, curvature = here.slopes(z), here.curvatures(z)
        if majorise:
            most = here.weight * here.steepest
            curvature = curvature + majorise * (most - curvature)
        w, v = here.receiver, here.sender
        own = self.beta * (h - here.anchor) + xp.product(w.mT, at.collect(here.here * slope))
        b = sandwich(w, at.collect(here.here**2 * curvature), w)
        x = sandwich(w, here.here * here.there * curvature, v)
        c = sandwich(v, here.there**2 * curvature, v)
        uncoupled = xp.filled((r, 0, k, at.degree), 0.0, h), xp.filled((r, 0, 0, at.size), 0.0, h)
        return LocalQuadratic(
            own, xp.product(v.mT, here.there * slope), xp.add_diagonal(b, self.beta), x, c,
            *uncoupled, at,
        )  # fmt: skip

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        here, xp = self.at(at), namespace(self.anchor)

        def rows(left: Array, right: Array) -> Array:
            """Row sums [R, k, 1] of |L|ᵀ diag(v) |R|."""
            return xp.product(abs(left).mT, self.steepest * abs(right).sum(2)[:, :, None])

        w, v = self.receiver, self.sender
        across = here.weight * here.here * here.there
        own = rows(w, w) * (here.weight * here.here**2) + rows(w, v) * across
        toward = rows(v, v) * (here.weight * here.there**2) + rows(v, w) * across
        return self.beta + at.collect(own), toward


def bounded(matrix: Array) -> Array:
    r""":math:`2 M (I + M^\top M)^{-1}` [..., w, k], whose spectral norm is at most one: a singular
    value :math:`\sigma` becomes :math:`2 \sigma / (1 + \sigma^2)`."""
    xp = namespace(matrix)
    gram = xp.identity(matrix.shape[-1], matrix) + matrix.mT @ matrix
    found: Array = 2.0 * xp.solve(gram, matrix.mT).mT
    return found


SCALINGS = ("symmetric", "metropolis")


def scales(scaling: str, here: Array, there: Array) -> tuple[Array, Array]:
    """s and t of every edge [E'] from the degrees at its receiver and at its sender, [E'] each."""
    if scaling == "symmetric":
        return here**-0.5, there**-0.5
    both = namespace(here).maximum(here, there) ** -0.5
    return both, both


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
