r"""The energy of an energy GNN on whole graphs, with gradient and Hessian in closed form.

An :class:`EnergyProblem` is data: a graph, parameters, features and weights of edges. Compiled code
reads them as they are (:mod:`hogwild.engines`). On torch the code of a node computes the round of
messages and its derivatives (:mod:`hogwild_node.round`). This file sums them over the graph, in
*blocks* of nodes with the edges into them. A graph of ordinary size is one block. A large graph is
computed block by block, and everything but the sums is forgotten: memory is a few numbers for each
node and edge, and a constant.

**Derivatives.** One reverse pass gives the gradient and the nonnegative sensitivity of every hidden
unit. Each network is linearised once, which gives second-order models of the local energies
(:class:`~hogwild_node.local.LocalQuadratic`). A product with the Hessian needs, for each edge,
:math:`J_e` and :math:`X_e`, and for each node :math:`U_i` and :math:`B_i` with the curvatures
:math:`C_e` of all edges out of i:

.. math::
    (s_i; y_i) = \sum_e (J_e; X_e) v_e, \qquad
    (H v)_i = B_i v_i + y_i + \sum_{e\,:\,i \to l} J_e^\top U_l s_l + X_e^\top v_l.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hogwild.graph import Graph, kept
from hogwild.linalg.operator import Hessian
from hogwild.ops import gather, mtm, mtv, mv, scatter, scatter_into
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.activations import Activation
from hogwild_node.networks import PICNNParameters, Slot
from hogwild_node.problems import Energy
from hogwild_node.round import Pullback, Round, RoundTape
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, arrays, over

BLOCK_EDGES = 1 << 16
"""Edges and nodes of a block of a large graph, times replicas (``benchmarks/large.py``)."""
KEEP = 512 << 20
"""Bytes of gates and biases that a problem on a large graph keeps for its first blocks. They depend
on features only, are half of the work of an evaluation, and are computed again for all others."""
LARGE = {"cpu": 1 << 18}
"""Edges, times replicas, from which a graph is more than one block, by device. On a GPU a block is
too little work for a kernel."""


class Block(NamedTuple):
    """Consecutive nodes with the edges into them; of the only block, ``star.nodes`` is ``None``."""

    star: Star
    nodes: slice
    edges: slice  # places in the order of receivers
    src: Tensor  # [E'] senders


class Blocks:
    """A graph in blocks of consecutive nodes, with about ``size`` nodes and edges each."""

    def __init__(self, graph: Graph, size: int) -> None:
        self.degree, self.src, self.order = graph.in_degree, graph.src, None
        if not bool((graph.dst[1:] >= graph.dst[:-1]).all()):
            self.order = torch.argsort(graph.dst, stable=True)
            self.src = graph.src[self.order]
        self.start = torch.zeros(graph.num_nodes + 1, dtype=torch.long)
        torch.cumsum(self.degree.cpu(), 0, out=self.start[1:])
        work = self.start + torch.arange(graph.num_nodes + 1)
        total = int(work[-1])
        marks = torch.arange(0, total + size, size).clamp_max(total)
        self.cuts = torch.unique(torch.searchsorted(work, marks)).tolist()

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def __iter__(self) -> Iterator[Block]:
        for first, last in pairwise(self.cuts):
            begin, end = int(self.start[first]), int(self.start[last])
            here = torch.arange(begin, end) if self.order is None else self.order[begin:end]
            slot = torch.repeat_interleave(self.degree[first:last], output_size=end - begin)
            star = Star(last - first, slot, torch.arange(first, last), here)
            yield Block(star, slice(first, last), slice(begin, end), self.src[begin:end])


@kept
def _blocks(graph: Graph, size: int) -> Blocks:
    return Blocks(graph, size)


@dataclass(frozen=True)
class Design:
    """Everything about an energy that is not a tensor.

    Attributes:
        channels: Width k of an embedding.
        message_channels: Width of a message, of one head.
        heads: Heads of attention.
        concat: Whether the heads' messages are laid side by side, or averaged.
        both_ends: Whether messages read both ends of an edge (edge-wise) or its sender (node-wise).
        sent_at_nodes: Whether a sender's features are those of its node, or given for every edge.
        beta: The convexity β.
        act: The activation.
        gate: The name of the gates' activation.
        widths: Widths of the layers of the three networks (message, self message, update).
        monotone: For each convex input of the three networks, whether the output rises in it.
    """

    channels: int
    message_channels: int
    heads: int
    concat: bool
    both_ends: bool
    sent_at_nodes: bool
    beta: float
    act: Activation
    gate: str
    widths: tuple[tuple[int, ...], ...]
    monotone: tuple[tuple[bool, ...], ...]


@dataclass
class EnergyProblem(Objective):
    """Minimise the energy of one round of messages on every graph and replica."""

    graph: Graph = over(FIXED)
    design: Design = over(FIXED)
    # Of the three networks, as hogwild.nn.PICNN has them: [(R,) (H,) …] in any precision
    parameters: tuple[Tensor, ...] = over(SHARED)
    x: Tensor = over(NODES)  # [1 or R, p, N] features, in the precision of the solve
    heard: Tensor | None = over(EDGES)  # [1 or R, p, E] of senders as heard; None: those in x
    edge_attr: Tensor | None = over(EDGES)  # [1, r, E]
    weight: Tensor | None = over(EDGES)  # [R or 1, H or 1, 1, E] of messages; None: one
    loop_weight: Tensor | None = over(NODES)  # [N] of self messages; None: one
    weighted: bool = over(FIXED, default=False)  # whether edges have weights as features
    has_blocks = True

    @property
    def sources(self) -> tuple[Tensor | None, ...]:
        """All tensors that the problem is made of."""
        return (
            self.x, self.heard, self.edge_attr, self.weight, self.loop_weight, *self.parameters,
        )  # fmt: skip

    @property
    def replicas(self) -> int:
        last = self.parameters[-1]  # a matrix of the update network
        return last.size(0) if last.dim() > 2 else 1

    @property
    def channels(self) -> int:
        return self.design.channels

    @property
    def numbers_per_node_and_edge(self) -> tuple[int, int]:
        width = 0 if self.edge_attr is None else self.edge_attr.size(-2)
        return self.x.size(-2), width + self.weighted

    def start(self) -> Tensor:
        return self.x.new_zeros(self.replicas, self.channels, self.graph.num_nodes)

    # -- the networks with their features ----------------------------------------------------------

    @property
    def networks(self) -> tuple[PICNNParameters, ...]:
        """Parameters of (message, self message, update), [B, …] in the precision of the solve."""
        left, design = iter(self.parameters), self.design

        def layers(count: int, dim: int) -> list[Tensor]:
            some = (next(left).to(self.x.dtype) for _ in range(count))
            return [p.reshape(-1, *p.shape[p.dim() - dim :]) for p in some]

        found = []
        for widths, monotone in zip(design.widths, design.monotone, strict=True):
            n = len(widths)
            parts = layers(n, 2), layers(n, 1), layers(n, 2), layers(n - 1, 2)
            found.append(PICNNParameters(*parts, monotone, design.act, design.gate))
        return tuple(found)

    def round_on(self, block: Block) -> Round:
        """The round of messages of a block, with its features filled in."""
        star, nodes, design = block.star, block.nodes, self.design
        whole = star.nodes is None

        def some(value: Tensor | None, index: Tensor | slice | None) -> Tensor | None:
            return value if value is None or whole else value[..., index]

        if self.heard is not None:
            sent = Slot(star.at_edges(self.heard))
        else:
            sent = Slot(self.x, block.src) if whole else Slot(self.x[..., block.src])
        return Round.of(
            self.networks, self.x if whole else self.x[..., nodes], sent,
            None if self.edge_attr is None else star.at_edges(self.edge_attr), star,
            weight=some(self.weight, star.edges), loop_weight=some(self.loop_weight, nodes),
            heads=design.heads, concat=design.concat, both_ends=design.both_ends,
        )  # fmt: skip

    @cached_property
    def blocks(self) -> Sequence[Block] | Blocks:
        """The blocks of this graph."""
        graph, r = self.graph, self.replicas
        if r * graph.num_edges >= LARGE.get(graph.src.device.type, math.inf):
            found = _blocks(graph, max(BLOCK_EDGES // r, 1))
            return found if len(found) > 1 else (self.only_block,)
        return (self.only_block,)

    @property
    def only_block(self) -> Block:
        """The whole graph."""
        return Block(self.graph.everyone, slice(None), slice(None), self.graph.src)

    @cached_property
    def _rounds(self) -> dict[int | None, Round]:
        """Rounds by the first node of their block."""
        return {}

    @cached_property
    def _room(self) -> list[int]:
        """Bytes that may still be kept."""
        return [KEEP]

    def round(self, block: Block) -> Round:
        """:meth:`round_on`, which is kept if autograd does not follow it: one backward pass frees
        an attached round, and what is computed in inference mode has no derivatives later."""
        first = block.nodes.start
        if torch.is_grad_enabled() and self.requires_grad:
            return self.round_on(block)
        if first in self._rounds:
            return self._rounds[first]
        found = self.round_on(block)
        if torch.is_inference_mode_enabled():
            return found
        if first is None:
            self._rounds[first] = found
        elif self._room[0] > 0:
            self._room[0] -= sum(x.untyped_storage().nbytes() for x, _ in arrays(found))
            self._rounds[first] = found
        return found

    @cached_property
    def requires_grad(self) -> bool:
        """Whether autograd follows any tensor of the problem."""
        return any(x is not None and x.requires_grad for x in self.sources)

    @property
    def node(self) -> Energy:
        return Energy(self.round(self.only_block), self.design.beta)

    def evaluate(self, h: Tensor) -> EnergyEvaluation:
        return EnergyEvaluation(self, h)

    def convexity(self) -> Tensor:
        return self.x.new_full((self.replicas, self.graph.num_graphs), self.design.beta)

    @torch.no_grad()
    def row_bounds(self) -> Tensor:
        r"""Bounds on the absolute row sums of the Hessian at any point, [R, k, N].

        Replace every slope and curvature by its supremum and every weight by its absolute value.
        The Hessian becomes a nonnegative matrix that bounds :math:`|\nabla^2 E|` entry by entry at
        every point. Its row sums are its product with the vector of ones.
        """
        total = torch.zeros_like(self.start())
        for block in self.blocks:
            alone = Star(block.star.size, block.star.slot)
            own, toward = Energy(self.round(block), self.design.beta).row_bounds(alone)
            total[..., block.nodes] += own
            scatter_into(total, block.src, toward)
        return total


class EnergyEvaluation(Evaluation):
    """The energy at ``h``. The passes of the only block serve the value, the gradient and the
    Hessian. Those of a large graph are computed once for the value and the gradient, and again for
    the Hessian."""

    def __init__(self, problem: EnergyProblem, h: Tensor) -> None:
        self.problem, self.h, self.blocks = problem, h, problem.blocks
        self.beta, self.whole = problem.design.beta, len(self.blocks) == 1

    def forward(self, block: Block) -> RoundTape:
        """The forward pass of a block."""
        rnd, h = self.problem.round(block), self.h
        if block.star.nodes is None:
            return rnd.forward(h, None, block.star)
        return rnd.forward(h[..., block.nodes], gather(h, block.src), block.star)

    @cached_property
    def _tape(self) -> RoundTape:
        """The forward pass of the only block."""
        return self.forward(self.problem.only_block)

    @cached_property
    def _back(self) -> Pullback:
        """Its reverse pass."""
        return self._tape.pullback()

    def passes(self) -> Iterator[tuple[Block, RoundTape, Pullback]]:
        """The passes of all blocks."""
        for block in self.blocks:
            if block.star.nodes is None:
                yield block, self._tape, self._back
            else:
                tape = self.forward(block)
                yield block, tape, tape.pullback()

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of a large graph, local energies without their β terms [R, N], the gradient, and the sum
        of the absolute values of its terms [R, k, N]."""
        h, local = self.h, list[Tensor]()
        gradient, size = self.beta * h, self.beta * h.detach().abs()
        for block in self.blocks:
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
        tape = self.forward(block)
        back = tape.pullback()
        large = back.absolute()
        return tape.value[:, 0], back.own, back.toward, large.own, large.toward

    @cached_property
    def _energies(self) -> tuple[Tensor, Tensor]:
        """The local energies without the β term, and the β terms, [R, N] each."""
        local = self._tape.value[:, 0] if self.whole else self._sums[0]
        return local, 0.5 * self.beta * self.h.square().sum(1)

    @cached_property
    def value(self) -> Tensor:
        """The energy of each graph, [R, G]."""
        local, quadratic = self._energies
        return self.problem.graph.sum(local + quadratic)

    @cached_property
    def noise(self) -> Tensor:
        local, quadratic = self._energies
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(local.abs() + quadratic)

    @cached_property
    def gradient(self) -> Tensor:
        r""":math:`\nabla_h E`, [R, k, N]."""
        return self.beta * self.h + self._back.total if self.whole else self._sums[1]

    @cached_property
    def scale(self) -> Tensor:
        if self.whole:
            size = self.beta * self.h.abs() + self._back.absolute().total
        else:
            size = self._sums[2]
        return self.problem.graph.norm(size)

    def hessian(self) -> EnergyHessian:
        return self._linearised(lambda tape, _: tape)

    def secant(self, reach: Tensor) -> EnergyHessian:
        """The Hessian in which the curvature of every activation is replaced by
        :meth:`~hogwild.nn.Activation.growth`: the curvature of the parabola that touches the
        activation and lies above it up to the reach [R, G] of its graph."""
        graph = self.problem.graph
        nodes = graph.wide(reach).expand(-1, -1, graph.num_nodes)
        return self._linearised(lambda tape, block: tape.reaching(nodes[..., block.nodes]))

    @torch.no_grad()
    def _linearised(self, bend: Callable[[RoundTape, Block], RoundTape]) -> EnergyHessian:
        graph, (r, k, n) = self.problem.graph, self.h.shape
        out: EnergyHessian | None = None
        for block, tape, back in self.passes():
            linear = bend(tape, block).linearise(back)
            local = linear.quadratic(linear.b[:, 0, :0], linear.c[:, 0, :0], self.beta)
            if self.whole:
                b = local.b + scatter(local.c, graph.src, n)
                return EnergyHessian(graph, self.blocks, local.j, local.x, local.u, b)
            if out is None:
                c, e, new = local.j.shape[1], graph.num_edges, self.h.new_empty
                out = EnergyHessian(
                    graph, self.blocks, new(r, c, k, e), new(r, k, k, e), new(r, c, c, n),
                    self.h.new_zeros(r, k, k, n),
                )  # fmt: skip
            out.j[..., block.edges], out.x[..., block.edges] = local.j, local.x
            out.u[..., block.nodes] = local.u
            out.b[..., block.nodes] += local.b
            scatter_into(out.b, block.src, local.c)
        assert out is not None
        return out


