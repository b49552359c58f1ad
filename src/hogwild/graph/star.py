"""Some nodes with the edges into them: what a node's rule may look at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hogwild.fields import scatter


@dataclass(frozen=True, eq=False)
class Star:
    """Some nodes with the edges into them: all that a node's rule may look at.

    A rule is written over the nodes' own values [..., A] and an *inbox*, one value for each edge
    [..., E']: what the receiver last heard from the sender. It reads the features of its nodes and
    edges through :meth:`at_nodes` and :meth:`at_edges`, and nothing else.
    """

    size: int  # A, the number of nodes
    slot: Tensor  # [E'] position among the nodes of each edge's receiver
    nodes: Tensor | None = None  # [A] the nodes; None: all, in order
    edges: Tensor | None = None  # [E'] the edges; None: all, in order

    def at_nodes(self, x: Tensor) -> Tensor:
        """Per-node values of the whole graph at these nodes: [..., N] -> [..., A]."""
        return x if self.nodes is None else x[..., self.nodes]

    def at_edges(self, x: Tensor) -> Tensor:
        """Per-edge values of the whole graph at these edges: [..., E] -> [..., E']."""
        return x if self.edges is None else x[..., self.edges]

    def collect(self, x: Tensor) -> Tensor:
        """Sum over the edges into each node: [..., E'] -> [..., A]."""
        return scatter(x, self.slot, self.size)

    def part(self, some: Tensor) -> tuple[Star, Tensor]:
        """The star of some of these nodes (a mask [A]), and which of the edges are its own [E']."""
        keep = some[self.slot]
        slot = (some.cumsum(0) - 1)[self.slot[keep]]
        nodes = some.nonzero()[:, 0] if self.nodes is None else self.nodes[some]
        edges = keep.nonzero()[:, 0] if self.edges is None else self.edges[keep]
        return Star(nodes.numel(), slot, nodes, edges), keep
