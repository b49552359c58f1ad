r"""Direct factorisation of block-sparse symmetric positive definite matrices, all graphs at once.

The multifrontal method: nested dissection splits each graph by small separators into a tree of
*fronts*. A front is a small dense matrix over its pivots (nodes eliminated here) and its boundary
(nodes eliminated later that they touch); eliminating the pivots leaves a Schur complement on the
boundary, which is added into the parent's front. Fronts of one height are independent of each
other, across the graph, across graphs and across replicas, so each height is a handful of batched
dense operations. A graph of n nodes with separators of s nodes costs O(n s² k³): linear for
chains, trees and molecules. A small or dense graph is a single front, and the method is then
dense Cholesky.

The plan (:class:`Plan`) depends on the connectivity alone and is kept on the graph.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from hogwild.graph import Graph

DENSE_WIDTH = 48
"""Graphs with at most this many unknowns (n·k) are one dense front."""
DENSE_WORK = 4e7
"""On a CPU so are all graphs, when the sum of (n·k)³ over all graphs and replicas is below this."""
LEAF_WIDTH = 16
"""Nested dissection stops at pieces of this many unknowns."""
MAX_WIDTH = 768
"""A front wider than this (pivots and boundary, in unknowns) makes the plan infeasible."""
CG_WORK = 2500.0
"""Cost of conjugate gradients for one edge and one entry of its k × k block, in units of a front's
width³: some fifty products with the Hessian, memory-bound, against arithmetic in the caches."""
MAX_ELEMENTS = 1 << 27
"""Nor may all fronts of one replica hold more numbers than this."""


class TooWide(Exception):
    """The graph has no small separators: use conjugate gradients."""


@dataclass
class _Front:
    pivots: np.ndarray
    boundary: np.ndarray
    parent: int
    height: int = 0


_ANALYSED: dict[tuple[bytes, int], list[_Front]] = {}


def _analyse(key: bytes, n: int, rows: np.ndarray, cols: np.ndarray, k: int) -> list[_Front]:
    """Fronts of a graph with this pattern; equal graphs are analysed once per process."""
    if (key, k) not in _ANALYSED:
        if len(_ANALYSED) >= 4096:
            _ANALYSED.clear()
        ones = np.ones(2 * len(rows), np.int8)
        ends = (np.concatenate([rows, cols]), np.concatenate([cols, rows]))
        adjacency = csr_matrix((ones, ends), shape=(n, n))
        _ANALYSED[key, k] = _dissect(adjacency, max(LEAF_WIDTH // k, 1), MAX_WIDTH // k)
    return _ANALYSED[key, k]


def _dissect(adjacency: csr_matrix, leaf: int, widest: int) -> list[_Front]:
    """Fronts of one graph in an order in which children precede their parents."""
    fronts: list[_Front] = []
    n = adjacency.shape[0]
    # (nodes, parent) still to be split; parents are created before their children.
    work: list[tuple[np.ndarray, int]] = [(np.arange(n), -1)]
    while work:
        nodes, parent = work.pop()
        if len(nodes) <= leaf:
            fronts.append(_Front(nodes, np.empty(0, int), parent))
            continue
        sub = adjacency[nodes][:, nodes]
        count, label = connected_components(sub, directed=False)
        if count > 1:
            work += [(nodes[label == c], parent) for c in range(count)]
            continue
        separator = _separator(sub)
        if len(separator) > widest:
            raise TooWide
        if len(separator) >= len(nodes) - 1:
            fronts.append(_Front(nodes, np.empty(0, int), parent))
            continue
        rest = np.setdiff1d(np.arange(len(nodes)), separator)
        fronts.append(_Front(nodes[separator], np.empty(0, int), parent))
        work.append((nodes[rest], len(fronts) - 1))
    # Reverse: children first. Then boundaries bottom-up, and heights.
    last = len(fronts) - 1
    fronts = fronts[::-1]
    for front in fronts:
        front.parent = last - front.parent if front.parent >= 0 else -1
    eliminated_by = np.empty(n, int)
    for f, front in enumerate(fronts):
        eliminated_by[front.pivots] = f
    inherited: dict[int, list[np.ndarray]] = defaultdict(list)
    indptr, indices = adjacency.indptr, adjacency.indices
    for f, front in enumerate(fronts):
        touched = [indices[indptr[p] : indptr[p + 1]] for p in front.pivots] + inherited.pop(f, [])
        reach = np.unique(np.concatenate(touched)) if touched else np.empty(0, int)
        reach = reach[eliminated_by[reach] > f]
        # Boundary in elimination order: a child's lower triangle lands in its parent's.
        front.boundary = reach[np.lexsort((reach, eliminated_by[reach]))]
        front.pivots = np.sort(front.pivots)
        if len(front.boundary):
            # The parent of the elimination tree is the front of the first boundary node.
            front.parent = int(eliminated_by[front.boundary[0]])
            fronts[front.parent].height = max(fronts[front.parent].height, front.height + 1)
            inherited[front.parent].append(front.boundary)
        else:
            front.parent = -1
    return fronts


def _separator(adjacency: csr_matrix) -> np.ndarray:
    """A small set of nodes whose removal splits a connected graph into balanced pieces.

    A level of a breadth-first search from the periphery separates what lies before it from what
    lies behind; of the levels in the middle half the smallest is taken.
    """
    n = adjacency.shape[0]
    start = 0
    for _ in range(2):  # twice: the far end of a search from the far end
        order, before = breadth_first_order(adjacency, start, directed=False)
        start = order[-1]
    depth = np.zeros(n, int)
    for node in order[1:]:
        depth[node] = depth[before[node]] + 1
    sizes = np.bincount(depth)
    passed = np.cumsum(sizes)
    middle = np.flatnonzero((passed - sizes >= n // 4) & (n - passed >= n // 4))
    if len(middle) == 0:  # no level in the middle half: the one that contains the median
        middle = np.array([int(np.searchsorted(passed, n // 2))])
    level = middle[np.argmin(sizes[middle])]
    candidates = np.flatnonzero(depth == level)
    if level + 1 == len(sizes):
        return candidates
    # Only nodes that really touch the far side are needed.
    behind = np.flatnonzero(depth == level + 1)
    touched = np.unique(adjacency[behind].indices)
    return np.intersect1d(candidates, touched)


@dataclass(eq=False)
class _Group:
    """Fronts of one height and padded size: F dense matrices [(P + B)k, (P + B)k]."""

    start: int  # offset of the first number of the group in the buffer
    count: int  # F
    pivots: Tensor  # [F, P·k] positions in a flattened vector; the dummy position for padding
    boundary: Tensor  # [F, B·k]
    extend: Tensor  # [F · (B·k)²] where the Schur complement goes in the buffer


class Plan:
    """Elimination order and index maps for the pattern of one :class:`Graph`, block size k.

    Graphs with at most ``dense_width`` unknowns become a single dense front. Raises
    :class:`TooWide` where the factorisation would cost more than ``budget`` (in numbers touched).
    """

    def __init__(
        self,
        graph: Graph,
        channels: int,
        dense_width: int = DENSE_WIDTH,
        budget: float = float("inf"),
    ) -> None:
        k = self.channels = channels
        device = graph.src.device
        n_total = graph.num_nodes
        sizes = graph.sizes.cpu().numpy()
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        rows, cols = graph.pattern.rows.cpu().numpy(), graph.pattern.cols.cpu().numpy()
        owner = graph.batch.cpu().numpy()[rows] if len(rows) else np.empty(0, int)
        by_graph = np.argsort(owner, kind="stable")
        cuts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(sizes)))])

        structures: dict[bytes, list[int]] = defaultdict(list)  # equal graphs share one analysis
        local: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for g, n in enumerate(sizes):
            entries = by_graph[cuts[g] : cuts[g + 1]]
            r, c = rows[entries] - offsets[g], cols[entries] - offsets[g]
            local[g] = (r, c, entries)
            key = int(n).to_bytes(8, "little")
            if n * k > dense_width:
                key += r.tobytes() + c.tobytes()
            structures[key].append(g)

        # Fronts of one height and about one size form a group, padded to its largest member; an
        # instance is (graph, front of its structure).
        classes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        analysed: dict[int, list[_Front]] = {}
        for key, graphs in structures.items():
            r, c, _ = local[graphs[0]]
            n = int(sizes[graphs[0]])
            if n * k <= dense_width:
                fronts = [_Front(np.arange(n), np.empty(0, int), -1)]
            else:
                fronts = _analyse(key, n, r, c, k)
            for f, front in enumerate(fronts):
                width = len(front.pivots) + len(front.boundary)
                kind = (front.height, (width - 1).bit_length())
                classes[kind] += [(g, f) for g in graphs]
            for g in graphs:
                analysed[g] = fronts
        groups: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        padded: dict[tuple[int, int], tuple[int, int]] = {}  # instance -> (P, B)
        for (height, kind2), members in classes.items():
            p = max(len(analysed[g][f].pivots) for g, f in members)
            b = max(len(analysed[g][f].boundary) for g, f in members)
            groups[height, kind2, p, b] = members
            padded.update(dict.fromkeys(members, (p, b)))

        # Lay the groups out in one buffer, children before parents.
        start = 0
        base: dict[tuple[int, int], int] = {}  # instance -> offset in the buffer
        for shape in sorted(groups):
            *_, p, b = shape
            width = (p + b) * k
            budget -= len(groups[shape]) * float(width) ** 3
            if width > MAX_WIDTH or budget < 0.0:
                raise TooWide
            for i, instance in enumerate(groups[shape]):
                base[instance] = start + i * width * width
            start += len(groups[shape]) * width * width
            if start > MAX_ELEMENTS:
                raise TooWide
        self.size = start

        # Per structure: slot of every node in every front, reused by all its graphs.
        slots: dict[int, list[dict[int, int]]] = {}
        widths: dict[int, list[int]] = {}
        for graphs in structures.values():
            fronts = analysed[graphs[0]]
            maps, wide = [], []
            for f, front in enumerate(fronts):
                p, b = padded[graphs[0], f]
                maps.append(
                    {int(v): i for i, v in enumerate(front.pivots)}
                    | {int(v): p + i for i, v in enumerate(front.boundary)}
                )
                wide.append((p + b) * k)
            for g in graphs:
                slots[g], widths[g] = maps, wide

        channel = np.arange(k)
        # Where the blocks of the matrix go: position of entry (c, c') of each block.
        entry_base = np.zeros(len(rows) + n_total, int)  # offset of the front
        entry_row = np.zeros_like(entry_base)  # slot of row and column, in unknowns
        entry_col = np.zeros_like(entry_base)
        entry_width = np.zeros_like(entry_base)
        flip = np.zeros(len(entry_base), bool)
        for graphs in structures.values():
            fronts, maps = analysed[graphs[0]], slots[graphs[0]]
            n = int(sizes[graphs[0]])
            first = np.empty(n, int)
            for f, front in enumerate(fronts):
                first[front.pivots] = f

            def place(a: np.ndarray, b: np.ndarray, first=first, maps=maps):  # type: ignore[no-untyped-def]
                f = np.minimum(first[a], first[b])
                if len(maps) == 1:  # one dense front: slots are the node numbers
                    return f, a, b
                sa = np.array([maps[i][int(v)] for i, v in zip(f, a, strict=True)], int)
                sb = np.array([maps[i][int(v)] for i, v in zip(f, b, strict=True)], int)
                return f, sa, sb

            nodes = np.arange(n)
            dense = len(maps) == 1
            shared = place(nodes, nodes)
            pattern = None if dense else place(local[graphs[0]][0], local[graphs[0]][1])
            for g in graphs:
                r, c, entries = local[g]
                for at, (f, sa, sb) in (
                    (len(rows) + offsets[g] + nodes, shared),
                    (entries, pattern if pattern is not None else place(r, c)),
                ):
                    bases = np.array([base[g, i] for i in range(len(fronts))])
                    entry_base[at] = bases[f]
                    entry_width[at] = np.array(widths[g])[f]
                    entry_row[at], entry_col[at] = np.maximum(sa, sb), np.minimum(sa, sb)
                    flip[at] = sa < sb
        # For a flipped block the roles of its channels swap; diagonal blocks are never flipped.
        down = entry_row * k + np.where(flip, channel[None, :, None], channel[:, None, None])
        along = entry_col * k + np.where(flip, channel[:, None, None], channel[None, :, None])
        position = entry_base + down * entry_width + along  # [k, k, M + N]
        self.off_diagonal = _index(position[..., : len(rows)].reshape(-1), device)
        self.diagonal = _index(position[..., len(rows) :].reshape(-1), device)

        self.groups: list[_Group] = []
        pads: list[np.ndarray] = []
        for shape in sorted(groups):
            *_, p, b = shape
            members = groups[shape]
            width = (p + b) * k
            origin = base[members[0]]
            piv = np.full((len(members), p), -1)
            bnd = np.full((len(members), b), -1)
            ext = np.full((len(members), b), -1)
            ext_base = np.full(len(members), self.size)
            ext_width = np.zeros(len(members), int)
            for m, (g, f) in enumerate(members):
                front = analysed[g][f]
                piv[m, : len(front.pivots)] = front.pivots + offsets[g]
                if len(front.boundary):
                    bnd[m, : len(front.boundary)] = front.boundary + offsets[g]
                    parent = slots[g][front.parent]
                    ext[m, : len(front.boundary)] = [parent[int(v)] for v in front.boundary]
                    ext_base[m], ext_width[m] = base[g, front.parent], widths[g][front.parent]
            pm, ps = np.nonzero(piv < 0)
            for c in channel:
                pads.append(origin + pm * width * width + (ps * k + c) * (width + 1))
            # Unknown (node v, channel c) sits at c·N + v of a flattened [k, N] vector.
            dummy = n_total * k
            pk = np.where(piv[..., None] < 0, dummy, channel * n_total + piv[..., None])
            bk = np.where(bnd[..., None] < 0, dummy, channel * n_total + bnd[..., None])
            unknown = np.where(ext[..., None] < 0, -1, ext[..., None] * k + channel)
            unknown = unknown.reshape(len(members), b * k)
            target = (
                ext_base[:, None, None]
                + unknown[:, :, None] * ext_width[:, None, None]
                + unknown[:, None, :]
            )
            void = (unknown[:, :, None] < 0) | (unknown[:, None, :] < 0)
            target = np.where(void, self.size, target)
            self.groups.append(
                _Group(
                    origin,
                    len(members),
                    _index(pk.reshape(len(members), -1), device),
                    _index(bk.reshape(len(members), -1), device),
                    _index(target.reshape(-1), device),
                )
            )
        self.pads = _index(np.concatenate(pads), device)

    def factor(self, diagonal: Tensor, off_diagonal: Tensor) -> Factor:
        """Factorise the matrix with these blocks, [R, k, k, N] and [R, k, k, M]."""
        replicas = diagonal.size(0)
        buffer = diagonal.new_zeros(replicas, self.size + 1)  # the last number catches padding
        for index, blocks in ((self.diagonal, diagonal), (self.off_diagonal, off_diagonal)):
            buffer.scatter_add_(1, index.expand(replicas, -1), blocks.reshape(replicas, -1))
        buffer.index_fill_(1, self.pads, 1.0)
        pieces: list[tuple[Tensor, Tensor | None]] = []
        for group in self.groups:
            p, b = group.pivots.size(1), group.boundary.size(1)
            end = group.start + group.count * (p + b) ** 2
            front = buffer[:, group.start : end].view(replicas, group.count, p + b, p + b)
            lower = torch.linalg.cholesky_ex(front[..., :p, :p])[0]
            if not b:
                pieces.append((lower, None))
                continue
            x = torch.linalg.solve_triangular(lower, front[..., p:, :p].mT, upper=False)
            schur = front[..., p:, p:] - x.mT @ x
            index = group.extend.expand(replicas, -1)
            buffer.scatter_add_(1, index, schur.reshape(replicas, -1))
            pieces.append((lower, x))
        return Factor(self, pieces)


def _index(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)


@dataclass(eq=False)
class Factor:
    """Cholesky factor of a block-sparse matrix, ready to solve."""

    plan: Plan
    pieces: list[tuple[Tensor, Tensor | None]]

    def solve(self, rhs: Tensor) -> Tensor:
        """``A⁻¹ b`` for b [R, k, N]."""
        replicas = rhs.size(0)
        # Padding reads and writes one dummy unknown. It is zeroed after every write: a NaN in one
        # graph must not reach the others through it.
        work = torch.cat([rhs.reshape(replicas, -1), rhs.new_zeros(replicas, 1)], 1)
        halves: list[Tensor] = []
        for group, (lower, x) in zip(self.plan.groups, self.pieces, strict=True):
            y = work[:, group.pivots].unsqueeze(-1)  # [R, F, Pk, 1]
            y = torch.linalg.solve_triangular(lower, y, upper=False)
            halves.append(y)
            if x is not None:
                index = group.boundary.reshape(1, -1).expand(replicas, -1)
                work.scatter_add_(1, index, -(x.mT @ y).reshape(replicas, -1))
                work[:, -1].zero_()
        for group, (lower, x), y in zip(
            self.plan.groups[::-1], self.pieces[::-1], halves[::-1], strict=True
        ):
            if x is not None:
                y = y - x @ work[:, group.boundary].unsqueeze(-1)
            y = torch.linalg.solve_triangular(lower.mT, y, upper=True)
            work[:, group.pivots] = y[..., 0]
            work[:, -1].zero_()
        return work[:, :-1].reshape(rhs.shape)


def plan_for(graph: Graph, channels: int, replicas: int, *, force: bool = False) -> Plan | None:
    """The plan of this graph, made once; ``None`` where conjugate gradients are cheaper.

    ``force`` asks for a factorisation at any cost that fits the memory.
    """
    # On a CPU few small problems are fastest as dense ones: the batched operations of many small
    # fronts cost more to call than dense factorisations cost to compute. A GPU is slow at single
    # dense matrices and replays the many small operations from a recording.
    if ("work", channels) not in graph.memo:  # once per graph: it waits for the device
        graph.memo["work", channels] = float((graph.sizes * channels).double().pow(3).sum())
    dense = not graph.src.is_cuda and replicas * graph.memo["work", channels] <= DENSE_WORK
    key = ("fronts", channels, dense, force)
    if key not in graph.memo:
        budget = float("inf") if force or dense else CG_WORK * channels**2 * graph.num_edges
        width = MAX_WIDTH if dense else DENSE_WIDTH
        try:
            graph.memo[key] = Plan(graph, channels, width, budget)
        except TooWide:
            graph.memo[key] = None
    plan: Plan | None = graph.memo[key]
    return plan
