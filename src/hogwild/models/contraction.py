r"""The contraction of IGNN and EIGNN, and IGNN: linear messages, then a nonexpansive activation.

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

*Implicit graph neural networks* (IGNN): embeddings at the fixed point of a contraction.

`Implicit Graph Neural Networks <https://arxiv.org/abs/2009.06211>`_ (Gu, Chang, Zhu, Sojoudi &
El Ghaoui, NeurIPS 2020), as in the appendix of the Hogwild paper:

.. math::
    H = \phi(W H \tilde A + g(X)), \qquad
    h_i = \phi\Bigl(\sum_j \tilde A_{ij} W h_j + g(x_i)\Bigr).

With :math:`\lambda_{pf}(\tilde A) \le 1`, :math:`\|W\|_\infty \le \kappa < 1` and a nonexpansive
:math:`\phi` this is a contraction with modulus κ in a weighted maximum norm over nodes, and
therefore converges asynchronously (the theorem above).
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, ProjectionWarning, require_one_of, require_widths
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.operator import Tangent
from hogwild.models.adjacency import Adjacency, adjacency
from hogwild.models.base import Kind
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import Nonexpansive, resolve
from hogwild.ops import gather
from hogwild.problems.base import FixedPoint
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton
from hogwild_node.problems import Contraction as LocalContraction
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
    def node(self) -> LocalContraction:
        a = self.adjacency
        return LocalContraction(self.weight, self.bias, a.edge, a.loop, self.act.value)

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


CONSTRAINTS = ("parametrise", "project")


def onto_ball(weight: Tensor, radius: float) -> Tensor:
    r"""The nearest matrix [..., k, k] whose rows have :math:`\|w\|_1 \le` ``radius``.

    The projection is exact (Duchi et al., ICML 2008): a row outside the ball is soft-thresholded
    by the θ at which it reaches the sphere. Sorting the entries gives θ.
    """
    size, order = weight.abs(), torch.arange(1, weight.size(-1) + 1, device=weight.device)
    falling = size.sort(dim=-1, descending=True).values
    thresholds = (falling.cumsum(-1) - radius) / order
    count = (falling > thresholds).sum(-1, keepdim=True).clamp_min(1)
    theta = thresholds.gather(-1, count - 1).clamp_min(0.0)
    return torch.sign(weight) * (size - theta).clamp_min(0.0)


class IGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \phi(\sum_j \tilde A_{ij} W h_j + g(x_i))`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is
    :class:`~hogwild.solvers.SemismoothNewton`.

    Args:
        widths: Hidden widths of the MLP g; the paper uses (16, 16, 16).
        kappa: Bound κ on :math:`\|W\|_\infty`, 0 < κ < 1.
        act: :math:`\phi`: ``"relu"`` (the paper's), ``"leaky_relu"``, ``"tanh"``, ``"identity"``
            or any :class:`~hogwild.nn.Nonexpansive`. With ``"relu"`` and k = 2, a third of the
            models on the chains and counting tasks had only zero activations after a hundred epochs
            and stopped learning. This never happened with ``"leaky_relu"``.
        normalize: Use :math:`\tilde A = (D+I)^{-1/2} (A+I) (D+I)^{-1/2}`, as in IGNN's own
            experiments. (The Hogwild paper does not specify :math:`\tilde A` for IGNN.) Its
            :math:`\lambda_{pf}` is one on every graph, so κ has the same meaning on all graphs, and
            nodes only need their neighbours' degrees. With ``False``,
            :math:`\tilde A = A / \lambda_{pf}(A)`, by the power method on every graph. Without edge
            weights the result is cached on the graph.
        constraint: How :math:`\|W\|_\infty \le \kappa` is enforced. With ``"parametrise"`` the rows
            of W are :math:`w = \kappa\, v / (1 + \|v\|_1^4)^{1/4}`, which satisfies the bound for
            every row v of the parameter. With ``"project"`` the parameter is W itself: call
            :meth:`project_` after each optimiser step, as the published code does. Otherwise the
            forward pass projects W and warns.

    Conventions:
        ``edge_weight`` is nonnegative and holds the entries of A, also for the degrees and
        :math:`\lambda_{pf}`. Self-loops are ordinary edges, and each of several parallel edges
        counts. On a directed graph node i hears the senders of the edges into it, and the graph
        needs no reverse links.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        widths: Sequence[int] = (16, 16, 16),
        kappa: float = 0.95,
        act: str | Nonexpansive = "relu",
        normalize: bool = True,
        constraint: str = "parametrise",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not 0 < kappa < 1:
            raise ConfigError(
                f"kappa={kappa!r}; expected a number between 0 and 1, both excluded: with 1 the "
                f"map is not a contraction"
            )
        require_one_of(CONSTRAINTS, constraint=constraint)
        self.kappa, self.act = float(kappa), resolve(act)
        self.normalize, self.constraint = normalize, constraint
        widths = (*require_widths("widths", widths), hidden_channels)
        self.encoder = MLP(in_channels, widths, replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = 1.0 / math.sqrt(self.hidden_channels)
        self.weight.uniform_(-bound, bound)
        if self.constraint == "project":
            self.project_(warn=False)
        self.encoder.reset_parameters()

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.constraint == "project":
            return weight
        length = weight.abs().sum(-1, keepdim=True)
        return self.kappa * weight / torch.hypot(torch.ones_like(length), length**2).sqrt()

    @torch.no_grad()
    def project_(self, *, warn: bool = True) -> Tensor:
        r"""Project W onto :math:`\|W\|_\infty \le \kappa`.

        Returns:
            How far :math:`\|W\|_\infty` exceeded κ, [] or [R].
        """
        if self.constraint != "project":
            return self.weight.new_zeros(self.weight.shape[:-2])
        excess = (self.weight.abs().sum(-1).amax(-1) - self.kappa).clamp_min(0.0)
        # An excess of rounding size comes from an earlier projection.
        excess = torch.where(excess > 8 * torch.finfo(excess.dtype).eps, excess, 0.0)
        if warn:
            if not bool(excess.any()):
                return excess
            warnings.warn(
                f"‖W‖∞ exceeded kappa={self.kappa} by {float(excess.max()):.3g} and W was projected"
                f" back; call project_(warn=False) after each optimiser step, or use "
                f"constraint='parametrise'",
                ProjectionWarning,
                stacklevel=3,
            )
        outside = (excess > 0)[..., None, None]
        self.weight.copy_(torch.where(outside, onto_ball(self.weight, self.kappa), self.weight))
        return excess

    def default_solver(self) -> Solver:
        return SemismoothNewton()

    def problem(self, inputs: Inputs) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        graph, a = self._pose(inputs, self.normalize)
        if self.constraint == "project":
            self.project_()
        matrix, g = self._solve_matrix(a.edge.dtype), self._encode(self.encoder, inputs.x)
        return Contraction(graph, a, matrix, g, self.act)

    def _distinctions(self) -> dict[str, object]:
        return {"kappa": self.kappa, "act": self.act.name, "constraint": self.constraint}


class IGNN(ImplicitGNN):
    """An implicit GNN: one or several :class:`IGNNConv` and the paper's readout. The arguments are
    those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`IGNNConv`."""

    layer = IGNNConv

    def project_(self, *, warn: bool = True) -> None:
        """Project the matrix of every layer: :meth:`IGNNConv.project_`."""
        for conv in self.modules():
            if isinstance(conv, IGNNConv):
                conv.project_(warn=warn)
