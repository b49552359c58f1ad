r"""The energy of an energy GNN on whole graphs, with gradient and Hessian in closed form.

The code of a node computes the rounds of messages and their derivatives
(:mod:`hogwild_node.round`), on the star of all nodes. This file sums them over the graph.

**Derivatives.** One reverse pass gives the gradient and the nonnegative sensitivity of every hidden
unit. Each network is linearised once. A product with the Hessian is then a forward sweep over the
rounds and a reverse sweep that adds the curvatures. For one round, with :math:`A` the Jacobian of
:math:`(m_i, h_i)`, :math:`U = \nabla^2 u` and :math:`C` the curvature of the messages, weighted by
:math:`\partial u / \partial m \ge 0`,

.. math:: \nabla^2 E = A^\top U A + C + \beta I, \qquad A^\top U A \succeq 0,\; C \succeq 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian
from hogwild.ops import gather, mtm, mtv, mv, scatter
from hogwild.problems.base import Evaluation, Objective, Recipe
from hogwild_node.local import LocalQuadratic
from hogwild_node.problems import Energy
from hogwild_node.round import Linear, Pullback, Round, RoundTape
from hogwild_node.tree import FIXED, NODES, SHARED, over


@dataclass
class EnergyHessian(Hessian):
    """The Hessian of the energy at one point, from the linearised rounds and β."""

    graph: Graph
    channels: int
    beta: float
    rounds: list[Linear]

    @property
    def has_blocks(self) -> bool:
        return len(self.rounds) == 1

    # -- as a linear map: a forward sweep and a reverse sweep --------------------------------------

    def apply(self, v: Tensor) -> Tensor:
        tangents = []
        q = v
        for linear in self.rounds:
            t = self._push(linear, q)
            tangents.append(t)
            if len(tangents) < len(self.rounds):
                q = torch.cat([v, mv(linear.out, t)], 1)
        total, sbar = self.beta * v, None
        for i in reversed(range(len(self.rounds))):
            back = self._pull(i, tangents[i], sbar)
            total = total + back[:, : self.channels]
            sbar = back[:, self.channels :]
        return total

    def _push(self, linear: Linear, q: Tensor) -> Tensor:
        """Tangent of (m, q): [R, q, N] -> [R, C+q, N]."""
        heard = scatter(mv(linear.j, gather(q, self.graph.src)), self.graph.dst, q.size(-1))
        return torch.cat([mv(linear.a, q) + heard, q], 1)

    def _pull(self, index: int, t: Tensor, sbar: Tensor | None) -> Tensor:
        """Curvature of a round along ``t``, plus what the later rounds send back."""
        linear, graph = self.rounds[index], self.graph
        c, n = linear.a.size(1), graph.num_nodes
        w = mv(linear.u, t)
        if sbar is not None:
            w = w + mtv(linear.out, sbar)
        wm, wq, q = w[:, :c], w[:, c:], t[:, c:]
        out = wq + mtv(linear.a, wm) + mv(self._curvatures[index], q)
        to_src = mtv(linear.j, gather(wm, graph.dst))
        if linear.x is not None:
            to_src = to_src + mtv(linear.x, gather(q, graph.dst))
            out = out + scatter(mv(linear.x, gather(q, graph.src)), graph.dst, n)
        return out + scatter(to_src, graph.src, n)

    @cached_property
    def _curvatures(self) -> list[Tensor]:
        """For every round, the curvature of all messages in the embedding of one node,
        [R, q, q, N]."""
        at, size = self.graph.src, self.graph.num_nodes
        return [linear.b + scatter(linear.c, at, size) for linear in self.rounds]

    # -- as blocks, for one round ------------------------------------------------------------------

    @cached_property
    def _local(self) -> LocalQuadratic:
        """The second-order models of the local energies, without gradients; the Hessian is their
        sum."""
        linear = self.rounds[0]
        return linear.quadratic(linear.b[:, 0, :0], linear.c[:, 0, :0], self.beta)

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor]:
        """U J on edges, and the diagonal blocks without the terms of parallel edges and
        self-loops."""
        through = self._local.through()
        toward = self._local.c + mtm(self._local.j, through)
        return through, self._local.b + scatter(toward, self.graph.src, self.graph.num_nodes)

    def diagonal(self) -> Tensor | None:
        if not self.has_blocks:
            return None
        # Unlike blocks(), this needs no pairs of neighbours; its cost is linear in the edges.
        graph, j = self.graph, self._local.j
        through, diagonal = self._products
        if graph.parallel is not None:
            # Parallel edges act as one edge with the sum of their Jacobians. Replace the sum of
            # their squares by the square of their sum.
            number, one = graph.parallel
            sums = [scatter(x, number, one.numel()) for x in (j, through)]
            together = scatter(mtm(*sums), graph.src[one], graph.num_nodes)
            diagonal = diagonal + together - scatter(mtm(j, through), graph.src, graph.num_nodes)
        if graph.self_loops is not None:
            loops = self._local.x[..., graph.self_loops]
            loops = loops + loops.transpose(1, 2)
            diagonal = diagonal + scatter(loops, graph.src[graph.self_loops], graph.num_nodes)
        return diagonal

    def blocks(self) -> tuple[Tensor, Tensor]:
        through, diagonal = self._products
        pattern = self.graph.pattern
        wedge = mtm(self._local.j[..., pattern.left], through[..., pattern.right])  # [R, k, k, W]
        return pattern.folded(diagonal, torch.cat([self._local.x, wedge], -1))


class EnergyEvaluation(Evaluation):
    """The energy at ``h``: value, gradient and Hessian from one forward pass."""

    def __init__(self, problem: EnergyProblem, h: Tensor) -> None:
        self.problem, self.h = problem, h
        self.tapes: list[RoundTape] = []
        q = h
        for rnd in problem.rounds:
            self.tapes.append(rnd.forward(q, None, problem.graph.everyone))
            q = torch.cat([h, self.tapes[-1].value], 1)

    @cached_property
    def _terms(self) -> tuple[Tensor, Tensor]:
        """The local energies without the β term, and the β terms, [R, N] each."""
        local: Tensor = self.tapes[-1].value[:, 0]
        return local, 0.5 * self.problem.beta * self.h.square().sum(1)

    @cached_property
    def value(self) -> Tensor:
        """The energy of each graph, [R, G]."""
        local, quadratic = self._terms
        return self.problem.graph.sum(local + quadratic)

    @cached_property
    def noise(self) -> Tensor:
        local, quadratic = self._terms
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(local.abs() + quadratic)

    @cached_property
    def _back(self) -> tuple[Tensor, list[Pullback]]:
        return _reverse(self.tapes, self.problem, self.problem.beta * self.h)

    @property
    def gradient(self) -> Tensor:
        """:math:`\\nabla_h E`, [R, k, N]."""
        return self._back[0]

    @cached_property
    def scale(self) -> Tensor:
        problem, size = self.problem, self.problem.beta * self.h.abs()
        for back in self._back[1]:
            size = size + back.absolute().total[:, : problem.channels]
        return problem.graph.norm(size)

    @torch.no_grad()
    def hessian(self) -> EnergyHessian:
        return _linearise(self.tapes, self._back[1], self.problem)

    @torch.no_grad()
    def secant(self, reach: Tensor) -> EnergyHessian:
        """The Hessian in which the curvature of every activation is replaced by
        :meth:`~hogwild.nn.Activation.growth`: the curvature of the parabola that touches the
        activation and lies above it up to the reach [R, G] of its graph."""
        graph = self.problem.graph
        nodes = graph.wide(reach).expand(-1, -1, graph.num_nodes)
        tapes = [tape.reaching(nodes) for tape in self.tapes]
        return _linearise(tapes, self._back[1], self.problem)


def _reverse(
    tapes: list[RoundTape], problem: EnergyProblem, start: Tensor
) -> tuple[Tensor, list[Pullback]]:
    """The gradient, and the reverse pass of every round."""
    k, total = problem.channels, start
    cotangent: Tensor | None = None
    backs: list[Pullback] = []
    for tape in reversed(tapes):
        back = tape.pullback(cotangent)
        backs.append(back)
        total = total + back.total[:, :k]
        cotangent = back.total[:, k:]
    return total, backs[::-1]


def _linearise(
    tapes: list[RoundTape], backs: list[Pullback], problem: EnergyProblem
) -> EnergyHessian:
    linear = [tape.linearise(back) for tape, back in zip(tapes, backs, strict=True)]
    return EnergyHessian(problem.graph, problem.channels, problem.beta, linear)


@dataclass
class EnergyProblem(Objective):
    """Minimise the energy of these rounds on every graph and replica."""

    graph: Graph = over(FIXED)
    beta: float = over(FIXED)
    rounds: list[Round] = over(SHARED)
    begin: Tensor | None = over(NODES, default=None)  # [R, k, N] where nodes start; None: at zero
    recipe: Recipe | None = over(FIXED, default=None)  # for compiled code

    @property
    def replicas(self) -> int:
        return int(self.rounds[0].update.layers[0].bias.shape[0])

    @property
    def channels(self) -> int:
        return int(self.rounds[0].loop.layers[0].gy.shape[1])

    def evaluate(self, h: Tensor) -> EnergyEvaluation:
        return EnergyEvaluation(self, h)

    def start(self) -> Tensor:
        return super().start() if self.begin is None else self.begin

    @cached_property
    def node(self) -> Energy:
        if len(self.rounds) > 1:
            raise AsynchronyError(
                f"a local energy of {len(self.rounds)} rounds depends on nodes "
                f"{len(self.rounds)} hops away, but an asynchronous node only hears its "
                f"neighbours: use rounds=1, or several layers (num_layers)"
            )
        return Energy(self.rounds[0], self.beta)

    @property
    def has_blocks(self) -> bool:
        return len(self.rounds) == 1

    def convexity(self) -> Tensor:
        like: Tensor = self.rounds[0].update.layers[0].bias
        return like.new_full((self.replicas, self.graph.num_graphs), self.beta)

    def row_bounds(self) -> Tensor:
        r"""Bounds on the absolute row sums of the Hessian at any point, [R, k, N].

        Replace every slope and curvature by its supremum and every weight by its absolute value.
        The Hessian becomes a nonnegative matrix that bounds :math:`|\nabla^2 E|` entry by entry at
        every point. Its row sums are its product with the vector of ones.
        """
        tapes = [r.bound(self.graph.everyone) for r in self.rounds]
        shape = (self.replicas, self.channels, self.graph.num_nodes)
        zero = tapes[0].value.new_zeros(shape)
        _, backs = _reverse(tapes, self, zero)
        return _linearise(tapes, backs, self).apply(torch.ones_like(zero))
