r"""The rule ``"resending"``: nodes wait for every layer and resend lost values; exact under loss.

As in the rule ``"waiting"``, a node applies layer ℓ when it has every neighbour's value of layer ℓ.
A packet from i to j holds

.. math:: \bigl(\text{tag}_i,\ \text{ack}_{ij},\ v_i^\ell
          \text{ for } a_{ij} < \ell \le \text{tag}_i\bigr).

:math:`\text{tag}_i` is the last layer whose value i has, :math:`\text{ack}_{ij}` is the last layer
up to which i holds all of j's values, and :math:`a_{ij}` is the newest acknowledgement that i has
from j. A node sends at each of its turns until all its values are acknowledged, and whenever it
received values that it has not acknowledged yet. Otherwise it is silent. Acknowledgements travel
against the edges, so every edge needs its reverse.

A node that lost its memory in a crash acknowledges nothing. Its neighbours then start again with
layer 0, because the newest acknowledgement counts, not the largest.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.layered import ValueByValue
from hogwild_node.star import Star


class ResendingRule(ValueByValue):
    """One layer per update, when all neighbours' values have arrived; values are resent until they
    are acknowledged.

    A node sends [tag, number of the packet, values of all layers] to all neighbours, and a letter
    [ack, first layer in this packet] to each. A receiver only uses the values from the letter's
    first layer to the tag. Only the simulation needs the number of a packet: it keeps a receiver
    from reading a lost packet later.
    """

    letter = 2

    def begin(self, h: Array, inbox: Array) -> Array:
        super().begin(h, inbox)
        xp, zero, everyone = namespace(h), self._edge_numbers, self.everyone
        slot = everyone.slot
        self.number = namespace(slot).filled((everyone.size,), 0, slot)
        # For the receiver of each edge: the sender's values that it holds, up to which layer, the
        # number of the last packet, the last number lost, and whether it owes an acknowledgement.
        if everyone.ends is None:  # a single node, which has its neighbours' values of layer 0
            rest = (h.shape[0], self.first[-1] - self.first[1], everyone.degree)
            self.held = xp.concat([inbox[:, : self.first[1]], xp.filled(rest, 0.0, h)], axis=1)
        else:
            self.held = everyone.current(self.values)
        self.heard, self.seen, self.lost = zero(0), zero(0), zero(-1)
        self.owes = slot < 0  # none
        self.acked = zero(0)  # up to which layer the sender of each edge has the receiver's values
        return self._letters(everyone, h)

    def forget(self, nodes: Array) -> None:
        super().forget(nodes)
        xp, slot = namespace(self.layer), self.everyone.slot
        edges = xp.true_at(xp.isin(slot, nodes))
        self.heard[edges] = -1
        self.acked[edges] = -1
        self.owes[edges] = True

    def _letters(self, at: Star, like: Array) -> Array:
        xp = namespace(like)
        letters = xp.stack([at.at_edges(self.heard), at.at_edges(self.acked) + 1])
        return xp.broadcast_to(xp.as_numbers(letters, like), (like.shape[0], *letters.shape))

    def broadcast(self, h: Array, at: Star) -> Array:
        xp = namespace(h)
        head = xp.as_numbers(xp.stack([self._tag(at), at.at_nodes(self.number)]), h)
        head = xp.broadcast_to(head, (h.shape[0], *head.shape))
        return xp.concat([head, at.at_nodes(self.values)], axis=1)

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array:
        return self._letters(at, h)

    def numbers(self, at: Star) -> Array:
        """Mean over the neighbours of 2 numbers (tag and acknowledgement) and the values that the
        neighbour lacks."""
        xp, tag = namespace(self.values), self._tag(at)[at.slot]
        known = xp.minimum(at.at_edges(self.acked), tag)
        lacks = self.offset[tag + 1] - self.offset[known + 1]
        sent = xp.as_numbers(~at.at_edges(self.own), self.values)
        return at.collect(sent * (2 + lacks)) / xp.clip(at.collect(sent), 1.0, None)

    def lose(self, edges: Array, packets: Array) -> None:
        xp = namespace(packets)
        self.lost[edges] = xp.maximum(self.lost[edges], xp.integers(packets[0, 1]))

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        assert mail is not None
        self._receive(inbox, mail, at)
        layer, others = at.at_nodes(self.layer), ~at.at_edges(self.own)
        heard, acked = at.at_edges(self.heard), at.at_edges(self.acked)
        ready = self._none(others & (heard < layer[at.slot]), at) & (layer < self.depth)
        h = self._advance(h, at.at_edges(self.held), at, ready)
        owes = at.at_edges(self.owes)
        owed = owes | (acked < self._tag(at)[at.slot])
        owed = others & (owed | (heard < 0))  # a node without values sends until it gets some
        self.waited, self.silent = ~ready, self._none(owed, at)
        self.owes = at.put_edges(self.owes, owes & self.silent[at.slot])
        self.number = at.put(self.number, at.at_nodes(self.number) + ~self.silent)
        return h, self._letters(at, h)

    def _receive(self, inbox: Array, mail: Array, at: Star) -> None:
        xp = namespace(inbox)
        (tag, number), (ack, first) = xp.integers(inbox[0, :2]), xp.integers(mail[0])
        heard, seen, owes = (at.at_edges(x) for x in (self.heard, self.seen, self.owes))
        arrived = (number > at.at_edges(self.lost)) & ~at.at_edges(self.own)
        acked = xp.where(arrived, ack, at.at_edges(self.acked))
        # Values that would leave a gap after the held ones cannot be used yet.
        useful = arrived & (first <= heard + 1) & (tag > heard)
        rows = self.rows[:, None]
        new = useful & (first <= rows) & (rows <= tag)  # [rows, E']
        held = xp.where(new, inbox[:, 2:], at.at_edges(self.held))
        self.held = at.put_edges(self.held, held)
        self.acked = at.put_edges(self.acked, acked)
        self.owes = at.put_edges(self.owes, owes | (arrived & (number != seen) & (first <= tag)))
        self.seen = at.put_edges(self.seen, xp.where(arrived, number, seen))
        self.heard = at.put_edges(self.heard, xp.where(useful, tag, heard))
