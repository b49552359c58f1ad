"""The engine on torch: every problem, every solver and every device, step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.engines.base import Engine
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Problem
from hogwild.solvers.adjoint import differentiable
from hogwild.solvers.loop import Solver, solve


class TorchEngine(Engine):
    """A problem that torch solves.

    Args:
        problem: The problem.
        solver: The solver.
        why: Why no other engine solves it.
        held: Nodes that stay where a solve begins, [N]; ``None``: none.
    """

    kind = Problem
    takes_all = True

    def __init__(
        self, problem: Problem, solver: Solver, why: str, held: Tensor | None = None
    ) -> None:
        self.problem, self.solver, self.why, self.held = problem, solver, why, held

    @classmethod
    def of(cls, problem: Problem, solver: Solver) -> TorchEngine:
        return cls(problem, solver, "")

    @property
    def path(self) -> str:
        return f"torch: {self.why}"

    @torch.no_grad()
    def solve(self, h0: Tensor | None, solver: Solver | None = None) -> Solution:
        problem = self.problem.detach()
        start = problem.start() if h0 is None else h0
        return solve(self._moving(problem, start), solver or self.solver, start)

    def holding(self, held: Tensor) -> TorchEngine:
        return TorchEngine(self.problem, self.solver, self.why, held.bool())

    def attach(self, h: Tensor, on_failure: str) -> Tensor:
        return differentiable(self._moving(self.problem, h), h, self.solver.adjoint, on_failure)
