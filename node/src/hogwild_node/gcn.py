r"""A graph convolutional network as a node computes it.

.. math:: h_i^{\ell + 1} = \phi^\ell\Bigl(W^\ell \sum_{j \in \mathcal N(i) \cup \{i\}}
          \tilde A_{ij}\, h_j^\ell + b^\ell\Bigr), \qquad
          \tilde A = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}

The weights :math:`\tilde A_{ij}` depend on the degrees in the *whole* graph. A node knows its own
weight and those of its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hogwild_node.layers import LocalLayers
from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over


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
