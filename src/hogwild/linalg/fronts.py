r"""Direct factorisation of block-sparse symmetric positive definite matrices, all graphs at once.

The multifrontal method: nested dissection splits each graph by small separators into a tree of
*fronts*. A front is a small dense matrix over its pivots (nodes eliminated here) and its boundary
(later nodes that are coupled to them). Eliminating the pivots leaves a Schur complement on the
boundary, which is added to the parent's front. Fronts of one height are independent, within a
graph, across graphs and across replicas: those of similar size are factorised as one batch. The
roots of all graphs come last, together. A graph of n nodes with separators of s nodes costs O(n s²
k³): linear for chains and molecules. A small or dense graph is a single front, and the method is
then dense Cholesky.

The plan (:class:`Plan`) depends on the connectivity alone, and the graph owns it.
``CALL_WORK`` was measured on batches of the library's tasks (docs/decisions.md), and
``benchmarks/training_step.py`` measures the other constants.

*Which fronts are factorised together.* A batch of fronts is one sequence of dense operations on
matrices of one size, that of the largest front: smaller fronts are padded. Few large batches waste
arithmetic on padding, many small batches waste time on calls. With :math:`n_c` fronts of
:math:`p_c` pivots and :math:`b_c` boundary unknowns in class c, the batches :math:`B` should
minimise

.. math:: \sum_B \Bigl[ \gamma + \sum_{c \in B} n_c
          \bigl(\max_{c \in B} p_c + \max_{c \in B} b_c\bigr)^3 \Bigr]

:math:`\gamma` is the cost of a call. We start with a batch for every class, and join the two
batches whose union adds least, until it adds more than :math:`\gamma`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hogwild.graph import Graph, kept
from hogwild.linalg.dissection import (
    Elimination,
    Shape,
    TooWide,
    eliminate,
    first_separator,
)

DENSE_WIDTH = 48
"""Graphs with at most this many unknowns (n·k) are one dense front."""
DENSE_WORK = 4e7
"""On a CPU all graphs are dense fronts if the sum of (n·k)³ over graphs and replicas is at most
this."""
LEAF_WIDTH = 16
"""Nested dissection stops at pieces of this many unknowns."""
MAX_WIDTH = 768
"""Largest width of a front (pivots and boundary, in unknowns)."""
CG_WORK = {"cpu": 2_500.0, "cuda": 100_000.0}
"""Cost of conjugate gradients for one edge and one entry of its k × k block, in units of a front's
width³: about fifty products with the Hessian, limited by memory bandwidth. On a GPU dense
arithmetic is cheaper, and a factorisation can be recorded."""
CALL_WORK = {"cpu": 3e5, "cuda": 1e8}
"""Cost of one more batch of fronts in the same units. On a GPU the replicas of a plan share it. On
a CPU it does not depend on the number of replicas, so that answers do not, either."""
MAX_ELEMENTS = 1 << 27
"""The fronts of one replica hold at most this many numbers."""
WIDE_NODES = 50_000
"""Nodes of a graph from which the first separator is computed before the pattern."""
MAX_TOTAL = 1 << 30
"""The fronts of all replicas of a plan hold at most this many numbers."""


@dataclass(eq=False)
class _Group:
    """Fronts that are factorised together: F dense matrices [(P + B)k, (P + B)k], padded."""

    start: int  # offset of the first number of the group in the buffer
    count: int  # F
    pivots: Tensor  # [F, P·k] positions in a flattened vector; the dummy position for padding
    boundary: Tensor  # [F, B·k]
    extend: Tensor  # [F · (B·k)²] where the Schur complement goes in the buffer


class TooMany(TooWide):
    """The plan is too large for this number of replicas; fewer might fit."""


class Plan:
    """Elimination order and index maps for the pattern of one :class:`Graph`.

    Args:
        graph: The graph.
        channels: The block size k.
        dense_width: Graphs with at most this many unknowns are a single dense front.
        budget: The largest work, the sum of width³ over all fronts; more raises :class:`TooWide`.
        orders: The eliminations, from a plan with the same ``channels`` and ``dense_width``.
        call: The cost of one more batch of fronts.
        elements: The largest number of entries of all fronts; more raises :class:`TooMany`.
    """

    def __init__(
        self,
        graph: Graph,
        channels: int,
        dense_width: int = DENSE_WIDTH,
        budget: float = float("inf"),
        orders: list[Elimination] | None = None,
        call: float = CALL_WORK["cpu"],
        elements: float = float("inf"),
    ) -> None:
        self.channels = channels
        self.call = call
        self._device = graph.src.device
        self._num_nodes = graph.num_nodes
        sizes = graph.sizes.cpu().numpy()
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        patterns = _patterns(graph, self._offsets)
        if orders is None:
            orders = eliminate(
                [
                    Shape(n, rows, cols)
                    for n, (rows, cols, _) in zip(sizes.tolist(), patterns, strict=True)
                ],
                (sizes * channels <= dense_width).tolist(),
                leaf=max(LEAF_WIDTH // channels, 1),
                widest=MAX_WIDTH // channels,
            )
        self.orders = orders
        # Of every front of every graph: its offset in the buffer, its width in unknowns, and its
        # padded number of pivots.
        self._places = [np.zeros((len(order.fronts), 3), int) for order in orders]
        layout = self._lay_out(budget, elements)
        self.diagonal, self.off_diagonal = self._index_blocks(patterns)
        self.groups = [self._group(members) for members in layout]
        self.pads = _index(self._padding(layout), self._device)

    def _slots(self, g: int, fronts: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Rows, in nodes, of nodes of graph g in the matrices of these fronts."""
        position = self.orders[g].locate(fronts, nodes)
        return np.where(position >= 0, position, self._places[g][fronts, 2] + ~position)

    def _lay_out(self, budget: float, elements: float) -> list[list[tuple[int, int]]]:
        """Batches of fronts that are factorised together, and their places in one buffer."""
        alike: dict[int, dict[tuple[int, int], list[tuple[int, int]]]]
        alike = defaultdict(lambda: defaultdict(list))
        top = max((front.height for order in self.orders for front in order.fronts), default=0)
        for g, order in enumerate(self.orders):
            for f, front in enumerate(order.fronts):
                shape = (len(front.pivots), len(front.boundary))
                # The roots of all graphs come last, together.
                alike[front.height if shape[1] else top][shape].append((g, f))
        layout = []
        self.size = 0
        for height in sorted(alike):  # children before parents
            classes = sorted(alike[height].items())
            shapes = self.channels * np.array([shape for shape, _ in classes])
            counts = np.array([len(fronts) for _, fronts in classes])
            for batch in batches(shapes, counts, self.call, MAX_WIDTH):
                p, b = (shapes[batch].max(0) // self.channels).tolist()
                width = (p + b) * self.channels
                members = [front for c in batch for front in classes[c][1]]
                budget -= len(members) * float(width) ** 3
                for g, f in members:
                    self._places[g][f] = self.size, width, p
                    self.size += width * width
                if width > MAX_WIDTH or budget < 0.0 or self.size > MAX_ELEMENTS:
                    raise TooWide
                if self.size > elements:
                    raise TooMany
                layout.append(members)
        return layout

    def _index_blocks(
        self, patterns: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> tuple[Tensor, Tensor]:
        """Position in the buffer of every entry of the diagonal and off-diagonal blocks."""
        k = self.channels
        total = self._num_nodes + sum(len(entries) for *_, entries in patterns)
        # For every block: offset and width of its front, and its two slots.
        found = np.zeros((4, total), int)
        for g, (rows, cols, entries) in enumerate(patterns):
            nodes = np.arange(len(self.orders[g].first))
            for at, a, b in (
                (self._offsets[g] + nodes, nodes, nodes),
                (self._num_nodes + entries, rows, cols),
            ):
                found[:, at] = self._locate(g, a, b)
        # The following tensors are k² times as long, and are made on the device.
        base, width, row, col = _index(found, self._device)
        c = torch.arange(k, device=self._device)
        # Entry (c, c') of a block. A block that would lie in the upper triangle is transposed: its
        # slots and its channels are exchanged.
        flip, c1, c2 = row < col, c[:, None, None], c[None, :, None]
        position = torch.where(flip, c2, c1).add_(torch.maximum(row, col) * k)  # [k, k, N + M]
        position.mul_(width).add_(torch.where(flip, c1, c2)).add_(torch.minimum(row, col) * k)
        position.add_(base)
        n = self._num_nodes
        return position[..., :n].reshape(-1), position[..., n:].reshape(-1)

    def _locate(self, g: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        """Offset and width of the front that holds node pairs of graph g, and their slots."""
        first = self.orders[g].first
        f = np.minimum(first[a], first[b])  # where the first of the two is eliminated
        base, width, _ = self._places[g][f].T
        return base, width, self._slots(g, f, a), self._slots(g, f, b)

    def _group(self, members: list[tuple[int, int]]) -> _Group:
        """Index maps of a batch of fronts."""
        k, n = self.channels, self._num_nodes
        channel = torch.arange(k, device=self._device)
        base, wide, p = self._places[members[0][0]][members[0][1]].tolist()
        pivots = np.full((len(members), p), -1)
        boundary = np.full((len(members), wide // k - p), -1)
        parent_slot = np.full_like(boundary, -1)
        parent_base, parent_width = np.zeros((2, len(members), 1, 1), int)
        for m, (g, f) in enumerate(members):
            front = self.orders[g].fronts[f]
            pivots[m, : len(front.pivots)] = front.pivots + self._offsets[g]
            count = len(front.boundary)
            if count:
                boundary[m, :count] = front.boundary + self._offsets[g]
                above = np.full(count, front.parent)
                parent_slot[m, :count] = self._slots(g, above, front.boundary)
                parent_base[m], parent_width[m], _ = self._places[g][front.parent]

        def unknowns(nodes: np.ndarray) -> Tensor:
            """Unknown (v, c) is at c·N + v of a flattened [k, N] vector; padding comes after it."""
            v = _index(nodes, self._device)[..., None]
            return torch.where(v < 0, n * k, channel * n + v).flatten(1)

        slot = _index(parent_slot, self._device)[..., None]
        row = torch.where(slot < 0, -1, slot * k + channel).flatten(1)
        start, width = (_index(x, self._device) for x in (parent_base, parent_width))
        target = start + row[:, :, None] * width + row[:, None, :]
        void = (row[:, :, None] < 0) | (row[:, None, :] < 0)
        return _Group(
            base,
            len(members),
            unknowns(pivots),
            unknowns(boundary),
            torch.where(void, self.size, target).reshape(-1),
        )

    def _padding(self, layout: list[list[tuple[int, int]]]) -> np.ndarray:
        """Diagonal entries of padded pivots, which are set to one."""
        found = [np.empty(0, int)]
        for g, f in (member for members in layout for member in members):
            base, width, p = self._places[g][f].tolist()
            used = len(self.orders[g].fronts[f].pivots)
            rows = np.arange(used * self.channels, p * self.channels)
            found.append(base + rows * (width + 1))
        return np.concatenate(found)

    def factor(self, diagonal: Tensor, off_diagonal: Tensor) -> Factor:
        """Factorise the matrix with these blocks, [R, k, k, N] and [R, k, k, M]."""
        replicas = diagonal.size(0)
        buffer = diagonal.new_zeros(replicas, self.size + 1)  # the last number is for padding
        for index, blocks in ((self.diagonal, diagonal), (self.off_diagonal, off_diagonal)):
            buffer.scatter_add_(1, index.expand(replicas, -1), blocks.reshape(replicas, -1))
        buffer.index_fill_(1, self.pads, 1.0)
        pieces: list[tuple[Tensor, Tensor | None]] = []
        for group in self.groups:
            p, b = group.pivots.size(1), group.boundary.size(1)
            end = group.start + group.count * (p + b) ** 2
            front = buffer[:, group.start : end].view(replicas, group.count, p + b, p + b)
            lower, info = torch.linalg.cholesky_ex(front[..., :p, :p])
            # NaN marks a matrix that is not positive definite.
            lower = torch.where(info[..., None, None] == 0, lower, float("nan"))
            if not b:
                pieces.append((lower, None))
                continue
            x = torch.linalg.solve_triangular(lower, front[..., p:, :p].mT, upper=False)
            schur = front[..., p:, p:] - x.mT @ x
            index = group.extend.expand(replicas, -1)
            buffer.scatter_add_(1, index, schur.reshape(replicas, -1))
            pieces.append((lower, x))
        return Factor(self, pieces)


def _patterns(graph: Graph, offsets: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For every graph: rows and columns of its off-diagonal blocks, and their numbers."""
    rows, cols = graph.pattern.rows.cpu().numpy(), graph.pattern.cols.cpu().numpy()
    owner = graph.batch.cpu().numpy()[rows]
    entries = np.split(
        np.argsort(owner, kind="stable"),
        np.cumsum(np.bincount(owner, minlength=graph.num_graphs))[:-1],
    )
    return [(rows[e] - offsets[g], cols[e] - offsets[g], e) for g, e in enumerate(entries)]


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
        # Padding reads and writes one dummy unknown. It is zeroed after every write, so that a NaN
        # in one graph does not reach the others.
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


Key = tuple[int, bool, bool]
"""Channels; whether graphs are dense fronts; whether a factorisation is forced."""


@dataclass
class Planned:
    """The plans of one graph."""

    plans: dict[Key, Plan | None] = field(default_factory=dict)  # None: cg is cheaper
    refused: dict[Key, int] = field(default_factory=dict)  # replicas for which it was too large


@kept
def planned(graph: Graph) -> Planned:
    """The plans of this graph; the graph owns them."""
    return Planned()


@kept
def _dense_work(graph: Graph, channels: int) -> float:
    """Work of dense factorisations, the sum of (n·k)³; waits for the device."""
    return float((graph.sizes * channels).double().pow(3).sum())


@torch.inference_mode(False)  # a kept plan must serve training, too
def _is_wide(graph: Graph, channels: int) -> bool:
    """Whether the pattern certainly has no small separator. The pattern joins nodes two hops apart,
    so that its separators are two levels of a breadth-first search in the graph. This test costs
    little memory, and the pattern of a large graph costs much."""
    sizes = graph.sizes.cpu().numpy()
    if len(sizes) > 1:
        return False
    ends = (graph.dst.cpu().numpy(), graph.src.cpu().numpy())
    return 2 * first_separator(Shape(int(sizes[0]), *ends)) > MAX_WIDTH // channels


def plan_for(graph: Graph, channels: int, replicas: int, *, force: bool = False) -> Plan | None:
    """The plan of this graph, made once; ``None`` where conjugate gradients are cheaper. With
    ``force`` a factorisation may cost anything that fits into memory.
    """
    # On a CPU few small problems are fastest as dense ones: calling the batched operations of many
    # small fronts costs more than dense factorisations. A GPU is slow at single dense matrices, and
    # replays many small operations from a recording.
    dense = not graph.src.is_cuda and replicas * _dense_work(graph, channels) <= DENSE_WORK
    key, known = (channels, dense, force), planned(graph)
    batch, graphs = graph.origin or (None, None)
    for each in (known,) if batch is None else (known, planned(batch)):
        if replicas < each.refused.get(key, 0):
            del each.plans[key], each.refused[key]  # fewer may fit
    if key not in known.plans and batch is not None and key in planned(batch).plans:
        # Graphs that were cut out of a batch are eliminated as in the batch.
        whole, part = planned(batch).plans[key], None
        if whole is not None and graphs is not None:
            orders = [whole.orders[g] for g in graphs.tolist()]
            part = Plan(graph, channels, orders=orders, call=whole.call)
        known.plans[key] = part
    if key not in known.plans and graph.num_blocks * channels**2 > MAX_ELEMENTS:
        known.plans[key] = None  # a hub couples all pairs of its neighbours
    if key not in known.plans and graph.num_nodes >= WIDE_NODES and _is_wide(graph, channels):
        known.plans[key] = None
    if key not in known.plans:
        kind = "cuda" if graph.src.is_cuda else "cpu"
        # Every node has a block of its own, so that a graph without edges is factorised, too.
        cg = CG_WORK[kind] * channels**2 * max(graph.num_edges, graph.num_nodes)
        budget = float("inf") if force or dense else cg
        width = MAX_WIDTH if dense else DENSE_WIDTH
        call = CALL_WORK[kind] / (replicas if graph.src.is_cuda else 1)
        elements = MAX_TOTAL / replicas
        try:
            known.plans[key] = Plan(graph, channels, width, budget, call=call, elements=elements)
        except TooMany:
            known.plans[key], known.refused[key] = None, replicas
        except TooWide:
            known.plans[key] = None
    plan = known.plans[key]
    if plan is None and graph.num_nodes >= WIDE_NODES:
        graph.__dict__.pop("pattern", None)  # it is large, and conjugate gradients do not need it
    if plan is not None and plan.size > MAX_TOTAL / replicas:
        return None  # the plan was made for fewer replicas
    return plan


def resemble(graph: Graph, like: Graph) -> None:
    """Plan nothing where another graph, most of whose edges are the same, had better use conjugate
    gradients: looking for small separators costs more than the solve."""
    for key, plan in planned(like).plans.items():
        if plan is None and key not in planned(like).refused:
            planned(graph).plans.setdefault(key, None)


def batches(
    shapes: np.ndarray, counts: np.ndarray, call: float, widest: float = np.inf
) -> list[list[int]]:
    """Classes that are factorised together.

    Args:
        shapes: Pivots and boundary of every class, in unknowns, [C, 2].
        counts: Number of fronts of every class, [C].
        call: The cost of one more batch, in units of a front's width³.
        widest: The largest width of a union.
    """
    padded, number = np.array(shapes, float), np.array(counts, float)
    found: list[list[int]] = [[c] for c in range(len(number))]
    alone = _work(padded, number)
    every = np.arange(len(number))

    def added(i: int) -> np.ndarray:
        """The work that the unions with batch i add, [C]; infinite where a union is not allowed."""
        union = np.maximum(padded[i], padded)
        more = _work(union, number[i] + number) - alone[i] - alone
        more[(union.sum(-1) > widest) | (number == 0.0) | (every == i)] = np.inf
        return more

    pairs = np.array([added(c) for c in every.tolist()])
    partner = pairs.argmin(1)  # the best partner of every batch
    for _ in every[1:]:
        i = int(pairs[every, partner].argmin())
        j = int(partner[i])
        if pairs[i, j] > call or pairs[i, j] == np.inf:
            break
        found[i] += found[j]
        padded[i] = np.maximum(padded[i], padded[j])
        number[i] += number[j]
        number[j] = 0.0  # batch j is gone
        alone[i] = _work(padded[i], number[i])
        pairs[i] = pairs[:, i] = added(i)
        pairs[j] = pairs[:, j] = np.inf
        lost = (partner == i) | (partner == j)
        partner[lost] = pairs[lost].argmin(1)
        # The union may be a better partner for a third batch.
        partner[pairs[i] < pairs[every, partner]] = i
    return [batch for batch, there in zip(found, number, strict=True) if there]


def _work(shape: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The work of ``number`` fronts padded to this shape […, 2]."""
    return np.asarray(number * shape.sum(-1) ** 3)
