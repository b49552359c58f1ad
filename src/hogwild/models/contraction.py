r"""The contraction of IGNN and EIGNN: linear messages, then a nonexpansive activation.

.. math::
    F(H)_i = \phi\Bigl(W \sum_j \tilde A_{ij} h_j + b_i\Bigr), \qquad
    \tilde A = D^{-1/2} (A + I) D^{-1/2},

where D holds the row sums of :math:`A + I`. :math:`\tilde A` is similar to the row-stochastic
:math:`D^{-1} (A + I)`, also on directed and weighted graphs: with :math:`v = D^{1/2} 1` it does not
expand the norm :math:`\max_i |x_i| / v_i`, and nodes only need their neighbours' degrees.

**Why it converges asynchronously.** Let :math:`\tilde A v \le \lambda v`, and
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

IGNN, `Implicit Graph Neural Networks <https://arxiv.org/abs/2009.06211>`_ (Gu, Chang, Zhu, Sojoudi
& El Ghaoui, NeurIPS 2020), as in the appendix of the Hogwild paper, has :math:`b_i = g(x_i)` and
:math:`\|W\|_\infty \le \kappa < 1`.

EIGNN, `EIGNN: Efficient Infinite-Depth Graph Neural Networks <https://arxiv.org/abs/2202.10720>`_
(Liu, Kawaguchi, Hooi, Wang & Xiao, NeurIPS 2021), has no activation and

.. math::
    W = \gamma\, \frac{F^\top F}{\|F^\top F\|_F + \epsilon}, \qquad b_i = f(x_i),

so that :math:`\|W\|_2 \le \gamma < 1`. Its fixed point has a closed form, which needs the
eigendecomposition of the whole graph. Here it is that of a one-hop map. The published model has as
many channels as features, :math:`f(X) = X`. Any other width gets an affine encoder f.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, require_widths
from hogwild.graph import Graph, cached
from hogwild.graph.inputs import Inputs
from hogwild.linalg.operator import Tangent
from hogwild.models.base import Exported, Kind, portable
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.activations import Nonexpansive, nonexpansive
from hogwild.nn.networks import MLP
from hogwild.ops import gather, scatter
from hogwild.problems.base import FixedPoint
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton
from hogwild_node.activations import NONEXPANSIVE
from hogwild_node.problems import Contraction as LocalContraction
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over

EPSILON = 1e-12
"""The ε of EIGNN."""


@dataclass(frozen=True)
class Adjacency(OnGraph):
    r"""A nonnegative matrix :math:`\tilde A` whose rows are receivers and columns are senders."""

    edge: Tensor = over(EDGES)  # [E] weight of each edge
    loop: Tensor = over(NODES)  # [N] weight of each node's own embedding
    perron: Tensor = over(NODES)  # [N] v > 0

    def apply(self, x: Tensor, graph: Graph) -> Tensor:
        r""":math:`\tilde A x` for x [..., N]."""
        return scatter(gather(x, graph.src) * self.edge, graph.dst, graph.num_nodes) + self.loop * x

    def transpose(self, x: Tensor, graph: Graph) -> Tensor:
        r""":math:`\tilde A^\top x` for x [..., N]."""
        return scatter(gather(x, graph.dst) * self.edge, graph.src, graph.num_nodes) + self.loop * x

    def growth(self, graph: Graph) -> Tensor:
        r""":math:`\max_i (\tilde A v)_i / v_i` [G]. :math:`\tilde A` increases the norm
        :math:`\max_i |x_i| / v_i` at most by this factor."""
        return graph.max(self.apply(self.perron, graph) / self.perron)


def adjacency(graph: Graph, weight: Tensor | None, dtype: torch.dtype) -> Adjacency:
    """The renormalised adjacency of weights [E]. Without weights it is cached on the graph."""
    if weight is None:
        return _unweighted(graph, dtype)
    return renormalised(graph, weight.to(torch.float64)).map(lambda x: x.to(dtype))


@cached
def _unweighted(graph: Graph, dtype: torch.dtype) -> Adjacency:
    ones = torch.ones(graph.num_edges, dtype=torch.float64, device=graph.src.device)
    return adjacency(graph, ones, dtype)


def renormalised(graph: Graph, weight: Tensor) -> Adjacency:
    r""":math:`D^{-1/2} (A + I) D^{-1/2}` of weights [E]."""
    degree = 1.0 + graph.received(weight)
    root = degree.rsqrt()
    edge = weight * root[graph.dst] * root[graph.src]
    return Adjacency(edge, degree.reciprocal(), degree.sqrt().detach())


@dataclass
class Contraction(FixedPoint):
    """Find the fixed point on every graph and replica."""

    graph: Graph = over(FIXED)
    adjacency: Adjacency = over(SHARED)  # Ã
    weight: Tensor = over(SHARED)  # [R, k, k] W
    bias: Tensor = over(NODES)  # [R, k, N] b
    act: Nonexpansive = over(FIXED)  # φ
    euclidean: bool = over(FIXED, False)  # lengths of embeddings: Euclidean, or the largest entry
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
            a, weight = self.adjacency.map(Tensor.detach), self.weight.detach()
            self.kept[:] = [ContractionTangent(self.graph, a, weight, slope)]
        return self.kept[0]

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
        unit = math.sqrt(self.channels) if self.euclidean else 1.0
        spread = self.graph.max(v) * self.graph.max(1.0 / v)
        limit = error * unit * spread * kappa / (1.0 - kappa)
        return torch.where(kappa < 1.0, limit, torch.inf)

    def lengths(self, x: Tensor) -> Tensor:
        return x.norm(dim=1) if self.euclidean else super().lengths(x)

    def matrix_norm(self) -> Tensor:
        r""":math:`\|W\|_2` or :math:`\|W\|_\infty`, [R]."""
        if self.euclidean:
            return torch.linalg.matrix_norm(self.weight, ord=2)
        return self.weight.abs().sum(-1).amax(-1)

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        sub, nodes = super().select(replicas, graphs)
        sub.kept = []
        return sub, nodes

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> Self:
        out = super().gathered(graph, nodes, edges)
        out.kept = []
        return out


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
        own = own - self.adjacency.loop * steep
        return own, -gather(steep, self.graph.dst) * self.adjacency.edge


class ContractionConv(ImplicitConv):
    """The base class of layers whose problem is a :class:`Contraction`. The default solver is
    :class:`~hogwild.solvers.SemismoothNewton`."""

    kind = Kind.FIXED_POINT
    hops = 1
    act: Nonexpansive
    euclidean: bool
    encoder: MLP | None

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

    def default_solver(self) -> Solver:
        return SemismoothNewton()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.uniform_(-self._bound, self._bound)
        super().reset_parameters()

    @property
    def _bound(self) -> float:
        """Largest entry of a fresh parameter."""
        return 1.0 / math.sqrt(self.hidden_channels)

    def exported(self) -> Exported:
        act = portable(self.act, NONEXPANSIVE)
        return {"kind": "contraction", "act": act}, {"matrix": self.matrix}

    def problem(self, inputs: Inputs) -> Contraction:
        """The fixed point of these inputs, attached to the autograd graph."""
        graph, x, _, _, weight = self.fields(inputs)
        k, a = self.hidden_channels, adjacency(graph, weight, x.dtype)
        matrix = self._matrix(self.weight.to(x.dtype)).view(-1, k, k)
        b = x.expand(len(matrix), -1, -1)
        b = b if self.encoder is None else self.encode(self.encoder, x)
        return Contraction(graph, a, matrix, b, self.act, self.euclidean)


def _below_one(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ConfigError(
            f"{name}={value!r}; expected a number between 0 and 1, both excluded: with 1 the map "
            f"is not a contraction"
        )
    return float(value)


class IGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \phi(\sum_j \tilde A_{ij} W h_j + g(x_i))`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`.

    Args:
        widths: Hidden widths of the MLP g; the paper uses (16, 16, 16).
        kappa: Bound κ on :math:`\|W\|_\infty`, 0 < κ < 1.
        act: :math:`\phi`: ``"relu"`` (the paper's), ``"leaky_relu"``, ``"tanh"``, ``"identity"``
            or any :class:`~hogwild.nn.Nonexpansive`. With ``"relu"`` and k = 2, a third of the
            models on the chains and counting tasks had only zero activations after a hundred epochs
            and stopped learning. This never happened with ``"leaky_relu"``.

    Conventions:
        ``edge_weight`` is nonnegative and holds the entries of A, also for the degrees. Self-loops
        are ordinary edges, and each of several parallel edges counts. On a directed graph node i
        hears the senders of the edges into it, and the graph needs no reverse links.
    """

    euclidean = False

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        widths: Sequence[int] = (16, 16, 16),
        kappa: float = 0.95,
        act: str | Nonexpansive = "relu",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.kappa, self.act = _below_one("kappa", kappa), nonexpansive(act)
        widths = (*require_widths("widths", widths), hidden_channels)
        self.encoder = MLP(in_channels, widths, replicas=self.replicas)
        self.reset_parameters()

    def exported(self) -> Exported:
        config, tensors = super().exported()
        slope = getattr(self.act.value, "keywords", {}).get("negative_slope", 0.0)
        return config | {"negative_slope": slope}, tensors

    def _matrix(self, weight: Tensor) -> Tensor:
        # Rows w = κ v / (1 + ‖v‖₁⁴)^¼ have ‖w‖₁ ≤ κ for every v.
        length = weight.abs().sum(-1, keepdim=True)
        return self.kappa * weight / torch.hypot(torch.ones_like(length), length**2).sqrt()


