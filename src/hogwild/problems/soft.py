"""Soft energies on whole graphs, with gradient and Hessian in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian
from hogwild.ops import scatter
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.soft import WIDTH, Soft
from hogwild_node.tree import FIXED, SHARED, over


@dataclass
class SoftProblem(Objective):
    """Minimise a soft energy (:mod:`hogwild_node.soft`) on every graph and replica.

    Fields of the coupling are wide. In memory the channels of a node or an edge lie side by side,
    although they are the second to last dimension: a gather then copies whole rows.
    """

    graph: Graph = over(FIXED)
    local: Soft = over(SHARED)  # its own fields say what belongs to nodes and edges
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

    @property
    def signature(self) -> tuple[object, ...]:
        return (self.replicas, self.channels, self.local.beta)

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
        out: Tensor = p.here * own + p.there * heard
        return out

    def back(self, slope: Tensor) -> Tensor:
        """The transpose of :meth:`arguments`: [R, w, E] -> [R, k, N]."""
        p, graph, (r, w, _) = self.local, self.graph, slope.shape
        zero = slope.new_zeros(r, graph.num_nodes, w)
        own = zero.index_add(1, graph.dst, (p.here * slope).mT) @ p.receiver
        out: Tensor = own + zero.index_add(1, graph.src, (p.there * slope).mT) @ p.sender
        return out.mT

    def convexity(self) -> Tensor:
        shape = (self.replicas, self.graph.num_graphs)
        return self.local.anchor.new_full(shape, self.local.beta)

    def row_bounds(self) -> Tensor:
        own, toward = self.local.row_bounds(self.graph.everyone)
        rows: Tensor = own + scatter(toward, self.graph.src, self.graph.num_nodes)
        return rows

    def block_bounds(self) -> tuple[Tensor, Tensor]:
        p, graph, n = self.local, self.graph, self.graph.num_nodes

        def norm(a: Tensor, b: Tensor) -> Tensor:
            return torch.linalg.matrix_norm((p.steepest * a).mT @ b, 2)[:, None, None]

        here, there = norm(p.receiver, p.receiver), norm(p.sender, p.sender)
        share = norm(p.receiver, p.sender) / (here * there).sqrt().clamp_min(1e-300)

        def summed(weight: Tensor) -> Tensor:
            own, sent = here * (weight * p.here**2), there * (weight * p.there**2)
            return scatter(own, graph.dst, n) + scatter(sent, graph.src, n)

        apart = torch.where(graph.src == graph.dst, 0.0, p.weight)
        return p.beta + 2.0 * summed(p.weight), share.clamp_max(1.0) * summed(apart)

    def lipschitz(self) -> Tensor:
        r""":math:`\beta + 4 \max_a v_a` (:mod:`hogwild.models.soft`), [R, G]."""
        steepest = self.local.steepest.amax((1, 2))
        return (self.local.beta + 4.0 * steepest).unsqueeze(1).expand(-1, self.graph.num_graphs)


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
        """The energies of the anchors and of the edges at their receivers, [R, N] each."""
        p, graph = self.problem.local, self.problem.graph
        near = 0.5 * p.beta * (self.h - p.anchor).square().sum(1)
        return near, scatter(p.energies(self._z), graph.dst, graph.num_nodes)

    @property
    def value(self) -> Tensor:
        near, coupled = self._terms
        return self.problem.graph.sum(near + coupled)

    @property
    def noise(self) -> Tensor:
        # ψ is a difference of terms of at most this size.
        p, graph = self.problem.local, self.problem.graph
        size = p.weight * (p.steepest * (self._z.square() + WIDTH**2)).sum(1)
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * graph.sum(self._terms[0] + scatter(size, graph.dst, graph.num_nodes))

    @cached_property
    def _slopes(self) -> Tensor:
        return self.problem.local.slopes(self._z)

    @cached_property
    def gradient(self) -> Tensor:
        p = self.problem.local
        return p.beta * (self.h - p.anchor) + self.problem.back(self._slopes)

    @property
    def scale(self) -> Tensor:
        p, graph = self.problem.local, self.problem.graph
        size, n = self._slopes.abs(), graph.num_nodes
        pulls = torch.bmm(p.receiver.abs().mT, scatter(p.here * size, graph.dst, n))
        pulls = pulls + torch.bmm(p.sender.abs().mT, scatter(p.there * size, graph.src, n))
        return graph.norm(p.beta * (self.h.abs() + p.anchor.abs()) + pulls)

    @torch.no_grad()
    def hessian(self) -> SoftHessian:
        problem = self.problem.detach()
        return SoftHessian(
            problem.graph, problem, self.h.detach(), problem.local.curvatures(self._z)
        )


@dataclass
class SoftHessian(Hessian):
    r""":math:`\beta I + A^\top \operatorname{diag}(w \psi'') A`, A the map from embeddings to
    arguments."""

    graph: Graph
    problem: SoftProblem
    h: Tensor
    curvature: Tensor  # [R, w, E]
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        p = self.problem
        return p.local.beta * v + p.back(self.curvature * p.arguments(v))

    def diagonal(self) -> None:
        """``None``: no preconditioner. The condition number is known and moderate, and k × k blocks
        of wide embeddings cost more than they save."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        graph, everyone = self.graph, self.graph.everyone
        model = self.problem.local.quadratic(self.h, everyone.current(self.h), everyone)
        own = model.b + scatter(model.c, graph.src, graph.num_nodes)
        pattern = graph.pattern
        uncoupled = own.new_zeros(*model.x.shape[:3], pattern.left.numel())
        return pattern.folded(own, torch.cat([model.x, uncoupled], -1))
