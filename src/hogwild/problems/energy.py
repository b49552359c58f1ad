r"""The energy of a partially input-convex GNN, with gradient and Hessian in closed form.

**Derivatives.** One reverse pass gives the gradient and the nonnegative sensitivities of every
hidden unit. Linearising each network once, the Hessian acts by a forward sweep over the rounds and
a reverse sweep with the curvatures injected. For one round, with :math:`A` the Jacobian of
:math:`(m_i, h_i)`, :math:`U = \nabla^2 u` and :math:`C` the messages' curvature weighted by
:math:`\partial u / \partial m \ge 0`,

.. math:: \nabla^2 E = A^\top U A + C + \beta I, \qquad A^\top U A \succeq 0,\; C \succeq 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.fields import gather, mtm, mv, scatter
from hogwild.graph import Graph, Star
from hogwild.problems.base import Evaluation, Hessian, LocalQuadratic, Objective
from hogwild.problems.picgnn import Linear, Round, RoundPullback, RoundTape
from hogwild.problems.star import StarTape


@dataclass
class EnergyHessian(Hessian):
    """The Hessian of the energy at one point: all rounds linearised, plus β on the diagonal."""

    graph: Graph
    channels: int
    beta: float
    rounds: list[Linear]

    @property
    def has_blocks(self) -> bool:  # type: ignore[override]
        return len(self.rounds) == 1

    def apply(self, v: Tensor) -> Tensor:
        tangents = []
        q = v
        for linear in self.rounds:
            t = linear.push(q, self.graph)
            tangents.append(t)
            if linear.out is not None:
                q = torch.cat([v, mv(linear.out, t)], 1)
        total, sbar = self.beta * v, None
        for linear, t in zip(self.rounds[::-1], tangents[::-1], strict=True):
            back = linear.pull(t, sbar, self.graph)
            total = total + back[:, : self.channels]
            sbar = back[:, self.channels :]
        return total

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of a one-round energy: U_mm J on edges, (U_hm + AᵀU_mm) J on edges, and the diagonal."""
        lin, graph = self.rounds[0], self.graph
        c = lin.a.size(1)
        umm, umh, uhh = lin.u[:, :c, :c], lin.u[:, :c, c:], lin.u[:, c:, c:]

        def on_edges(x: Tensor) -> Tensor:
            return gather(x.flatten(1, 2), graph.dst).view(*x.shape[:3], graph.num_edges)

        half = mtm(umm, lin.a) + umh  # U_mm A + U_mh, [R, C, k, N]
        uj = mtm(on_edges(umm), lin.j)  # U_mm J_j, [R, C, k, E]
        edge = mtm(on_edges(half), lin.j)  # [R, k, k, E], rows i, columns j
        if lin.x is not None:
            edge = edge + lin.x
        cross = mtm(lin.a, umh)
        diagonal = lin.d + uhh + mtm(lin.a, half) + cross.transpose(1, 2)
        # a^T U_mm a + a^T U_mh + U_hm a + U_hh, since mtm(a, half) = aᵀU_mm a + aᵀU_mh.
        at_src = mtm(lin.j, uj).flatten(1, 2)
        diagonal = diagonal + scatter(at_src, graph.src, graph.num_nodes).view_as(diagonal)
        diagonal.diagonal(dim1=1, dim2=2).add_(self.beta)
        return uj, edge, diagonal

    def diagonal(self) -> Tensor | None:
        if not self.has_blocks:
            return None
        # As in blocks(), but linear in the edges: no pair of neighbours is ever formed.
        graph = self.graph
        uj, edge, diagonal = self._products
        if graph.parallel is not None:
            # Parallel edges act as one with the sum of their Jacobians: what is missing from the
            # sum of their own squares are the mixed terms.
            number, one = graph.parallel
            j, size = self.rounds[0].j, one.numel()
            sums = [
                scatter(x.flatten(1, 2), number, size).unflatten(1, x.shape[1:3]) for x in (j, uj)
            ]
            together = scatter(mtm(*sums).flatten(1, 2), graph.src[one], graph.num_nodes)
            apart = scatter(mtm(j, uj).flatten(1, 2), graph.src, graph.num_nodes)
            diagonal = diagonal + (together - apart).view_as(diagonal)
        if graph.self_loops is not None:
            loops = edge[..., graph.self_loops]
            loops = (loops + loops.transpose(1, 2)).flatten(1, 2)
            extra = scatter(loops, graph.src[graph.self_loops], graph.num_nodes)
            diagonal = diagonal + extra.view_as(diagonal)
        return diagonal

    def blocks(self) -> tuple[Tensor, Tensor]:
        uj, edge, diagonal = self._products
        pattern = self.graph.pattern
        j = self.rounds[0].j
        wedge = mtm(j[..., pattern.left], uj[..., pattern.right])  # [R, k, k, W]
        off = torch.cat([edge, wedge], -1)
        if pattern.loops is not None and pattern.loop_nodes is not None:
            # A pair that names one node twice contributes B + Bᵀ to its diagonal block.
            loops = off[..., pattern.loops]
            loops = (loops + loops.transpose(1, 2)).flatten(1, 2)
            extra = scatter(loops, pattern.loop_nodes, self.graph.num_nodes)
            diagonal = diagonal + extra.view_as(diagonal)
            off = off[..., pattern.keep]
        return diagonal, off


