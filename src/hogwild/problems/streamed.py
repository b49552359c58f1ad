r"""The energy of an energy GNN on a large graph, evaluated in blocks of nodes.

A node's local energy needs the node and the edges into it alone. This file computes a block of
nodes with the edges into them, adds the result to the gradient, and forgets everything else. The
networks' gates and biases, which depend on features only, are kept for the first blocks
(:data:`KEEP`) and computed again in every pass for all others. Memory is a few numbers for each
node and edge, and a constant.

**The Hessian.** Of the second-order models of the local energies (:class:`~hogwild_node.local.
LocalQuadratic`) a product with the Hessian needs, for each edge, :math:`G_e = (J_e; X_e)`, and for
each node :math:`U_i` and :math:`B_i` with the curvatures :math:`C_e` of all edges out of i:

.. math::
    (s_i; y_i) = \sum_e G_e v_e, \qquad
    (H v)_i = B_i v_i + y_i + \sum_{e\,:\,i \to l} G_e^\top (U_l s_l; v_l).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hogwild.graph import Graph, kept
from hogwild.linalg.operator import Hessian
from hogwild.ops import gather, mtm, mtv, mv, scatter_into
from hogwild.problems.base import Evaluation, Objective, Recipe
from hogwild.problems.energy import EnergyProblem
from hogwild_node.problems import Energy
from hogwild_node.round import Linear, Pullback, Round, RoundTape
from hogwild_node.star import Star
from hogwild_node.tree import FIXED, NODES, SHARED, OnGraph, arrays, over

BLOCK_EDGES = 1 << 16
"""Edges and nodes of a block, times replicas (``benchmarks/large.py``)."""
KEEP = 512 << 20
"""Bytes of gates and biases that a problem keeps. They are half of the work of an evaluation."""
LARGE = {"cpu": 1 << 18}
"""Edges, times replicas, from which an energy is evaluated in blocks, by device. On a GPU a block
is too little work for a kernel."""


class Pose(OnGraph, ABC):
    """The features and parameters of a round of messages; a dataclass."""

    @abstractmethod
    def on(self, star: Star, src: Tensor) -> Round:
        """The round on a star whose edges have the senders ``src`` [E'], with its features filled
        in."""


def is_large(graph: Graph, replicas: int) -> bool:
    """Whether an energy on this graph is evaluated in blocks."""
    least = LARGE.get(graph.src.device.type)
    return least is not None and replicas * graph.num_edges >= least


class Block(NamedTuple):
    """Consecutive nodes with the edges into them."""

    star: Star
    nodes: slice
    edges: slice  # places in the order of receivers
    src: Tensor  # [E'] senders


class Blocks:
    """A graph in blocks of consecutive nodes, with about ``edges`` nodes and edges each."""

    def __init__(self, graph: Graph, edges: int) -> None:
        self.degree, self.src, self.order = graph.in_degree, graph.src, None
        if not bool((graph.dst[1:] >= graph.dst[:-1]).all()):
            self.order = torch.argsort(graph.dst, stable=True)
            self.src = graph.src[self.order]
        self.start = torch.zeros(graph.num_nodes + 1, dtype=torch.long)
        torch.cumsum(self.degree.cpu(), 0, out=self.start[1:])
        work = self.start + torch.arange(graph.num_nodes + 1)
        total = int(work[-1])
        marks = torch.arange(0, total + edges, edges).clamp_max(total)
        self.cuts = torch.unique(torch.searchsorted(work, marks)).tolist()

    def __iter__(self) -> Iterator[Block]:
        for first, last in zip(self.cuts, self.cuts[1:], strict=False):
            begin, end = int(self.start[first]), int(self.start[last])
            here = torch.arange(begin, end) if self.order is None else self.order[begin:end]
            slot = torch.repeat_interleave(self.degree[first:last], output_size=end - begin)
            star = Star(last - first, slot, torch.arange(first, last), here)
            yield Block(star, slice(first, last), slice(begin, end), self.src[begin:end])


@kept
def _blocks(graph: Graph, edges: int) -> Blocks:
    return Blocks(graph, edges)


@dataclass
class StreamedEnergy(Objective):
    """The problem of :class:`~hogwild.problems.energy.EnergyProblem` with one round of messages."""

    graph: Graph = over(FIXED)
    beta: float = over(FIXED)
    pose: Pose = over(SHARED)
    shape: tuple[int, int] = over(FIXED)  # replicas and channels
    like: Tensor = over(FIXED)  # any tensor of the solve's dtype and device
    begin: Tensor | None = over(NODES, default=None)  # [R, k, N] where nodes start; None: at zero
    recipe: Recipe | None = over(FIXED, default=None)  # for compiled code

    @property
    def replicas(self) -> int:
        return self.shape[0]

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def blocks(self) -> Blocks:
        """The blocks of this graph."""
        return _blocks(self.graph, max(BLOCK_EDGES // self.replicas, 1))

    @cached_property
    def whole(self) -> EnergyProblem:
        """The same problem, held in memory."""
        graph = self.graph
        index = torch.arange(graph.num_edges, device=graph.src.device)
        nodes = torch.arange(graph.num_nodes, device=graph.src.device)
        star = Star(graph.num_nodes, graph.dst, nodes, index)
        rounds = [self.pose.on(star, graph.src)]
        return EnergyProblem(graph, self.beta, rounds, self.begin)

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> EnergyProblem:  # type: ignore[override]
        return self.whole.gathered(graph, nodes, edges)

    def evaluate(self, h: Tensor) -> StreamedEvaluation:
        return StreamedEvaluation(self, h)

    def start(self) -> Tensor:
        if self.begin is not None:
            return self.begin
        return self.like.new_zeros(self.replicas, self.channels, self.graph.num_nodes)

    @property
    def node(self) -> Energy:
        return self.whole.node

    def convexity(self) -> Tensor:
        return self.like.new_full((self.replicas, self.graph.num_graphs), self.beta)

    def row_bounds(self) -> Tensor:
        shape = (self.replicas, self.channels, self.graph.num_nodes)
        total = self.like.new_zeros(shape)
        with torch.no_grad():
            for block in self.blocks:
                local = Energy(self.pose.on(block.star, block.src), self.beta)
                own, toward = local.row_bounds(Star(block.star.size, block.star.slot))
                total[..., block.nodes] += own
                scatter_into(total, block.src, toward)
        return total

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[StreamedEnergy, Tensor]:
        found, nodes = super().select(replicas, graphs)
        found.shape = (replicas.numel(), self.channels)
        return found, nodes

    @cached_property
    def _kept(self) -> dict[int, Round]:
        """Rounds by the first node of their block."""
        return {}

    @cached_property
    def _room(self) -> list[int]:
        """Bytes that may still be kept."""
        return [KEEP]

    def _round(self, block: Block) -> Round:
        """The round of a block, with its features filled in."""
        first = block.nodes.start
        if torch.is_grad_enabled() and any(x.requires_grad for x, _ in arrays(self.pose)):
            return self.pose.on(block.star, block.src)
        if first in self._kept:
            return self._kept[first]
        found = self.pose.on(block.star, block.src)
        if self._room[0] > 0:
            self._room[0] -= sum(x.untyped_storage().nbytes() for x, _ in arrays(found))
            self._kept[first] = found
        return found

    def passes(self, h: Tensor) -> Iterator[tuple[Block, RoundTape]]:
        """The forward passes of all blocks."""
        for block in self.blocks:
            yield block, self.forward(h, block)

    def forward(self, h: Tensor, block: Block) -> RoundTape:
        """The forward pass of one block."""
        rnd = self._round(block)
        return rnd.forward(h[..., block.nodes], gather(h, block.src), block.star)


class StreamedEvaluation(Evaluation):
    """The energy at ``h``: one pass gives the value and the gradient, and another the Hessian."""

    def __init__(self, problem: StreamedEnergy, h: Tensor) -> None:
        self.problem, self.h = problem, h

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Local energies without their β terms [R, N], the gradient, and the sum of the absolute
        values of its terms [R, k, N]."""
        p, h = self.problem, self.h
        local: list[Tensor] = []
        gradient, size = p.beta * h, p.beta * h.detach().abs()
        for block in p.blocks:
            if torch.is_grad_enabled():  # keep nothing for the backward pass: compute it again
                some = checkpoint(self._terms, block, use_reentrant=False, preserve_rng_state=False)
            else:
                some = self._terms(block)
            value, own, toward, large, far = some
            local.append(value)
            gradient = _added(gradient, block, own, toward)
            size = _added(size, block, large.detach(), far.detach())
        return torch.cat(local, -1), gradient, size

    def _terms(self, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        tape = self.problem.forward(self.h, block)
        back = tape.pullback()
        large = back.absolute()
        return tape.value[:, 0], back.own, back.toward, large.own, large.toward

    @property
    def _quadratic(self) -> Tensor:
        return 0.5 * self.problem.beta * self.h.square().sum(1)

    @property
    def value(self) -> Tensor:
        """The energy of each graph, [R, G]."""
        return self.problem.graph.sum(self._sums[0] + self._quadratic)

    @property
    def noise(self) -> Tensor:
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(self._sums[0].abs() + self._quadratic)

    @property
    def gradient(self) -> Tensor:
        return self._sums[1]

    @property
    def scale(self) -> Tensor:
        return self.problem.graph.norm(self._sums[2])

    def hessian(self) -> StreamedHessian:
        return self._linearised(lambda tape, _: tape)

    def secant(self, reach: Tensor) -> StreamedHessian:
        graph = self.problem.graph
        nodes = graph.wide(reach).expand(-1, -1, graph.num_nodes)
        return self._linearised(lambda tape, block: tape.reaching(nodes[..., block.nodes]))

    @torch.no_grad()
    def _linearised(self, bend: Callable[[RoundTape, Block], RoundTape]) -> StreamedHessian:
        p, (r, k, n) = self.problem, self.h.shape
        out: StreamedHessian | None = None
        for block, tape in p.passes(self.h):
            back: Pullback = tape.pullback()
            linear: Linear = bend(tape, block).linearise(back)
            local = linear.quadratic(linear.b[:, 0, :0], linear.c[:, 0, :0], p.beta)
            if out is None:
                c, e = local.j.shape[1], p.graph.num_edges
                out = StreamedHessian(
                    p.graph,
                    p.blocks,
                    self.h.new_empty(r, c + k, k, e),
                    self.h.new_empty(r, c, c, n),
                    self.h.new_zeros(r, k, k, n),
                    self.h.new_zeros(r, k, k, n),
                )
            out.g[:, : local.j.shape[1], :, block.edges] = local.j
            out.g[:, local.j.shape[1] :, :, block.edges] = local.x
            out.u[..., block.nodes] = local.u
            out.b[..., block.nodes] += local.b
            scatter_into(out.b, block.src, local.c)
            scatter_into(out.seen, block.src, mtm(local.j, local.through()))
        assert out is not None
        return out


def _added(total: Tensor, block: Block, own: Tensor, toward: Tensor) -> Tensor:
    """``total`` [R, k, N] with the terms of the nodes and of the senders of a block, in place."""
    total[..., block.nodes] += own
    return total.scatter_add_(-1, block.src.expand_as(toward), toward)


@dataclass
class StreamedHessian(Hessian):
    """The Hessian at one point (the module's docstring has the formula)."""

    graph: Graph
    blocks_of: Blocks
    g: Tensor  # [R, C + k, k, E] (J; X), in the order of receivers
    u: Tensor  # [R, C, C, N]
    b: Tensor  # [R, k, k, N] B, with the curvatures C of the edges out of each node
    seen: Tensor  # [R, k, k, N] sum of JᵀUJ over the edges out of each node

    def apply(self, v: Tensor) -> Tensor:
        out, c = mv(self.b, v), self.u.size(1)
        for block in self.blocks_of:
            g = self.g[..., block.edges]
            heard = block.star.collect(mv(g, gather(v, block.src)))
            out[..., block.nodes] += heard[:, c:]
            w = mv(self.u[..., block.nodes], heard[:, :c])
            back = mtv(g, block.star.spread(torch.cat([w, v[..., block.nodes]], 1)))
            scatter_into(out, block.src, back)
        return out

    def diagonal(self) -> Tensor:
        """The blocks without the terms that couple parallel edges, and the two ends of a self-loop;
        also positive definite."""
        return self.b + self.seen
