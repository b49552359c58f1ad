"""Base classes of the rules for layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from hogwild_node.layers import LocalLayers
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, Rule, carry
from hogwild_node.star import Star


class LayersRule(Rule):
    """A rule for layers.

    Args:
        model: The layers.
        everyone: The star of all nodes.
        channels: Width of a state.
    """

    def __init__(self, model: LocalLayers, everyone: Star, channels: int) -> None:
        self.model, self.everyone, self.channels = model, everyone, channels
        self.depth = len(model.widths) - 1


class LayerByLayer(LayersRule):
    """A rule that applies one layer an update. Every node has a layer, which the rule counts."""

    def begin(self, h: Array, inbox: Array) -> Array | None:
        slot = self.everyone.slot
        self.layer = namespace(slot).filled((self.everyone.size,), 0, slot)
        return None

    def forget(self, nodes: Array) -> None:
        self.layer[nodes] = 0

    def keep(self, before: LayerByLayer, kept: Kept) -> None:
        self.layer = carry(self.layer, before.layer, kept.nodes)

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


class ValueByValue(LayerByLayer):
    """A rule whose packets hold the values of several layers. A node keeps its own values up to its
    layer, stacked: [R, sum(widths[:-1]), N]. Its values of a layer are final, so that it begins
    anew when the graph changes."""

    def follows(self, before: Any, kept: Kept) -> bool:
        return False

    def begin(self, h: Array, inbox: Array) -> Array | None:
        super().begin(h, inbox)
        xp, widths, slot = namespace(h), self.model.widths[:-1], self.everyone.slot
        self.first = (0, *accumulate(widths))  # first row of each layer
        self.offset = xp.positions(self.first, h)
        of_rows = tuple(layer for layer, width in enumerate(widths) for _ in range(width))
        self.rows = xp.positions(of_rows, h)  # layer of each row
        self.values = xp.filled((h.shape[0], self.first[-1], h.shape[-1]), 0.0, h)
        self.values[:, : widths[0]] = self.model.value(0, h, self.everyone)
        loops = self.everyone.loops
        self.own = slot < 0 if loops is None else loops  # nothing is sent along a loop
        return None

    def forget(self, nodes: Array) -> None:
        super().forget(nodes)
        self.values[:, self.first[1] :, nodes] = 0.0  # a node can still read its own features

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
