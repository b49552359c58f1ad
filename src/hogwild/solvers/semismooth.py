r"""Newton's method for contractions, between plain steps.

.. math:: h \leftarrow h + (I - J)^{-1} (F(h) - h)

Where F is piecewise affine (ReLU) the step is exact as soon as no activation changes its piece. For
smooth F convergence is quadratic. Every iteration begins with a few plain steps :math:`h \leftarrow
F(h)`. They are cheap, and suffice where they converge fast. Far from the solution Newton's steps
may overshoot. After a few iterations in a row that did not lower the best residual by a tenth, a
graph takes plain steps only, until one of them does. Plain steps of a contraction always converge,
so the method converges from every start.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.linalg.linear import LinearSolver
from hogwild.problems.base import FixedPoint
from hogwild.solvers.loop import Solver, State

PATIENCE = 5
"""Iterations without progress after which only plain steps are taken."""
BLOCK = 8
"""Plain steps at the beginning of an iteration. Checking a step costs about as much as a step."""
BLOCKS = 6
"""Iterations of plain steps that cost about as much as Newton steps with a Krylov solver inside."""


@dataclass(frozen=True, kw_only=True)
class SemismoothNewton(Solver[FixedPoint]):
    """Newton's method for fixed points: plain steps, and a Newton step where these are slow."""

    max_iter: int = 1000

    def init(self, problem: FixedPoint, h: Tensor) -> State:
        state = self.fixed_point_state(problem, h, problem.step(h))
        residual = state.graphs["residual"]
        never = torch.full_like(residual, torch.inf)
        state.graphs |= {"before": never, "best": residual, "futile": torch.zeros_like(residual)}
        return state

    def step(self, problem: FixedPoint, state: State, active: Tensor) -> State:
        graph, h = problem.graph, state.nodes["h"]
        best, futile = state.graphs["best"], state.graphs["futile"]
        newton = active & (futile < PATIENCE) & self._worthwhile(problem, state)
        new = state.nodes["image"]
        for _ in range(BLOCK - 1):
            new = problem.step(new)
        if bool(newton.any()):
            # Inexact Newton: the inner tolerance follows the residual.
            forcing = state.graphs["residual"].clamp(1e-10, 1e-4)
            r = torch.where(graph.wide(newton), problem.step(new) - new, 0.0)
            linear = LinearSolver(self.linear)
            d = linear.solve_tangent(problem.linearise(new), r, forcing).value
            new = new + torch.nan_to_num(d, 0.0, 0.0, 0.0)
        new = torch.where(graph.wide(active), new, h)
        out = self.fixed_point_state(problem, new, problem.step(new))
        better = out.graphs["residual"] <= 0.9 * best
        out.graphs["before"] = state.graphs["residual"]
        out.graphs["best"] = torch.where(better, out.graphs["residual"], best)
        # A graph out of patience gets one more try for every step that helps.
        again = torch.where(futile < PATIENCE, 0.0, PATIENCE - 1.0)
        out.graphs["futile"] = torch.where(better, again, futile + 1.0)
        return out

    def _worthwhile(self, problem: FixedPoint, state: State) -> Tensor:
        """Whether Newton's step is worth its cost on each graph, [R, G].

        A factorisation always is: the adjoint needs it anyway. A Krylov solve is not where plain
        steps, at their last rate, soon converge.
        """
        now, before = state.graphs["residual"], state.graphs["before"]
        if LinearSolver(self.linear).is_direct(problem):
            return torch.ones_like(now, dtype=torch.bool)
        return now * (now / before).pow(BLOCKS) > self.limit(state)
