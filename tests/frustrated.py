r"""Quadratic energies on which messages without a safeguard diverge.

.. math:: e^i = \tfrac12 \Bigl(\sum_{l \in N(i) \cup \{i\}} v_{il} h_l\Bigr)^2
              + \tfrac12 \epsilon h_i^2 - b_i h_i

in one channel. Signs of v that contradict each other around cycles make the energy *frustrated*.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.problems.base import Objective
from hogwild_node.local import LocalEnergy, LocalQuadratic
from hogwild_node.tree import FIXED, NODES, SHARED, over


def complete(n: int) -> Graph:
    """The complete graph."""
    pairs = torch.tensor([(j, i) for i in range(n) for j in range(n) if i != j]).T
    return Graph.of(pairs.contiguous(), n, torch.zeros(n, dtype=torch.long))


@dataclass
class Frustrated(Objective):
    """The energies of this file. ``v`` [N, N] has the row of node i at i."""

    graph: Graph = over(FIXED)
    v: Tensor = over(SHARED)
    b: Tensor = over(NODES)  # [1, 1, N]
    epsilon: float = over(FIXED)
    has_blocks = True
    is_quadratic = True

    @property
    def replicas(self) -> int:
        return 1

    @property
    def channels(self) -> int:
        return 1

    @property
    def matrix(self) -> Tensor:
        """The Hessian, [N, N]."""
        return self.v.mT @ self.v + self.epsilon * torch.eye(len(self.v)).to(self.v)

    def answer(self) -> Tensor:
        return torch.linalg.solve(self.matrix, self.b[0, 0])[None, None]

    def evaluate(self, h):
        raise NotImplementedError("nodes only")

    @property
    def node(self) -> LocalEnergy:
        return _Node(self)

    def convexity(self) -> Tensor:
        return torch.linalg.eigvalsh(self.matrix)[:1][None]

    def row_bounds(self) -> Tensor:
        most = self.v.abs()
        return (most.mT @ most.sum(1) + self.epsilon)[None, None]


@dataclass
class _Node(LocalEnergy):
    problem: Frustrated

    def _sums(self, h, inbox, at):
        p = self.problem
        nodes = torch.arange(p.graph.num_nodes) if at.nodes is None else at.nodes
        edges = torch.arange(p.graph.num_edges) if at.edges is None else at.edges
        own = p.v[nodes, nodes]
        near = p.v[p.graph.dst[edges], p.graph.src[edges]]
        return own, near, own * h + at.collect(near * inbox)

    def local(self, h, inbox, at):
        p, (own, near, z) = self.problem, self._sums(h, inbox, at)
        return own * z + p.epsilon * h - at.at_nodes(p.b), near * at.spread(z)

    def quadratic(self, h, inbox, at, majorise=0.0):
        own, near, _ = self._sums(h, inbox, at)
        gradient, toward = self.local(h, inbox, at)
        b = (own**2 + self.problem.epsilon)[None, None, None]
        x, j = (at.spread(own) * near)[None, None, None], near[None, None, None]
        c = torch.full_like(j, 1e-9)
        return LocalQuadratic(gradient, toward, b, x, c, j, torch.ones_like(b), at)

    def row_bounds(self, at):
        zero = torch.zeros(1, 1, at.size).to(self.problem.v)
        inbox = torch.zeros(1, 1, at.degree).to(zero)
        return self.quadratic(zero, inbox, at).row_sums()
