r"""The rule ``"caching"``: nodes keep, recompute and send the values of all layers; exact.

A node keeps its neighbours' newest values of *all* layers, recomputes all its layers at each
update, and sends all its values. The result is exact under any delay and loss.

.. math::
    z_i^\ell \leftarrow f^\ell_i\bigl(v_i^\ell, \{v_j^\ell(\tau^i_j) : j \in N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1, \qquad
    \text{packet: } (v_i^0, \dots, v_i^{L-1}).

The values of layer 0 depend on a node's own features only and are always right. If all values of
layer ℓ are right from some time on, then so are all later packets and all updates from these
packets, and therefore all values of layer ℓ + 1. By induction the answer equals the synchronous one
as soon as values have travelled L hops. A lost packet only costs time, because the next packet
repeats it. Packets hold the values of all layers instead of one. The proof is in the documentation
("Asynchrony").

A node cannot know that it has its final answer, so it never stops.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, carry
from hogwild_node.rules.layered import LayersRule
from hogwild_node.star import Star


class CachingRule(LayersRule):
    """All layers at every update, from the neighbours' newest values of all layers."""

    def begin(self, h: Array, inbox: Array) -> None:
        xp, first = namespace(h), self.model.value(0, h, self.everyone)
        rest = xp.filled((h.shape[0], self.said - first.shape[1], h.shape[-1]), 0.0, h)
        self.values = xp.concat([first, rest], axis=1)

    def forget(self, nodes: Array) -> None:
        self.values[:, self.model.widths[0] :, nodes] = 0.0  # a node still has its own features

    def keep(self, before: CachingRule, kept: Kept) -> None:
        self.values = carry(self.values, before.values, kept.nodes)

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        h, values = self.model.recompute(inbox, at)
        self.values = at.put(self.values, values)
        return h, None

    @property
    def said(self) -> int:
        return sum(self.model.widths[:-1])

    def broadcast(self, h: Array, at: Star) -> Array:
        return at.at_nodes(self.values)

    def numbers(self, at: Star) -> int:
        return self.said
