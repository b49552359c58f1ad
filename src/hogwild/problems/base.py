r"""Base classes of problems.

A *problem* is a batch of independent problems, one for each replica r and graph g, stacked along
the node dimension. Every vector is ``[R, k, N]``, and every number per problem is ``[R, G]``. An
:class:`Objective` is minimised. A :class:`FixedPoint` is the fixed point of a map.

A :class:`Problem` is read by solvers, and by the nodes of a network, which solve it themselves. It
also has the interface of :class:`CertifiedObjective` or :class:`CertifiedMap` for certificates,
which need bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild.ops import scatter
from hogwild_node.local import LocalEnergy, LocalMap
from hogwild_node.ops import Array
from hogwild_node.tree import EDGES, NODES, OnGraph, arrays


class Evaluation(ABC):
    """The value and derivatives of an objective at one point, computed on demand."""

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """The value, [R, G]."""

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """The rounding error of the value, [R, G]; a line search ignores smaller differences."""

    @property
    @abstractmethod
    def gradient(self) -> Tensor:
        """The gradient, [R, k, N]."""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """The size of the terms that cancel in the gradient, [R, G], for relative tolerances."""

    @abstractmethod
    def hessian(self) -> Hessian:
        """The Hessian, detached from autograd."""

    def secant(self, reach: Tensor) -> Hessian:
        """A positive definite map whose curvature bounds the growth of the objective up to the
        distance ``reach`` [R, G]. For a reach of zero it is the Hessian.

        The default is the Hessian for any reach, which is exact for quadratic objectives.
        """
        return self.hessian()


class Problem(OnGraph, ABC):
    """Independent problems on R replicas × G graphs, which a solver or the nodes of a network can
    solve.

    A subclass is a dataclass. Its fields declare what the last dimension of their tensors counts
    (:func:`hogwild_node.tree.over`), which defines :meth:`detach` and :meth:`select`.
    """

    graph: Graph
    widths: tuple[int, int] | None = None
    """How many numbers describe a node and an edge, where the model that built the problem says."""

    @property
    @abstractmethod
    def replicas(self) -> int:
        """R, the number of replicas."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """k, the width of an embedding."""

    @property
    @abstractmethod
    def node(self) -> LocalEnergy | LocalMap:
        """The problem as nodes compute it, from what they heard."""

    @property
    def has_blocks(self) -> bool:
        """Whether the Hessians of an objective couple only pairs of nodes in ``graph.pattern``, or
        the tangents of a map have blocks."""
        return False

    @abstractmethod
    def step(self, h: Tensor) -> Tensor:
        r"""The problem's fixed-point map :math:`F(h)`, whose fixed point is the solution."""

    @abstractmethod
    def residual(self, h: Tensor) -> Tensor:
        """A function [R, k, N] that is zero at the solution, differentiable in ``h`` and in all
        tensors of the problem."""

    @abstractmethod
    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the residual at ``h``, given ``image`` = F(h)."""

    @abstractmethod
    def size(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the terms that cancel in the residual at ``h``."""

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        """The problem on some replicas and graphs (sorted indices), and its nodes' indices."""
        graph, nodes, edges = self.graph, None, None
        if graphs.numel() < graph.num_graphs:
            graph, nodes, edges = graph.select(graphs)
        some = None if replicas.numel() == self.replicas else replicas
        sub = self.cut(self.replicas, some, nodes, edges)  # a copy
        sub.graph = graph
        if nodes is None:
            nodes = torch.arange(graph.num_nodes, device=graph.batch.device)
        return sub, nodes

    def map(self, fn: Callable[[Array], Array]) -> Self:
        return self._described(super().map(fn))

    def cut(
        self, count: int, replicas: Array | None, nodes: Array | None, edges: Array | None
    ) -> Self:
        return self._described(super().cut(count, replicas, nodes, edges))

    def _described(self, copy: Self) -> Self:
        """A copy, with the widths that the model says."""
        if self.widths is not None:
            copy.widths = self.widths
        return copy

    def detach(self) -> Self:
        """The same problem, detached from autograd."""
        return self.map(Tensor.detach)

    @property
    def sources(self) -> tuple[Tensor | None, ...]:
        """The tensors of which a solution has gradients."""
        return tuple(x for x, _ in arrays(self) if x.requires_grad)

    def gathered(self, graph: Graph, nodes: Tensor, edges: Tensor) -> Self:
        """Copies of some nodes and edges as a problem on another graph, with the constants of the
        whole graph.

        Args:
            graph: The other graph, of n nodes and e edges.
            nodes: Of which node each node there is a copy, [n].
            edges: Of which edge each edge there is a copy, [e].
        """
        kind = type(self)
        if kind.select is not Problem.select and kind.gathered is Problem.gathered:
            raise AsynchronyError(
                f"a {kind.__name__} has a select() of its own and no gathered(), so that its "
                f"pieces are not known; expected both, or another rule than 'balls'"
            )
        out = self.cut(self.replicas, None, nodes, edges)
        out.graph = graph
        return out

    @property
    def numbers_per_node_and_edge(self) -> tuple[int, int]:
        """How many numbers describe a node and an edge to somebody who knows the model; by default
        those that the problem holds of one replica."""
        if self.widths is not None:
            return self.widths
        every = list(arrays(self))
        width = {
            what: sum(_numbers(x, self.replicas) for x, over in every if over == what)
            for what in (NODES, EDGES)
        }
        return width[NODES], width[EDGES]

    def start(self) -> Tensor:
        """The starting point of solves and of asynchronous runs, [R, k, N]; zero by default."""
        like = next(x for x, _ in arrays(self) if x.is_floating_point())
        return torch.zeros(
            self.replicas, self.channels, self.graph.num_nodes, dtype=like.dtype, device=like.device
        )


