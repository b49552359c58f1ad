r"""The rule ``"fixed-point"``: a node replaces its embedding by :math:`F_i` of what it last heard.

.. math:: h_i \leftarrow F_i(h_i, \{h_j(\tau^i_j) : j \in N(i)\})

The rule converges under partial asynchrony if F contracts in a weighted maximum norm over the
nodes. It has no step size. The packet from j holds :math:`h_j`.
"""

from __future__ import annotations

from hogwild_node.local import LocalMap
from hogwild_node.ops import Array
from hogwild_node.rules.base import Kept, Rule
from hogwild_node.star import Star


class FixedPointRule(Rule):
    """Applies the map to the nodes at each update.

    Args:
        model: The map.
        everyone: The star of all nodes.
        channels: Width k of an embedding.
    """

    fits = LocalMap
    poses = True

    def __init__(self, model: LocalMap, everyone: Star, channels: int) -> None:
        self.model, self.everyone, self.channels = model, everyone, channels

    def pose(self, model: LocalMap) -> None:
        self.model = model

    def begin(self, h: Array, inbox: Array) -> None:
        return None

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        return self.model.update(h, at.own_view(h, inbox), at), None

    def forget(self, nodes: Array) -> None:
        pass  # the rule has no memory

    def keep(self, before: FixedPointRule, kept: Kept) -> None:
        pass