class EnergyEvaluation(Evaluation):
    """The energy at ``h``: value, gradient and Hessian from one forward pass."""

    def __init__(self, problem: EnergyProblem, h: Tensor) -> None:
        self.problem, self.h = problem, h
        self.tapes: list[RoundTape] = []
        q = h
        for rnd in problem.rounds:
            self.tapes.append(rnd.forward(q, problem.graph))
            q = torch.cat([h, self.tapes[-1].update.value], 1)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor]:
        """Local energies without and with β, [R, N] each."""
        local = self.tapes[-1].update.value[:, 0]
        return local, 0.5 * self.problem.beta * self.h.square().sum(1)

    @cached_property
    def value(self) -> Tensor:
        """One energy a graph, [R, G]."""
        local, quadratic = self._terms
        return self.problem.graph.sum(local + quadratic)

    @cached_property
    def noise(self) -> Tensor:
        local, quadratic = self._terms
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(local.abs() + quadratic)

    @cached_property
    def _back(self) -> tuple[Tensor, list[RoundPullback]]:
        return _reverse(self.tapes, self.problem, self.problem.beta * self.h)

    @property
    def gradient(self) -> Tensor:
        """:math:`\\nabla_h E`, [R, k, N]."""
        return self._back[0]

    @cached_property
    def scale(self) -> Tensor:
        graph, k = self.problem.graph, self.problem.channels
        size = self.problem.beta * self.h.abs()
        for tape, back in zip(self.tapes, self._back[1], strict=True):
            edges, *nodes = (term.abs() for term in back.terms)
            size = size + tape.round.read_transpose(edges, graph)[:, :k]
            size = size + sum(term[:, :k] for term in nodes)
        return graph.norm(size)

    @torch.no_grad()
    def hessian(self) -> EnergyHessian:
        return _linearise(self.tapes, self._back[1], self.problem)

    @torch.no_grad()
    def secant(self, reach: Tensor) -> EnergyHessian:
        """As the Hessian, but every activation of every network has the curvature of
        :meth:`~hogwild.nn.activations.Activation.growth`: that of the parabola that touches it
        here and lies above it as far as the reach [R, G] of its graph."""
        graph = self.problem.graph
        nodes = graph.wide(reach).expand(-1, -1, graph.num_nodes)
        tapes = [tape.reaching(nodes, graph) for tape in self.tapes]
        return _linearise(tapes, self._back[1], self.problem)


def _reverse(
    tapes: list[RoundTape], problem: EnergyProblem, start: Tensor
) -> tuple[Tensor, list[RoundPullback]]:
    """Gradient and the reverse pass of every round."""
    k, total = problem.channels, start
    cotangent = torch.ones_like(tapes[-1].update.value)
    backs: list[RoundPullback] = []
    for tape in reversed(tapes):
        back = tape.pullback(cotangent, problem.graph)
        backs.append(back)
        total = total + back.qbar[:, :k]
        cotangent = back.qbar[:, k:]
    return total, backs[::-1]