def _numbers(x: Tensor, replicas: int) -> int:
    """Numbers of an array [..., n] for each of the n, for one replica."""
    shape = x.shape[:-1]
    shared = x.ndim < 2 or x.shape[0] == 1
    return math.prod(shape) // (1 if shared else replicas)


class CertifiedObjective(ABC):
    """The interface for certificates of an energy: bounds that hold at every point."""

    graph: Graph

    @abstractmethod
    def convexity(self) -> Tensor:
        """A lower bound [R, G] on the smallest eigenvalue of the Hessian."""

    @abstractmethod
    def row_bounds(self) -> Tensor:
        r"""Bounds [R, k, N] on the absolute row sums of the Hessian, entry by entry:
        :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`."""

    def block_bounds(self) -> tuple[Tensor, Tensor]:
        r"""Of a pairwise energy, the r and the q of the theorem on one hop, [R, 1 or k, N] each:
        :math:`\nabla^2 E \preceq \operatorname{diag}(r)` everywhere, and with bounds on the norms
        of the blocks between different nodes, :math:`Q_{ij} \ge \sum_e \sup_h \|\nabla^2_{ij}
        \varphi_e\|_2`, the matrix :math:`\operatorname{diag}(q)^{-1/2} Q
        \operatorname{diag}(q)^{-1/2}` has a spectral norm of at most one. The default are the row
        sums of entries."""
        rows = self.row_bounds()
        return rows, rows

    def weights(self) -> Tensor | None:
        """The weights v > 0 [N] of an energy that is
        :attr:`~hogwild_node.local.LocalEnergy.dominated`; ``None`` for others."""
        return None

    def lipschitz(self) -> Tensor:
        """An upper bound [R, G] on the largest eigenvalue of the Hessian."""
        return self.graph.norm(self.row_bounds())


class CertifiedMap:
    """The interface for certificates of a fixed-point map; by default nothing is proved."""

    monotone: bool = False
    r"""Whether :math:`h \le h'` implies :math:`F(h) \le F(h')`, and a value decreases along every
    cycle of the graph. Asynchronous updates then reach the unique fixed point in finite time, even
    if F does not contract."""

    def modulus(self) -> Tensor | None:
        r"""A proved bound [R, G] on the contraction modulus of F in a weighted block-maximum norm
        :math:`\max_i \|h_i\| / v_i`, v > 0; ``None`` if nothing is proved.

        A bound below one guarantees convergence to the unique fixed point for *any* order of
        updates and any bounded delays. A contraction in another norm, such as the Euclidean norm,
        does not.
        """
        return None

    def weights(self) -> Tensor | None:
        """The weights v > 0 [N] of the norm of :meth:`modulus`; ``None`` if nothing is proved."""
        return None

    def lengths(self, x: Tensor) -> Tensor:
        """The norm of each node's embedding in the norm of :meth:`modulus`, [R, k, N] -> [R, N]; by
        default the largest entry."""
        return x.abs().amax(1)

    def displacement(self, error: float) -> Tensor | None:
        """A proved bound [R, G] on the largest entry of the final distance to the fixed point, if
        every number heard is wrong by at most ``error``; infinite if there is no bound, ``None`` if
        nothing is proved."""
        return None


