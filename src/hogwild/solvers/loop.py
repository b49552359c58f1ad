r"""Solvers, and the one loop that runs them on a :class:`~hogwild.problems.base.Problem`.

A *solver* is a small class with :meth:`Solver.init` and :meth:`Solver.step`. A step must leave the
problems outside ``active`` exactly as they are. All solvers run in one loop, :func:`solve`. It
stops each problem by its own residual, freezes it, and shrinks the batch to the replicas and graphs
that still move: a graph's answer does not depend on the other graphs of its batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hogwild.errors import ConfigError, is_number, require_integer
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Evaluation, Objective, Problem
from hogwild.solvers.adjoint import Adjoint


@dataclass
class State:
    """A solver's memory, by shape, so that the loop can drop graphs that have converged.

    ``nodes`` holds tensors [..., R, k, N], ``graphs`` tensors [..., R, G]. ``nodes["h"]`` is the
    iterate and ``graphs["residual"]`` its residual. A solver may set ``graphs["stalled"]``.
    ``at`` is the objective at the iterate; ``None`` where it must be evaluated again.
    """

    nodes: dict[str, Tensor]
    graphs: dict[str, Tensor]
    at: Evaluation | None = None

    def select(self, replicas: Tensor, graphs: Tensor, nodes: Tensor) -> State:
        return State(
            {k: v.index_select(-3, replicas)[..., nodes] for k, v in self.nodes.items()},
            {k: v.index_select(-2, replicas)[..., graphs] for k, v in self.graphs.items()},
        )


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True, kw_only=True)
class Solver(ABC, Generic[P]):
    r"""Base class of the solvers.

    A problem has converged when its residual (the largest absolute entry of the gradient, or of
    :math:`F(h) - h`) is at most ``atol + rtol · scale``. The scale is the size of the terms that
    cancel in the residual.

    Args:
        atol: Absolute tolerance; ``None`` is 1e-8 in float64. In float32 it is 0: rounding alone
            exceeds any fixed absolute tolerance once weights have grown.
        rtol: Relative tolerance; ``None`` is 2e-6 in float32 and 1e-10 in float64 (0 if ``atol`` is
            given). With embeddings in the hundreds and curvatures in the thousands, the rounding of
            h alone moves the gradient by more than 1e-8.
        max_iter: Iterations after which a problem is given up.
        linear: ``"auto"``, ``"direct"`` or ``"cg"``: how the linear systems of Newton's method and
            of the adjoint are solved (see :class:`~hogwild.solvers.LinearSolver`).
        adjoint_rtol: Relative tolerance of the adjoint; ``None`` is the default of
            :class:`~hogwild.solvers.Adjoint`.
    """

    atol: float | None = None
    rtol: float | None = None
    max_iter: int = 100
    linear: str = "auto"
    adjoint_rtol: float | None = None
    least: ClassVar[dict[str, int]] = {}
    """The smallest value of every integer option of a subclass."""

    def __post_init__(self) -> None:
        LinearSolver(self.linear)  # refuses an unknown kind
        for name in ("atol", "rtol", "adjoint_rtol"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise ConfigError(f"{name}={value!r}; expected a nonnegative number or None")
        require_integer("max_iter", self.max_iter, least=0)
        for name, least in self.least.items():
            require_integer(name, getattr(self, name), least)

    @property
    def adjoint(self) -> Adjoint:
        """How gradients through this solver's answers are computed."""
        return Adjoint(LinearSolver(self.linear), self.adjoint_rtol)

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(atol, rtol) in force for this dtype."""
        double = dtype == torch.float64
        atol = (1e-8 if double else 0.0) if self.atol is None else self.atol
        relative = (1e-10 if self.atol is None else 0.0) if double else 2e-6
        return atol, relative if self.rtol is None else self.rtol

    def limit(self, state: State) -> float | Tensor:
        """The residual [R, G] at which a problem has converged."""
        atol, rtol = self.tolerances(state.nodes["h"].dtype)
        return atol + rtol * state.graphs["scale"] if rtol else atol

    def objective_state(self, problem: Objective, h: Tensor, at: Evaluation) -> State:
        """A fresh state at ``h`` with the residual, and its scale where the tolerance needs it."""
        graphs = {"residual": problem.graph.norm(at.gradient)}
        if self.tolerances(h.dtype)[1]:
            graphs["scale"] = at.scale
        return State({"h": h}, graphs, at)

    def fixed_point_state(self, problem: Problem, h: Tensor, image: Tensor) -> State:
        """The same for a fixed point: residual :math:`F(h) - h`; keeps ``F(h)``."""
        graphs = {"residual": problem.distance(h, image)}
        if self.tolerances(h.dtype)[1]:
            graphs["scale"] = problem.size(h, image)
        return State({"h": h, "image": image}, graphs)

    def whole(self, problem: P, h0: Tensor) -> Solution | None:
        """The solution from ``h0``, where the solver has a way of its own; ``None``: by steps."""
        return None

    @abstractmethod
    def init(self, problem: P, h: Tensor) -> State:
        """Memory at the starting point, residual included."""

    @abstractmethod
    def step(self, problem: P, state: State, active: Tensor) -> State:
        """One iteration on the problems in ``active`` [R, G]; the others stay as they are."""


SMALL = {"cpu": 2_000, "cuda": 200_000}
"""Number of node embeddings below which a batch is small. Chosen with one slow graph in a
batch on a CPU, and by ``benchmarks/training_step.py`` on a GPU."""


def is_small(h: Tensor) -> bool:
    """Whether cutting out a smaller batch costs more than an iteration. On a GPU this holds as long
    as launching kernels costs more than running them."""
    return h.size(0) * h.size(-1) < SMALL.get(h.device.type, 0)


PRICE = {"cpu": 8.0, "cuda": float("inf")}
"""Cost of cutting a smaller batch out of a small one, in iterations of the small one: chosen
with one slow graph in a batch."""


def price(h: Tensor) -> float:
    """Iterations of work on frozen graphs after which the graphs that still move are cut out.

    The number of iterations left is unknown. Cutting once the wasted work has reached the price of
    a cut costs at most twice as much as the best choice in hindsight, and a batch whose graphs
    finish together is never cut.
    """
    return PRICE.get(h.device.type, 0.0) if is_small(h) else 0.0


@torch.no_grad()
def solve(problem: P, solver: Solver[P], h0: Tensor) -> Solution:
    """Run ``solver`` on ``problem`` from ``h0`` [R, k, N]; never raises for non-convergence."""
    found = solver.whole(problem, h0)
    if found is not None:
        return found
    device, shape = h0.device, (problem.replicas, problem.graph.num_graphs)
    state = solver.init(problem, h0)
    count = torch.zeros(shape, dtype=torch.long, device=device)
    stalled = torch.zeros(shape, dtype=torch.bool, device=device)
    out: Solution | None = None  # on all graphs, once some have finished
    at: Cut | None = None  # where the current batch lies in the whole one; None: it is the whole
    wasted = 0.0  # work on frozen graphs since the last cut, in iterations
    for iteration in range(solver.max_iter + 1):
        h, residual, limit = state.nodes["h"], state.graphs["residual"], solver.limit(state)
        if "stalled" in state.graphs:
            stalled = stalled | state.graphs["stalled"]
        active = ~((residual <= limit) | stalled) & torch.isfinite(residual)
        host = active.cpu()  # waits for the device, once an iteration
        rows, cols = host.any(1), host.any(0)
        last = iteration == solver.max_iter or not bool(cols.any())
        wasted += 1.0 - int(cols.sum()) / cols.numel()
        if wasted < price(h) or 2 * int(cols.sum()) > cols.numel():
            cols = torch.ones_like(cols)
        if h0.is_cuda and is_small(h):
            rows = torch.ones_like(rows)
        cut = 2 * int(rows.sum()) * int(cols.sum()) <= host.numel()
        if last or cut:
            found = Solution.of(h.clone(), residual, limit, count, stalled)
            out = found if out is None or at is None else at.write(found, out)
        if last:
            break
        if cut:
            wasted = 0.0
            keep_r, keep_g = (m.nonzero()[:, 0].to(device) for m in (rows, cols))
            problem, nodes = problem.select(keep_r, keep_g)
            state = state.select(keep_r, keep_g, nodes)
            active, count, stalled = (m[keep_r][:, keep_g] for m in (active, count, stalled))
            at = Cut(keep_r, keep_g, nodes) if at is None else at.of(keep_r, keep_g, nodes)
        state = solver.step(problem, state, active)
        count = count + active
    assert out is not None
    return out


class Cut(NamedTuple):
    """Where a smaller batch lies in the whole one: its replicas, graphs and nodes there."""

    replicas: Tensor
    graphs: Tensor
    nodes: Tensor

    def of(self, replicas: Tensor, graphs: Tensor, nodes: Tensor) -> Cut:
        """A part of this batch, in the whole one."""
        return Cut(self.replicas[replicas], self.graphs[graphs], self.nodes[nodes])

    def write(self, found: Solution, out: Solution) -> Solution:
        """Put the solution on this batch into the one on the whole batch."""
        channels = torch.arange(out.value.size(1), device=out.value.device)
        out.value[self.replicas[:, None, None], channels[:, None], self.nodes] = found.value
        for name in ("status", "iterations", "residual"):
            getattr(out, name)[self.replicas[:, None], self.graphs] = getattr(found, name)
        return out
