r"""Graph signal denoising: embeddings that stay near an encoding of the features and vary little
along the edges.

.. math::
    H^* = \arg\min_H \gamma \|H - g(X)\|_F^2 + \beta \operatorname{tr}(H^\top \tilde L H), \qquad
    \tilde L = I - \tilde A, \quad \tilde A = \hat D^{-1/2} (A + I) \hat D^{-1/2},

with an MLP :math:`g` on every node's features, :math:`A` the symmetric weighted adjacency and
:math:`\hat D` the diagonal of the row sums :math:`d_i` of :math:`A + I`.

Along the directed edges :math:`j \to i`, of weight :math:`w_{ij}`, it splits into

.. math::
    e^i = \gamma \|h_i - g(x_i)\|^2 + \frac\beta2 \sum_{j \in N(i)} w_{ij}
        \Bigl\| \frac{h_i}{\sqrt{d_i}} - \frac{h_j}{\sqrt{d_j}} \Bigr\|^2, \qquad
    d_i = 1 + \frac12 \Bigl(\sum_{j \in N(i)} w_{ij} + \sum_{j : i \in N(j)} w_{ji}\Bigr),

one for each node. On directed graphs the sum is the energy above with :math:`(A + A^\top)/2` in
place of :math:`A`, convex for all nonnegative weights. (With in-degrees, PyG's normalisation, it
would not be.)

The gradient step of size :math:`1 / 2(\gamma + \beta)`,

.. math:: F(H) = \frac{\gamma}{\gamma + \beta}\, g(X) + \frac{\beta}{\gamma + \beta} \tilde A H,

is the propagation of APPNP with teleport probability :math:`\gamma / (\gamma + \beta)`. Since
:math:`\tilde A \sqrt d = \sqrt d`, it contracts by :math:`\beta / (\gamma + \beta)` in the maximum
norm with weights :math:`\sqrt{d_i}`. It therefore also converges asynchronously.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor

from hogwild.errors import ConfigError, require_widths
from hogwild.graph import Graph, cached
from hogwild.graph.inputs import Inputs
from hogwild.linalg.operator import Hessian
from hogwild.models.base import Exported, Kind
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.nn.networks import MLP
from hogwild.ops import gather, scatter
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.problems import GSD
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over


@cached
def _links(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """All M ordered pairs of different nodes that an edge joins in either direction.

    Returns:
        The index of the pair (receiver, sender) of every edge, then of the pair (sender, receiver)
        of every edge, [2E], where self-loops have the index M; and the two ends of every pair, [M]
        each.
    """
    n = graph.num_nodes
    # A pair as one number; self-loops come last. Large graphs need this to be lean.
    key = torch.cat([graph.dst * n + graph.src, graph.src * n + graph.dst])
    if graph.self_loops is not None:
        key[graph.self_loops] = key[graph.self_loops + graph.num_edges] = n * n
    pairs, number = torch.unique(key, return_inverse=True)
    pairs = pairs if graph.self_loops is None else pairs[:-1]
    return number, pairs // n, pairs % n


def _pairs(graph: Graph, weight: Tensor, root: Tensor) -> Tensor:
    """Ã between all pairs of nodes that an edge joins, [M], from weights [E] and 1/√d [N]."""
    number, rows, cols = _links(graph)
    half = 0.5 * weight
    pair = scatter(torch.cat([half, half]), number, rows.numel() + 1)[:-1]
    return pair * root[rows] * root[cols]


@dataclass
class GSDHessian(Hessian):
    r""":math:`2\gamma I + 2\beta \tilde L`, the same for every channel and at every point."""

    graph: Graph
    problem: GSDProblem
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        p = self.problem
        return 2.0 * (p.gamma + p.beta) * v - 2.0 * p.beta * p.smooth(v)

    def diagonal(self) -> None:
        """``None``: no preconditioner. The diagonal is nearly a multiple of the identity, and the
        condition number is at most 1 + 2β/γ without it."""

    def entries(self) -> tuple[Tensor, Tensor]:
        # Every edge holds half of Ã.
        p, src, dst = self.problem, self.graph.src, self.graph.dst
        diagonal = 2.0 * (p.gamma + p.beta) - 2.0 * p.beta * p.own
        return diagonal, -p.beta * p.weight * p.root[dst] * p.root[src]

    def blocks(self) -> tuple[Tensor, Tensor]:
        p, pattern = self.problem, self.graph.pattern
        diagonal, edge = self.entries()
        # Two neighbours of a node are not coupled with each other.
        off = p.own.new_zeros(edge.numel() + pattern.left.numel())
        off[: edge.numel()] = edge
        off = off if pattern.keep is None else off[pattern.keep]
        return self._scalar(diagonal), self._scalar(off)

    def _scalar(self, x: Tensor) -> Tensor:
        """Multiples of the identity: [n] -> [R, k, k, n]."""
        r, k = self.problem.replicas, self.problem.channels
        eye = torch.eye(k, dtype=x.dtype, device=x.device)
        return (eye.unsqueeze(-1) * x).expand(r, k, k, x.numel())


@dataclass
class GSDEvaluation(Evaluation):
    """The energy at ``h``."""

    problem: GSDProblem
    h: Tensor  # [R, k, N]

    @cached_property
    def _smooth(self) -> Tensor:
        return self.problem.smooth(self.h)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """γ‖H − g(X)‖², β‖H‖² and β⟨H, ÃH⟩, [R, G] each."""
        p, dot = self.problem, self.problem.graph.dot
        gap = self.h - p.target
        return (
            p.gamma * dot(gap, gap),
            p.beta * dot(self.h, self.h),
            p.beta * dot(self.h, self._smooth),
        )

    @property
    def value(self) -> Tensor:
        fit, size, alike = self._terms
        return fit + (size - alike)

    @property
    def noise(self) -> Tensor:
        fit, size, _ = self._terms  # |⟨H, ÃH⟩| ≤ ‖H‖²
        return 64.0 * torch.finfo(self.h.dtype).eps * (fit + 2.0 * size)

    @cached_property
    def gradient(self) -> Tensor:
        p = self.problem
        return 2.0 * p.gamma * (self.h - p.target) + 2.0 * p.beta * (self.h - self._smooth)

    @property
    def scale(self) -> Tensor:
        p, size = self.problem, self.h.abs()
        fit = 2.0 * p.gamma * (size + p.target.abs())
        return p.graph.norm(fit + 2.0 * p.beta * (size + p.smooth(size)))

    def hessian(self) -> GSDHessian:
        return GSDHessian(self.problem.graph, self.problem.detach())


@dataclass
class GSDProblem(Objective):
    """Denoise a signal on every graph and replica. :meth:`of` builds the problem."""

    graph: Graph = over(FIXED)
    gamma: float = over(FIXED)
    beta: float = over(FIXED)
    target: Tensor = over(NODES)  # [R, k, N] g(x)
    weight: Tensor = over(EDGES)  # [E] w
    root: Tensor = over(NODES)  # [N] 1/√d
    own: Tensor = over(NODES)  # [N] the diagonal of Ã
    pair: Tensor = over(SHARED)  # [M] Ã between the pairs of nodes that edges join
    has_blocks = True
    is_quadratic = True
    is_attractive = True

    @classmethod
    def of(
        cls, graph: Graph, gamma: float, beta: float, target: Tensor, weight: Tensor
    ) -> GSDProblem:
        """The problem for a signal [R, k, N] and edge weights [E]."""
        loop = scatter(weight * (graph.src == graph.dst), graph.dst, graph.num_nodes)
        degree = 1.0 + 0.5 * (graph.received(weight) + graph.sent(weight))
        root = degree.rsqrt()
        pair = _pairs(graph, weight, root)
        return cls(graph, gamma, beta, target, weight, root, (1.0 + loop) / degree, pair)

    @property
    def replicas(self) -> int:
        return self.target.size(0)

    @property
    def channels(self) -> int:
        return self.target.size(1)

    def smooth(self, h: Tensor) -> Tensor:
        r""":math:`\tilde A H`, [R, k, N]."""
        _, rows, cols = _links(self.graph)
        out = self.own * h
        sent = gather(h, cols).mul_(self.pair)  # one buffer the size of the edges
        return out.scatter_add_(-1, rows.expand_as(sent), sent)

    def evaluate(self, h: Tensor) -> GSDEvaluation:
        return GSDEvaluation(self, h)

    @cached_property
    def node(self) -> GSD:
        sender = self.root[self.graph.src]
        return GSD(self.target, self.root, sender, self.weight, self.gamma, self.beta)

    def convexity(self) -> Tensor:
        return self.root.new_full((self.replicas, self.graph.num_graphs), 2.0 * self.gamma)

    def row_bounds(self) -> Tensor:
        one = torch.ones_like(self.target)
        around = self.smooth(one) - self.own  # sum over the neighbours in each row of Ã
        return 2.0 * self.gamma + 2.0 * self.beta * (1.0 - self.own + around)

    def block_bounds(self) -> tuple[Tensor, Tensor]:
        apart = 2.0 * self.beta * (1.0 - self.own) * torch.ones_like(self.target)
        return 2.0 * self.gamma + 2.0 * apart, apart

    def weights(self) -> Tensor:
        return self.root.reciprocal()

    def lipschitz(self) -> Tensor:
        r""":math:`2\gamma + 4\beta (1 - \min_i \tilde A_{ii})` on each graph, [R, G].

        :math:`\tilde A` is similar to the stochastic matrix :math:`\hat D^{-1} (A + I)`, whose
        eigenvalues are at least :math:`2 \min_i \tilde A_{ii} - 1` (Gershgorin). Equality holds on
        regular bipartite graphs.
        """
        spread = self.graph.max(1.0 - self.own).expand(self.replicas, -1)
        return 2.0 * self.gamma + 4.0 * self.beta * spread

    def step(self, h: Tensor) -> Tensor:
        r"""One propagation of APPNP: a gradient step of size :math:`1 / 2(\gamma + \beta)`."""
        return torch.lerp(self.target, self.smooth(h), self.beta / (self.gamma + self.beta))

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return 2.0 * (self.gamma + self.beta) * self.graph.norm(image - h)

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[GSDProblem, Tensor]:
        # A piece has the degrees of the whole graph, which its own edges do not show.
        out, nodes = super().select(replicas, graphs)
        out.pair = _pairs(out.graph, out.weight, out.root)
        return out, nodes

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> GSDProblem:
        out = super().gathered(graph, nodes, edges)
        out.pair = _pairs(graph, out.weight, out.root)
        return out


class GSDConv(ImplicitConv):
    r"""A layer whose embeddings denoise an encoding of the features.

    :mod:`hogwild.models.gsd` states the energy, its local parts and the case of directed graphs.
    The energy is quadratic, so one Newton step finds its minimum.
    :class:`~hogwild.solvers.Picard` iterates the propagation of APPNP instead.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is Newton's method.

    Args:
        widths: Hidden widths of the encoder :math:`g`.
        gamma: Weight :math:`\gamma > 0` of the distance to :math:`g(X)`.
        beta: Weight :math:`\beta \ge 0` of the differences along edges.

    Conventions:
        Every node has a self-loop of weight one, and a self-loop in ``edge_index`` is added to it.
        (In PyG's GCN and APPNP it replaces the added self-loop.) Each of several parallel edges
        counts. Without edges, :math:`H^* = g(X)`.
    """

    kind = Kind.OPTIMISATION
    hops = 1

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        widths: Sequence[int] = (16, 16, 16),
        gamma: float = 1.0,
        beta: float = 5.0,
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not 0 < gamma < math.inf:
            raise ConfigError(f"gamma={gamma!r}; expected a positive number (strong convexity)")
        if not 0 <= beta < math.inf:
            raise ConfigError(f"beta={beta!r}; expected a nonnegative number (convexity)")
        self.gamma, self.beta = float(gamma), float(beta)
        widths = (*require_widths("widths", widths), hidden_channels)
        self.encoder = MLP(in_channels, widths, replicas=self.replicas)

    def problem(self, inputs: Inputs) -> GSDProblem:
        """The energy of these inputs, attached to the autograd graph."""
        graph, x, _, _, weight = self.fields(inputs)
        weight = x.new_ones(graph.num_edges) if weight is None else weight
        return GSDProblem.of(graph, self.gamma, self.beta, self.encode(self.encoder, x), weight)

    def exported(self) -> Exported:
        return {"kind": "denoising", "gamma": self.gamma, "beta": self.beta}, {}


class GSDGNN(ImplicitGNN):
    """Graph signal denoising: one or several :class:`GSDConv` and the paper's readout. The
    arguments are those of :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`GSDConv`."""

    layer = GSDConv
