"""The block structure of the Hessian of a one-hop energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hogwild.ops import scatter

if TYPE_CHECKING:
    from hogwild.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Pattern:
    r"""Where the Hessian of a sum of one-hop energies has off-diagonal blocks.

    :math:`e^i` couples i with every neighbour, which gives one block for each edge. It also couples
    every pair of neighbours, which gives one block for each *wedge*: two edges into the same node.
    A pair that names one node twice (a self-loop, a multi-edge) belongs to the diagonal.
    """

    left: Tensor  # [W] edge of each wedge
    right: Tensor  # [W] the other edge into the same node
    rows: Tensor  # [M] node of each off-diagonal block: receivers of edges, then wedge ends
    cols: Tensor  # [M] the other node; M ≤ E + W
    keep: Tensor | None  # positions in [E + W] of the M blocks; None: all
    loops: Tensor | None  # positions in [E + W] whose two nodes coincide; None: none
    loop_nodes: Tensor | None

    @classmethod
    def of(cls, graph: Graph) -> Pattern:
        order = torch.argsort(graph.dst, stable=True)
        ends = graph.in_degree.cumsum(0)[graph.dst[order]]
        here = torch.arange(graph.num_edges, device=order.device)
        count = ends - here - 1  # edges into the same node that come later
        first = torch.repeat_interleave(here, count)
        offset = torch.repeat_interleave(count.cumsum(0) - count, count)
        second = first + 1 + torch.arange(first.numel(), device=order.device) - offset
        left, right = order[first], order[second]
        rows = torch.cat([graph.dst, graph.src[left]])
        cols = torch.cat([graph.src, graph.src[right]])
        same = rows == cols
        if not bool(same.any()):
            return cls(left, right, rows, cols, None, None, None)
        keep, loops = (~same).nonzero()[:, 0], same.nonzero()[:, 0]
        return cls(left, right, rows[keep], cols[keep], keep, loops, rows[loops])

    def folded(self, diagonal: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks [R, k, k, N] of nodes and [R, k, k, M] of different nodes, from blocks
        [R, k, k, E + W] of all pairs: a pair that names one node twice adds B + Bᵀ to the diagonal
        block of the node."""
        if self.loops is None or self.loop_nodes is None:
            return diagonal, off
        loops = off[..., self.loops]
        twice = scatter(loops + loops.transpose(1, 2), self.loop_nodes, diagonal.size(-1))
        return diagonal + twice, off[..., self.keep]
