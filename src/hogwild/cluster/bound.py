r"""When a part is settled, and how far all parts together may be from the exact answer.

*Energies.* With strong convexity :math:`\beta` and the gradient :math:`g_p` at the nodes of part p,

.. math:: \|h - h^*\|_2 \le \frac1\beta \sqrt{\textstyle\sum_p \|g_p\|_2^2} .

A part is settled when :math:`\|g_p\| \le \beta\, \text{tol}\, \|h_p\|`. If all parts are settled,
the relative error is at most ``tol``.

*Contractions* with modulus :math:`\kappa` in the norm :math:`\max_i \|h_i\| / v_i`:

.. math:: |h - h^*|_\infty \le \frac{\max_i v_i}{1 - \kappa}
          \max_p \max_{i \in p} \frac{\|F_i(h) - h_i\|}{v_i} .

*Other maps*: nothing is proved, and a part is settled when :math:`F(h) - h` is small.

Every part measures itself (:class:`Measure`), and :func:`error_bar` combines the measures. The
residual of the error bar is that of the problem in float64, whatever has solved it, with room for
the rounding of its own evaluation (:data:`ROUNDING`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.problems.base import FixedPoint, Objective, Problem

ABSOLUTE = 1e-9
"""An entry of an embedding may be wrong by this much where all entries of a part are zero."""
ROUNDING = 16.0
"""Units of rounding of its terms by which a computed residual may be wrong: an estimate, not a
proof. A residual of this size cannot be made smaller."""
INSIDE = 0.3
"""A part solves to this share of its limit, so that small news do not unsettle it."""


@dataclass(frozen=True)
class Measure:
    """The residual of one part, in numbers that can be combined over parts, [R] each.

    Attributes:
        kind: ``"energy"``, ``"contraction"`` or ``"map"``.
        residual: Sum of squares of the gradient; largest weighted residual; largest residual.
        size: Sum of squares of the embeddings; their largest entry for maps.
        factor: The lower bound β; the modulus κ; 0.
        weight: Largest v of a contraction; otherwise 1.
        largest: Largest absolute entry of the residual, of all replicas.
        settled: Whether the residual is within the limit of the part.
    """

    kind: str
    residual: Tensor
    size: Tensor
    factor: Tensor
    weight: float
    largest: float
    settled: bool = False


@dataclass(frozen=True)
class ErrorBar:
    """How far the embeddings may be from the exact answer, worst replica.

    Attributes:
        residual: Largest absolute entry of the gradient or of F(h) − h.
        error: Proved bound on the distance: Euclidean for energies, of the largest entry for
            contractions; ``None``: nothing is proved.
        relative: The bound, relative to the embeddings in the same norm; ``None`` likewise.
        norm: In words, what ``error`` measures.
    """

    residual: float
    error: float | None
    relative: float | None
    norm: str

    def __str__(self) -> str:
        if self.error is None:
            return f"residual {self.residual:.2g} (no bound on the distance is proved)"
        return (
            f"within {self.error:.2g} of the exact answer ({self.norm}; relative "
            f"{self.relative:.2g}), residual {self.residual:.2g}"
        )


class Bound:
    """The limit of one part.

    Args:
        problem: The problem on the local nodes.
        owned: Number of owned nodes A, which come first.
        tol: Relative tolerance.
    """

    def __init__(self, problem: Problem, owned: int, tol: float) -> None:
        self.problem, self.owned, self.tol = problem, owned, tol
        self.kind, self.weights = "map", None
        self.factor = torch.zeros(problem.replicas, dtype=torch.float64)
        if isinstance(problem, Objective):
            self.kind = "energy"
            self.factor = problem.convexity().amin(-1).double().cpu()
        elif isinstance(problem, FixedPoint):
            modulus = problem.modulus() if problem.graph.num_nodes else None
            norms = problem.weights()
            if modulus is not None and norms is not None and bool((modulus < 1.0).all()):
                self.kind, self.factor = "contraction", modulus.amax(-1).double().cpu()
                self.weights = norms[:owned]

    def residual(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The residual at the owned nodes [R, k, A], for local embeddings [R, k, N], and the size
        of its terms [R]."""
        if isinstance(self.problem, Objective):
            at = self.problem.evaluate(h)
            return at.gradient[..., : self.owned].detach(), at.scale.amax(-1).detach()
        image = self.problem.step(h).detach()
        scale = torch.maximum(_largest(image), _largest(h))
        return (image - h)[..., : self.owned], scale

    def measure(self, r: Tensor, h: Tensor) -> Measure:
        """The measure of a residual [R, k, A] at the local embeddings ``h``."""
        own = h[..., : self.owned].double()
        r = r.double()
        top = float(_largest(r).max()) if r.numel() else 0.0
        if self.kind == "energy":
            sizes = r.square().sum((1, 2)).cpu(), own.square().sum((1, 2)).cpu()
            return Measure(self.kind, *sizes, self.factor, 1.0, top)
        if self.weights is not None and isinstance(self.problem, FixedPoint):
            gap = self.problem.lengths(r) / self.weights
            worst = gap.amax(-1) if gap.numel() else gap.new_zeros(gap.size(0))
            weight = float(self.weights.max()) if self.weights.numel() else 1.0
            return Measure(self.kind, worst.cpu(), _largest(own).cpu(), self.factor, weight, top)
        return Measure(self.kind, _largest(r).cpu(), _largest(own).cpu(), self.factor, 1.0, top)

    def judge(self, r: Tensor, scale: Tensor, h: Tensor) -> Measure:
        """The measure for the error bar, from the residual and the size of its terms: with room for
        rounding, and whether the part is settled."""
        found, noise = self.measure(r, h), self.noise(scale, h)
        size = found.residual.sqrt() if self.kind == "energy" else found.residual
        # The worker may have settled on another computation of the residual.
        settled = bool((size <= self.limit(found, scale, h) + 2.0 * noise).all())
        worst = (size + noise).square() if self.kind == "energy" else size + noise
        return replace(found, residual=worst, settled=settled)

    def unrest(self, measure: Measure, scale: Tensor, h: Tensor) -> float:
        """The residual divided by its limit, of the worst replica. A part is settled up to 1."""
        if not self.owned:
            return 0.0
        limit = self.limit(measure, scale, h)
        found = measure.residual.sqrt() if self.kind == "energy" else measure.residual
        ratio = found / limit
        return float(ratio.max()) if bool(torch.isfinite(ratio).all()) else math.inf

    def limit(self, measure: Measure, scale: Tensor, h: Tensor) -> Tensor:
        """The residual at which the part is settled, [R], in the units of the measure (the square
        root for energies)."""
        noise = self.noise(scale, h)
        if self.kind == "energy":
            goal = self.tol * measure.size.sqrt() + ABSOLUTE * self._ones(h)
            return torch.maximum(self.factor * goal, noise)
        goal = self.tol * _largest(h).double().cpu() + ABSOLUTE
        if self.kind == "contraction":
            goal = (1.0 - self.factor) * goal / measure.weight
        return torch.maximum(goal, noise)

    def noise(self, scale: Tensor, h: Tensor) -> Tensor:
        """How wrong a computed residual may be by rounding, [R], in the units of :meth:`limit`."""
        return ROUNDING * torch.finfo(h.dtype).eps * self._ones(h) * scale.double().cpu()

    def _ones(self, h: Tensor) -> float:
        """A residual whose entries are all one, in the units of :meth:`limit`."""
        if self.kind == "energy":
            return math.sqrt(max(self.owned * h.size(1), 1))
        if self.weights is not None and isinstance(self.problem, FixedPoint):
            length = self.problem.lengths(h.new_ones(1, h.size(1), 1))
            return float(length) / float(self.weights.min())
        return 1.0

    def entry(self, measure: Measure, scale: Tensor, h: Tensor) -> float:
        """An absolute residual of every entry at which the part is well settled."""
        return INSIDE * float(self.limit(measure, scale, h).min()) / self._ones(h)


