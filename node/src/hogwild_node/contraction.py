r"""The contraction of IGNN and EIGNN as a node computes it: linear messages, then a nonexpansive
activation.

.. math:: F(H)_i = \phi\Bigl(W \sum_j \tilde A_{ij} h_j + b_i\Bigr)

The weights :math:`\tilde A_{ij}` depend on the degrees or the largest eigenvalue of the *whole*
graph. A node knows its own weight and those of its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hogwild_node.local import LocalMap
from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over


@dataclass(frozen=True)
class Contraction(LocalMap):
    """The contraction as a map on nodes."""

    weight: Array = over(SHARED)  # [R, k, k] W
    bias: Array = over(NODES)  # [R, k, N] b
    edge: Array = over(EDGES)  # [E] Ã of each edge
    loop: Array | None = over(NODES)  # [N] Ã of each node with itself; None: zero
    act: Callable[[Array], Array] = over(FIXED)  # φ
    slope: Callable[[Array], Array] | None = over(FIXED, default=None)  # φ'; None: not known

    def update(self, h: Array, inbox: Array, at: Star) -> Array:
        return self.act(self._before(h, inbox, at))

    def derivatives(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array] | None:
        if self.slope is None:
            return None
        here = self.at(at)
        steep = self.slope(self._before(h, inbox, at))[:, :, None] * self.weight[..., None]
        own = namespace(h).zeros_like(steep) if here.loop is None else steep * here.loop
        return own, at.spread(steep) * here.edge

    def _before(self, h: Array, inbox: Array, at: Star) -> Array:
        """What the activation is applied to, [R, k, A]."""
        here = self.at(at)
        heard = at.collect(inbox * here.edge)
        heard = heard if here.loop is None else heard + here.loop * h
        return namespace(h).affine(here.bias, self.weight, heard)
