"""Energies on large graphs in compiled code on a CPU: threads share one graph, in chunks.

``source/chunks.h`` runs Newton's method with conjugate gradients over one (graph, replica) after
the other. There is nothing to analyse but the order of the nodes, which puts neighbours near each
other. The number of threads changes no bit of an answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from hogwild.engines import cpu
from hogwild.engines.cpu import CpuEngine, factorisation
from hogwild.graph import Graph, cached
from hogwild.kernels.native import Library
from hogwild.linalg.direct import GraphPlan
from hogwild.linalg.solution import Solution
from hogwild.problems.energy import EnergyProblem

MOST_CHANNELS, MOST_MESSAGES = 8, 16
"""Widest embeddings and messages (of all heads) that ``chunks.h`` has blocks for."""
BLOCKS = 2
"""The number of this method in the compiled library."""


@cached
def order_of(graph: Graph) -> Tensor:
    """The nodes [N] in an order that puts neighbours near each other, graph by graph."""
    ends, ones = torch.stack([graph.src, graph.dst]).numpy(), np.ones(graph.num_edges)
    matrix = csr_matrix((ones, ends), (graph.num_nodes, graph.num_nodes))
    order = torch.from_numpy(reverse_cuthill_mckee(matrix).astype(np.int64))
    return order[graph.batch[order].argsort(stable=True)]


@cached
def sorted_plan(graph: Graph, native: Library) -> GraphPlan:
    """The edges of this graph, sorted, between places in the order of :func:`order_of`. The plan
    also keeps the memory of its solves."""
    order = order_of(graph)
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(graph.num_nodes))
    return GraphPlan(native, graph, place[graph.src], place[graph.dst], most_pairs=-1.0)


class LargeCpuEngine(CpuEngine):
    """An energy on a few large graphs on a CPU."""

    fewest = 4_097
    """Above it, blocks are faster than products by the networks wherever factorisations do not pay
    (trials without a record on random geometric graphs, grids and preferential attachment)."""

    def _analyse(self) -> None:
        self.plan = sorted_plan(self.graph, self.native)
        self.order = order_of(self.graph)

    @staticmethod
    def is_fastest_for(native: Library, problem: EnergyProblem) -> bool:
        """Whether threads share one graph after the other: for few large graphs that are not worth
        a factorisation, and narrow embeddings."""
        graph, design = problem.graph, problem.design
        rows = max(graph.num_edges, graph.num_nodes)
        messages = design.message_channels * (design.heads if design.concat else 1)
        narrow = design.channels <= MOST_CHANNELS and messages <= MOST_MESSAGES
        if not narrow or rows * design.heads >= 1 << 31:
            return False
        planned = CpuEngine.is_fastest_for(native, problem)
        return not planned or factorisation(graph, native, design) >= cpu.PRODUCTS

    @property
    def name(self) -> str:
        return f"{self.native.instructions}, a graph at a time"

    def _arguments(self, method: int) -> Any:
        return super()._arguments(BLOCKS)

    @property
    def direct(self) -> bool:
        return False

    @property
    def direct_adjoint(self) -> bool:
        return False

    def vjp(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        ended, gradients = self.adjoint(h, gradient)
        stuck = not bool(ended.converged.all()) and bool(gradient.isfinite().all())
        if stuck and CpuEngine.is_fastest_for(self.native, self.problem):
            # A very ill-conditioned energy: the other engine may factorise.
            other = CpuEngine(self.native, self.problem, self.solver)
            return (other if self.held is None else other.holding(self.held)).vjp(h, gradient)
        return ended, self.inputs.back(gradients)

    def _call(self, name: str, *arguments: Any) -> None:
        self.native.interruptible(lambda: super(LargeCpuEngine, self)._call(name, *arguments))
