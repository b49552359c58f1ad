r"""The rules that apply a map, or layers.

**The rule** ``"fixed-point"``: a node replaces its embedding by :math:`F_i` of what it last heard.

.. math:: h_i \leftarrow F_i(h_i, \{h_j(\tau^i_j) : j \in N(i)\})

It converges under partial asynchrony if F contracts in a weighted maximum norm over the nodes. It
has no step size. The packet from j holds :math:`h_j`.

**The rule** ``"overwriting"`` (the paper's): a node applies its next layer to what it last heard.

.. math::
    h_i \leftarrow f^{(t_i)}_i\bigl(h_i, \{h_j(\tau^i_j) : j \in N(i)\}\bigr), \qquad
          t_i \leftarrow t_i + 1 \quad \text{while } t_i < L

At its layer 2 a node may read a neighbour's value of layer 0 or 4, so the answer depends on the
schedule.

**The rule** ``"caching"``: a node keeps its neighbours' newest values of *all* layers, recomputes
all its layers at each update, and sends all its values.

.. math::
    z_i^\ell \leftarrow f^\ell_i\bigl(v_i^\ell, \{v_j^\ell(\tau^i_j) : j \in N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1, \qquad
    \text{packet: } (v_i^0, \dots, v_i^{L-1}).

The answer is the synchronous one as soon as values have travelled L hops. A node cannot know that
it has its final answer, so it never stops.

**The rule** ``"resending"``: a node waits until every neighbour has delivered its value of the
layer that the node needs. The answer is the synchronous one, at the speed of the slowest node.
Values are resent until they are acknowledged, against the edges, so every edge needs its reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from hogwild_node.local import LocalMap
from hogwild_node.ops import Array, namespace
from hogwild_node.problems import LocalLayers
from hogwild_node.rules.base import Rule, Survivors
from hogwild_node.star import Star


class FixedPointRule(Rule):
    """Applies the map to the nodes at each update.

    Args:
        model: The map.
        everyone: The star of all nodes.
        channels: Width k of an embedding.
    """

    fits = LocalMap
    model_may_change = True

    def __init__(self, model: LocalMap, everyone: Star, channels: int) -> None:
        self.model, self.everyone, self.channels = model, everyone, channels

    def set_model(self, model: LocalMap) -> None:
        self.model = model

    def begin(self, h: Array, inbox: Array) -> None:
        return None

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        return self.model.update(h, at.own_view(h, inbox), at), None

    def forget(self, nodes: Array) -> None:
        pass  # the rule has no memory


class LayersRule(Rule):
    """A rule for layers.

    Args:
        model: The layers.
        everyone: The star of all nodes.
        channels: Width of a state.
    """

    fits = LocalLayers

    def __init__(self, model: LocalLayers, everyone: Star, channels: int) -> None:
        self.model, self.everyone, self.channels = model, everyone, channels
        self.depth = len(model.widths) - 1


class LayerByLayer(LayersRule):
    """A rule that applies one layer an update. Every node has a layer, which the rule counts."""

    carried: Mapping[str, str] = {"layer": "nodes"}

    def begin(self, h: Array, inbox: Array) -> Array | None:
        slot = self.everyone.slot
        self.layer = namespace(slot).filled((self.everyone.size,), 0, slot)
        return None

    def forget(self, nodes: Array) -> None:
        self.layer[nodes] = 0

    def _each(
        self,
        layer: Array,
        at: Star,
        out: Array,
        some: Array,
        make: Callable[[int, Array, Array, Star], Array],
    ) -> Array:
        """Compute new columns of ``out`` [R, w, A] at ``some`` nodes (a mask [A]), one ``layer``
        [A] at a time: ``make(layer, nodes, edges, star)`` gets masks of the nodes and edges, and
        their star."""
        xp = namespace(out)
        for index in xp.unique(layer[some]).tolist():
            here = some & (layer == index)
            part, keep = at.part(here)
            out = xp.replaced(out, here, make(index, here, keep, part))
        return out

    def _apply(
        self, h: Array, heard: Callable[[int], Array], at: Star, ready: Array | None = None
    ) -> Array:
        """Apply the next layer of the ``ready`` nodes (all by default), unless they have finished.
        ``heard(layer)`` [R, widths[layer], E'] gives the neighbours' values of a layer."""
        layer = at.at_nodes(self.layer)
        going = layer < self.depth  # a replayed schedule may have further turns
        ready = going if ready is None else going & ready

        def next_layer(index: int, here: Array, keep: Array, part: Star) -> Array:
            return self.model.update(index, h[..., here], heard(index)[..., keep], part)

        out = self._each(layer, at, h, ready, next_layer)
        self.layer = at.put(self.layer, layer + ready)
        return out


class OverwritingRule(LayerByLayer):
    """One layer per update, without waiting. The values of all layers must have the same width."""

    ends = True

    def finished(self, nodes: Array) -> Array:
        return self.layer[nodes] >= self.depth

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        return self._apply(h, lambda _: inbox, at), None

    def broadcast(self, h: Array, at: Star) -> Array:
        def value(index: int, here: Array, keep: Array, part: Star) -> Array:
            return self.model.value(index, h[..., here], part)

        layer = at.at_nodes(self.layer)
        like = namespace(h).filled((h.shape[0], self.model.widths[0], at.size), 0.0, h)
        return self._each(layer, at, like, layer >= 0, value)

    def numbers(self, at: Star) -> int:
        return self.model.widths[0]


class CachingRule(LayersRule):
    """All layers at every update, from the neighbours' newest values of all layers."""

    carried: Mapping[str, str] = {"values": "nodes"}

    def begin(self, h: Array, inbox: Array) -> None:
        xp, first = namespace(h), self.model.value(0, h, self.everyone)
        rest = xp.filled((h.shape[0], self.broadcast_width - first.shape[1], h.shape[-1]), 0.0, h)
        self.values = xp.concat([first, rest], axis=1)

    def forget(self, nodes: Array) -> None:
        self.values[:, self.model.widths[0] :, nodes] = 0.0  # a node still has its own features

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        h, values = self.model.recompute(inbox, at)
        self.values = at.put(self.values, values)
        return h, None

    @property
    def broadcast_width(self) -> int:
        return sum(self.model.widths[:-1])

    def broadcast(self, h: Array, at: Star) -> Array:
        return at.at_nodes(self.values)

    def numbers(self, at: Star) -> int:
        return self.broadcast_width


class ResendingRule(LayerByLayer):
    r"""One layer per update, when all neighbours' values have arrived; values are resent until they
    are acknowledged. A packet from i to j holds

    .. math:: \bigl(\text{tag}_i,\ \text{ack}_{ij},\ v_i^\ell
              \text{ for } a_{ij} < \ell \le \text{tag}_i\bigr).

    :math:`\text{tag}_i` is the last layer whose value i has, :math:`\text{ack}_{ij}` is the last
    layer up to which i holds all of j's values, and :math:`a_{ij}` is the newest acknowledgement
    that i has from j. A node sends at each of its turns until all its values are acknowledged, and
    whenever it received values that it has not acknowledged yet. Otherwise it is silent. A node
    that lost its memory in a crash acknowledges nothing. Its neighbours then start again with layer
    0, because the newest acknowledgement counts, not the largest.

    A node keeps its own values up to its layer, stacked: [R, sum(widths[:-1]), N]. They are final,
    so that nodes begin anew when the graph changes.

    A node sends [tag, number of the packet, values of all layers] to all neighbours, and a letter
    [ack, first layer in this packet] to each. A receiver only uses the values from the letter's
    first layer to the tag. Only the simulation needs the number of a packet: it keeps a receiver
    from reading a lost packet later.
    """

    letter_width = 2

    def follows(self, before: Any, kept: Survivors) -> bool:
        return False

    def begin(self, h: Array, inbox: Array) -> Array:
        super().begin(h, inbox)
        xp, zero, everyone = namespace(h), self._edge_numbers, self.everyone
        slot, widths = everyone.slot, self.model.widths[:-1]
        self.first = (0, *accumulate(widths))  # first row of each layer
        self.offset = xp.positions(self.first, h)
        of_rows = tuple(layer for layer, width in enumerate(widths) for _ in range(width))
        self.rows = xp.positions(of_rows, h)  # layer of each row
        self.values = xp.filled((h.shape[0], self.first[-1], h.shape[-1]), 0.0, h)
        self.values[:, : widths[0]] = self.model.value(0, h, everyone)
        self.own = slot < 0 if everyone.loops is None else everyone.loops  # nothing is sent there
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
        self.values[:, self.first[1] :, nodes] = 0.0  # a node can still read its own features
        xp, slot = namespace(self.layer), self.everyone.slot
        edges = xp.true_at(xp.isin(slot, nodes))
        self.heard[edges] = -1
        self.acked[edges] = -1
        self.owes[edges] = True

    def _edge_numbers(self, number: int) -> Array:
        """The same integer for each edge, [E]."""
        slot = self.everyone.slot
        return namespace(slot).filled((self.everyone.degree,), number, slot)

    def _tag(self, at: Star) -> Array:
        """The last layer whose value each node has, [A]."""
        return namespace(self.layer).clip(at.at_nodes(self.layer), None, self.depth - 1)

    @staticmethod
    def _none(marked: Array, at: Star) -> Array:
        """Which nodes have no marked edge, [A]."""
        return at.collect(namespace(marked).as_numbers(marked, at.slot)) == 0

    def _advance(self, h: Array, values: Array, at: Star, ready: Array) -> Array:
        """Apply the next layer of the ``ready`` nodes to their neighbours' ``values`` of all layers
        [R, sum(widths[:-1]), E'], and store the nodes' own new values."""
        first, layer = self.first, at.at_nodes(self.layer)
        h = self._apply(h, lambda index: values[:, first[index] : first[index + 1]], at, ready)

        def value(index: int, here: Array, keep: Array, part: Star) -> Array:
            own, low, high = part.at_nodes(self.values), first[index], first[index + 1]
            new = self.model.value(index, h[..., here], part)
            return namespace(h).concat([own[:, :low], new, own[:, high:]], axis=1)

        fresh = ready & (layer + 1 < self.depth)  # values of layer L are not sent
        mine = self._each(layer + 1, at, at.at_nodes(self.values), fresh, value)
        self.values = at.put(self.values, mine)
        return h

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
