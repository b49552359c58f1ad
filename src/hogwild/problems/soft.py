"""Soft energies on whole graphs, with gradient and Hessian in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, OneHopHessian
from hogwild.ops import scatter
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.soft import WIDTH, Soft, by_head, psi_curvature
from hogwild_node.tree import FIXED, SHARED, over


@dataclass
class SoftProblem(Objective):
    """Minimise a soft energy (:mod:`hogwild_node.soft`) on every graph and replica.

    Fields of the coupling are wide. In memory the channels of a node or an edge lie side by side,
    although they are the second to last dimension: a gather then copies whole rows.
    """

    graph: Graph = over(FIXED)
    local: Soft = over(SHARED)  # its own fields say what belongs to nodes and edges
    condition: float = over(FIXED)  # κ, the bound that the layer promises
    has_blocks = True

    @property
    def replicas(self) -> int:
        return int(self.local.anchor.shape[0])

    @property
    def channels(self) -> int:
        return int(self.local.anchor.shape[1])

    @property
    def node(self) -> Soft:
        return self.local

    def start(self) -> Tensor:
        """The anchor: the answer without edges."""
        start: Tensor = self.local.anchor.clone()  # a run may write into it
        return start

    def evaluate(self, h: Tensor) -> SoftEvaluation:
        return SoftEvaluation(self, h)

    def arguments(self, h: Tensor) -> Tensor:
        r""":math:`s_{ij} W h_i + t_{ij} V h_j`, [R, w, E]: products at nodes, then gathered."""
        p, graph = self.local, self.graph
        own = (h.mT @ p.receiver.mT).index_select(1, graph.dst).mT
        heard = (h.mT @ p.sender.mT).index_select(1, graph.src).mT
        return by_head(p.here, own) + by_head(p.there, heard)

    def back(self, slope: Tensor) -> Tensor:
        """The transpose of :meth:`arguments`: [R, w, E] -> [R, k, N]."""
        p, graph, (r, w, _) = self.local, self.graph, slope.shape
        zero = slope.new_zeros(r, graph.num_nodes, w)
        own = zero.index_add(1, graph.dst, by_head(p.here, slope).mT) @ p.receiver
        out = own + zero.index_add(1, graph.src, by_head(p.there, slope).mT) @ p.sender
        return out.mT

    def size_of(self, h: Tensor) -> Tensor:
        r""":math:`\beta \max |g| + L \max |h|`: the size of the terms that cancel in the gradient,
        [R, G]."""
        graph = self.graph
        return self.local.beta * graph.norm(self.local.anchor) + self.lipschitz() * graph.norm(h)

    def convexity(self) -> Tensor:
        shape = (self.replicas, self.graph.num_graphs)
        return self.local.anchor.new_full(shape, self.local.beta)

    def block_bounds(self) -> tuple[Tensor, Tensor]:
        # A block across an edge is WᵀDV with curvatures D of at most S, and its norm is at most the
        # root of ‖WᵀSW‖ ‖VᵀSV‖. (The norm of WᵀSV is no bound: the terms may cancel.)
        p, graph, n = self.local, self.graph, self.graph.num_nodes

        def norm(a: Tensor) -> Tensor:
            return torch.linalg.matrix_norm((p.steepest * a).mT @ a, 2)[:, None, None]

        here, there = norm(p.receiver), norm(p.sender)
        most = p.beta + torch.linalg.matrix_norm((p.inner_steepest * p.inner).mT @ p.inner, 2)

        def summed(own: Tensor, sent: Tensor) -> Tensor:
            """Over the edges of each node; of several heads the largest counts."""
            received = scatter(own, graph.dst, n).amax(1, keepdim=True)
            return here * received + there * scatter(sent, graph.src, n).amax(1, keepdim=True)

        own, sent = p.weight * p.here**2, p.weight * p.there**2
        apart = [torch.where(graph.src == graph.dst, 0.0, x) for x in (own, sent)]
        if p.weight.size(1) > 1:  # a product of two heads' factors is at most that of the largest
            apart = [x.amax(1, keepdim=True) for x in apart]
        return most[:, None, None] + 2.0 * summed(own, sent), summed(*apart)

    def lipschitz(self) -> Tensor:
        r""":math:`\beta + 4 \max_a v_a + \max_a u_a` (:mod:`hogwild.models.soft`), [R, G]."""
        most = self.local.beta + 4.0 * self.local.steepest.amax((1, 2))
        if self.local.inner.size(1):
            most = most + self.local.inner_steepest.amax((1, 2))
        return most.unsqueeze(1).expand(-1, self.graph.num_graphs)


@dataclass
class SoftEvaluation(Evaluation):
    """The energy at ``h``."""

    problem: SoftProblem
    h: Tensor  # [R, k, N]

    @cached_property
    def _z(self) -> Tensor:
        return self.problem.arguments(self.h) + self.problem.local.bias

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor]:
        """The energies of the nodes alone and of the edges at their receivers, [R, N] each."""
        p, graph = self.problem.local, self.problem.graph
        return p.alone(self.h), scatter(p.energies(self._z), graph.dst, graph.num_nodes)

    @property
    def value(self) -> Tensor:
        alone, coupled = self._terms
        return self.problem.graph.sum(alone + coupled)

    @property
    def noise(self) -> Tensor:
        # ψ is a difference of terms of at most this size.
        p, graph = self.problem.local, self.problem.graph
        size = by_head(p.weight, p.steepest * (self._z.square() + WIDTH**2)).sum(1)
        alone = 0.5 * p.beta * (self.h - p.anchor).square().sum(1)
        alone = alone + (p.inner_steepest * (p.inside(self.h).square() + WIDTH**2)).sum(1)
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * graph.sum(alone + scatter(size, graph.dst, graph.num_nodes))

    @cached_property
    def _slopes(self) -> Tensor:
        return self.problem.local.slopes(self._z)

    @cached_property
    def gradient(self) -> Tensor:
        return self.problem.local.alone_slope(self.h) + self.problem.back(self._slopes)

    @property
    def scale(self) -> Tensor:
        return self.problem.size_of(self.h)

    def hessian(self) -> SoftHessian:
        return SoftHessian(self.problem.graph, self.problem.detach(), self.h.detach())


@dataclass
class SoftHessian(Hessian):
    r""":math:`\beta I + U^\top \operatorname{diag}(\psi'') U
    + A^\top \operatorname{diag}(w \psi'') A`, A the map from embeddings to the arguments of
    edges."""

    graph: Graph
    problem: SoftProblem
    h: Tensor
    has_blocks = True

    @cached_property
    def curvatures(self) -> tuple[Tensor, Tensor]:
        """Along edges, [R, w, E], and of the node-local terms, [R, o, N]."""
        p = self.problem.local
        along = p.curvatures(self.problem.arguments(self.h) + p.bias)
        return along, psi_curvature(p.inside(self.h), p.inner_low, p.inner_high)

    def apply(self, v: Tensor) -> Tensor:
        p, u = self.problem, self.problem.local.inner
        along, bend = self.curvatures
        alone: Tensor = p.local.beta * v + u.mT @ (bend * (u @ v))
        return alone + p.back(along * p.arguments(v))

    def diagonal(self) -> None:
        """``None``: no preconditioner. The condition number is known and moderate, and k × k blocks
        of wide embeddings cost more than they save."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        graph, everyone = self.graph, self.graph.everyone
        model = self.problem.local.quadratic(self.h, everyone.current(self.h), everyone)
        own = model.b + scatter(model.c, graph.src, graph.num_nodes)
        return OneHopHessian(graph, model.j, model.x, model.u, own).blocks()
