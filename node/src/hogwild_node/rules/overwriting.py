r"""The rule ``"overwriting"`` (the paper's): a node applies its next layer to what it last heard.

.. math:: h_i \leftarrow f^{(t_i)}_i\bigl(h_i, \{h_j(\tau^i_j) : j \in N(i)\}\bigr), \qquad
          t_i \leftarrow t_i + 1 \quad \text{while } t_i < L

A node counts its own updates only. At its layer 2 it may read a neighbour's value of layer 0 or 4,
so the answer depends on the schedule. Each new value of a node overwrites the last one.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.layered import LayerByLayer
from hogwild_node.star import Star


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
