"""What every engine does: refuse a problem, with the reason, or solve it and differentiate; and
perhaps compute the updates of nodes. And the engine on torch, which takes every problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hogwild.engines.ticks import Ticks
from hogwild.errors import UnsupportedError
from hogwild.graph import Graph, Star
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Objective, Problem
from hogwild.problems.pinned import pinned
from hogwild.solvers.adjoint import attach, differentiable, rebuilt
from hogwild.solvers.loop import Solver, solve
from hogwild_node.rules.base import Rule


class Updates(ABC):
    """The updates of a rule's nodes, as an engine computes them. The rule keeps its memory."""

    @property
    @abstractmethod
    def path(self) -> str:
        """What computes."""

    @abstractmethod
    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        """What :meth:`~hogwild_node.rules.base.Rule.update` computes."""

    @abstractmethod
    def pose(self) -> None:
        """Read the energy that the rule has now: one of the same shape, with other features."""

    def ticks(self, depth: int, arrays: Mapping[str, Tensor]) -> Ticks | None:
        """Whole ticks on these arrays of a simulation (:class:`~hogwild.engines.ticks.Ticks`), with
        packets of at most this age; ``None``: the simulation keeps and finds packets itself."""
        return None


class Engine(ABC):
    """A way to solve one problem, and perhaps to compute the updates of nodes.

    Attributes:
        problem: The problem, attached to autograd where its solution is to be differentiated.
        solver: The solver, whose method the engine follows.
        held: Nodes that stay where a solve begins, [N]; ``None``: none.
        kind: The class of problems that the engine solves. A subclass of it may change any formula,
            and is another kind.
        device: The type of device that it computes on; ``None``: any.
        fewest: Edges (or nodes) of a graph, in the mean of a batch, below which it is not tried.
        takes_all: Whether it takes every problem, in any precision.
        holds: Whether its own code, not that of torch, solves with some nodes held.
    """

    problem: Problem
    solver: Solver
    held: Tensor | None = None
    kind: ClassVar[type]
    device: ClassVar[str | None] = None
    fewest: ClassVar[int] = 0
    holds: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(cls, problem: Problem, solver: Solver) -> Engine | str:
        """The engine for this problem, or why it refuses."""

    @classmethod
    def updates(cls, rule: Rule, graph: Graph, h: Tensor, whole: bool) -> Updates | str | None:
        """The updates of a rule that has begun at ``h`` [R, k, N], or why there are none; ``None``:
        this engine only solves. ``whole``: most of them will be those of whole ticks."""
        return None

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

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of an energy at ``h`` [R, k, N], zero at nodes that are held, and the size
        of its terms [R, G]."""
        problem = self._moving(self.problem.detach(), h)
        assert isinstance(problem, Objective)
        at = problem.evaluate(h)
        return at.gradient, at.scale

    def _moving(self, problem: Problem, h: Tensor) -> Problem:
        """The problem, in which the nodes that are held stay at ``h``."""
        return problem if self.held is None else pinned(problem, ~self.held.bool(), h.detach())

    def vjp(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        """How the adjoint solve ended, and the gradients of ``problem.sources``, from the gradient
        [R, k, N] at the solution ``h``."""
        raise UnsupportedError(
            f"{type(self).__name__} has no gradients of its own; expected attach(), whose result "
            f"autograd differentiates"
        )

    def attach(self, h: Tensor, on_failure: str) -> Tensor:
        """The solution ``h`` as a differentiable function of ``problem.sources``. Derivatives of
        higher order are computed by torch."""
        sources, problem = self.problem.sources, self.problem
        return attach(
            h, sources, self.vjp, lambda given: self._moving(rebuilt(problem, sources, given), h),
            lambda problem, h: self.solver.adjoint.at(problem, h), on_failure,
        )  # fmt: skip


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