class IGNN(ImplicitGNN):
    """An implicit GNN: one or several :class:`IGNNConv` and the paper's readout. The arguments are
    those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`IGNNConv`."""

    layer = IGNNConv


class EIGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \gamma \sum_j S_{ij}\, g(F) h_j + f(x_i)`, where S is :math:`\tilde A`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. If both widths are equal there is no encoder, f(X) = X.

    Args:
        gamma: γ, 0 < γ < 1. The paper uses 0.8 and also allows 1, which is not a contraction.
    """

    act, euclidean = nonexpansive("identity"), True

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        gamma: float = 0.8,
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        self.gamma = _below_one("gamma", gamma)
        self.encoder = None
        if in_channels != hidden_channels:
            self.encoder = MLP(in_channels, (hidden_channels,), replicas=self.replicas)
        self.reset_parameters()

    @property
    def _bound(self) -> float:
        return math.sqrt(3.0 / self.hidden_channels)  # Glorot's, for a square matrix

    def _matrix(self, weight: Tensor) -> Tensor:
        r""":math:`\gamma\, g(F)`."""
        square = weight.mT @ weight
        norm = torch.linalg.matrix_norm(square, keepdim=True)
        return self.gamma * square / (norm + EPSILON)


class EIGNN(ImplicitGNN):
    """EIGNN: one or several :class:`EIGNNConv` and the paper's readout. The arguments are those of
    :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`EIGNNConv`."""

    layer = EIGNNConv
