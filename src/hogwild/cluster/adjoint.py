r"""The adjoint of a problem, as a problem of the same structure.

The parts of a graph solve the adjoint by the same iteration as the problem itself: the adjoint of
an energy is the quadratic energy with its Hessian, and the adjoint of a map is the affine map with
its transposed Jacobian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild.problems.base import Evaluation, FixedPoint, Objective, Problem
from hogwild_node.local import LocalEnergy
from hogwild_node.tree import FIXED, NODES, SHARED, over


@dataclass
class _LinearEvaluation(Evaluation):
    problem: LinearObjective
    h: Tensor

    def __post_init__(self) -> None:
        self.image = self.problem.matrix.apply(self.h)

    @property
    def value(self) -> Tensor:
        p = self.problem
        return p.graph.dot(0.5 * self.image - p.rhs, self.h)

    @property
    def noise(self) -> Tensor:
        p, eps = self.problem, 64.0 * torch.finfo(self.h.dtype).eps
        return eps * p.graph.sum((self.h * self.image).abs().sum(1))

    @property
    def gradient(self) -> Tensor:
        return self.image - self.problem.rhs

    @property
    def scale(self) -> Tensor:
        return self.problem.graph.norm(self.image) + self.problem.graph.norm(self.problem.rhs)

    def hessian(self) -> Hessian:
        return self.problem.matrix


class _Adjoint(Problem):
    """What both adjoints share."""

    rhs: Tensor  # [R, k, N]

    @property
    def replicas(self) -> int:
        return self.rhs.size(0)

    @property
    def channels(self) -> int:
        return self.rhs.size(1)

    def select(self, replicas: Tensor, graphs: Tensor) -> Any:
        raise NotImplementedError("the adjoint of all replicas is solved together")


@dataclass
class LinearObjective(_Adjoint, Objective):
    r"""Minimise :math:`\tfrac12 \lambda^\top H \lambda - c^\top \lambda`: the adjoint
    :math:`H \lambda = c` of an energy with the Hessian H."""

    graph: Graph = over(FIXED)
    matrix: Hessian = over(FIXED)  # H
    rhs: Tensor = over(NODES)  # [R, k, N] c
    strong: Tensor = over(SHARED)  # [R, G] a lower bound on the eigenvalues of H
    is_attractive: bool = over(FIXED, False)
    is_quadratic = True

    @property
    def has_blocks(self) -> bool:
        return self.matrix.has_blocks

    @property
    def node(self) -> LocalEnergy:
        raise NotImplementedError("an adjoint is solved, and has no rule of a node")

    def evaluate(self, h: Tensor) -> _LinearEvaluation:
        return _LinearEvaluation(self, h)

    def convexity(self) -> Tensor:
        return self.strong

    def row_bounds(self) -> Tensor:
        raise NotImplementedError("an adjoint has no certificate")


@dataclass
class _Transposed(Tangent):
    graph: Graph
    inner: Tangent

    def apply(self, v: Tensor) -> Tensor:
        return self.inner.transpose(v)

    def transpose(self, v: Tensor) -> Tensor:
        return self.inner.apply(v)


@dataclass
class LinearMap(_Adjoint, FixedPoint):
    r"""The fixed point of :math:`\nu \mapsto J^\top \nu + c`: the adjoint
    :math:`(I - J)^\top \nu = c` of a map with the Jacobian J."""

    graph: Graph = over(FIXED)
    tangent: Tangent = over(FIXED)  # I − J
    rhs: Tensor = over(NODES)  # [R, k, N] c

    def step(self, h: Tensor) -> Tensor:
        return h - self.tangent.transpose(h) + self.rhs

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        return v - self.tangent.apply(v)

    def linearise(self, h: Tensor) -> _Transposed:
        return _Transposed(self.graph, self.tangent)


def adjoint_of(problem: Problem, h: Tensor, grad: Tensor) -> Problem:
    r"""The adjoint of a problem at its solution ``h``, for the gradient ``grad`` of a loss in h,
    [R, k, N] each.

    The cotangent of the residual is :math:`-\lambda` for an energy and :math:`\nu` for a map.
    """
    if isinstance(problem, Objective):
        matrix = problem.evaluate(h).hessian()
        attractive = problem.is_attractive
        return LinearObjective(problem.graph, matrix, grad, problem.convexity(), attractive)
    assert isinstance(problem, FixedPoint)
    return LinearMap(problem.graph, problem.linearise(h), grad)
