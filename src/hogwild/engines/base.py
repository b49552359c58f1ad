"""What every engine does: refuse a problem, with the reason, or solve it and differentiate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from hogwild.linalg.solution import Solution
from hogwild.problems.base import Problem
from hogwild.solvers.adjoint import attach, rebuilt
from hogwild.solvers.loop import Solver


class Engine(ABC):
    """A way to solve one problem.

    Attributes:
        problem: The problem, attached to autograd where its solution is to be differentiated.
        solver: The solver, whose method the engine follows.
        kind: The class of problems that the engine solves.
        device: The type of device that it computes on; ``None``: any.
        fewest: Edges (or nodes) of a graph, in the mean of a batch, below which it is not tried.
    """

    problem: Problem
    solver: Solver
    kind: ClassVar[type]
    device: ClassVar[str | None] = None
    fewest: ClassVar[int] = 0

    @classmethod
    @abstractmethod
    def of(cls, problem: Problem, solver: Solver) -> Engine | str:
        """The engine for this problem, or why it refuses."""

    @property
    @abstractmethod
    def path(self) -> str:
        """What computes, for :meth:`~hogwild.models.Model.solver_path`."""

    @abstractmethod
    def solve(self, h0: Tensor | None, solver: Solver | None = None) -> Solution:
        """Solve from ``h0`` [R, k, N] (``None``: from where the problem starts), with the
        tolerances and limits of ``solver`` if it is given."""

    @abstractmethod
    def holding(self, held: Tensor) -> Engine:
        """The same problem, in which some nodes [N] stay where a solve begins."""

    def vjp(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        """How the adjoint solve ended, and the gradients of ``problem.sources``, from the gradient
        [R, k, N] at the solution ``h``."""
        raise NotImplementedError

    def attach(self, h: Tensor, on_failure: str) -> Tensor:
        """The solution ``h`` as a differentiable function of ``problem.sources``. Derivatives of
        higher order are computed by torch."""
        sources, problem = self.problem.sources, self.problem
        return attach(
            h, sources, self.vjp, lambda given: rebuilt(problem, sources, given),
            lambda problem, h: self.solver.adjoint.at(problem, h), on_failure,
        )  # fmt: skip
