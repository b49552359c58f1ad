r"""The Jacobian of a node's rule, block by block, and how much the map contracts at that point.

Updates that arrive late and out of order converge if the map contracts in a *weighted
block-maximum norm* :math:`\max_i \|h_i\|_i`, with any norm on each node's embedding. Contracting in
another norm is not enough: 0.98 times a rotation by 2.25 radians of two scalar nodes contracts in
the 2-norm, and with the nodes updated in turns it diverges. Two sufficient conditions on the
linearised map are that a nonnegative matrix M has spectral radius :math:`\rho(M) < 1`, where M is

* :math:`|J|`, entry by entry: each embedding is measured in a weighted maximum norm; or
* :math:`N_{ij} = \|\partial F_i / \partial h_j\|_2`, block by block: in a multiple of the 2-norm.

For any positive weights v the factor of contraction in that norm is at most

.. math:: \max_i (M v)_i / v_i \ge \rho(M)

(Collatz & Wielandt), and power iteration on v brings the two together. Since
:math:`\rho(|J|) \le \|J\|_1`, a column norm below one is sufficient as well; a 2-norm is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph, kept
from hogwild.ops import gather, mtv, mv, scatter


@dataclass(frozen=True)
class Contractivity:
    r"""How much a map contracts *near one point*, graph by graph, [R, G] each.

    A statement about the linearisation there and nothing else: away from the point the map may
    expand, and a run that starts far away may go elsewhere.

    Attributes:
        rho: The better of two upper bounds, on :math:`\rho(|J|)` and on the spectral radius of the
            matrix of block norms. Where it is below 1 at a fixed point, updates that start near
            enough to it converge to it in any order and with any bounded delays.
        one_norm: The largest column sum of absolute values, exact: what Scarselli's penalty sees.
        two_norm: Largest singular value, estimated from below.
    """

    rho: Tensor
    one_norm: Tensor
    two_norm: Tensor

    @property
    def asynchronous(self) -> Tensor:
        """Whether asynchronous updates near the point, if it is a fixed point, return to it."""
        return self.rho < 1.0


@dataclass
class Jacobian:
    r"""One k × k block for every node and every edge, rows the receiver, columns the sender."""

    graph: Graph
    own: Tensor  # [R, k, k, N] ∂F_i / ∂h_i, self-loops apart
    edge: Tensor  # [R, k, k, E] ∂F_i / ∂h_j along each edge j → i

    def push(self, v: Tensor) -> Tensor:
        """``J v``, [R, k, N]."""
        along = mv(self.edge, gather(v, self.graph.src))
        return mv(self.own, v) + scatter(along, self.graph.dst, self.graph.num_nodes)

    def pull(self, v: Tensor) -> Tensor:
        """``Jᵀ v``, [R, k, N]."""
        along = mtv(self.edge, gather(v, self.graph.dst))
        return mtv(self.own, v) + scatter(along, self.graph.src, self.graph.num_nodes)

    @cached_property
    def blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks [R, k, k, M] of the distinct pairs of nodes, with their rows and columns [M]:
        parallel edges are one block, and a self-loop is part of the node's own."""
        number, rows, cols = _pairs(self.graph)
        both = torch.cat([self.own, self.edge], -1)
        return (
            scatter(both.flatten(1, 2), number, rows.numel()).view(*both.shape[:3], -1),
            rows,
            cols,
        )

    @property
    def columns(self) -> Tensor:
        """Sums of the absolute values of every column, [R, k, N]."""
        blocks, _, cols = self.blocks
        return scatter(blocks.abs().sum(1), cols, self.graph.num_nodes)

    @torch.no_grad()
    def contractivity(self, iterations: int = 500) -> Contractivity:
        """The three factors, after at most so many power iterations."""
        one_norm = self.graph.norm(self.columns)
        blocks = self.blocks[0]
        norms = torch.linalg.matrix_norm(blocks.permute(0, 3, 1, 2), 2)[:, None, None]
        rho = torch.minimum(self._perron(blocks.abs(), iterations), self._perron(norms, iterations))
        return Contractivity(torch.minimum(rho, one_norm), one_norm, self._two_norm(iterations))

    def _perron(self, matrix: Tensor, iterations: int, rtol: float = 1e-6) -> Tensor:
        """Upper bound [R, G] on the spectral radius of nonnegative blocks [R, c, c, M]."""
        _, rows, cols = self.blocks
        graph, n = self.graph, self.graph.num_nodes
        v = matrix.new_ones(matrix.size(0), matrix.size(1), n)
        least = torch.full_like(graph.norm(v), float("inf"))
        for _ in range(iterations):
            image = scatter(mv(matrix, gather(v, cols)), rows, n)
            ratio = image / v
            top = graph.norm(ratio)
            least = torch.minimum(least, top)
            # The smallest ratio is a lower bound where the graph is connected.
            if bool((top * graph.norm(1.0 / ratio) <= 1.0 + rtol).all()):
                break
            # Shifted by a multiple of the identity, which damps the oscillation on bipartite
            # graphs and leaves the eigenvectors; kept positive, so that every v gives a bound.
            v = image + 0.25 * graph.wide(top) * v
            v = (v / graph.wide(graph.norm(v))).clamp_min(1e-100)
            v = torch.where(torch.isfinite(v), v, 1.0)  # a graph without any influence: 0 / 0
        return least

    def _two_norm(self, iterations: int, rtol: float = 1e-6) -> Tensor:
        graph, shape = self.graph, (self.own.size(0), self.own.size(1), self.graph.num_nodes)
        random = torch.Generator().manual_seed(0)
        v = torch.randn(shape, generator=random, dtype=torch.float64).to(self.own)
        best = torch.zeros_like(graph.dot(v, v))
        for _ in range(iterations):
            v = v / graph.wide(graph.dot(v, v).sqrt().clamp_min(1e-300))
            image = self.push(v)
            size = graph.dot(image, image).sqrt()
            v = self.pull(image)
            done = bool((size <= best * (1.0 + rtol)).all())
            best = torch.maximum(best, size)
            if done:
                break
        return best


@kept
def _pairs(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """The number of the (receiver, sender) pair of every node with itself, then of every edge
    [N + E], and the two ends [M] of every pair."""
    nodes = torch.arange(graph.num_nodes, device=graph.src.device)
    keys = torch.cat([nodes, graph.dst]) * graph.num_nodes + torch.cat([nodes, graph.src])
    pairs, number = torch.unique(keys, return_inverse=True)
    return number, pairs // graph.num_nodes, pairs % graph.num_nodes
