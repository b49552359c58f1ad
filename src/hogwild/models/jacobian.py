r"""The Jacobian of a map on a graph, block by block, and how much the map contracts at one point.

Asynchronous updates converge if the map contracts in a *weighted block-maximum norm*
:math:`\max_i \|h_i\|_i`, with any norm on each node's embedding. A contraction in another norm is
not enough: 0.98 times a rotation by 2.25 radians of two scalar nodes contracts in the 2-norm, and
diverges if the nodes update in turns. Two sufficient conditions on the linearised map are that a
nonnegative matrix M has spectral radius :math:`\rho(M) < 1`, where M is

* :math:`|J|`, entry by entry, with a weighted maximum norm on each embedding; or
* :math:`N_{ij} = \|\partial F_i / \partial h_j\|_2`, block by block, with a multiple of the 2-norm.

For any positive weights v the contraction factor in that norm is at most

.. math:: \max_i (M v)_i / v_i \ge \rho(M)

(Collatz & Wielandt), and power iteration on v lowers this bound to :math:`\rho(M)`. Since
:math:`\rho(|J|) \le \|J\|_1`, a 1-norm below one is also sufficient; a 2-norm below one is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph, kept
from hogwild.ops import distinct, gather, mtv, mv, scatter


@dataclass(frozen=True)
class Contractivity:
    r"""How much a map contracts *near one point*, graph by graph, [R, G] each.

    The numbers describe the linearised map. Away from the point the map may expand, and a run that
    starts far away may end elsewhere.

    Attributes:
        rho: The smaller of two upper bounds, on :math:`\rho(|J|)` and on the spectral radius of the
            matrix of block norms. If it is below 1 at a fixed point, updates that start near enough
            converge to the fixed point in any order and with any bounded delays.
        one_norm: The largest column sum of absolute values, exact. Scarselli's penalty uses it.
        two_norm: The largest singular value, estimated from below.
    """

    rho: Tensor
    one_norm: Tensor
    two_norm: Tensor

    @property
    def asynchronous(self) -> Tensor:
        """Whether asynchronous updates near the point return to it, if it is a fixed point."""
        return self.rho < 1.0


@dataclass
class Jacobian:
    r"""One k × k block for every node and edge, with receivers as rows and senders as columns."""

    graph: Graph
    own: Tensor  # [R, k, k, N] ∂F_i / ∂h_i without self-loops
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
        """Blocks [R, k, k, M] of the distinct pairs of nodes, with their rows and columns [M].
        Parallel edges share a block, and a self-loop is part of the block of its node."""
        number, rows, cols = _pairs(self.graph)
        both = torch.cat([self.own, self.edge], -1)
        return scatter(both, number, rows.numel()), rows, cols

    @property
    def columns(self) -> Tensor:
        """Sums of the absolute values of every column, [R, k, N]."""
        blocks, _, cols = self.blocks
        return scatter(blocks.abs().sum(1), cols, self.graph.num_nodes)

    @torch.no_grad()
    def contractivity(self, iterations: int = 500) -> Contractivity:
        """The three contraction factors, from at most this many power iterations."""
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
            # On a connected graph the smallest ratio is a lower bound.
            if bool((top * graph.norm(1.0 / ratio) <= 1.0 + rtol).all()):
                break
            # A shift by a multiple of the identity damps the oscillation on bipartite graphs and
            # keeps the eigenvectors. v stays positive, so that every v gives a bound.
            v = image + 0.25 * graph.wide(top) * v
            v = (v / graph.wide(graph.norm(v))).clamp_min(1e-100)
            v = torch.where(torch.isfinite(v), v, 1.0)  # 0 / 0 on a graph whose Jacobian is zero
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
    """The distinct (receiver, sender) pairs. Returns the index of the pair of every node with
    itself, then of every edge, [N + E], and the two ends of every pair, [M] each."""
    nodes = torch.arange(graph.num_nodes, device=graph.src.device)
    rows, cols = torch.cat([nodes, graph.dst]), torch.cat([nodes, graph.src])
    return distinct(rows, cols, graph.num_nodes)
