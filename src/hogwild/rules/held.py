"""Solves of many small pieces of a problem at once, in which some nodes are held."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hogwild.engines.chunks import ChunkedEnergyKernel
from hogwild.engines.energy import EnergyKernel
from hogwild.engines.posing import Tensors
from hogwild.graph import Graph
from hogwild.linalg.solution import Solution
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.problems.pinned import pinned
from hogwild.solvers.anderson import Picard
from hogwild.solvers.loop import Solver, solve
from hogwild.solvers.newton import Newton
from hogwild.solvers.semismooth import SemismoothNewton

NEAR = Newton(atol=0.0, rtol=1e-6, max_iter=0, linear="cg")
"""Makes no iteration, and says whether a gradient is small beside its terms. Where odd features
make terms large, rounding may keep a solve from its tolerance."""


@dataclass(frozen=True)
class Piece:
    """Copies of some nodes and edges of a problem, as a batch of graphs.

    Attributes:
        graph: The graphs.
        nodes: The node of which each node is a copy, [n].
        edges: The edge of which each edge is a copy, [e].
        free: Which nodes move, [n]; the others are held.
    """

    graph: Graph
    nodes: Tensor
    edges: Tensor
    free: Tensor


class HeldSolver:
    """Solves pieces of one problem, in compiled code where the problem has some.

    Args:
        problem: The whole problem, without gradients.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        # Balls change from turn to turn: a factorisation would have to be planned every time.
        self.solver: Solver = SemismoothNewton(linear="cg")
        if isinstance(problem, Objective):
            self.solver = Newton(linear="cg")
        elif isinstance(problem, FixedPoint) and problem.monotone:
            self.solver = Picard(max_iter=10_000)  # maxima have no use for differences
        kernel = problem.kernel()
        on_cpu = type(kernel) in (EnergyKernel, ChunkedEnergyKernel)
        self.kernel = kernel if on_cpu and isinstance(kernel, EnergyKernel) else None
        if self.kernel is not None:
            self.tensors = self.kernel.plain()

    def solve(self, piece: Piece, h: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings [R, k, n] after a solve from ``h``, and which graphs of the piece have
        arrived, [G]; the embeddings of the others are of no use."""
        found = self._solved(piece, h, self.solver)
        good = found.converged
        if isinstance(self.problem, Objective) and not bool(good.all()):
            good = good | self._solved(piece, found.value, NEAR).converged
        return found.value, good.all(0)

    def _solved(self, piece: Piece, h: Tensor, solver: Solver) -> Solution:
        if self.kernel is None:
            part = self.problem.gathered(piece.graph, piece.nodes, piece.edges)
            return solve(pinned(part, piece.free, h), solver, h)
        t = self.tensors
        posed = Tensors(
            t.parameters, _some(t.nodes, piece.nodes), _maybe(t.edges, piece.edges),
            _maybe(t.weight, piece.edges), _maybe(t.loop_weight, piece.nodes),
        )  # fmt: skip
        kernel = EnergyKernel(self.kernel.native, piece.graph, self.kernel.design, posed)
        return solver.run(kernel.holding(~piece.free), h)


def _some(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(-1, index)


def _maybe(x: Tensor | None, index: Tensor) -> Tensor | None:
    return None if x is None else _some(x, index)
