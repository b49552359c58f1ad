r"""Solvers, and the one loop that runs them on a :class:`~hogwild.problems.base.Problem`.

A *solver* is one small class with :meth:`Solver.init` and :meth:`Solver.step`; it must leave the
problems outside ``active`` exactly as they are. The loop, :func:`solve`, is the only one: it stops
each problem by its own residual, freezes it, and shrinks the batch to the replicas and graphs
that still move, so that a graph's answer depends neither on its batch mates nor on when they stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hogwild.errors import ConfigError, is_integer, is_number
from hogwild.linalg.capture import is_small
from hogwild.linalg.solution import Solution, Status
from hogwild.problems.base import Evaluation, Objective, Problem


@dataclass
class State:
    """A solver's memory; tensors are filed by shape so that the loop can drop what has converged.

    ``nodes`` holds tensors [..., R, k, N], ``graphs`` tensors [..., R, G]. ``nodes["h"]`` is the
    iterate and ``graphs["residual"]`` its residual; a solver may set ``graphs["stalled"]``.
    ``cache`` holds anything else and is dropped when the batch shrinks.
    """

    nodes: dict[str, Tensor]
    graphs: dict[str, Tensor]
    cache: object | None = field(default=None)

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
    :math:`F(h) - h`) is at most ``atol + rtol · scale``, ``scale`` being the size of the terms
    that cancel in it.

    Args:
        atol: Absolute tolerance; ``None`` is 1e-8 in float64 and 0 in float32, where rounding
            alone exceeds any fixed absolute tolerance once weights have grown.
        rtol: Relative tolerance; ``None`` is 2e-6 in float32, and in float64 1e-10 unless ``atol``
            is given. Not 0: with embeddings in the hundreds and curvatures in the thousands, the
            rounding of h alone moves the gradient by more than 1e-8.
        max_iter: Iterations after which a problem is given up.
    """

    atol: float | None = None
    rtol: float | None = None
    max_iter: int = 100

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise ConfigError(f"{name}={value!r}; expected a nonnegative number or None")
        if not is_integer(self.max_iter) or self.max_iter < 0:
            raise ConfigError(f"max_iter={self.max_iter!r}; expected a nonnegative integer")

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(atol, rtol) in force for this dtype."""
        double = dtype == torch.float64
        atol = (1e-8 if double else 0.0) if self.atol is None else self.atol
        relative = (1e-10 if self.atol is None else 0.0) if double else 2e-6
        return atol, relative if self.rtol is None else self.rtol

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

    @abstractmethod
    def init(self, problem: P, h: Tensor) -> State:
        """Memory at the starting point, residual included."""

    @abstractmethod
    def step(self, problem: P, state: State, active: Tensor) -> State:
        """One iteration on the problems in ``active`` [R, G]; the others stay as they are."""


PRICE = {"cpu": 8.0, "cuda": float("inf")}
"""What cutting a smaller batch out of a small one costs, in iterations of the small one."""


def price(h: Tensor) -> float:
    """Iterations that may be wasted on frozen graphs before what still moves is cut out.

    Nobody knows how many iterations are left. Cutting once the waste has reached the price of a cut
    never costs more than twice what knowing would, and leaves a batch whole whose graphs finish
    together.
    """
    return PRICE.get(h.device.type, 0.0) if is_small(h) else 0.0


@torch.no_grad()
def solve(problem: P, solver: Solver[P], h0: Tensor) -> Solution:
    """Run ``solver`` on ``problem`` from ``h0`` [R, k, N]; never raises for non-convergence."""
    atol, rtol = solver.tolerances(h0.dtype)
    state = solver.init(problem, h0)
    device = h0.device
    shape = (problem.replicas, problem.graph.num_graphs)
    value = torch.empty_like(state.nodes["h"])
    residual = torch.empty(shape, dtype=h0.dtype, device=device)
    status = torch.full(shape, int(Status.MAX_ITERATIONS), device=device)
    iterations = torch.zeros(shape, dtype=torch.long, device=device)
    # The replicas, graphs and nodes of the current (shrunken) batch; None: all of them.
    at: tuple[Tensor, Tensor, Tensor] | None = None

    def record(current: State, done: Tensor, stalled: Tensor, count: Tensor) -> None:
        nonlocal value, residual, status, iterations
        outcome = torch.full(done.shape, int(Status.MAX_ITERATIONS), device=device)
        outcome.masked_fill_(done, int(Status.CONVERGED))
        outcome.masked_fill_(stalled, int(Status.STALLED))
        outcome.masked_fill_(~torch.isfinite(current.graphs["residual"]), int(Status.NOT_FINITE))
        if at is None:
            value, residual = current.nodes["h"].clone(), current.graphs["residual"].clone()
            status, iterations = outcome, count.clone()
            return
        replicas, graphs, nodes = at
        value[
            replicas[:, None, None], torch.arange(value.size(1), device=device)[:, None], nodes
        ] = current.nodes["h"]
        pair = (replicas[:, None], graphs)
        residual[pair] = current.graphs["residual"]
        status[pair], iterations[pair] = outcome, count

    count = torch.zeros_like(iterations)
    given_up = torch.zeros(shape, dtype=torch.bool, device=device)
    wasted = 0.0  # iterations' worth of work on frozen graphs since the last cut
    for iteration in range(solver.max_iter + 1):
        now = state.graphs["residual"]
        limit = atol if rtol == 0.0 else atol + rtol * state.graphs["scale"]
        done, finite = now <= limit, torch.isfinite(now)
        if "stalled" in state.graphs:
            given_up = given_up | state.graphs["stalled"]
        stalled = given_up & ~done
        active = ~done & finite & ~stalled
        host = active.cpu()  # waits for the device, once an iteration
        moving = int(host.sum())
        if not moving or iteration == solver.max_iter:
            record(state, done, stalled, count)
            break
        rows, cols = host.any(1), host.any(0)
        wasted += 1.0 - int(cols.sum()) / cols.numel()
        if wasted < price(state.nodes["h"]) or 2 * int(cols.sum()) > cols.numel():
            cols = torch.ones_like(cols)
        if h0.is_cuda and is_small(state.nodes["h"]):
            rows = torch.ones_like(rows)
        if 2 * int(rows.sum()) * int(cols.sum()) <= host.numel():
            record(state, done, stalled, count)
            wasted = 0.0
            keep_r, keep_g = (m.nonzero()[:, 0].to(device) for m in (rows, cols))
            problem, nodes = problem.select(keep_r, keep_g)
            state = state.select(keep_r, keep_g, nodes)
            active, count, given_up = (m[keep_r][:, keep_g] for m in (active, count, given_up))
            at = (
                (keep_r, keep_g, nodes)
                if at is None
                else (at[0][keep_r], at[1][keep_g], at[2][nodes])
            )
        state = solver.step(problem, state, active)
        count = count + active
    return Solution(value, status, iterations, residual)
