r"""Energies of your own, written as two functions:

.. math:: E(h) = \sum_i \psi_i(h_i) + \sum_{j \to i} \varphi_{ij}(h_i, h_j).

A subclass of :class:`Pairwise` says what a node costs and what an edge costs, in torch. Gradients,
Hessians and the quadratic models that nodes send to each other follow by automatic differentiation.
Each :math:`\psi_i` must be strongly convex, and each :math:`\varphi_{ij}` convex in both ends
together.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import OneHopHessian
from hogwild.ops import gather, scatter
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.local import LocalEnergy, LocalQuadratic
from hogwild_node.ops import Array
from hogwild_node.star import Star
from hogwild_node.tree import FIXED, arrays, over

Term = Callable[[Tensor], Tensor]
"""A function of embeddings [R, c, n] with one value for each column, [R, n]."""


def _leaf(x: Tensor) -> Tensor:
    """The same numbers, to differentiate with respect to."""
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def _slopes(term: Term, x: Tensor) -> Tensor:
    """The gradient of each column of a term, [R, c, n], with its own graph of derivatives."""
    with torch.enable_grad():
        x = x if x.requires_grad else _leaf(x)
        (g,) = torch.autograd.grad(term(x).sum(), x, create_graph=True, materialize_grads=True)
    return g


def _curvatures(term: Term, x: Tensor) -> Tensor:
    """The Hessian of each column of a term, [R, c, c, n], detached."""
    with torch.enable_grad():
        x = _leaf(x)
        (g,) = torch.autograd.grad(term(x).sum(), x, create_graph=True, materialize_grads=True)
        rows = [
            torch.autograd.grad(row.sum(), x, retain_graph=True, materialize_grads=True)[0]
            if row.requires_grad
            else torch.zeros_like(x)
            for row in g.unbind(1)
        ]
    return torch.stack(rows, 1)


@dataclass
class Pairwise(Objective):
    """A strongly convex energy of nodes and edges.

    A subclass is a dataclass. Its fields are the tensors that its functions read, each with
    :func:`~hogwild_node.tree.over`. The first of them is [R, k, N] or [R, k, E]: replicas, channels
    of an embedding, and nodes or edges.
    """

    graph: Graph = over(FIXED)
    has_blocks = True
    differences: ClassVar[bool] = False
    r"""Whether :math:`\varphi_{ij}` depends on :math:`h_i - h_j` only. Bounds on it are then
    sharper, and nodes need fewer updates."""

    @cached_property
    def _like(self) -> Tensor:
        """The first field [R, k, N] or [R, k, E], which gives R, k and the dtype."""
        return next(x for x, _ in arrays(self) if x.is_floating_point() and x.dim() == 3)

    @property
    def replicas(self) -> int:
        return self._like.size(0)

    @property
    def channels(self) -> int:
        return self._like.size(1)

    @abstractmethod
    def node_energy(self, h: Tensor) -> Tensor:
        r""":math:`\psi_i` of embeddings [R, k, A], as [R, A]. The fields hold the same A nodes."""

    @abstractmethod
    def edge_energy(self, receiver: Tensor, sender: Tensor) -> Tensor:
        r""":math:`\varphi_{ij}` of the embeddings at both ends of each edge, [R, k, E'] each, as
        [R, E']. The fields hold the same E' edges."""

    @property
    @abstractmethod
    def constants(self) -> tuple[float, float, float]:
        r"""(β, a, b) with :math:`\beta I \preceq \nabla^2 \psi_i \preceq a I` and
        :math:`0 \preceq \nabla^2 \varphi_{ij} \preceq b I`, everywhere."""

    # -- for solvers -------------------------------------------------------------------------------

    def _edge_term(self, both: Tensor) -> Tensor:
        k = self.channels
        return self.edge_energy(both[:, :k], both[:, k:])

    def evaluate(self, h: Tensor) -> _Evaluation:
        return _Evaluation(self, h)

    def convexity(self) -> Tensor:
        shape = (self.replicas, self.graph.num_graphs)
        return self.start().new_full(shape, self.constants[0])

    def block_bounds(self) -> tuple[Tensor, Tensor]:
        # The blocks off the diagonal of a matrix between 0 and b have norms of at most b / 2.
        (_, a, b), graph = self.constants, self.graph
        apart = (graph.src != graph.dst).to(self._like.dtype)
        one = torch.ones_like(apart)
        q = 0.5 * b * (graph.received(apart) + graph.sent(apart))
        r = a + b * (graph.received(one) + graph.sent(one))
        return r.expand(self.replicas, 1, -1), q.expand(self.replicas, 1, -1)

    @cached_property
    def node(self) -> _Local:
        return _Local(self)


@dataclass
class _Evaluation(Evaluation):
    problem: Pairwise
    h: Tensor  # [R, k, N]

    @cached_property
    def _given(self) -> tuple[Pairwise, Tensor]:
        """The problem and the point as autograd can use them: tensors of inference mode are
        copied."""
        if not self.h.is_inference() and not torch.is_inference_mode_enabled():
            return self.problem, self.h
        with torch.inference_mode(False):
            return self.problem.map(torch.clone), self.h.clone()

    @cached_property
    def _ends(self) -> Tensor:
        """The embeddings at both ends of every edge, [R, 2k, E]."""
        h, graph = self._given[1], self.problem.graph
        return torch.cat([gather(h, graph.dst), gather(h, graph.src)], 1)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor]:
        """The energies of nodes [R, N], and those of edges at their receivers [R, N]."""
        problem, h = self._given
        edges = problem._edge_term(self._ends)
        return problem.node_energy(h), scatter(edges, problem.graph.dst, h.size(-1))

    @property
    def value(self) -> Tensor:
        nodes, edges = self._terms
        return self.problem.graph.sum(nodes + edges)

    @property
    def noise(self) -> Tensor:
        nodes, edges = self._terms
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(nodes.abs() + edges.abs())

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor]:
        """The gradients of nodes [R, k, N] and of edges [R, 2k, E]."""
        with torch.inference_mode(False):
            problem, h = self._given
            found = _slopes(problem.node_energy, h), _slopes(problem._edge_term, self._ends)
        return found if torch.is_grad_enabled() else (found[0].detach(), found[1].detach())

    def _summed(self, nodes: Tensor, edges: Tensor) -> Tensor:
        graph, (k, n) = self.problem.graph, nodes.shape[1:]
        back = scatter(edges[:, :k], graph.dst, n) + scatter(edges[:, k:], graph.src, n)
        return nodes + back

    @property
    def gradient(self) -> Tensor:
        return self._summed(*self._pieces)

    @property
    def scale(self) -> Tensor:
        nodes, edges = self._pieces
        return self.problem.graph.norm(self._summed(nodes.abs(), edges.abs()))

    def hessian(self) -> OneHopHessian:
        with torch.inference_mode(False):
            problem, h = self._given
            problem, graph, (r, k, n) = problem.detach(), problem.graph, h.shape
            own = _curvatures(problem.node_energy, h)  # [R, k, k, N]
            edges = _curvatures(problem._edge_term, self._ends)  # [R, 2k, 2k, E]
            for block, end in ((edges[:, :k, :k], graph.dst), (edges[:, k:, k:], graph.src)):
                own = own + scatter(block, end, n)
            through, none = own.new_zeros(r, 0, k, graph.num_edges), own.new_zeros(r, 0, 0, n)
            return OneHopHessian(graph, through, edges[:, :k, k:], none, own)


@dataclass(frozen=True)
class _Local(LocalEnergy):
    """The energies as nodes compute them: a node has its own term and those of the edges into
    it."""

    problem: Pairwise = over(FIXED)
    pairwise = True

    def at(self, star: Star) -> _Local:
        return _Local(self.problem.at(star))

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        here, k = self.problem.at(at), h.shape[1]
        both = torch.cat([at.spread(h), inbox], 1)
        edges = _slopes(here._edge_term, both).detach()
        own = _slopes(here.node_energy, h).detach() + at.collect(edges[:, :k])
        return own, edges[:, k:]

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        here, (r, k) = self.problem.at(at), h.shape[:2]
        own, toward = self.local(h, inbox, at)
        nodes = _curvatures(here.node_energy, h)
        edges = _curvatures(here._edge_term, torch.cat([at.spread(h), inbox], 1))
        if majorise:
            _, a, b = here.constants
            nodes = torch.lerp(nodes, _identity(k, nodes) * a, majorise)
            bound = _identity(2 * k, edges) * b
            if here.differences:  # b/2 (d_i − d_j)² in place of b (d_i² + d_j²)
                swap = torch.eye(2 * k, dtype=edges.dtype, device=edges.device).roll(k, 0)
                bound = 0.5 * (bound - b * swap[None, :, :, None])
            edges = torch.lerp(edges, bound, majorise)
        uncoupled = h.new_zeros(r, 0, k, at.degree), h.new_zeros(r, 0, 0, at.size)
        return LocalQuadratic(
            own, toward, nodes + at.collect(edges[:, :k, :k]), edges[:, :k, k:], edges[:, k:, k:],
            *uncoupled, at,
        )  # fmt: skip

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        # An entry of a symmetric matrix of size m whose largest eigenvalue is b has a row sum of at
        # most √m b.
        (_, a, b), like = self.problem.constants, self.problem._like
        r, k = like.shape[:2]
        edge = math.sqrt(2 * k) * b
        own = math.sqrt(k) * a + edge * at.collect(like.new_ones(at.degree))
        return own.expand(r, k, -1), like.new_full((r, k, at.degree), edge)


def _identity(size: int, like: Tensor) -> Tensor:
    """The identity for every column, [1, size, size, 1] expanded to ``like``."""
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye[None, :, :, None].expand_as(like)
