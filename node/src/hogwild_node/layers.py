r"""The layers of a GNN as a node computes them.

A node i holds a *state* :math:`s_i`. For every layer ℓ it has a *value* :math:`v_i^\ell`, which its
neighbours read:

.. math::
    v_i^\ell = \nu^\ell_i(s_i), \qquad
    s_i \leftarrow f^\ell_i\bigl(s_i, \{v_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1.

In a GCN state and value are both the embedding :math:`h_i^\ell`.

*A graph convolutional network* as a node computes it:

.. math:: h_i^{\ell + 1} = \phi^\ell\Bigl(W^\ell \sum_{j \in \mathcal N(i) \cup \{i\}}
          \tilde A_{ij}\, h_j^\ell + b^\ell\Bigr), \qquad
          \tilde A = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}

The weights :math:`\tilde A_{ij}` depend on the degrees in the *whole* graph. A node knows its own
weight and those of its edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over


class LocalLayers(ABC):
    """Layers that a node can compute from what it heard.

    Attributes:
        widths: Widths of the values of layers 0, …, L: L + 1 numbers.
    """

    widths: tuple[int, ...]

    @abstractmethod
    def initial(self, at: Star) -> Array:
        """The states of these nodes before the first layer, [R, channels, A]."""

    @abstractmethod
    def value(self, layer: int, h: Array, at: Star) -> Array:
        """The values [R, widths[layer], A] of nodes in the states ``h`` [R, channels, A].

        ``layer`` may be L.
        """

    @abstractmethod
    def update(self, layer: int, h: Array, inbox: Array, at: Star) -> Array:
        """The states of some nodes after a layer.

        Args:
            layer: ℓ = 0, …, L − 1.
            h: The nodes' states, [R, channels, A].
            inbox: The neighbours' values as last heard on each edge, [R, widths[ℓ], E']. Entries of
                self-loops are ignored, because a node reads its own value.
            at: The nodes and edges.

        Returns:
            The nodes' new states, [R, channels, A].
        """

    def recompute(self, inbox: Array, at: Star) -> tuple[Array, Array]:
        """Compute all layers of some nodes at once.

        Args:
            inbox: The neighbours' values of layers 0, …, L − 1 as last heard, stacked,
                [R, sum(widths[:-1]), E'].
            at: The nodes and edges.

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


@dataclass(frozen=True)
class GCNLayer:
    """The parameters of one layer."""

    weight: Array = over(SHARED)  # [R, k, k] W
    bias: Array = over(SHARED)  # [R, k, 1] b
    act: Callable[[Array], Array] = over(FIXED)  # φ


@dataclass(frozen=True)
class GCN(OnGraph, LocalLayers):
    """The layers of a GCN, all of width k."""

    encoded: Array = over(NODES)  # [R, k, N] h⁰
    layers: tuple[GCNLayer, ...] = over(SHARED)
    edge: Array = over(EDGES)  # [E] Ã of each edge
    loop: Array | None = over(NODES)  # [N] Ã of each node with itself; None: zero
    widths: tuple[int, ...] = over(FIXED)  # k, L + 1 times

    def initial(self, at: Star) -> Array:
        return self.at(at).encoded

    def value(self, layer: int, h: Array, at: Star) -> Array:
        return h

    def update(self, layer: int, h: Array, inbox: Array, at: Star) -> Array:
        here, one = self.at(at), self.layers[layer]
        heard = at.collect(at.own_view(h, inbox) * here.edge)
        heard = heard if here.loop is None else heard + here.loop * h
        return one.act(namespace(h).affine(one.bias, one.weight, heard))
