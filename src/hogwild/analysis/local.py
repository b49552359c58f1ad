r"""What is proved of gradient steps near the answer, with the true Hessian there.

Bounds that hold everywhere take every curvature at its largest. Near the answer :math:`h^*` the
Hessian lies between proved bounds (:mod:`hogwild.analysis.nearby`), and two theorems give a rate.
Both proofs are in the documentation ("The mathematics", "Rates near the answer").

*Descent.* In the Euclidean ball of radius ρ around the answer let :math:`\beta_\rho` bound the
eigenvalues of the Hessian from below and :math:`r_a` its row sums. The theorem on certified steps
holds with these numbers, once all embeddings of the last 2D' ticks are within
:math:`\rho \sqrt{\beta_\rho / (\tfrac32 \sum_a r_a)}` of the answer, entry by entry.

*Dominance.* Let :math:`w > 0`, let P bound the sum of the absolute local Hessians in the box
:math:`|h_a - h^*_a| \le \rho w_a`, and d their diagonals from below. With steps
:math:`\alpha_a \le 1 / P_{aa}` and

.. math:: \delta_a = \frac1{w_a} \Bigl(d_a w_a - \sum_{b \ne a} P_{ab} w_b
                     - \alpha_a D' P_{aa} (P w)_a\Bigr) > 0,

the error :math:`\max_a |h_a - h^*_a| / w_a` shrinks by :math:`1 - \min_a \alpha_a \delta_a` every
2D' + S ticks, once it has been at most ρ for 2D' ticks. Where nodes compute both sides of their
edges, their own embeddings are not old: the last term vanishes, and D + S ticks are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csc_matrix, diags
from torch import Tensor

from hogwild.analysis.certificate import Local, updates_needed
from hogwild.analysis.descent import Descent
from hogwild.analysis.nearby import Matrix, Nearby, dominance, flat, split, unflat
from hogwild.linalg.spectrum import LARGEST, Extremes, extremes
from hogwild.problems.base import Objective

KEPT = 0.25
"""Share of the rate at the answer that must be left in the ball. Smaller balls are faster, and
runs enter them later."""
LARGE, SMALL = 1e3, 1e-12
"""Radii that are tried, relative to the largest entry of the answer."""


class Around:
    """The neighbourhood of the answer ``h`` [R, k, N] of an energy. ``limits`` bounds the
    eigenvalues of the Hessian at the answer, for each replica; ``letters`` says whether neighbours
    send gradients."""

    def __init__(
        self, problem: Objective, h: Tensor, limits: list[Extremes], letters: bool = True
    ) -> None:
        self.problem, self.h, self.limits, self.letters = problem, h, limits, letters
        self.near = Nearby(problem, h)
        self.hessians = self.near.hessians()

    @property
    def size(self) -> float:
        """The largest entry of the answer."""
        return float(self.h.abs().max()) or 1.0

    # -- descent -----------------------------------------------------------------------------------

    def ball(self, radius: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the Euclidean ball of this radius: bounds on the row sums r and on their part outside
        of the node's block q [R, k, N], on the least eigenvalue, and on the least eigenvalue of the
        Hessian scaled by the row sums [R, G]."""
        change = self.near.variation(torch.full_like(self.h, radius))
        most = [a + r for a, r in zip(self.hessians[1], change, strict=True)]
        rows = torch.minimum(self._sums(most), self.problem.row_bounds())
        apart = torch.minimum(self._sums([self._apart(m) for m in most]), rows)
        root = flat(rows) ** -0.5
        low, curved = [], []
        for found, matrix, r, s in zip(self.limits, self.hessians[0], change, root, strict=True):
            low.append(found.low - float(np.asarray(r.sum(1)).max()))
            scaled = csc_matrix(diags(s) @ matrix @ diags(s))
            floor = float(found.low * (s**2).min())
            lost = float(np.asarray((diags(s) @ r @ diags(s)).sum(1)).max())
            curved.append(extremes(scaled, floor, 1.0 + 1e-9).low - lost)
        least = torch.maximum(self.problem.convexity(), rows.new_tensor(low)[:, None])
        return rows, apart, least, rows.new_tensor(curved)[:, None].expand_as(least)

    def _sums(self, matrices: list[Matrix]) -> Tensor:
        """Row sums, [R, k, N]."""
        return unflat(np.stack([np.asarray(m.sum(1)).ravel() for m in matrices]), self.h)

    def _apart(self, matrix: Matrix) -> Matrix:
        """The entries between different nodes."""
        found, k = matrix.tocoo(), self.h.size(1)
        found.data = np.where(found.row // k == found.col // k, 0.0, found.data)
        return found

    def descent(self, steps: Tensor | float | None, age: int, stagger: int) -> Local | None:
        """The theorem on descent, in the largest ball that keeps the rate; ``None`` for steps: one
        step for all nodes, half of the largest certified one in that ball."""
        if not self.near.known:
            return None

        def found(radius: float) -> tuple[Descent, float]:
            rows, apart, least, curved = self.ball(radius)
            late = rows if self.letters else apart
            used = 0.5 / float((0.5 * rows + age * late).max()) if steps is None else steps
            made = Descent(
                rows, least, used, age, stagger, self.problem.graph, curved,
                None if self.letters else apart,
            )  # fmt: skip
            return made, made.shrink() if float(made.margin.min()) > 0.0 else -1.0

        at, radius = self._largest(lambda r: found(r)[1])
        if at <= 0.0:
            return None
        made, shrink = found(0.0 if math.isinf(radius) else radius)
        total = self.problem.graph.sum(made.rows.sum(1))
        inner = radius * float((made.beta / (1.5 * total)).sqrt().min())
        needed = updates_needed(-math.log1p(shrink), age + stagger, stagger)
        step = float(torch.as_tensor(made.steps).min())
        condition = float((self.problem.graph.norm(made.rows) / made.beta).max())
        return Local(
            "descent", inner, inner / self.size, 1.0 / (1.0 + shrink), age + stagger, needed, step,
            condition,
        )  # fmt: skip

    # -- dominance ---------------------------------------------------------------------------------

    def dominated(self, steps: Tensor | float, age: int, stagger: int) -> Local | None:
        """The theorem on dominance; ``None`` where it does not hold."""
        if not self.near.known:
            return None
        weights = []
        for matrix, most in zip(*self.hessians, strict=True):
            found = dominance(matrix.diagonal(), split(most)[1])
            if not found.holds:
                return None
            weights.append(found.weights)
        w = np.stack(weights)
        late = age if self.letters else 0  # of what a node used of itself
        alpha = flat(torch.as_tensor(steps, dtype=self.h.dtype).expand_as(self.h))

        def shrink(radius: float) -> float:
            change = self.near.variation(unflat(radius * w, self.h))
            least = math.inf
            for n, (matrix, most, r) in enumerate(zip(*self.hessians, change, strict=True)):
                bound = (most + r).tocsr()
                own, all_ = bound.diagonal(), bound @ w[n]
                low = matrix.diagonal() - r.diagonal()
                if not (alpha[n] * own <= 1.0).all():
                    return -1.0
                delta = low * w[n] - (all_ - own * w[n]) - alpha[n] * late * own * all_
                least = min(least, float((alpha[n] * delta / w[n]).min()))
            return least

        at, radius = self._largest(shrink)
        if at <= 0.0:
            return None
        rate = 1.0 - shrink(0.0 if math.isinf(radius) else radius)
        period, inner = age + (age if self.letters else 0) + stagger, radius * float(w.min())
        spread = 1.0 + math.log(float((w.max(-1) / w.min(-1)).max())) / math.log(1e6)
        needed = spread * updates_needed(math.log(rate), period, stagger)
        condition = max(found.high / found.low for found in self.limits)
        least = float(torch.as_tensor(steps).min())
        return Local("dominance", inner, inner / self.size, rate, period, needed, least, condition)

    def _largest(self, rate: Callable[[float], float]) -> tuple[float, float]:
        """The rate at the answer, and the largest radius in which ``KEPT`` of it is left."""
        best = rate(0.0)
        if best <= 0.0 or self.problem.is_quadratic:
            return best, math.inf
        low, high = SMALL * self.size, LARGE * self.size
        if rate(high) >= KEPT * best:
            return best, high
        if rate(low) < KEPT * best:
            return -1.0, 0.0
        while high > 1.1 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if rate(middle) >= KEPT * best else (low, middle)
        return best, low


def best_local(around: Around, steps: Tensor | float, age: int, stagger: int) -> Local | None:
    """The better of both theorems for these steps; ``None``: neither holds."""
    if around.h[0].numel() > LARGEST:
        return None
    found = [around.descent(steps, age, stagger), around.dominated(steps, age, stagger)]
    known = [local for local in found if local is not None]
    return min(known, key=lambda local: local.updates, default=None)
