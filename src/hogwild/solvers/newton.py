r"""Newton's method with a line search on every graph: the default for energies.

.. math::
    h \leftarrow h - t\, (\nabla^2 E)^{-1} \nabla E, \qquad t = 1, \tfrac12, \tfrac14, \dots

A strongly convex energy with a bounded Hessian makes the damped iteration converge from anywhere,
and quadratically at the end: two to five iterations from a warm start.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.solvers import fronts
from hogwild.solvers.base import Evaluation, Hessian, Objective, Solution, Solver, State, Status
from hogwild.solvers.krylov import block_jacobi, cg

LINEAR = ("auto", "direct", "cg")


@dataclass(frozen=True)
class LinearSolver:
    """How ``H x = b`` is solved: a direct factorisation where the graph has small separators
    (dense where it is small), conjugate gradients with block-Jacobi preconditioning otherwise."""

    kind: str = "auto"
    max_iter: int = 2000

    def __post_init__(self) -> None:
        if self.kind not in LINEAR:
            raise ConfigError(f"linear={self.kind!r}; expected one of {LINEAR}")

    def solve(self, hessian: Hessian, rhs: Tensor, rtol: float | Tensor) -> Solution:
        """``H⁻¹ b``; a direct factorisation is exact whatever ``rtol``."""
        if self.kind != "cg":
            factor = self._factor(hessian)
            if factor is not None:
                x = factor.solve(rhs)
                shape = (rhs.size(0), hessian.graph.num_graphs)
                zeros = torch.zeros(shape, dtype=torch.long, device=rhs.device)
                finite = torch.isfinite(hessian.graph.norm(x))
                status = torch.where(finite, int(Status.CONVERGED), int(Status.NOT_FINITE))
                return Solution(x, status, zeros + 1, zeros.to(rhs.dtype))
            if self.kind == "direct":
                raise ConfigError(
                    "linear='direct' was asked for, but this graph has no small separators (or "
                    "the energy has several rounds): use linear='auto' or 'cg'"
                )
        return cg(
            hessian.apply,
            rhs,
            hessian.graph,
            precondition=block_jacobi(hessian),
            rtol=rtol,
            max_iter=self.max_iter,
        )

    @staticmethod
    def _factor(hessian: Hessian) -> fronts.Factor | None:
        if not hessian.has_blocks:
            return None
        plan = fronts.plan_for(hessian.graph, hessian.channels)
        return None if plan is None else plan.factor(*hessian.blocks())


@dataclass(frozen=True, kw_only=True)
class Newton(Solver[Objective]):
    """Damped Newton.

    Args:
        linear: ``"auto"``, ``"direct"`` or ``"cg"`` (see :class:`LinearSolver`).
        max_halvings: Step halvings after which a graph counts as stalled.
    """

    linear: str = "auto"
    max_halvings: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        LinearSolver(self.linear)

    def init(self, problem: Objective, h: Tensor) -> State:
        return self.objective_state(problem, h, problem.evaluate(h))

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        graph, h = problem.graph, state.nodes["h"]
        now = state.cache if isinstance(state.cache, Evaluation) else problem.evaluate(h)
        # Inexact Newton: the inner tolerance follows the residual, superlinear in the end.
        forcing = graph.norm(now.gradient).sqrt().clamp(1e-8, 0.1)
        d = LinearSolver(self.linear).solve(now.hessian(), -now.gradient, forcing).value
        d = torch.where(graph.spread(active).unsqueeze(-2), d, 0.0)
        slope = graph.dot(now.gradient, d)  # < 0
        slack = 8.0 * torch.finfo(h.dtype).eps * (now.value.abs() + 1.0)
        t = torch.ones_like(slope)
        for _ in range(self.max_halvings):
            trial = h + graph.spread(t).unsqueeze(-2) * d
            new = problem.evaluate(trial)
            # Written so that NaN fails the test.
            reject = ~(new.value <= now.value + 1e-4 * t * slope + slack) & active
            if not bool(reject.any()):
                return self.objective_state(problem, trial, new)
            t = torch.where(reject, 0.5 * t, t)
        # No step helps these graphs: leave them where they were.
        t = t.masked_fill(reject, 0.0)
        h = h + graph.spread(t).unsqueeze(-2) * d
        out = self.objective_state(problem, h, problem.evaluate(h))
        out.graphs["stalled"] = reject
        return out
