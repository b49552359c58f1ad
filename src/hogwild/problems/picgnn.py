r"""A partially input-convex GNN, round by round.

With node signals :math:`q^1 = h` and :math:`q^{\ell+1} = (h, s^\ell)`, round :math:`\ell` computes

.. math::
    m^\ell_i &= \sum_{j \in N(i)} \omega_{ij}\, m^\ell(q^\ell_i, q^\ell_j, x_i, x_j, e_{ij})
             + \omega_{ii}\, m^\ell_\circ(q^\ell_i, x_i) \\
    s^\ell_i &= u^\ell(m^\ell_i, q^\ell_i, x_i), \qquad
    E = \sum_i s^L_i + \tfrac\beta2 \|h_i\|^2,

:math:`s^L` scalar. All functions are PICNNs, convex in the embeddings; :math:`u^\ell` is
nondecreasing in :math:`m^\ell`, and everything is nondecreasing in :math:`s^{\ell-1}`. Hence, by
induction over the rounds, every :math:`m^\ell_i` and :math:`s^\ell_i` is convex in :math:`H`, and
:math:`E` is :math:`\beta`-strongly convex, for every value of the parameters.

This file is one round: its three networks with all features filled in, its passes, and its
linearisation. :mod:`hogwild.problems.energy` makes an energy of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.fields import Packed, gather, mtv, mv, scatter, scatter_into
from hogwild.graph import Graph, Star
from hogwild.nn.picnn import Context, Tape


@dataclass(frozen=True)
class Round:
    """One round of messages with all features filled in. R replicas, H heads, C channels."""

    message: Context  # R·H parameter sets, rows are edges
    loop: Context  # R parameter sets, rows are nodes: the self message
    update: Context  # R parameter sets, rows are nodes
    weight: Tensor | None  # [R or 1, H or 1, 1, E] nonnegative, or None: all one
    loop_weight: Tensor | None  # [N] nonnegative, or None: all one
    heads: int
    concat: bool
    both_ends: bool  # edge-wise messages read (q_i, q_j), node-wise ones q_j only

    def select(self, replicas: Tensor | None, nodes: Tensor | None, edges: Tensor | None) -> Round:
        """The same round on some replicas, nodes and edges; ``None`` keeps all."""

        def parts(
            count: int, rows: Tensor | None
        ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
            def weights(w: Tensor) -> Tensor:
                if replicas is None:
                    return w
                return w.unflatten(0, (-1, count))[replicas].flatten(0, 1)

            def over_rows(x: Tensor) -> Tensor:
                x = weights(x)
                return x if rows is None else x[..., rows]

            return weights, over_rows

        weight = self.weight
        if weight is not None:
            weight = weight if edges is None else weight[..., edges]
            weight = weight[replicas] if replicas is not None and weight.size(0) > 1 else weight
        loop_weight = self.loop_weight
        if loop_weight is not None and nodes is not None:
            loop_weight = loop_weight[nodes]
        return replace(
            self,
            message=self.message.map(*parts(self.heads, edges)),
            loop=self.loop.map(*parts(1, nodes)),
            update=self.update.map(*parts(1, nodes)),
            weight=weight,
            loop_weight=loop_weight,
        )

    def _rowwise(
        self, edges: Callable[[Tensor], Tensor], nodes: Callable[[Tensor], Tensor]
    ) -> Round:
        """The same round with what belongs to single edges and nodes transformed."""

        def same(w: Tensor) -> Tensor:
            return w

        return replace(
            self,
            message=self.message.map(same, edges),
            loop=self.loop.map(same, nodes),
            update=self.update.map(same, nodes),
            weight=None if self.weight is None else edges(self.weight),
            loop_weight=None if self.loop_weight is None else nodes(self.loop_weight),
        )

    @cached_property
    def _packed(self) -> tuple[Packed, Packed]:
        """What belongs to each edge and to each node, packed for reading a few of them."""
        edges: list[Tensor] = []
        nodes: list[Tensor] = []

        def note(into: list[Tensor]) -> Callable[[Tensor], Tensor]:
            def keep(x: Tensor) -> Tensor:
                into.append(x)
                return x

            return keep

        self._rowwise(note(edges), note(nodes))
        return Packed.of(edges), Packed.of(nodes)

    def at(self, star: Star) -> Round:
        """The same round on the star's nodes and edges only."""
        if star.nodes is None or star.edges is None:
            return self
        on_edges, on_nodes = self._packed
        edges, nodes = iter(on_edges.at(star.edges)), iter(on_nodes.at(star.nodes))
        return self._rowwise(lambda _: next(edges), lambda _: next(nodes))

    def map(self, fn: Callable[[Tensor], Tensor]) -> Round:
        """The same round with every tensor transformed."""
        return replace(
            self,
            message=self.message.map(fn, fn),
            loop=self.loop.map(fn, fn),
            update=self.update.map(fn, fn),
            weight=None if self.weight is None else fn(self.weight),
            loop_weight=None if self.loop_weight is None else fn(self.loop_weight),
        )

    # -- the linear maps between nodes and edges, and their transposes ----------------------------

    def read(self, q: Tensor, graph: Graph) -> Tensor:
        """Node signals [R, q, N] to the convex inputs of the messages [R·H, q·slots, E]; the
        channel order is (channel, end), so that one gather reads both ends."""
        y = gather(q, graph.ends if self.both_ends else graph.src)
        y = y.view(y.size(0), q.size(1) * (2 if self.both_ends else 1), graph.num_edges)
        return y if self.heads == 1 else y.repeat_interleave(self.heads, 0)

    def read_transpose(self, ybar: Tensor, graph: Graph) -> Tensor:
        """[R·H, q·slots, E] -> [R, q, N]."""
        slots = 2 if self.both_ends else 1
        if self.heads > 1:
            ybar = ybar.unflatten(0, (-1, self.heads)).sum(1)
        ybar = ybar.reshape(ybar.size(0), ybar.size(1) // slots, slots * graph.num_edges)
        return scatter(ybar, graph.ends if self.both_ends else graph.src, graph.num_nodes)

    def merge(self, message: Tensor, edges: slice | None = None) -> Tensor:
        """Weigh and merge the heads: [R·H, C, …, E] -> [R, C·H or C, …, E]."""
        x = message.unflatten(0, (-1, self.heads))
        if self.weight is not None:
            weight = self.weight if edges is None else self.weight[..., edges]
            x = x * weight.reshape(*weight.shape[:2], *[1] * (x.dim() - 3), x.size(-1))
        return x.flatten(1, 2) if self.concat else x.mean(1)

    def merge_transpose(self, cotangent: Tensor) -> Tensor:
        """[R, C·H or C, E] -> [R·H, C, E]."""
        if self.concat:
            x = cotangent.unflatten(1, (self.heads, -1))
        else:
            x = (cotangent / self.heads).unsqueeze(1).expand(-1, self.heads, -1, -1)
        if self.weight is not None:
            x = x * self.weight
        return x.flatten(0, 1)

    def weigh_loop(self, x: Tensor) -> Tensor:
        return x if self.loop_weight is None else x * self.loop_weight

    # -- passes -----------------------------------------------------------------------------------

    def forward(self, q: Tensor, graph: Graph) -> RoundTape:
        message = self.message.forward(self.read(q, graph))
        loop = self.loop.forward(q)
        m = scatter(self.merge(message.value), graph.dst, graph.num_nodes)
        m = m + self.weigh_loop(loop.value)
        update = self.update.forward(torch.cat([m, q], 1))
        return RoundTape(self, message, loop, update, m.size(1))

    def bound(self) -> RoundTape:
        """Tapes whose derivatives dominate those at any point (see :meth:`Context.bound`)."""
        message, loop, update = self.message.bound(), self.loop.bound(), self.update.bound()
        return RoundTape(self, message, loop, update, loop.value.size(1))


@dataclass
class RoundTape:
    """A round's forward pass at one point: the tapes of its three networks."""

    round: Round
    message: Tape
    loop: Tape
    update: Tape
    channels: int  # width of m_i

    def pullback(self, cotangent: Tensor, graph: Graph) -> RoundPullback:
        """Reverse pass for weights [R, out, N] on the round's outputs."""
        tbar, s_update = self.update.pullback(cotangent)
        mbar, qbar = tbar[:, : self.channels], tbar[:, self.channels :]
        edge_bar = self.round.merge_transpose(gather(mbar, graph.dst))
        ybar, s_message = self.message.pullback(edge_bar)
        lbar, s_loop = self.loop.pullback(self.round.weigh_loop(mbar))
        total = qbar + lbar + self.round.read_transpose(ybar, graph)
        return RoundPullback(total, s_message, s_loop, s_update, (ybar, lbar, qbar))

    def reaching(self, reach: Tensor, graph: Graph) -> RoundTape:
        """The same pass whose curvatures hold as far as ``reach`` [R, 1, N] of each node; an edge
        has the reach of the node it leads to."""
        edges = gather(reach, graph.dst)
        if self.round.heads > 1:
            edges = edges.repeat_interleave(self.round.heads, 0)
        return replace(
            self,
            message=replace(self.message, reach=edges),
            loop=replace(self.loop, reach=reach),
            update=replace(self.update, reach=reach),
        )

    def linearise(self, back: RoundPullback, graph: Graph, outputs: bool) -> Linear:
        rnd, n = self.round, graph.num_nodes
        jacobian, d = _differentiate(self.loop, back.s_loop, n)
        a = rnd.weigh_loop(jacobian).clone()  # [R, C, q, N]
        r, _, q, _ = a.shape
        d = a.new_zeros(r, q, q, n) if d is None else d

        sources: list[Tensor] = []
        crosses: list[Tensor] = []
        for part, tape, s in _pieces(self.message, back.s_message, graph.num_edges):
            src, dst = graph.src[part], graph.dst[part]
            j, c = self._edges(tape, s, part, r, q)
            sources.append(j[..., -1, :].contiguous())
            if rnd.both_ends:
                scatter_into(a, dst, j[..., 0, :])
            if c is not None:
                scatter_into(d, src, c[:, :, -1, :, -1])
                if rnd.both_ends:
                    scatter_into(d, dst, c[:, :, 0, :, 0])
                    crosses.append(c[:, :, 0, :, 1].contiguous())
        jacobian, u = _differentiate(self.update, back.s_update, n)
        if u is None:
            u = a.new_zeros(r, self.channels + q, self.channels + q, n)
        return Linear(
            a,
            _join(sources),
            d,
            _join(crosses) if crosses else None,
            u,
            jacobian if outputs else None,
        )

    def _edges(
        self, tape: Tape, sensitivities: list[Tensor], part: slice, r: int, q: int
    ) -> tuple[Tensor, Tensor | None]:
        """Jacobian [R, C, q, ends, e] and weighted curvature [R, q, ends, q, ends, e] of the
        messages on some edges, heads merged."""
        ends = 2 if self.round.both_ends else 1
        jacobians = tape.jacobians()
        j = self.round.merge(jacobians[-1], part)
        j = j.view(r, self.channels, q, ends, j.size(-1))
        c = tape.hessian(jacobians, sensitivities)
        if c is not None:
            c = c.view(r, self.round.heads, q, ends, q, ends, j.size(-1))
            c = c.sum(1) if self.round.heads > 1 else c[:, 0]
        return j, c


CHUNK_ELEMENTS = 1 << 18
"""Numbers of one Jacobian that are computed at a time on a CPU."""


def _pieces(
    tape: Tape, sensitivities: list[Tensor], count: int
) -> Iterator[tuple[slice, Tape, list[Tensor]]]:
    """A pass over so many rows in chunks that stay in the caches, since the Jacobians of all hidden
    units are many times larger than what is kept of them; whole on a GPU and for few rows."""
    numbers = tape.value.size(0) * max(w.wy.size(-2) * w.wy.size(-1) for w in tape.context.layers)
    rows = max(CHUNK_ELEMENTS // max(numbers, 1), 256)
    if tape.value.device.type != "cpu" or count <= 2 * rows:
        yield slice(0, count), tape, sensitivities
        return
    for i in range(0, count, rows):
        part = slice(i, min(i + rows, count))
        yield part, tape.rows(part), [s[..., part] for s in sensitivities]


def _differentiate(
    tape: Tape, sensitivities: list[Tensor], count: int
) -> tuple[Tensor, Tensor | None]:
    """Jacobian [B, out, d, n] and weighted curvature [B, d, d, n] of a pass; ``None``: it has
    none."""
    first: list[Tensor] = []
    second: list[Tensor] = []
    for _, some, s in _pieces(tape, sensitivities, count):
        jacobians = some.jacobians()
        curvature = some.hessian(jacobians, s)
        first.append(jacobians[-1])
        second += [] if curvature is None else [curvature]
    return _join(first), _join(second) if second else None


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


@dataclass
class RoundPullback:
    """Cotangent of the round's node signals, with the sensitivities of all hidden units."""

    qbar: Tensor  # [R, q, N]
    s_message: list[Tensor]
    s_loop: list[Tensor]
    s_update: list[Tensor]
    terms: tuple[Tensor, ...]  # what was summed: (edges, self message, update)


@dataclass
class Linear:
    """A round linearised at one point, for tangents q̇ of its node signals."""

    a: Tensor  # [R, C, q, N]  ∂m_i/∂q_i
    j: Tensor  # [R, C, q, E]  ∂m_i/∂q_j
    d: Tensor  # [R, q, q, N]  messages' curvature, both derivatives at one node
    x: Tensor | None  # [R, q, q, E]  messages' curvature, derivatives at i and at j
    u: Tensor  # [R, C+q, C+q, N]  curvature of the update
    out: Tensor | None  # [R, s, C+q, N]  Jacobian of the update; None in the last round

    def push(self, q: Tensor, graph: Graph) -> Tensor:
        """Tangent of (m, q): [R, q, N] -> [R, C+q, N]."""
        m = mv(self.a, q) + scatter(mv(self.j, gather(q, graph.src)), graph.dst, graph.num_nodes)
        return torch.cat([m, q], 1)

    def pull(self, t: Tensor, sbar: Tensor | None, graph: Graph) -> Tensor:
        """Curvature of this round along ``t``, plus what the later rounds send back."""
        c, n = self.a.size(1), graph.num_nodes
        w = mv(self.u, t)
        if sbar is not None and self.out is not None:
            w = w + mtv(self.out, sbar)
        wm, wq, q = w[:, :c], w[:, c:], t[:, c:]
        out = wq + mtv(self.a, wm) + mv(self.d, q)
        to_src = mtv(self.j, gather(wm, graph.dst))
        if self.x is not None:
            to_src = to_src + mtv(self.x, gather(q, graph.dst))
            out = out + scatter(mv(self.x, gather(q, graph.src)), graph.dst, n)
        return out + scatter(to_src, graph.src, n)
