r"""A problem in which some nodes are pinned: they stay where they are while others are solved for.

A part of a graph holds its *owned* nodes A and a *halo* B, the nodes of other parts that the owned
nodes depend on; a node of a network holds its ball A and the rim B of the ball
(:mod:`hogwild.rules.balls`). For the embeddings :math:`h_B` as last received they solve

.. math:: \min_{h_A} E(h_A, h_B) \qquad \text{or} \qquad h_A = F_A(h_A, h_B).

Both are problems on all nodes at hand, in which those of B do not move. With P the projection on
the nodes of A, their gradient is :math:`P \nabla E`, their Hessian :math:`P \nabla^2 E P + (I -
P)`, and their map :math:`P F(h) + (I - P) h_B`. Every solver of the library solves them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild.problems.base import Evaluation, FixedPoint, Objective, Problem
from hogwild_node.local import LocalEnergy
from hogwild_node.tree import FIXED, NODES, SHARED, over


def pinned(problem: Problem, free: Tensor, h: Tensor) -> Problem:
    """The problem in which only the nodes in ``free``, a mask [N], move; the others stay at ``h``
    [R, k, N]."""
    if isinstance(problem, Objective):
        return PinnedObjective(problem.graph, problem, free)
    assert isinstance(problem, FixedPoint)
    return PinnedMap(problem.graph, problem, free, h)


def _identity(like: Tensor) -> Tensor:
    """Identity blocks, [1, k, k, 1]."""
    return torch.eye(like.size(1), dtype=like.dtype, device=like.device)[None, :, :, None]


@dataclass
class PinnedHessian(Hessian):
    r""":math:`P H P + (I - P)`."""

    graph: Graph
    inner: Hessian
    free: Tensor  # [N] whether a node moves

    @property
    def has_blocks(self) -> bool:
        return self.inner.has_blocks

    def apply(self, v: Tensor) -> Tensor:
        return torch.where(self.free, self.inner.apply(torch.where(self.free, v, 0.0)), v)

    def diagonal(self) -> Tensor | None:
        found = self.inner.diagonal()
        return None if found is None else torch.where(self.free, found, _identity(found))

    def blocks(self) -> tuple[Tensor, Tensor]:
        diagonal, off = self.inner.blocks()
        pattern = self.graph.pattern
        both = self.free[pattern.rows] & self.free[pattern.cols]
        return torch.where(self.free, diagonal, _identity(diagonal)), torch.where(both, off, 0.0)


@dataclass
class PinnedEvaluation(Evaluation):
    """An energy at one point, of which the gradient at pinned nodes is zero."""

    inner: Evaluation
    free: Tensor  # [N]

    @property
    def value(self) -> Tensor:
        return self.inner.value

    @property
    def noise(self) -> Tensor:
        return self.inner.noise

    @property
    def gradient(self) -> Tensor:
        return torch.where(self.free, self.inner.gradient, 0.0)

    @property
    def scale(self) -> Tensor:
        return self.inner.scale

    def hessian(self) -> PinnedHessian:
        return self._pin(self.inner.hessian())

    def secant(self, reach: Tensor) -> PinnedHessian:
        return self._pin(self.inner.secant(reach))

    def _pin(self, hessian: Hessian) -> PinnedHessian:
        return PinnedHessian(hessian.graph, hessian, self.free)


class _Pinned(Problem):
    """What a problem keeps when some of its nodes are pinned."""

    inner: Problem

    @property
    def has_blocks(self) -> bool:
        return self.inner.has_blocks

    @property
    def replicas(self) -> int:
        return self.inner.replicas

    @property
    def channels(self) -> int:
        return self.inner.channels


@dataclass
class PinnedObjective(_Pinned, Objective):
    """Minimise an energy over some nodes."""

    graph: Graph = over(FIXED)
    inner: Objective = over(SHARED)
    free: Tensor = over(NODES)  # [N] whether a node moves

    @property
    def is_quadratic(self) -> bool:
        return self.inner.is_quadratic

    @property
    def node(self) -> LocalEnergy:
        return self.inner.node

    def evaluate(self, h: Tensor) -> PinnedEvaluation:
        return PinnedEvaluation(self.inner.evaluate(h), self.free)

    def convexity(self) -> Tensor:
        return self.inner.convexity()

    def row_bounds(self) -> Tensor:
        return self.inner.row_bounds()

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[PinnedObjective, Tensor]:
        inner, nodes = self.inner.select(replicas, graphs)
        return PinnedObjective(inner.graph, inner, self.free[nodes]), nodes


@dataclass
class PinnedTangent(Tangent):
    r""":math:`P (I - J) + (I - P)`."""

    graph: Graph
    inner: Tangent
    free: Tensor  # [N]

    @property
    def has_blocks(self) -> bool:
        return self.inner.has_blocks

    def apply(self, v: Tensor) -> Tensor:
        return torch.where(self.free, self.inner.apply(v), v)

    def transpose(self, v: Tensor) -> Tensor:
        return self.inner.transpose(torch.where(self.free, v, 0.0)) + torch.where(self.free, 0.0, v)

    def blocks(self) -> tuple[Tensor, Tensor]:
        own, edge = self.inner.blocks()
        there = self.free[self.graph.dst]
        return torch.where(self.free, own, _identity(own)), torch.where(there, edge, 0.0)


@dataclass
class PinnedMap(_Pinned, FixedPoint):
    """Find the fixed point of some rows of a map."""

    graph: Graph = over(FIXED)
    inner: FixedPoint = over(SHARED)
    free: Tensor = over(NODES)  # [N] whether a node moves
    held: Tensor = over(NODES)  # [R, k, N] the embeddings of the others

    def step(self, h: Tensor) -> Tensor:
        return torch.where(self.free, self.inner.step(h), self.held)

    def linearise(self, h: Tensor) -> PinnedTangent:
        return PinnedTangent(self.graph, self.inner.linearise(h), self.free)

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[PinnedMap, Tensor]:
        inner, nodes = self.inner.select(replicas, graphs)
        held = self.held[replicas][..., nodes]
        return PinnedMap(inner.graph, inner, self.free[nodes], held), nodes
