r"""One round of messages inside an energy, as nodes compute it from what they heard.

With node signals :math:`q^1 = h` and :math:`q^{\ell+1} = (h, s^\ell)`, round :math:`\ell` computes

.. math::
    m^\ell_i &= \sum_{j \in N(i)} \omega_{ij}\, m^\ell(q^\ell_i, q^\ell_j, x_i, x_j, e_{ij})
             + \omega_{ii}\, m^\ell_\circ(q^\ell_i, x_i) \\
    s^\ell_i &= u^\ell(m^\ell_i, q^\ell_i, x_i), \qquad
    E = \sum_i s^L_i + \tfrac\beta2 \|h_i\|^2,

where :math:`s^L` is scalar. All functions are PICNNs, which are convex in the embeddings;
:math:`u^\ell` is nondecreasing in :math:`m^\ell`, and all functions are nondecreasing in
:math:`s^{\ell-1}`. By induction over the rounds, every :math:`m^\ell_i` and :math:`s^\ell_i` is
convex in :math:`H`, and :math:`E` is :math:`\beta`-strongly convex, for all parameters.

A round is computed on a :class:`~hogwild_node.star.Star`. A solver uses the same functions on the
star of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hogwild_node.local import LocalQuadratic
from hogwild_node.networks import PICNNParameters, Slot
from hogwild_node.ops import Array, namespace
from hogwild_node.picnn import Context, Tape, join
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, OnGraph, over


@dataclass(frozen=True)
class Round(OnGraph):
    """One round of messages, with all features filled in; R replicas, H heads, C channels."""

    message: Context = over(EDGES)  # R·H parameter sets
    loop: Context = over(NODES)  # R parameter sets: the self message
    update: Context = over(NODES)  # R parameter sets
    weight: Array | None = over(EDGES)  # [R or 1, H or 1, 1, E] nonnegative, or None: all one
    loop_weight: Array | None = over(NODES)  # [N] nonnegative, or None: all one
    heads: int = over(FIXED)
    concat: bool = over(FIXED)
    both_ends: bool = over(FIXED)  # whether messages read (q_i, q_j) or only q_j

    @classmethod
    def of(
        cls,
        networks: Sequence[PICNNParameters],
        own: Array,
        sent: Slot,
        edges: Array | None,
        at: Star,
        **options: Any,
    ) -> Round:
        """The round of these nodes, with their features filled in.

        Args:
            networks: The networks of messages, self messages and updates.
            own: Features of the nodes, [1 or R, p, A].
            sent: Features at the senders of the edges.
            edges: Features of the edges, [1, r, E'], or ``None``.
            at: The nodes and the edges into them.
            options: The other fields of a round.
        """
        message, loop, update = networks
        nodes, slots = [Slot(own)], [sent]
        if options["both_ends"]:
            slots = [Slot(own, at.slot), sent] + ([] if edges is None else [Slot(edges)])
        return cls(message.context(slots), loop.context(nodes), update.context(nodes), **options)

    def forward(self, q: Array, inbox: Array | None, at: Star) -> RoundTape:
        """Evaluate the round at the signals ``q`` [R, q, A] of some nodes and their ``inbox``
        [R, q, E']. Without an inbox, the senders' current signals are used.

        The round must hold the arrays of the star's nodes and edges (:meth:`at`).
        """
        xp = namespace(q)
        message = self.message.forward(self._read(q, inbox, at))
        loop = self.loop.forward(q)
        m = at.collect(self.merge(message.value)) + self._weigh_loop(loop.value)
        update = self.update.forward(xp.concat([m, q], axis=1))
        return RoundTape(self, at, message, loop, update)

    def bound(self, at: Star) -> RoundTape:
        """Passes whose derivatives bound those at every point (:meth:`Context.bound`)."""
        passes = (self.message.bound(), self.loop.bound(), self.update.bound())
        return RoundTape(self, at, *passes)

    def _read(self, q: Array, inbox: Array | None, at: Star) -> Array:
        """The convex inputs of the messages, [R·H, q·ends, E']; the order is (channel, end)."""
        if self.both_ends:
            y = at.both_ends(q, inbox)
            y = namespace(q).reshape(y, (y.shape[0], 2 * y.shape[1], y.shape[-1]))
        else:
            y = at.current(q) if inbox is None else inbox
        return y if self.heads == 1 else namespace(q).repeat(y, self.heads, axis=0)

    # -- heads and weights, and their transposes --------------------------------------------------

    def merge(self, message: Array, edges: slice | None = None) -> Array:
        """Weigh and merge the heads: [R·H, C, …, E'] -> [R, C·H or C, …, E']."""
        xp, shape = namespace(message), message.shape
        if self.heads == 1 and self.weight is None:
            return message
        x = xp.reshape(message, (shape[0] // self.heads, self.heads, *shape[1:]))
        if self.weight is not None:
            weight = self.weight if edges is None else self.weight[..., edges]
            lead = (*weight.shape[:2], *[1] * (len(shape) - 2), shape[-1])
            x = x * xp.reshape(weight, lead)
        if self.concat:
            return xp.reshape(x, (x.shape[0], self.heads * shape[1], *shape[2:]))
        return x.mean(1)

    def merge_transpose(self, cotangent: Array) -> Array:
        """[R, C·H or C, E'] -> [R·H, C, E']."""
        xp, (r, c, e) = namespace(cotangent), cotangent.shape
        if self.heads == 1 and self.weight is None:
            return cotangent
        if self.concat:
            x = xp.reshape(cotangent, (r, self.heads, c // self.heads, e))
        else:
            x = xp.broadcast_to((cotangent / self.heads)[:, None], (r, self.heads, c, e))
        if self.weight is not None:
            x = x * self.weight
        return xp.reshape(x, (r * self.heads, x.shape[2], e))

    def _weigh_loop(self, x: Array) -> Array:
        return x if self.loop_weight is None else x * self.loop_weight


@dataclass
class RoundTape:
    """The forward pass of a round at one point: the tapes of its three networks."""

    round: Round
    at: Star
    message: Tape
    loop: Tape
    update: Tape

    @property
    def channels(self) -> int:
        """Width C of m_i."""
        return int(self.loop.value.shape[1])

    @property
    def value(self) -> Array:
        """The signals s_i that the round computes, [R, out, A]."""
        return self.update.value

    def bent(self, nodes: Callable[[Tape], Tape], edges: Callable[[Tape], Tape]) -> RoundTape:
        """The same pass with changed curvatures of the networks on nodes and on edges."""
        loop, update = nodes(self.loop), nodes(self.update)
        return replace(self, message=edges(self.message), loop=loop, update=update)

    def majorised(self, share: float) -> RoundTape:
        """The pass with the curvatures of :meth:`Tape.majorised`."""
        return self.bent(lambda tape: tape.majorised(share), lambda tape: tape.majorised(share))

    def reaching(self, reach: Array) -> RoundTape:
        """The pass with curvatures that are valid up to the ``reach`` [R, 1, A] of each node; an
        edge has the reach of its receiver."""
        edges, heads = self.at.spread(reach), self.round.heads
        if heads > 1:
            edges = namespace(edges).repeat(edges, heads, axis=0)
        return self.bent(lambda tape: tape.reaching(reach), lambda tape: tape.reaching(edges))

    def as_far_as(self, there: RoundTape) -> RoundTape:
        """The pass with curvatures that are valid up to the point of another pass."""
        return replace(
            self,
            message=self.message.as_far_as(there.message),
            loop=self.loop.as_far_as(there.loop),
            update=self.update.as_far_as(there.update),
        )

    def ranged(self, own: Array, inbox: Array) -> tuple[RoundTape, RoundTape]:
        """The passes of :meth:`Tape.ranged`, where signals change by at most ``own`` [R, q, A] and
        what was heard by at most ``inbox`` [R, q, E']."""
        rnd, at = self.round, self.at
        message = self.message.ranged(rnd._read(own, inbox, at))
        loop = self.loop.ranged(own)
        m = at.collect(rnd.merge(message[2])) + rnd._weigh_loop(loop[2])
        update = self.update.ranged(namespace(own).concat([m, own], axis=1))
        upper = RoundTape(rnd, at, message[0], loop[0], update[0])
        return upper, RoundTape(rnd, at, message[1], loop[1], update[1])

    def pullback(self) -> Pullback:
        """The reverse pass of the sum of the round's outputs."""
        xp, rnd, c = namespace(self.value), self.round, self.channels
        tbar, s_update = self.update.pullback(xp.ones_like(self.value))
        mbar, qbar = tbar[:, :c], tbar[:, c:]
        ybar, s_message = self.message.pullback(rnd.merge_transpose(self.at.spread(mbar)))
        lbar, s_loop = self.loop.pullback(rnd._weigh_loop(mbar))
        if rnd.heads > 1:
            r = ybar.shape[0] // rnd.heads
            ybar = xp.reshape(ybar, (r, rnd.heads, *ybar.shape[1:])).sum(1)
        r, both, e = ybar.shape
        q = qbar.shape[1]
        ybar = xp.reshape(ybar, (r, q, both // q, e))
        return Pullback(self.at, ybar, lbar, qbar, (s_message, s_loop, s_update))

    def linearise(self, back: Pullback) -> Linear:
        """The second-order expansion of the round, computed in chunks of edges."""
        rnd, at, c = self.round, self.at, self.channels
        xp = namespace(self.value)
        s_message, s_loop, s_update = back.sensitivities
        a, b = self.loop.derivatives(s_loop)
        a = rnd._weigh_loop(a)  # [R, C, q, A]
        r, _, q, _ = a.shape
        ends = 2 if rnd.both_ends else 1
        parts: list[tuple[Array, ...]] = []
        for part, tape, s in self.message.pieces(s_message):
            jacobians = tape.jacobians()
            j = rnd.merge(jacobians[-1], part)
            j = xp.reshape(j, (r, c, q, ends, j.shape[-1]))
            curved = xp.reshape(
                tape._curvature(jacobians, s), (r, rnd.heads, q, ends, q, ends, j.shape[-1])
            )
            curved = curved.sum(1) if rnd.heads > 1 else curved[:, 0]
            kept = [j[..., -1, :], curved[:, :, -1, :, -1]]
            if rnd.both_ends:
                kept += [curved[:, :, 0, :, 1], j[..., 0, :], curved[:, :, 0, :, 0]]
            parts.append(tuple(kept))
        to, toward, *near = (join(list(some)) for some in zip(*parts, strict=True))
        if rnd.both_ends:
            a, b = a + at.collect(near[1]), b + at.collect(near[2])
        across = xp.contiguous(near[0]) if rnd.both_ends else None
        out, u = self.update.derivatives(s_update)
        return Linear(a, xp.contiguous(to), b, toward, across, u, out, at)


@dataclass
class Pullback:
    """The reverse pass of a round: the gradient of the nodes' energies in every signal they
    read."""

    at: Star
    edges: Array  # [R, q, ends, E'] through the messages
    loop: Array  # [R, q, A] through the self messages
    update: Array  # [R, q, A] through the updates
    sensitivities: tuple[list[Array], list[Array], list[Array]]  # of all hidden units

    @cached_property
    def own(self) -> Array:
        """Gradient with respect to the nodes' own signals, [R, q, A]."""
        own = self.update + self.loop
        return own + self.at.collect(self.edges[:, :, 0]) if self.edges.shape[2] == 2 else own

    @property
    def toward(self) -> Array:
        """Gradient with respect to what was heard on each edge, [R, q, E']."""
        return self.edges[:, :, -1]

    @cached_property
    def total(self) -> Array:
        """Gradient of the sum over all nodes, [R, q, N]; only for the star of all nodes."""
        xp, (r, q, both, e) = namespace(self.update), self.edges.shape
        assert self.at.ends is not None, "only the star of all nodes knows its senders"
        ends = self.at.ends if both == 2 else self.at.ends[e:]
        edges = xp.reshape(self.edges, (r, q, both * e))
        return self.update + self.loop + xp.collect(edges, ends, self.at.size)

    def absolute(self) -> Pullback:
        """The absolute values of all terms, which measure how much cancels in their sum."""
        return replace(self, edges=abs(self.edges), loop=abs(self.loop), update=abs(self.update))


@dataclass
class Linear:
    """The second-order expansion of a round at one point, in displacements of its signals."""

    a: Array  # [R, C, q, A]  ∂m_i/∂q_i
    j: Array  # [R, C, q, E']  ∂m_i/∂q_j
    b: Array  # [R, q, q, A]  curvature of the messages, ∂²/∂q_i²
    c: Array  # [R, q, q, E']  ∂²/∂q_j²
    x: Array | None  # [R, q, q, E']  ∂²/∂q_i∂q_j
    u: Array  # [R, C+q, C+q, A]  curvature of the update
    out: Array  # [R, s, C+q, A]  Jacobian of the update
    at: Star

    def quadratic(self, own: Array, toward: Array, beta: float) -> LocalQuadratic:
        r"""Quadratic models of the local energies with their terms
        :math:`\tfrac\beta2 \|h_i\|^2`; ``own`` and ``toward`` are the gradients."""
        xp, c = namespace(self.a), self.a.shape[1]
        umm, umh, uhh = self.u[:, :c, :c], self.u[:, :c, c:], self.u[:, c:, c:]
        half = xp.mtm(umm, self.a) + umh  # U_mm A + U_mh, [R, C, k, A]
        # Aᵀ U_mm A + Aᵀ U_mh + U_hm A + U_hh; the first two terms are Aᵀ times half.
        mixed = xp.moveaxis(xp.mtm(self.a, umh), 1, 2)
        b = xp.add_diagonal(self.b + uhh + xp.mtm(self.a, half) + mixed, beta)
        x = xp.mtm(self.at.spread(half), self.j)
        x = x if self.x is None else x + self.x
        return LocalQuadratic(own, toward, b, x, self.c, self.j, xp.contiguous(umm), self.at)
