r"""Newton's method with a line search on every graph: the default for energies.

.. math::
    h \leftarrow h - t\, (\nabla^2 E)^{-1} \nabla E, \qquad 0 < t \le 1

On a strongly convex energy with a bounded Hessian the damped iteration converges from every start,
and quadratically at the end.

*Secant curvature.* Large features or weights make an energy nearly piecewise linear: its Hessian
does not show the next kink, steps become short, and the iteration passes the kinks one by one. On a
graph that has not converged after ``patience`` iterations
:meth:`~hogwild.problems.base.Evaluation.secant` replaces the Hessian: its curvatures bound the
energy's growth as far as a *reach* in the units of the pre-activations. Every graph has a reach. A
full step divides it by four, and a shorter step multiplies it by sixteen. The reach is the radius
of a trust region that bends steps instead of cutting them. Where full steps succeed the reach goes
to zero, and the last steps are Newton's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.operator import Hessian
from hogwild.problems.base import Objective
from hogwild.solvers.loop import Solver, State
from hogwild.solvers.search import search

REACH = (1e-3, 1e9)
"""Smallest and largest reach. At the smallest the curvatures are nearly the Hessian's. At the
largest they bound the energy for pre-activations of any realistic size."""


@dataclass(frozen=True, kw_only=True)
class Newton(Solver[Objective]):
    """Damped Newton.

    Args:
        max_backtracks: Refused steps after which a graph has stalled.
        patience: Iterations on a graph after which secant curvature replaces the Hessian (never, if
            it is at least ``max_iter``). Ordinary graphs have converged by
            then.
        max_iter: Iterations after which a graph is given up. Most graphs take fewer than ten. Far
            from the minimum an energy with large weights is nearly piecewise linear, and a graph
            may take a hundred or two.
    """

    max_iter: int = 1000
    max_backtracks: int = 40
    patience: int = 20
    least = {"max_backtracks": 1, "patience": 0}  # noqa: RUF012

    def init(self, problem: Objective, h: Tensor) -> State:
        state = self.objective_state(problem, h, problem.evaluate(h))
        one = torch.ones_like(state.graphs["residual"])
        state.graphs |= {"t": one, "age": torch.zeros_like(one), "reach": one}
        return state

    @staticmethod
    def _first(state: State) -> Tensor:
        """The step length to try first, [R, G]: four times the last one, at most 1. A graph that
        had to take a short step probably has to again."""
        return (4.0 * state.graphs["t"]).clamp_max(1.0)

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        late = active & (state.graphs["age"] >= self.patience)
        out = self._step(problem, state, active, late if bool(late.any()) else None)
        reach = state.graphs["reach"]
        moved = torch.where(out.graphs["t"] == 1.0, 0.25 * reach, 16.0 * reach).clamp(*REACH)
        out.graphs["reach"] = torch.where(late, moved, reach)
        out.graphs["age"] = state.graphs["age"] + active
        return out

    def _step(self, problem: Objective, state: State, active: Tensor, late: Tensor | None) -> State:
        """A step, with secant curvature on the graphs in ``late`` [R, G] (``None``: on no graph).
        The new state holds the step lengths ``t``."""
        graph, h = problem.graph, state.nodes["h"]
        linear = LinearSolver(self.linear)
        now = state.at or problem.evaluate(h)
        # Inexact Newton: the inner tolerance follows the residual, which keeps the convergence
        # quadratic, down to what the outer tolerance needs.
        forcing = state.graphs["residual"].clamp(1e-10, 1e-2)
        floor = 0.1 * self.tolerances(h.dtype)[0]
        t = self._first(state)
        if late is None:
            curvature = now.hessian()
        else:
            curvature = now.secant(torch.where(late, state.graphs["reach"], 0.0))
            t = torch.where(late, 1.0, t)
        d = linear.solve(curvature, -now.gradient, forcing, floor).value
        d = torch.where(graph.wide(active), d, 0.0)
        slope = graph.dot(now.gradient, d)  # < 0
        lost = active & ~(slope < 0.0)  # rounding broke the factorisation: mostly NaN
        if bool(lost.any()):
            d = torch.where(graph.wide(lost), self._downhill(curvature, now.gradient), d)
            slope = graph.dot(now.gradient, d)
        found = search(problem, h, now, d, slope, t, active, self.max_backtracks)
        out = self.objective_state(problem, found.h, found.at)
        out.graphs |= {"t": found.t, "stalled": found.refused}
        return out

    @staticmethod
    def _downhill(curvature: Hessian, gradient: Tensor) -> Tensor:
        """A direction of descent without a factorisation: the negative gradient, each entry divided
        by the positive curvature along it."""
        blocks = curvature.diagonal()
        if blocks is None:
            return -gradient
        return -gradient / blocks.diagonal(dim1=1, dim2=2).mT
