r"""Solves of a few nodes at once in NumPy, in which some nodes are held where they are.

.. math:: \min_{h_A} E(h_A, h_B) \qquad \text{or} \qquad h_A = F_A(h_A, h_B)

for the local energies, or the map, of a part of a graph. A node solves for its ball A and holds the
rim B (:mod:`hogwild_node.balls`). The matrices are dense: a ball has at most a few hundred nodes.

*Energies.* Newton's method. Along a direction of descent, an energy that is convex still falls
where its slope is negative, so slopes alone decide how far a step goes, and nothing drowns in the
rounding of an energy. A full step may end at a small rise for the first ``PATIENCE`` iterations;
from then on every step ends where the energy still falls, at least a tenth of the way to its lowest
point. Each of those takes at least a tenth of what an exact line search would, so the method
converges from every start.

An odd reading makes an energy nearly piecewise linear: the Hessian does not show the next kink, and
steps become short. After ``PATIENCE`` iterations curvatures therefore bound the energy's growth as
far as a *reach* in the units of the pre-activations (:meth:`LocalEnergy.secant`). A full step
divides the reach by four, and a shorter step multiplies it by sixteen. Solvers do the same
(:mod:`hogwild.solvers.newton`). A short step alone does not say that a solve has arrived: it has if
also the gradient is rounding, or has fallen since a short step before.

*Maps.* Steps :math:`h \leftarrow F(h)`, which converge for every contraction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hogwild_node.local import LocalEnergy, LocalMap, LocalQuadratic
from hogwild_node.ops import NUMPY, Array
from hogwild_node.star import Star

MOST = 1000
"""Iterations after which a solve is given up."""
PATIENCE = 20
"""Iterations of an energy with the true curvature, and in which a step may end at a rise of
``RISE`` times the first slope."""
RISE = 0.1
REACH = (1e-3, 1e9)
"""The smallest and the largest reach."""
TRIALS = 40
"""Trials of a step's length. From a quarter of them on each is a tenth of the last one."""
ARRIVED = 1e-8
"""A Newton step of this size, relative to the embeddings, may be the last one: it leaves its
square."""
ROUNDING = 10.0
"""A gradient of so many times its rounding error is rounding where a Newton step is short."""
STEPS = 40_000
"""Steps after which a solve of a map is given up."""
FIXED, SOLVED = 1e-14, 1e-9
"""The residual of a map, relative to the embeddings, at which a solve ends, and at which it is
solved."""


@dataclass(frozen=True)
class Piece:
    """Some nodes and the edges between them.

    Attributes:
        local: The energies, or the rows of the map, of all these nodes.
        star: The nodes and edges.
        src: The sender of each edge, [e].
        free: Which nodes move, [n]; the others are held.
    """

    local: LocalEnergy | LocalMap
    star: Star
    src: Array
    free: Array

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """All pairs of edges into the same node, [p] each."""
        slot = self.star.slot
        order = np.argsort(slot, kind="stable")
        count = np.bincount(slot, minlength=self.star.size)
        first = np.repeat(order, count[slot[order]])
        begin = np.cumsum(count) - count
        there = np.repeat(begin[slot[order]], count[slot[order]])
        ends = np.cumsum(count[slot[order]]) - count[slot[order]]
        second = order[there + np.arange(len(first)) - np.repeat(ends, count[slot[order]])]
        return first, second


@dataclass(frozen=True)
class Solved:
    """The answer of a piece.

    Attributes:
        h: The embeddings, [1, k, n].
        good: Whether the solve has arrived. If it has not, the embeddings are of no use.
        residual: The largest entry of the gradient, or of F(h) − h, at the free nodes.
        norm: The Euclidean norm of the same.
        noise: The rounding error in such an entry.
    """

    h: Array
    good: bool
    residual: float
    norm: float
    noise: float


def solve(piece: Piece, h: Array, each: Callable[[], None] = lambda: None) -> Solved:
    """Solve from ``h`` [1, k, n], which also says where the held nodes are; ``each`` is called
    before each iteration."""
    with np.errstate(all="ignore"):
        if isinstance(piece.local, LocalEnergy):
            return _minimise(piece, piece.local, 1.0 * h, each)
        return _fix(piece, piece.local, 1.0 * h, each)


def _told(piece: Piece, h: Array, value: Array, arrived: bool, noise: float) -> Solved:
    """The answer ``h``, where ``value`` [1, k, n] should be zero at the free nodes."""
    some = value[..., piece.free]
    residual, norm = float(np.abs(some).max(initial=0.0)), float(np.sqrt((some**2).sum()))
    good = arrived and bool(np.isfinite(h).all()) and np.isfinite(residual)
    return Solved(h, good, residual, norm, noise)


# -- energies --------------------------------------------------------------------------------------


def _gradient(piece: Piece, own: Array, toward: Array) -> Array:
    """The gradient of the sum of all energies, [1, k, n]; zero at held nodes."""
    total = own + NUMPY.collect(toward, piece.src, piece.star.size)
    return np.where(piece.free, total, 0.0)


