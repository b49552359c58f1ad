r"""Efficient infinite-depth GNNs (EIGNN): the fixed point of a linear contraction, in closed form.

`EIGNN: Efficient Infinite-Depth Graph Neural Networks <https://arxiv.org/abs/2202.10720>`_ (Liu,
Kawaguchi, Hooi, Wang & Xiao, NeurIPS 2021):

.. math::
    Z = \gamma\, g(F)\, Z S + f(X), \qquad g(F) = \frac{F^\top F}{\|F^\top F\|_F + \epsilon}, \qquad
    h_i = \gamma \sum_j S_{ij}\, g(F) h_j + f(x_i),

where S is the symmetrically renormalised adjacency. With the eigendecompositions
:math:`S = Q_S \Lambda_S Q_S^\top` and :math:`g(F) = Q_F \Lambda_F Q_F^\top`,

.. math::
    Z = Q_F \bigl[G \circ (Q_F^\top f(X)\, Q_S)\bigr] Q_S^\top, \qquad
    G_{ab} = \frac{1}{1 - \gamma\, (\Lambda_F)_a (\Lambda_S)_b} .

The Hogwild paper leaves EIGNN out of its comparison, because the closed form uses global
information. The closed form is only a fast way to compute the fixed point on one machine. The
fixed point is also that of a one-hop map, which contracts with modulus
:math:`\gamma \|g(F)\|_2 \le \gamma < 1` in the norm :math:`\max_i \|h_i\|_2 / \sqrt{d_i}` (see
:mod:`hogwild.models.contraction`). The model can therefore be trained in closed form and run
asynchronously.

The published model has as many channels as features, :math:`f(X) = X`. Any other width gets an
affine encoder f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self, Unpack

import torch
from torch import Tensor

from hogwild.errors import ConfigError, GraphError, require_one_of
from hogwild.graph import Graph, kept
from hogwild.graph.inputs import Inputs
from hogwild.models.adjacency import Adjacency, adjacency
from hogwild.models.contraction import Contraction, ContractionConv, ContractionTangent
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import Solving
from hogwild.nn.mlp import MLP
from hogwild.nn.nonexpansive import resolve
from hogwild.ops import scatter_into
from hogwild.solvers.anderson import Picard
from hogwild.solvers.loop import Solver
from hogwild.solvers.semismooth import SemismoothNewton
from hogwild_node.tree import FIXED, over

METHODS = ("closed", "iterate")
LARGEST = 5000
"""Most nodes of a graph whose dense matrix is decomposed."""
EPSILON = 1e-12


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
        if adjacency.loop is not None:
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


@dataclass
class EIGNNProblem(Contraction):
    r"""EIGNN's fixed point; :meth:`modulus` is at most γ, in Euclidean norms of the embeddings."""

    spectrum: Spectrum | None = over(FIXED, None)  # None: no closed form

    @property
    def has_inverse(self) -> bool:
        return self.spectrum is not None

    @property
    def unit(self) -> float:
        return math.sqrt(self.channels)

    def lengths(self, x: Tensor) -> Tensor:
        return x.norm(dim=1)

    def matrix_norm(self) -> Tensor:
        r""":math:`\|\gamma\, g(F)\|_2` [R]."""
        return torch.linalg.matrix_norm(self.weight, ord=2)

    def _tangent(self, slope: Tensor) -> ContractionTangent:
        tangent = super()._tangent(slope)
        if self.spectrum is not None:
            tangent = ClosedTangent(**vars(tangent), spectrum=self.spectrum)
        return tangent

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        sub, nodes = super().select(replicas, graphs)
        if self.spectrum is not None:
            sub = replace(sub, spectrum=Spectrum.of(sub.graph, sub.adjacency))
        return sub, nodes

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> Self:
        return replace(super().gathered(graph, nodes, edges), spectrum=None)


@dataclass
class ClosedTangent(ContractionTangent):
    r""":math:`I - S \otimes \gamma\, g(F)`, symmetric, with its inverse."""

    spectrum: Spectrum = field(default_factory=lambda: Spectrum([]))
    has_inverse = True

    def inverse(self, v: Tensor, transpose: bool) -> Tensor:
        return self.spectrum.inverse(self.weight, v)


@kept
def _spectrum(graph: Graph, dtype: torch.dtype) -> Spectrum:
    """The spectrum of the renormalised adjacency without weights."""
    return Spectrum.of(graph, adjacency(graph, None, dtype, normalize=True))


class EIGNNConv(ContractionConv):
    r"""A layer with the fixed point
    :math:`h_i = \gamma \sum_j S_{ij}\, g(F) h_j + f(x_i)`.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. If both widths are equal there is no encoder, f(X) = X. A
    solver is only for ``"iterate"``, by default :class:`~hogwild.solvers.Picard`.

    Args:
        gamma: γ, 0 < γ < 1. The paper uses 0.8 and also allows 1, which is not a contraction.
        method: ``"closed"`` uses an eigendecomposition, which is exact, for undirected graphs of
            at most 5,000 nodes. Without edge weights the decomposition is cached on the graph.
            ``"iterate"`` iterates the map and takes any graph.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        gamma: float = 0.8,
        method: str = "closed",
        **kwargs: Unpack[Solving],
    ) -> None:
        require_one_of(METHODS, method=method)
        if method == "closed" and kwargs.get("solver") is not None:
            raise ConfigError(
                f"solver={kwargs['solver']!r} was given, but method='closed' needs no solver; "
                f"leave it out or use method='iterate'"
            )
        self.method = method
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not 0 < gamma < 1:
            raise ConfigError(
                f"gamma={gamma!r}; expected a number between 0 and 1, both excluded: with 1 the "
                f"map is not a contraction"
            )
        self.gamma = float(gamma)
        self.encoder: MLP | None = None
        if in_channels != hidden_channels:
            self.encoder = MLP(in_channels, (hidden_channels,), replicas=self.replicas)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        bound = (3.0 / self.hidden_channels) ** 0.5  # Glorot's, for a square matrix
        self.weight.uniform_(-bound, bound)
        if self.encoder is not None:
            self.encoder.reset_parameters()

    def _matrix(self, weight: Tensor) -> Tensor:
        r""":math:`\gamma\, g(F)`."""
        square = weight.mT @ weight
        norm = torch.linalg.matrix_norm(square, keepdim=True)
        return self.gamma * square / (norm + EPSILON)

    def default_solver(self) -> Solver:
        return SemismoothNewton() if self.method == "closed" else Picard()  # one exact Newton step

    def problem(self, inputs: Inputs) -> EIGNNProblem:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        graph, s = self._pose(inputs)
        spectrum = None
        if self.method == "closed" and inputs.edge_weight is None:
            spectrum = _spectrum(graph, s.edge.dtype)
        elif self.method == "closed":
            spectrum = Spectrum.of(graph, s)
        matrix, f = self._solve_matrix(s.edge.dtype), self._encode(self.encoder, inputs.x)
        return EIGNNProblem(graph, s, matrix, f, resolve("identity"), spectrum=spectrum)

    def _distinctions(self) -> dict[str, object]:
        return {"gamma": self.gamma, "method": self.method}


class EIGNN(ImplicitGNN):
    """EIGNN: one or several :class:`EIGNNConv` and the paper's readout. The arguments are those of
    :class:`~hogwild.models.gnn.ImplicitGNN` and :class:`EIGNNConv`."""

    layer = EIGNNConv
