r"""The layers of a GNN as a node computes them.

A node i holds a *state* :math:`s_i`. Of every layer ℓ it has a *value* :math:`v_i^\ell`, which its
neighbours read:

.. math::
    v_i^\ell = \nu^\ell_i(s_i), \qquad
    s_i \leftarrow f^\ell_i\bigl(s_i, \{v_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1.

In a GCN state and value are the same: the embedding :math:`h_i^\ell`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star


class LocalLayers(ABC):
    """Layers that a node can compute from what it heard.

    Attributes:
        widths: Widths of the values of layers 0, …, L: L + 1 numbers. The last is the width of
            what a node would send after its last layer.
    """

    widths: tuple[int, ...]

    @abstractmethod
    def initial(self, at: Star) -> Array:
        """The states of these nodes before the first layer, [R, channels, A]."""

    @abstractmethod
    def value(self, layer: int, h: Array, at: Star) -> Array:
        """The values of a layer of nodes in these states [R, channels, A]: [R, widths[layer], A].

        ``layer`` may be L.
        """

    @abstractmethod
    def update(self, layer: int, h: Array, inbox: Array, at: Star) -> Array:
        """The states of some nodes after a layer, from what those nodes know.

        Args:
            layer: ℓ = 0, …, L − 1.
            h: Their own states, [R, channels, A].
            inbox: The neighbours' values as last heard on each edge, [R, widths[ℓ], E']. On an edge
                from a node to itself nothing is sent: the node reads its own value.
            at: The nodes and edges.

        Returns:
            Their new states, [R, channels, A].
        """

    def recompute(self, inbox: Array, at: Star) -> tuple[Array, Array]:
        """All layers of some nodes at once.

        Args:
            inbox: The neighbours' values of layers 0, …, L − 1 as last heard, one below the other,
                [R, sum(widths[:-1]), E'].

        Returns:
            The nodes' states [R, channels, A], and their own values of the same layers,
            [R, sum(widths[:-1]), A].
        """
        h, values, row = self.initial(at), [], 0
        for layer, width in enumerate(self.widths[:-1]):
            values.append(self.value(layer, h, at))
            h = self.update(layer, h, inbox[:, row : row + width], at)
            row += width
        return h, namespace(h).concat(values, axis=1)
