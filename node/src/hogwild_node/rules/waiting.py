"""Layers, each node waiting for its neighbours: exact, unless a packet is lost.

Packets carry the values of all layers finished so far, and a node waits until every neighbour has
delivered the one that the node needs. The answer is the synchronous one, at the pace of the
slowest node. Since the value of a layer is sent once, a lost packet is missing for ever.
:mod:`~hogwild_node.rules.resending` repairs that with acknowledgements, and
:mod:`~hogwild_node.rules.caching` without.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.layered import ValueByValue
from hogwild_node.star import Star


class WaitingRule(ValueByValue):
    """One layer an update, once every neighbour has delivered the layer needed.

    A packet is [tag, value of layer 0, …, value of layer L − 1], filled up to the tag. ``heard`` is
    the largest tag that each edge has delivered, ``missing`` the first layer that was lost on it
    (L: none).
    """

    ends = True

    def begin(self, h: Array, inbox: Array) -> None:
        super().begin(h, inbox)
        self.missing, self.heard = self._edge_numbers(self.depth), self._edge_numbers(0)

    def finished(self, nodes: Array) -> Array:
        return self.layer[nodes] >= self.depth

    def broadcast(self, h: Array, at: Star) -> Array:
        xp = namespace(h)
        tag = xp.broadcast_to(xp.as_numbers(self._tag(at), h), (h.shape[0], 1, at.size))
        return xp.concat([tag, at.at_nodes(self.values)], axis=1)

    def numbers(self, at: Star) -> Array:
        """The value of a layer is sent once, with its tag."""
        tag = self._tag(at)
        return 1 + self.offset[tag + 1] - self.offset[tag]

    def lose(self, edges: Array, packets: Array) -> None:
        """What these packets held beyond what was heard before is lost."""
        xp, heard, missing = namespace(packets), self.heard[edges], self.missing[edges]
        new = xp.integers(packets[0, 0]) > heard
        self.missing[edges] = xp.where(new, xp.minimum(missing, heard + 1), missing)

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        xp, layer = namespace(h), at.at_nodes(self.layer)
        tag = xp.minimum(xp.integers(inbox[0, 0]), at.at_edges(self.missing) - 1)
        self.heard = at.put_edges(self.heard, xp.maximum(at.at_edges(self.heard), tag))
        # The packet at hand counts: a packet that was overtaken, or whose sender began anew, holds
        # less than was heard before.
        late = (tag < layer[at.slot]) & ~at.at_edges(self.own)
        ready = self._none(late, at) & (layer < self.depth)
        h = self._advance(h, inbox[:, 1:], at, ready)
        self.waited = ~ready
        self.silent = ~ready | (at.at_nodes(self.layer) >= self.depth)  # nothing new to send
        return h, None
