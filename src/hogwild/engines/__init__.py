"""The engines: ways to solve a problem, and to compute the updates of nodes, one file each.

An engine reads a problem's data. :data:`ENGINES` says which one is tried first. A new engine is a
file with a subclass of :class:`~hogwild.engines.base.Engine`, and a place in this list.
"""

from __future__ import annotations

from torch import Tensor

from hogwild.engines.base import Engine, TorchEngine, Updates
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.cpu_large import LargeCpuEngine
from hogwild.engines.gpu import GpuEngine
from hogwild.engines.gpu_large import LargeGpuEngine
from hogwild.engines.soft import SoftEngine
from hogwild.graph import Graph
from hogwild.problems.base import Problem
from hogwild.solvers.loop import Solver
from hogwild_node.rules.base import Rule

ENGINES: tuple[type[Engine], ...] = (
    LargeCpuEngine, CpuEngine, LargeGpuEngine, GpuEngine, SoftEngine,
)  # fmt: skip
"""The engines in the order in which they are tried; where all refuse, torch solves."""


def engine_for(problem: Problem, solver: Solver) -> Engine:
    """The first engine that takes this problem and this solver."""
    graph, why = problem.graph, f"{type(problem).__name__} has no compiled solve"
    device, rows = graph.src.device.type, max(graph.num_edges, graph.num_nodes)
    for engine in ENGINES:
        fits = type(problem) is engine.kind and engine.device in (None, device)
        if fits and rows >= engine.fewest * graph.num_graphs:
            found = engine.of(problem, solver)
            if isinstance(found, Engine):
                return found
            why = found
    return TorchEngine(problem, solver, why)


def updates_for(rule: Rule, graph: Graph, h: Tensor, *, whole: bool = False) -> Updates | str:
    """The updates of a rule that has begun at ``h`` [R, k, N], by the first engine that has them;
    or why the rule itself computes them. ``whole``: most of them will be those of whole ticks."""
    why = f"no updates are compiled for {h.device}"
    for engine in ENGINES:
        found = engine.updates(rule, graph, h, whole) if engine.device == h.device.type else None
        if isinstance(found, Updates):
            return found
        why = found or why
    return why
