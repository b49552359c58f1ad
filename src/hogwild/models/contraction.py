r"""The contraction of IGNN and EIGNN: linear messages, then a nonexpansive activation.

.. math::
    F(H)_i = \phi\Bigl(W \sum_j \tilde A_{ij} h_j + b_i\Bigr), \qquad
    J = \operatorname{diag}(\phi')\, (\tilde A \otimes W).

**Why it converges asynchronously.** Let v > 0 with :math:`\tilde A v \le \lambda v`, and
:math:`\|W\| \le \kappa` in a norm on :math:`\mathbb R^k` that depends on absolute values only.
Since :math:`\phi` is nonexpansive,

.. math::
    \frac{\|F(H)_i - F(H')_i\|}{v_i}
    \le \frac{\kappa}{v_i} \sum_j \tilde A_{ij} v_j\, \frac{\|h_j - h'_j\|}{v_j}
    \le \kappa \lambda\, \max_j \frac{\|h_j - h'_j\|}{v_j}.

If :math:`\kappa \lambda < 1`, F is a contraction in the *weighted block-maximum norm*
:math:`\max_i \|h_i\| / v_i`. Updates then converge to the fixed point in any order and with any
bounded delays (Bertsekas & Tsitsiklis, *Parallel and Distributed Computation*, chapters 6 and 7).
A contraction in the Euclidean norm alone may diverge when its nodes update in turns.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.operator import Tangent
from hogwild.models.adjacency import Adjacency, adjacency
from hogwild.models.base import Kind
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.nonexpansive import Nonexpansive
from hogwild.ops import gather
from hogwild.problems.base import FixedPoint
from hogwild_node import contraction
from hogwild_node.tree import FIXED, NODES, SHARED, over


@dataclass
class Contraction(FixedPoint):
    """Find the fixed point on every graph and replica."""

    graph: Graph = over(FIXED)
    adjacency: Adjacency = over(SHARED)  # Ã
    weight: Tensor = over(SHARED)  # [R, k, k] W
    bias: Tensor = over(NODES)  # [R, k, N] b
    act: Nonexpansive = over(FIXED)  # φ
    kept: list[ContractionTangent] = over(FIXED, default_factory=list)  # the last tangent
    has_blocks = True

    @property
    def replicas(self) -> int:
        return self.weight.size(0)

    @property
    def channels(self) -> int:
        return self.weight.size(-1)

    @cached_property
    def node(self) -> contraction.Contraction:
        a = self.adjacency
        return contraction.Contraction(self.weight, self.bias, a.edge, a.loop, self.act.value)

    @torch.no_grad()
    def linearise(self, h: Tensor) -> ContractionTangent:
        mixed = torch.bmm(self.weight, self.adjacency.apply(h, self.graph))
        slope = self.act.slope(mixed + self.bias)
        # The adjoint reuses Newton's last tangent and its factorisation if the slopes are equal.
        if not (self.kept and torch.equal(self.kept[0].slope, slope)):
            self.kept[:] = [self._tangent(slope)]
        return self.kept[0]

    def _tangent(self, slope: Tensor) -> ContractionTangent:
        adjacency, weight = self.adjacency.map(Tensor.detach), self.weight.detach()
        return ContractionTangent(self.graph, adjacency, weight, slope)

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        return v - self.linearise(h).transpose(v)

    def modulus(self) -> Tensor:
        """The bound κλ of the module's docstring, [R, G]."""
        return self.matrix_norm().unsqueeze(-1) * self.adjacency.growth(self.graph)

    def weights(self) -> Tensor:
        return self.adjacency.perron

    def displacement(self, error: float) -> Tensor:
        r"""A bound on the distance to the fixed point if every number heard is wrong by at most δ.

        In the weighted norm the error of what is heard is at most
        :math:`\eta = \|\delta 1\| / \min_i v_i`. An update maps a distance
        :math:`e = \max_i \|h_i - h^*_i\| / v_i` to at most :math:`\kappa (e + \eta)`. In the limit
        :math:`e \le \kappa \eta / (1 - \kappa)`, and every entry is wrong by at most
        :math:`\max_i v_i` times that."""
        v, kappa = self.adjacency.perron, self.modulus()
        spread = self.graph.max(v) * self.graph.max(1.0 / v)
        limit = error * self.unit * spread * kappa / (1.0 - kappa)
        return torch.where(kappa < 1.0, limit, torch.inf)

    @property
    def unit(self) -> float:
        """The norm of an embedding whose entries are all one."""
        return 1.0

    def matrix_norm(self) -> Tensor:
        r""":math:`\|W\|_\infty` [R]."""
        return self.weight.abs().sum(-1).amax(-1)

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        sub, nodes = super().select(replicas, graphs)
        return replace(sub, kept=[]), nodes

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> Self:
        return replace(super().gathered(graph, nodes, edges), kept=[])


@dataclass
class ContractionTangent(Tangent):
    r""":math:`I - \operatorname{diag}(\phi') (\tilde A \otimes W)`. It holds no reference to its
    problem, because the problem caches it."""

    graph: Graph
    adjacency: Adjacency
    weight: Tensor  # [R, k, k]
    slope: Tensor  # [R, k, N] φ'
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        mixed = torch.bmm(self.weight, self.adjacency.apply(v, self.graph))
        return torch.addcmul(v, self.slope, mixed, value=-1.0)

    def transpose(self, v: Tensor) -> Tensor:
        mixed = torch.bmm(self.weight.mT, self.slope * v)
        return v - self.adjacency.transpose(mixed, self.graph)

    def blocks(self) -> tuple[Tensor, Tensor]:
        steep = self.slope.unsqueeze(2) * self.weight.unsqueeze(-1)  # diag(φ') W, [R, k, k, N]
        own = torch.eye(steep.size(2), dtype=steep.dtype, device=steep.device).unsqueeze(-1)
        if self.adjacency.loop is not None:
            own = own - self.adjacency.loop * steep
        return own.expand_as(steep), -gather(steep, self.graph.dst) * self.adjacency.edge


class ContractionConv(ImplicitConv):
    """The base class of layers whose problem is a :class:`Contraction`."""

    kind = Kind.FIXED_POINT
    hops = 1

    def __init__(self, in_channels: int, hidden_channels: int, **kwargs: Unpack[Solving]) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        lead = () if self.replicas is None else (self.replicas,)
        self.weight = nn.Parameter(torch.empty(*lead, hidden_channels, hidden_channels))

    @property
    def matrix(self) -> Tensor:
        """The matrix W of the contraction, [k, k] or [R, k, k]."""
        return self._matrix(self.weight)

    @abstractmethod
    def _matrix(self, weight: Tensor) -> Tensor:
        """W as a function of the parameter."""

    def _solve_matrix(self, dtype: torch.dtype) -> Tensor:
        """W [R, k, k] in the precision of the solve."""
        k = self.hidden_channels
        return self._matrix(self.weight.to(dtype)).view(-1, k, k)

    def _pose(self, inputs: Inputs, normalize: bool = True) -> tuple[Graph, Adjacency]:
        """Check the inputs; return their graph and Ã."""
        graph, dtype = self.graph(inputs), self.precision(inputs.x)
        return graph, adjacency(graph, inputs.edge_weight, dtype, normalize=normalize)
