"""In which order the compiled library eliminates the nodes of a graph."""

from __future__ import annotations

import ctypes

from torch import Tensor

from hogwild.errors import GraphError
from hogwild.graph import Graph, kept
from hogwild.kernels.native import Library, address

LEAF = 16
"""Unknowns of a piece of a graph that is not split further (:mod:`hogwild.linalg.dissection`)."""
MOST_PAIRS = 1e8
"""Pairs of neighbours of one node, summed over a graph, above which no plan is made."""


class GraphPlan:
    """The order of elimination of a batch of graphs, in the compiled library's memory."""

    def __init__(
        self,
        native: Library,
        graph: Graph,
        src: Tensor,
        dst: Tensor,
        *,
        channels: int = 1,
        hops: int = 2,
        most_pairs: float = MOST_PAIRS,
    ) -> None:
        self._free = native.plan_free
        batch, src, dst = (x.cpu().contiguous() for x in (graph.batch, src, dst))
        self.handle, why = native.call(
            "plan", graph.num_nodes, graph.num_graphs, address(batch), graph.num_edges,
            address(src), address(dst), max(LEAF // channels, 1), hops, most_pairs,
        )  # fmt: skip
        if not self.handle:
            raise GraphError(f"the compiled library refused the graph: {why}")
        numbers, work = ctypes.c_double(), ctypes.c_double()
        native.plan_cost(self.handle, ctypes.byref(numbers), ctypes.byref(work))
        self.numbers, self.work = numbers.value, work.value

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._free(self.handle)


@kept
def plan_of(graph: Graph, native: Library, channels: int, hops: int = 2) -> GraphPlan:
    """The plan of this graph, which owns it: for matrices that couple all nodes of a star (two
    hops), or the two ends of an edge (one hop)."""
    return GraphPlan(native, graph, graph.src, graph.dst, channels=channels, hops=hops)