class Objective(Problem, CertifiedObjective):
    """The problem of minimising a strongly convex function on each graph."""

    condition: float | None = None
    """A bound on the condition number that holds for every graph, if it is known without a look at
    the tensors."""

    @property
    def is_quadratic(self) -> bool:
        """Whether the Hessian is the same at every point."""
        return False

    @property
    def is_attractive(self) -> bool:
        """Whether the Hessian has no positive entry off its diagonal. Parts of a graph that solve
        for themselves then converge in any order and with any bounded delays."""
        return False

    @property
    @abstractmethod
    def node(self) -> LocalEnergy:
        """The energy as nodes compute it, from what they heard.

        Raises:
            AsynchronyError: The energy of a node depends on nodes more than one hop away.
        """

    @abstractmethod
    def evaluate(self, h: Tensor) -> Evaluation:
        """The energy at ``h`` [R, k, N]."""

    @torch.no_grad()
    def row_bounds(self) -> Tensor:
        graph = self.graph
        own, toward = self.node.row_bounds(graph.everyone)
        rows: Tensor = own + scatter(toward, graph.src, graph.num_nodes)
        return rows

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`\nabla E(h)`."""
        return self.evaluate(h).gradient

    @cached_property
    def _bound(self) -> Tensor:
        return self.lipschitz()

    def step(self, h: Tensor) -> Tensor:
        r"""Gradient step :math:`h - \nabla E(h) / K` with the global bound K."""
        return h - self.evaluate(h).gradient / self.graph.wide(self._bound)

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self._bound * self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.evaluate(h).scale


class FixedPoint(Problem, CertifiedMap):
    r"""The problem of finding :math:`h = F(h)` on each graph."""

    @property
    def node(self) -> LocalMap:
        """The map as nodes apply it. A problem that is a ``LocalMap`` itself is its own."""
        assert isinstance(self, LocalMap)
        return self

    def step(self, h: Tensor) -> Tensor:
        everyone = self.graph.everyone
        moved: Tensor = self.node.update(h, everyone.current(h), everyone)
        return moved

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`F(h) - h`."""
        return self.step(h) - h

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image) + self.graph.norm(h)

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        r""":math:`(\partial F / \partial h)^\top v`, for the adjoint. The default uses autograd."""
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            (out,) = torch.autograd.grad(self.step(h), h, v, materialize_grads=True)
        return out

    def adjoint(self, h: Tensor, grad: Tensor) -> Tensor | None:
        r"""The solution :math:`\lambda` of :math:`(\partial F / \partial h - I)^\top \lambda` =
        ``grad`` in closed form; ``None`` if a Krylov method has to compute it."""
        return None

    def linearise(self, h: Tensor) -> Tangent:
        r""":math:`I - \partial F / \partial h`. The default uses autograd."""
        return _AutogradTangent(self.graph, self, h)


@dataclass
class _AutogradTangent(Tangent):
    graph: Graph
    problem: FixedPoint
    h: Tensor

    def apply(self, v: Tensor) -> Tensor:
        # J v as the derivative of u ↦ ⟨Jᵀu, v⟩, which is linear in u.
        with torch.enable_grad():
            h = self.h.detach().requires_grad_()
            u = torch.zeros_like(v, requires_grad=True)
            (pulled,) = torch.autograd.grad(
                self.problem.step(h), h, u, create_graph=True, materialize_grads=True
            )
            if not pulled.requires_grad:  # F does not depend on h
                return v
            (out,) = torch.autograd.grad(pulled, u, v, materialize_grads=True)
        return v - out

    def transpose(self, v: Tensor) -> Tensor:
        return v - self.problem.pullback(self.h, v)
