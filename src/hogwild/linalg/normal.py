r"""The normal equations of a fixed point's tangent: :math:`M^\top M` with :math:`M = I - J`.

Row i of M couples i with its neighbours, so :math:`\|M v\|^2` is a sum of one-hop quadratics and
its Hessian has the pattern of an energy's: the same factorisation serves both. Squaring the
condition number is harmless here: in the norm in which F contracts with modulus κ it is at most
:math:`(1 + \kappa) / (1 - \kappa)`, 39 for κ = 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild.ops import gather, mtm, scatter


@dataclass
class NormalEquations(Hessian):
    """:math:`M^\\top M` of a tangent; it has blocks where the tangent has."""

    graph: Graph
    tangent: Tangent

    @property
    def has_blocks(self) -> bool:
        return self.tangent.has_blocks

    def apply(self, v: Tensor) -> Tensor:
        return self.tangent.transpose(self.tangent.apply(v))

    def diagonal(self) -> Tensor:
        return self.blocks()[0]

    def blocks(self) -> tuple[Tensor, Tensor]:
        graph, pattern = self.graph, self.graph.pattern
        own, other = self.tangent.blocks()  # [R, k, k, N], [R, k, k, E]
        diagonal = mtm(own, own) + scatter(mtm(other, other), graph.src, graph.num_nodes)
        here = mtm(gather(own, graph.dst), other)
        wedge = mtm(other[..., pattern.left], other[..., pattern.right])
        return pattern.folded(diagonal, torch.cat([here, wedge], -1))
