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
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from hogwild.errors import GraphError
from hogwild.graph import Graph, kept
from hogwild.linalg.operator import Tangent
from hogwild.nn.nonexpansive import Nonexpansive
from hogwild.ops import gather, scatter, scatter_into
from hogwild.problems.base import FixedPoint
from hogwild_node.problems import Contraction as LocalContraction
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, OnGraph, over

LARGEST = 5000
"""Most nodes of a graph whose dense matrix is decomposed."""


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


@kept
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
    spectrum: Spectrum | None = over(FIXED, None)  # None: no closed form
    kept: list[ContractionTangent] = over(FIXED, default_factory=list)  # the last tangent
    has_blocks = True

    @property
    def has_inverse(self) -> bool:
        return self.spectrum is not None

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
            self.kept[:] = [ContractionTangent(self.graph, a, weight, slope, self.spectrum)]
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
        own = None if self.spectrum is None else Spectrum.of(sub.graph, sub.adjacency)
        return replace(sub, kept=[], spectrum=own), nodes

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> Self:
        return replace(super().gathered(graph, nodes, edges), kept=[], spectrum=None)


@dataclass
class ContractionTangent(Tangent):
    r""":math:`I - \operatorname{diag}(\phi') (\tilde A \otimes W)`. It holds no reference to its
    problem, because the problem caches it."""

    graph: Graph
    adjacency: Adjacency
    weight: Tensor  # [R, k, k]
    slope: Tensor  # [R, k, N] φ'
    spectrum: Spectrum | None = None  # where φ' is one and W symmetric: a closed form
    has_blocks = True

    @property
    def has_inverse(self) -> bool:
        return self.spectrum is not None

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

    def inverse(self, v: Tensor, transpose: bool) -> Tensor:
        assert self.spectrum is not None
        return self.spectrum.inverse(self.weight, v)  # symmetric


@dataclass(frozen=True)
class Spectrum:
    """The eigendecompositions of the symmetric matrices of all graphs, grouped by graph size."""

    groups: list[tuple[Tensor, Tensor, Tensor]]
    """(nodes [B, n], eigenvalues [B, n], eigenvectors [B, n, n])"""

    @classmethod
    @torch.no_grad()
    def of(cls, graph: Graph, adjacency: Adjacency) -> Spectrum:
        """Decompose the matrices; raise :class:`GraphError` if a graph is too large or not
        symmetric."""
        graph.require_whole("the closed form (method='closed')")
        sizes = graph.sizes.tolist()
        if max(sizes) > LARGEST:
            g = sizes.index(max(sizes))
            raise GraphError(
                f"graph {g} has {sizes[g]} nodes; the closed form decomposes dense matrices and "
                f"expects at most {LARGEST} nodes: use method='iterate'"
            )
        # One buffer holds all dense matrices, graph after graph, row after row.
        area = graph.sizes.square()
        start = graph.sizes.cumsum(0) - graph.sizes
        nodes = torch.arange(graph.num_nodes, device=graph.src.device)
        place = nodes - start[graph.batch]  # index of a node in its graph
        row = (area.cumsum(0) - area)[graph.batch] + place * graph.sizes[graph.batch]
        buffer = adjacency.edge.new_zeros(int(area.sum()))
        scatter_into(buffer, row[graph.dst] + place[graph.src], adjacency.edge)
        scatter_into(buffer, row + place, adjacency.loop)
        matrices = buffer.split(area.tolist())
        groups = []
        for n in sorted(set(sizes)):
            members = [g for g, s in enumerate(sizes) if s == n]
            dense = torch.stack([matrices[g].view(n, n) for g in members])
            _require_symmetric(dense, members)
            nodes = start[members].unsqueeze(-1) + torch.arange(n, device=start.device)
            groups.append((nodes, *torch.linalg.eigh(dense)))
        return cls(groups)

    def inverse(self, weight: Tensor, v: Tensor) -> Tensor:
        r""":math:`(I - S \otimes W)^{-1} v` for symmetric W [R, k, k] and v [R, k, N]."""
        values, vectors = torch.linalg.eigh(weight)  # [R, k], [R, k, k]
        turned, out = torch.bmm(vectors.mT, v), torch.empty_like(v)
        for nodes, s, q in self.groups:
            gain = 1.0 / (1.0 - values[..., None, None] * s)  # [R, k, B, n]
            modes = torch.einsum("rkbn,bnm->rkbm", turned[..., nodes], q) * gain
            out[..., nodes] = torch.einsum("rkbm,bnm->rkbn", modes, q)
        return torch.bmm(vectors, out)


def _require_symmetric(dense: Tensor, members: list[int]) -> None:
    """Raise unless all matrices [B, n, n] of these graphs are symmetric."""
    apart = (dense - dense.mT).abs()
    if bool((apart > 100 * torch.finfo(dense.dtype).eps).any()):
        b, i, j = (int(at) for at in torch.unravel_index(apart.argmax(), apart.shape))
        raise GraphError(
            f"graph {members[b]} is not symmetric: between its nodes {j} and {i} the weights of "
            f"the two directions differ; the closed form expects undirected edges: add the reverse "
            f"edges (torch_geometric.utils.to_undirected) or use method='iterate'"
        )


@kept
def spectrum_of(graph: Graph, dtype: torch.dtype) -> Spectrum:
    """The spectrum of the renormalised adjacency without weights."""
    return Spectrum.of(graph, adjacency(graph, None, dtype))
