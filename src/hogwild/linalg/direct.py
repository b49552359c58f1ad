"""Factorisations of symmetric positive definite matrices with one block a node and a pair of nodes.

The compiled library eliminates the nodes of a graph in the order of a :class:`GraphPlan`, by nested
dissection (``source/plan.h``): linear in the size of chains and molecules, and cheap wherever small
sets of nodes separate a graph. Without it, and on a GPU, small graphs are dense matrices
(:class:`DenseFactor`), and other graphs are left to iterations.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Hashable
from typing import Protocol

import torch
from torch import Tensor

from hogwild.errors import GraphError
from hogwild.graph import Graph, cached
from hogwild.kernels.native import Library, address, library

LEAF = 16
"""Unknowns of a piece of a graph that is not split further."""
MOST_PAIRS = 1e8
"""Pairs of neighbours of one node, summed over a graph, above which no plan is made."""
MOST_NUMBERS = float(1 << 28)
"""Numbers in the fronts of one graph above which it is not factorised."""
MOST_TOTAL = float(1 << 30)
"""Numbers that the fronts of all graphs and replicas may hold together."""
LARGEST = 400_000
"""Edges of a graph above which no factorisation is planned."""
MOST_EDGES = 2_000_000
"""Edges of a batch above which no plan is made."""
MOST_WORK = 1e10
"""Multiplications of :func:`factor_of_edges` above which iterations are used instead."""
CG_WORK = 1_000.0
"""Multiplications for each edge and entry of its k × k block that iterations on torch cost. A step
of `IGNN` on grids of 400 and 900 nodes, whose factorisations take 709 and 1,187, takes 0.94 and
1.21 times as long with a factorisation (a trial without a record)."""
DENSE_WIDTH, DENSE_NUMBERS = 512, 1 << 26
"""Unknowns of the largest graph, and numbers of all matrices, up to which graphs are dense."""


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
            "plan", graph.num_nodes, graph.num_graphs, address(batch), src.numel(),
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


@cached
def plan_of(graph: Graph, native: Library, channels: int, hops: int = 2) -> GraphPlan:
    """The plan of this graph, which owns it: for matrices that couple all nodes of a star (two
    hops), or the two ends of an edge (one hop)."""
    return GraphPlan(native, graph, graph.src, graph.dst, channels=channels, hops=hops)


@cached
def _pattern_plan(graph: Graph, native: Library, channels: int) -> GraphPlan:
    """The plan for blocks in the order of the graph's pattern."""
    pattern = graph.pattern
    return GraphPlan(native, graph, pattern.cols, pattern.rows, channels=channels, hops=1)


@cached
def declined(graph: Graph) -> set[Hashable]:
    """The cases in which no factorisation pays on this graph: an analysis found out."""
    return set()


def resemble(graph: Graph, like: Graph) -> None:
    """Analyse nothing where no factorisation pays on another graph, most of whose edges are the
    same."""
    declined(graph).update(declined(like))


class Factor(Protocol):
    """A factorised matrix."""

    def solve(self, rhs: Tensor) -> Tensor:
        """``A⁻¹ b`` for b [R, k, N]; NaN on graphs whose matrix is not positive definite."""


class CompiledFactor:
    """A factor in the compiled library's memory.

    Args:
        native: The library.
        plan: The order of elimination.
        diagonal: Blocks of the nodes, [R, k, k, N].
        off: Blocks of the edges of the plan, [R, k, k, E]; their transposes are added, too.
    """

    def __init__(self, native: Library, plan: GraphPlan, diagonal: Tensor, off: Tensor) -> None:
        self._native, self._plan = native, plan  # the library reads the plan in every solve
        self.replicas, self.channels = diagonal.shape[:2]
        diagonal, off = (x.detach().double().contiguous() for x in (diagonal, off))
        self._handle, why = native.call(
            "factor", plan.handle, self.channels, self.replicas, address(diagonal), address(off),
            torch.get_num_threads(),
        )  # fmt: skip
        if not self._handle:
            raise MemoryError(f"the compiled factorisation failed: {why}")

    def solve(self, rhs: Tensor) -> Tensor:
        b = rhs.detach().double().contiguous()
        x, columns = torch.empty_like(b), b.numel() // (self.replicas * self.channels * b.size(-1))
        failed, why = self._native.call(
            "factor_solve", self._handle, columns, address(b), torch.get_num_threads(), address(x)
        )
        if failed:
            raise MemoryError(f"the compiled solve failed: {why}")
        return x.to(rhs.dtype)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._native.factor_free(self._handle)