def _linearise(
    tapes: list[RoundTape], backs: list[RoundPullback], problem: EnergyProblem
) -> EnergyHessian:
    last = len(tapes) - 1
    linear = [
        tape.linearise(back, problem.graph, outputs=i < last)
        for i, (tape, back) in enumerate(zip(tapes, backs, strict=True))
    ]
    return EnergyHessian(problem.graph, problem.channels, problem.beta, linear)


@dataclass
class EnergyProblem(Objective):
    """Minimise the energy of these rounds on every graph and replica."""

    graph: Graph
    replicas: int
    channels: int
    beta: float
    rounds: list[Round]

    def evaluate(self, h: Tensor) -> EnergyEvaluation:
        return EnergyEvaluation(self, h)

    def _star(self, h: Tensor, inbox: Tensor, at: Star) -> StarTape:
        if len(self.rounds) > 1:
            raise AsynchronyError(
                f"a local energy of {len(self.rounds)} rounds reaches {len(self.rounds)} hops; an "
                f"asynchronous node hears one: use num_layers=1, or stacked energies"
            )
        return StarTape.of(self.rounds[0], h, inbox, at)

    def local(self, h: Tensor, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        tape = self._star(h, inbox, at)
        return tape.own + self.beta * h, tape.toward

    def quadratic(
        self, h: Tensor, inbox: Tensor, at: Star, majorise: float = 0.0
    ) -> LocalQuadratic:
        return self._regularised(self._star(h, inbox, at).quadratic(majorise), h)

    def bounding(
        self, h: Tensor, inbox: Tensor, at: Star, far: tuple[Tensor, Tensor]
    ) -> LocalQuadratic:
        there = self._star(*far, at)
        return self._regularised(self._star(h, inbox, at).quadratic(far=there), h)

    def _regularised(self, found: LocalQuadratic, h: Tensor) -> LocalQuadratic:
        found.own = found.own + self.beta * h
        found.b.diagonal(dim1=1, dim2=2).add_(self.beta)
        return found

    def map(self, fn: Callable[[Tensor], Tensor]) -> EnergyProblem:
        return replace(self, rounds=[r.map(fn) for r in self.rounds])

    @property
    def has_blocks(self) -> bool:  # type: ignore[override]
        return len(self.rounds) == 1

    @property
    def signature(self) -> tuple[object, ...]:
        shape = [(r.heads, r.concat, r.both_ends, r.message.act) for r in self.rounds]
        return (self.replicas, self.channels, self.beta, *shape)

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[EnergyProblem, Tensor]:
        nodes: Tensor | None = None
        edges: Tensor | None = None
        graph = self.graph
        if graphs.numel() < graph.num_graphs:
            graph, nodes, edges = graph.select(graphs)
        keep = None if replicas.numel() == self.replicas else replicas
        rounds = [r.select(keep, nodes, edges) for r in self.rounds]
        sub = replace(self, graph=graph, replicas=replicas.numel(), rounds=rounds)
        if nodes is None:
            nodes = torch.arange(graph.num_nodes, device=graph.batch.device)
        return sub, nodes

    def convexity(self) -> Tensor:
        like = self.rounds[0].update.layers[0].bias
        return like.new_full((self.replicas, self.graph.num_graphs), self.beta)

    def local_row_bounds(self, at: Star) -> tuple[Tensor, Tensor]:
        own, toward = StarTape.bound(self.rounds[0], at, self.channels).quadratic().row_sums()
        return own + self.beta, toward

    def row_bounds(self) -> Tensor:
        r"""Bounds on the absolute row sums of the Hessian at any point, [R, k, N].

        With every slope and curvature at its supremum and every weight in absolute value, the
        Hessian becomes a nonnegative matrix that dominates :math:`|\nabla^2 E|` entry by entry at
        every point; its row sums are one product with the vector of ones.
        """
        tapes = [r.bound() for r in self.rounds]
        shape = (self.replicas, self.channels, self.graph.num_nodes)
        zero = tapes[0].update.value.new_zeros(shape)
        _, backs = _reverse(tapes, self, zero)
        return _linearise(tapes, backs, self).apply(torch.ones_like(zero))
