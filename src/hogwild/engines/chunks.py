"""The compiled solve of large graphs on a CPU: threads share one graph, in chunks that fit caches.

``source/chunks.h`` runs Newton's method with conjugate gradients over one (graph, replica) after
the other. There is nothing to analyse but the order of the nodes: a breadth-first search puts
neighbours near each other. The number of threads changes no bit of an answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hogwild.engines import energy
from hogwild.engines.energy import EnergyKernel, Sizes, factorisation
from hogwild.engines.posing import Design, Tensors
from hogwild.errors import GraphError
from hogwild.graph import Graph, kept
from hogwild.kernels.native import Library, address
from hogwild.linalg.direct import GraphPlan
from hogwild.linalg.solution import Solution

FEWEST = 4_096
"""Edges (or nodes) of a graph, in the mean of a batch, up to which threads take graphs in turn.
Above it, blocks are faster than products by the networks wherever factorisations do not pay (trials
without a record on random geometric graphs, grids and preferential attachment)."""
MOST_CHANNELS, MOST_MESSAGES = 8, 16
"""Widest embeddings and messages (of all heads) that ``chunks.h`` has blocks for."""
BLOCKS = 2
"""The number of this method in the compiled library."""


@kept
def order_of(graph: Graph, native: Library) -> tuple[Tensor, Tensor]:
    """The nodes [N] in an order that puts neighbours near each other, and the place of every node
    in it [N]."""
    order, src, dst = torch.empty_like(graph.batch), graph.src.contiguous(), graph.dst.contiguous()
    failed, why = native.call(
        "order", graph.num_nodes, graph.num_edges, address(src), address(dst), address(order)
    )
    if failed:
        raise GraphError(f"the compiled library refused the graph: {why}")
    place = torch.empty_like(order)
    place[order] = torch.arange(graph.num_nodes)
    return order, place


@kept
def sorted_plan(graph: Graph, native: Library) -> GraphPlan:
    """The edges of this graph, sorted, between places in the order of :func:`order_of`. The plan
    also keeps the memory of its solves."""
    _, place = order_of(graph, native)
    return GraphPlan(native, graph, place[graph.src], place[graph.dst], most_pairs=-1.0)


class ChunkedEnergyKernel(EnergyKernel):
    """A posed problem on a few large graphs on a CPU. The posed tensors of nodes are
    :meth:`arranged`; embeddings are not."""

    def __init__(self, native: Library, graph: Graph, design: Design, tensors: Tensors) -> None:
        self.native, self.graph, self.design, self.tensors = native, graph, design, tensors
        self.plan, self.sizes = sorted_plan(graph, native), Sizes.of(native, design)
        self.held, self.posing = None, None
        self.order, self.place = order_of(graph, native)
        self._check()

    @staticmethod
    def pays(native: Library, graph: Graph, design: Design, replicas: int = 1) -> bool:
        """Whether threads share one graph after the other: for few large graphs that are not worth
        a factorisation, and narrow embeddings."""
        rows = max(graph.num_edges, graph.num_nodes)
        messages = design.message_channels * (design.heads if design.concat else 1)
        narrow = design.channels <= MOST_CHANNELS and messages <= MOST_MESSAGES
        if not narrow or rows <= FEWEST * graph.num_graphs or rows * design.heads >= 1 << 31:
            return False
        planned = EnergyKernel.pays(native, graph, design, replicas)
        return not planned or factorisation(graph, native, design) >= energy.PRODUCTS

    @staticmethod
    def arranged(native: Library, graph: Graph, rows: Tensor) -> Tensor:
        return rows.index_select(-1, order_of(graph, native)[0])

    def in_graph_order(self, rows: Tensor) -> Tensor:
        return rows.index_select(-1, self.place)

    @property
    def name(self) -> str:
        return f"{self.native.instructions}, a graph at a time"

    def _arguments(self, direct: bool) -> Any:
        return super()._arguments(BLOCKS)

    @property
    def direct(self) -> bool:
        return False

    @property
    def direct_adjoint(self) -> bool:
        return False

    def plain(self) -> Tensors:
        t = super().plain()
        loops = None if t.loop_weight is None else self.in_graph_order(t.loop_weight)
        return replace(t, nodes=self.in_graph_order(t.nodes), loop_weight=loops)

    def holding(self, held: Tensor) -> EnergyKernel:
        return super().holding(held[self.order])

    def solve(self, h0: Tensor | None, *options: Any) -> Solution:
        start = None if h0 is None else h0.index_select(-1, self.order)
        found = super().solve(start, *options)
        return replace(found, value=found.value.index_select(-1, self.place))

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        found, scale = super().gradient(h.index_select(-1, self.order))
        return found.index_select(-1, self.place), scale

    def adjoint(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        h, gradient = (x.index_select(-1, self.order) for x in (h, gradient))
        found = super().adjoint(h, gradient)
        if bool(found[0].converged.all()) or not bool(gradient.isfinite().all()):
            return found
        other = self._factorising  # a very ill-conditioned energy
        return found if other is None else other.adjoint(h, gradient)

    @property
    def _factorising(self) -> EnergyKernel | None:
        """The same problem for a method that may factorise; ``None``: the graph is too large."""
        ends = self.place[self.graph.src], self.place[self.graph.dst]
        graph = Graph(*ends, self.graph.batch, self.graph.num_nodes, self.graph.num_graphs)
        if not EnergyKernel.pays(self.native, graph, self.design):
            return None
        other = EnergyKernel(self.native, graph, self.design, self.tensors)
        other.held, other.rtol = self.held, self.rtol
        return other

    def _call(self, name: str, *arguments: Any) -> None:
        self.native.interruptible(lambda: super(ChunkedEnergyKernel, self)._call(name, *arguments))
