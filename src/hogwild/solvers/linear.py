"""Solving with the Hessian: one choice, made by the structure and size of the graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.solvers import fronts
from hogwild.solvers.base import Hessian, Objective, Solution, Status
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

    def solve(
        self,
        hessian: Hessian,
        rhs: Tensor,
        rtol: float | Tensor,
        atol: float | Tensor = 0.0,
    ) -> Solution:
        """``H⁻¹ b``; a direct factorisation is exact whatever the tolerances."""
        if self.kind != "cg":
            factor = self._factor(hessian, rhs.size(0))
            if factor is not None:
                return self.exactly(factor.solve(rhs), hessian.graph)
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
            atol=atol,
            max_iter=self.max_iter,
        )

    @staticmethod
    def exactly(x: Tensor, graph: Graph) -> Solution:
        """The result of a factorisation, as a solution."""
        once = torch.ones(x.size(0), graph.num_graphs, dtype=torch.long, device=x.device)
        finite = torch.isfinite(graph.norm(x))
        status = torch.where(finite, int(Status.CONVERGED), int(Status.NOT_FINITE))
        return Solution(x, status, once, torch.zeros_like(once, dtype=x.dtype))

    def is_direct(self, problem: Objective) -> bool:
        """Whether a Hessian of this problem will be factorised."""
        if self.kind == "cg" or not problem.has_blocks:
            return False
        force = self.kind == "direct"
        plan = fronts.plan_for(problem.graph, problem.channels, problem.replicas, force=force)
        return plan is not None

    def _factor(self, hessian: Hessian, replicas: int) -> fronts.Factor | None:
        if not hessian.has_blocks:
            return None
        force = self.kind == "direct"
        plan = fronts.plan_for(hessian.graph, hessian.channels, replicas, force=force)
        return None if plan is None else plan.factor(*hessian.blocks())