def _added(total: Tensor, block: Block, own: Tensor, toward: Tensor) -> Tensor:
    """``total`` [R, k, N] with the terms of the nodes and of the senders of a block, in place."""
    total[..., block.nodes] += own
    return total.scatter_add_(-1, block.src.expand_as(toward), toward)


@dataclass
class EnergyHessian(Hessian):
    """The Hessian at one point (the module's docstring has the formula)."""

    graph: Graph
    of: Sequence[Block] | Blocks
    j: Tensor  # [R, C, k, E] of edges in the order of the blocks
    x: Tensor  # [R, k, k, E] likewise
    u: Tensor  # [R, C, C, N]
    b: Tensor  # [R, k, k, N] B, with the curvatures C of the edges out of each node
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        out = mv(self.b, v)
        for block in self.of:
            star, (j, x) = block.star, (m[..., block.edges] for m in (self.j, self.x))
            sent = gather(v, block.src)
            out[..., block.nodes] += star.collect(mv(x, sent))
            w = mv(self.u[..., block.nodes], star.collect(mv(j, sent)))
            back = mtv(j, star.spread(w)) + mtv(x, star.spread(v[..., block.nodes]))
            scatter_into(out, block.src, back)
        return out

    def _edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """J, U J and X on the edges of the graph, in their order."""
        order = self.of.order if isinstance(self.of, Blocks) else None
        j, x = self.j, self.x
        if order is not None:
            place = torch.empty_like(order)
            place[order] = torch.arange(order.numel())
            j, x = j[..., place], x[..., place]
        return j, mtm(gather(self.u, self.graph.dst), j), x

    def diagonal(self) -> Tensor:
        # Unlike blocks(), this needs no pairs of neighbours; its cost is linear in the edges.
        graph, (j, through, x) = self.graph, self._edges()
        seen = scatter(mtm(j, through), graph.src, graph.num_nodes)
        if graph.parallel is not None:
            # Parallel edges act as one edge with the sum of their Jacobians: the square of their
            # sum counts, not the sum of their squares.
            number, one = graph.parallel
            sums = [scatter(m, number, one.numel()) for m in (j, through)]
            seen = scatter(mtm(*sums), graph.src[one], graph.num_nodes)
        if graph.self_loops is not None:
            loops = x[..., graph.self_loops]
            loops = loops + loops.transpose(1, 2)
            seen = seen + scatter(loops, graph.src[graph.self_loops], graph.num_nodes)
        return self.b + seen

    def blocks(self) -> tuple[Tensor, Tensor]:
        (j, through, x), pattern, n = self._edges(), self.graph.pattern, self.graph.num_nodes
        diagonal = self.b + scatter(mtm(j, through), self.graph.src, n)
        wedge = mtm(j[..., pattern.left], through[..., pattern.right])  # [R, k, k, W]
        return pattern.folded(diagonal, torch.cat([x, wedge], -1))