def error_bar(measures: Sequence[Measure], rounding: float = 0.0) -> ErrorBar:
    """The error bar of all parts together. ``rounding`` is the relative error of embeddings that
    are rounded to another dtype after the solve."""
    largest = max((m.largest for m in measures), default=0.0)
    if not measures or not math.isfinite(largest):
        return ErrorBar(largest, None, None, "")
    kind = measures[0].kind
    residuals = torch.stack([m.residual for m in measures])
    sizes = torch.stack([m.size for m in measures])
    factors = torch.stack([m.factor for m in measures])
    if kind == "energy":
        error = residuals.sum(0).sqrt() / factors.amin(0)
        size, norm = sizes.sum(0).sqrt(), "Euclidean norm"
    elif all(m.kind == "contraction" for m in measures):
        weight = max(m.weight for m in measures)
        error = weight * residuals.amax(0) / (1.0 - factors.amax(0))
        size, norm = sizes.amax(0), "largest entry"
    else:
        return ErrorBar(largest, None, None, "")
    error = error + rounding * size
    relative = torch.where(error > 0, error / size.clamp_min(1e-300), 0.0)
    return ErrorBar(largest, float(error.max()), float(relative.max()), norm)


def _largest(x: Tensor) -> Tensor:
    """Largest absolute entry of each replica, [R, ...] -> [R]."""
    flat = x.abs().flatten(1)
    return flat.amax(-1) if flat.size(-1) else flat.new_zeros(flat.size(0))
