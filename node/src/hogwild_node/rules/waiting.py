"""The rule ``"waiting"``: nodes wait for every layer of their neighbours; exact without loss.

A node waits until every neighbour has delivered its value of the layer that the node needs. The
answer equals the synchronous one, at the speed of the slowest node. The value of a layer is sent
once, so a node waits for a lost value for ever. The rules ``"resending"`` and ``"caching"`` also
work with loss.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.layered import ValueByValue
from hogwild_node.star import Star


class WaitingRule(ValueByValue):
    """One layer per update, when every neighbour has delivered its value of the layer.

    A packet is [tag, value of layer 0, …, value of layer L − 1], filled up to the tag. For each
    edge, ``heard`` is the largest tag that was delivered, and ``missing`` is the first layer that
    was lost (L: none).
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
        """One value and its tag."""
        tag = self._tag(at)
        return 1 + self.offset[tag + 1] - self.offset[tag]

    def lose(self, edges: Array, packets: Array) -> None:
        """Mark the first layer in these packets that was not delivered before as missing."""
        xp, heard, missing = namespace(packets), self.heard[edges], self.missing[edges]
        new = xp.integers(packets[0, 0]) > heard
        self.missing[edges] = xp.where(new, xp.minimum(missing, heard + 1), missing)

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        xp, layer = namespace(h), at.at_nodes(self.layer)
        tag = xp.minimum(xp.integers(inbox[0, 0]), at.at_edges(self.missing) - 1)
        self.heard = at.put_edges(self.heard, xp.maximum(at.at_edges(self.heard), tag))
        # The tag of the current packet counts. It may be less than ``heard`` if the packet was
        # overtaken, or if its sender started again.
        late = (tag < layer[at.slot]) & ~at.at_edges(self.own)
        ready = self._none(late, at) & (layer < self.depth)
        h = self._advance(h, inbox[:, 1:], at, ready)
        self.waited = ~ready
        self.silent = ~ready | (at.at_nodes(self.layer) >= self.depth)  # nothing new to send
        return h, None