def _hessian(piece: Piece, q: LocalQuadratic) -> Array:
    """The Hessian of the sum of all energies between the free nodes, [m k, m k]."""
    n, k = piece.star.size, q.own.shape[1]
    slot, src = piece.star.slot, piece.src
    first, second = piece.pairs
    coupled = np.moveaxis(q.j[0], -1, 0)  # [e, C, k]
    through = np.moveaxis(q.u[0], -1, 0)[slot] @ coupled  # U J, [e, C, k]
    across = np.moveaxis(q.x[0], -1, 0)  # [e, k, k]
    rows = np.concatenate([np.arange(n), slot, src, src, src[first]])
    cols = np.concatenate([np.arange(n), src, slot, src, src[second]])
    blocks = np.concatenate([
        np.moveaxis(q.b[0], -1, 0), across, across.mT, np.moveaxis(q.c[0], -1, 0),
        coupled[first].mT @ through[second],
    ])  # fmt: skip
    place = np.cumsum(piece.free) - 1  # of a free node among the free
    keep = piece.free[rows] & piece.free[cols]
    rows, cols, blocks = place[rows[keep]], place[cols[keep]], blocks[keep]
    width, inner = int(piece.free.sum()) * k, np.arange(k)
    at = (rows[:, None, None] * k + inner[:, None]) * width + cols[:, None, None] * k + inner
    return np.bincount(at.ravel(), blocks.ravel(), width**2).reshape(width, width)


def _direction(piece: Piece, matrix: Array, right: Array) -> Array:
    """The solution [1, k, n] of a system with this matrix between the free nodes; NaN where it is
    singular."""
    out, k = np.zeros_like(right), right.shape[1]
    wanted = right[0][:, piece.free].T.ravel()
    try:
        found = np.linalg.solve(matrix, wanted)
    except np.linalg.LinAlgError:
        found = np.full_like(wanted, np.nan)
    out[0][:, piece.free] = found.reshape(-1, k).T
    return out


def _minimise(piece: Piece, energy: LocalEnergy, h: Array, each: Callable[[], None]) -> Solved:
    star, src, eps = piece.star, piece.src, float(np.finfo(h.dtype).eps)
    noise, reach, before, arrived = 0.0, 1.0, 0.0, False
    for iteration in range(MOST):
        each()
        late, at = iteration >= PATIENCE, (h, h[..., src], star)
        q = energy.secant(*at, reach) if late else energy.quadratic(*at)
        gradient, matrix = _gradient(piece, q.own, q.toward), _hessian(piece, q)
        noise, left = eps * _scale(piece, q, h), float(np.abs(gradient).max(initial=0.0))
        d = _direction(piece, matrix, -gradient)
        small = np.abs(d).max() <= ARRIVED * np.abs(h).max()
        if not left or (small and left <= max(ROUNDING * noise, 0.1 * before)):
            h, arrived = (h + d if small else h), True
            break
        before = left if small else 0.0
        t = _length(piece, energy, h, d, gradient, late)
        if not t:  # rounding broke the factorisation
            d = _downhill(piece, matrix, gradient)
            t = _length(piece, energy, h, d, gradient, late)
        if not t:
            arrived = left <= ROUNDING * noise
            break
        h = h + t * d
        if late:
            reach = float(np.clip(reach * (0.25 if t == 1.0 else 16.0), *REACH))
    last = energy.local(h, h[..., src], star)
    return _told(piece, h, _gradient(piece, *last), arrived, noise)


def _scale(piece: Piece, q: LocalQuadratic, h: Array) -> float:
    """The size of the terms that cancel in an entry of the gradient."""
    terms = np.abs(q.own) + NUMPY.collect(np.abs(q.toward), piece.src, piece.star.size)
    bent = np.abs(q.b).sum(2).max(initial=0.0) * np.abs(h).max(initial=0.0)
    return float(terms.max(initial=0.0) + bent)


def _downhill(piece: Piece, matrix: Array, gradient: Array) -> Array:
    """The negative gradient, each entry divided by the curvature along it."""
    d, curvature = np.zeros_like(gradient), matrix.diagonal().reshape(-1, gradient.shape[1]).T
    d[0][:, piece.free] = -gradient[0][:, piece.free] / curvature
    return d


def _length(
    piece: Piece, energy: LocalEnergy, h: Array, d: Array, gradient: Array, late: bool
) -> float:
    """How far to go along ``d``; 0 where it does not lead down."""
    slope, t = float((gradient * d).sum()), 1.0
    if not slope < 0.0:
        return 0.0
    rise = 0.0 if late else RISE * abs(slope)
    for trial in range(TRIALS):
        there = h + t * d
        local = energy.local(there, there[..., piece.src], piece.star)
        turned = float((_gradient(piece, *local) * d).sum())
        if turned <= rise:  # false for NaN
            return t
        secant = slope / (slope - turned)
        # Where slopes before and behind a near kink are alike, secants shorten a step too slowly.
        t *= min(max(secant, 0.1), 0.7) if trial < TRIALS // 4 and np.isfinite(secant) else 0.1
    return 0.0


# -- maps ------------------------------------------------------------------------------------------


def _fix(piece: Piece, rows: LocalMap, h: Array, each: Callable[[], None]) -> Solved:
    size = 0.0
    for number in range(STEPS):
        if number % 4 == 0:
            each()
        gap = np.where(piece.free, rows.update(h, h[..., piece.src], piece.star) - h, 0.0)
        h, size = h + gap, float(np.abs(h).max(initial=0.0))
        if not np.abs(gap).max(initial=0.0) > FIXED * size:  # true for NaN
            break
    gap = rows.update(h, h[..., piece.src], piece.star) - h
    good = bool(np.abs(gap[..., piece.free]).max(initial=0.0) <= SOLVED * size)
    return _told(piece, h, gap, good, float(np.finfo(h.dtype).eps) * size)