class DenseFactor:
    """All graphs as dense matrices of the size of the largest graph.

    Args:
        graph: The graphs.
        diagonal: Blocks of the nodes, [R, k, k, N].
        off: Blocks of ``graph.pattern``, [R, k, k, M].
    """

    def __init__(self, graph: Graph, diagonal: Tensor, off: Tensor) -> None:
        k, pattern = diagonal.size(1), graph.pattern
        place = _places(graph)
        most = int(graph.sizes.max()) * k
        # Unknown (c, i) of a graph is the row c + k · place; rows without a node are those of I.
        channel = torch.arange(k, device=place.device)
        row = channel[:, None] + k * place  # [k, N]
        start = graph.batch * most**2
        matrices = diagonal.new_zeros(diagonal.size(0), graph.num_graphs * most**2)

        def add(blocks: Tensor, i: Tensor, j: Tensor) -> None:
            at = start[i] + row[:, None, i] * most + row[None, :, j]
            matrices.index_add_(1, at.flatten(), blocks.flatten(1))

        nodes = torch.arange(graph.num_nodes, device=place.device)
        add(diagonal, nodes, nodes)
        add(off, pattern.rows, pattern.cols)
        add(off.transpose(1, 2), pattern.cols, pattern.rows)
        matrices = matrices.view(-1, graph.num_graphs, most, most)
        filler = torch.arange(most, device=place.device) >= k * graph.sizes[:, None]  # [G, most]
        matrices = matrices + torch.diag_embed(filler.to(matrices.dtype))
        lower, info = torch.linalg.cholesky_ex(matrices)
        self._lower = torch.where(info[..., None, None] == 0, lower, float("nan"))
        self._row = (graph.batch * most + row).flatten()  # [k · N]

    def solve(self, rhs: Tensor) -> Tensor:
        replicas, graphs, most, _ = self._lower.shape
        b = rhs.new_zeros(replicas, graphs * most)
        b[:, self._row] = rhs.flatten(1)
        x = torch.cholesky_solve(b.view(replicas, graphs, most, 1), self._lower)
        return x.reshape(replicas, -1)[:, self._row].view(rhs.shape)


def _places(graph: Graph) -> Tensor:
    """The number of every node in its graph, [N]."""
    first = graph.sizes.cumsum(0) - graph.sizes
    return torch.arange(graph.num_nodes, device=graph.batch.device) - first[graph.batch]


@cached
def _is_dense(graph: Graph, channels: int, replicas: int) -> bool:
    """Whether graphs are small enough for dense matrices; waits for the device."""
    most = int(graph.sizes.max()) * channels if graph.num_graphs else 0
    return most <= DENSE_WIDTH and replicas * graph.num_graphs * most**2 <= DENSE_NUMBERS


def is_factorised(graph: Graph, channels: int, replicas: int, *, force: bool = False) -> bool:
    """Whether matrices with the pattern of this graph are factorised; with ``force`` a
    factorisation may cost anything that fits into memory."""
    native = None if graph.src.is_cuda else library()
    if native is None:
        return _is_dense(graph, channels, replicas)
    case = (is_factorised, channels, force)
    if case not in declined(graph) and not _is_cheaper(graph, native, channels, force):
        declined(graph).add(case)
    if case in declined(graph):
        return False
    most = plan_of(graph, native, channels).numbers * channels**2
    return replicas * graph.num_graphs * most <= MOST_TOTAL


def _is_cheaper(graph: Graph, native: Library, channels: int, force: bool) -> bool:
    if not force and graph.num_edges > min(LARGEST * graph.num_graphs, MOST_EDGES):
        return False
    budget = math.inf if force else CG_WORK * max(graph.num_edges, graph.num_nodes)
    plan = plan_of(graph, native, channels)  # needs no pattern, which hubs make large
    if plan.work * channels > budget or plan.numbers * channels**2 > MOST_NUMBERS:
        return False
    return graph.num_blocks * channels**2 <= MOST_NUMBERS


def factor(graph: Graph, diagonal: Tensor, off: Tensor) -> Factor:
    """The factor of the matrix with these blocks, [R, k, k, N] and [R, k, k, M], in the order of
    ``graph.pattern``; where :func:`is_factorised`."""
    native = None if graph.src.is_cuda else library()
    if native is None:
        return DenseFactor(graph, diagonal, off)
    plan = _pattern_plan(graph, native, diagonal.size(1))
    return CompiledFactor(native, plan, diagonal, off)


def factor_of_edges(graph: Graph, diagonal: Tensor, edge: Tensor) -> Factor | None:
    """The factor of a matrix whose entries all channels and replicas share.

    Args:
        graph: The graphs.
        diagonal: The diagonal, [N].
        edge: What every edge adds to the two entries of its ends, [E].

    Returns:
        The factor; ``None`` where the compiled library does not apply, or iterations are cheaper.
    """
    native = None if graph.src.is_cuda else library()
    if native is None or max(graph.num_edges, graph.num_nodes) > MOST_EDGES:
        return None
    plan = plan_of(graph, native, 1, hops=1)
    if plan.work > MOST_WORK:
        return None
    return CompiledFactor(native, plan, diagonal.view(1, 1, 1, -1), edge.view(1, 1, 1, -1))
