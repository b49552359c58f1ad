r"""The energy of an energy GNN on whole graphs, with gradient and Hessian in closed form.

An :class:`EnergyProblem` is data: a graph, parameters, features and weights of edges. Compiled code
reads them as they are (:mod:`hogwild.engines`). On torch the code of a node computes the round of
messages and its derivatives (:mod:`hogwild_node.round`), and this file sums them over the graph.

One reverse pass gives the gradient and the nonnegative sensitivity of every hidden unit. Each
network is linearised once, which gives second-order models of the local energies
(:class:`~hogwild_node.local.LocalQuadratic`), and their sum
(:class:`~hogwild.linalg.operator.OneHopHessian`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import OneHopHessian
from hogwild.ops import scatter
from hogwild.problems.base import Evaluation, Objective
from hogwild_node.activations import Activation
from hogwild_node.networks import PICNNParameters, Slot
from hogwild_node.problems import Energy
from hogwild_node.round import Pullback, Round, RoundTape
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over


@dataclass(frozen=True)
class Design:
    """Everything about an energy that is not a tensor.

    Attributes:
        channels: Width k of an embedding.
        message_channels: Width of a message, of one head.
        heads: Heads of attention.
        concat: Whether the heads' messages are laid side by side, or averaged.
        both_ends: Whether messages read both ends of an edge (edge-wise) or its sender (node-wise).
        sent_at_nodes: Whether a sender's features are those of its node, or given for every edge.
        beta: The convexity β.
        act: The activation.
        gate: The name of the gates' activation.
        widths: Widths of the layers of the three networks (message, self message, update).
        monotone: For each convex input of the three networks, whether the output rises in it.
    """

    channels: int
    message_channels: int
    heads: int
    concat: bool
    both_ends: bool
    sent_at_nodes: bool
    beta: float
    act: Activation
    gate: str
    widths: tuple[tuple[int, ...], ...]
    monotone: tuple[tuple[bool, ...], ...]


@dataclass
class EnergyProblem(Objective):
    """Minimise the energy of one round of messages on every graph and replica."""

    graph: Graph = over(FIXED)
    design: Design = over(FIXED)
    # Of the three networks, as hogwild.nn.PICNN has them: [(R,) (H,) …] in any precision
    parameters: tuple[Tensor, ...] = over(SHARED)
    x: Tensor = over(NODES)  # [1 or R, p, N] features, in the precision of the solve
    heard: Tensor | None = over(EDGES)  # [1 or R, p, E] of senders as heard; None: those in x
    edge_attr: Tensor | None = over(EDGES)  # [1, r, E]
    weight: Tensor | None = over(EDGES)  # [R or 1, H or 1, 1, E] of messages; None: one
    loop_weight: Tensor | None = over(NODES)  # [N] of self messages; None: one
    has_blocks = True

    @property
    def sources(self) -> tuple[Tensor | None, ...]:
        """All tensors that the problem is made of."""
        return (
            self.x, self.heard, self.edge_attr, self.weight, self.loop_weight, *self.parameters,
        )  # fmt: skip

    @property
    def replicas(self) -> int:
        last = self.parameters[-1]  # a matrix of the update network
        return last.size(0) if last.dim() > 2 else 1

    @property
    def channels(self) -> int:
        return self.design.channels

    def start(self) -> Tensor:
        return self.x.new_zeros(self.replicas, self.channels, self.graph.num_nodes)

    # -- the networks with their features ----------------------------------------------------------

    @property
    def networks(self) -> tuple[PICNNParameters, ...]:
        """Parameters of (message, self message, update), [B, …] in the precision of the solve."""
        left, design = iter(self.parameters), self.design

        def layers(count: int, dim: int) -> list[Tensor]:
            some = (next(left).to(self.x.dtype) for _ in range(count))
            return [p.reshape(-1, *p.shape[p.dim() - dim :]) for p in some]

        found = []
        for widths, monotone in zip(design.widths, design.monotone, strict=True):
            n = len(widths)
            parts = layers(n, 2), layers(n, 1), layers(n, 2), layers(n - 1, 2)
            found.append(PICNNParameters(*parts, monotone, design.act, design.gate))
        return tuple(found)

    def _filled(self) -> Round:
        """The round of messages with its features filled in."""
        everyone, design = self.graph.everyone, self.design
        sent = Slot(self.x, self.graph.src) if self.heard is None else Slot(self.heard)
        return Round.of(
            self.networks, self.x, sent, self.edge_attr, everyone, weight=self.weight,
            loop_weight=self.loop_weight, heads=design.heads, concat=design.concat,
            both_ends=design.both_ends,
        )  # fmt: skip

    @cached_property
    def _detached(self) -> Round:
        with torch.inference_mode(False), torch.no_grad():
            return self._filled()

    @property
    def round(self) -> Round:
        """The round of messages, which is kept if autograd does not follow it: one backward pass
        frees an attached round."""
        return self._filled() if torch.is_grad_enabled() and self.requires_grad else self._detached

    @cached_property
    def requires_grad(self) -> bool:
        """Whether autograd follows any tensor of the problem."""
        return any(x is not None and x.requires_grad for x in self.sources)

    @property
    def node(self) -> Energy:
        return Energy(self.round, self.design.beta)

    def evaluate(self, h: Tensor) -> EnergyEvaluation:
        return EnergyEvaluation(self, h)

    def convexity(self) -> Tensor:
        return self.x.new_full((self.replicas, self.graph.num_graphs), self.design.beta)


class EnergyEvaluation(Evaluation):
    """The energy at ``h``. Its passes serve the value, the gradient and the Hessian."""

    def __init__(self, problem: EnergyProblem, h: Tensor) -> None:
        self.problem, self.h, self.beta = problem, h, problem.design.beta

    @cached_property
    def _tape(self) -> RoundTape:
        """The forward pass."""
        return self.problem.round.forward(self.h, None, self.problem.graph.everyone)

    @cached_property
    def _back(self) -> Pullback:
        """The reverse pass."""
        return self._tape.pullback()

    @cached_property
    def _energies(self) -> tuple[Tensor, Tensor]:
        """The local energies without the β term, and the β terms, [R, N] each."""
        return self._tape.value[:, 0], 0.5 * self.beta * self.h.square().sum(1)

    @cached_property
    def value(self) -> Tensor:
        """The energy of each graph, [R, G]."""
        local, quadratic = self._energies
        return self.problem.graph.sum(local + quadratic)

    @cached_property
    def noise(self) -> Tensor:
        local, quadratic = self._energies
        eps = 64.0 * torch.finfo(self.h.dtype).eps
        return eps * self.problem.graph.sum(local.abs() + quadratic)

    @cached_property
    def gradient(self) -> Tensor:
        r""":math:`\nabla_h E`, [R, k, N]."""
        return self.beta * self.h + self._back.total

    @cached_property
    def scale(self) -> Tensor:
        return self.problem.graph.norm(self.beta * self.h.abs() + self._back.absolute().total)

    @torch.no_grad()
    def hessian(self) -> OneHopHessian:
        return self._linearised(self._tape)

    @torch.no_grad()
    def secant(self, reach: Tensor) -> OneHopHessian:
        """The Hessian in which the curvature of every activation is replaced by
        :meth:`~hogwild.nn.Activation.growth`: the curvature of the parabola that touches the
        activation and lies above it up to the reach [R, G] of its graph."""
        graph = self.problem.graph
        nodes = graph.wide(reach).expand(-1, -1, graph.num_nodes)
        return self._linearised(self._tape.reaching(nodes))

    def _linearised(self, tape: RoundTape) -> OneHopHessian:
        linear, graph = tape.linearise(self._back), self.problem.graph
        local = linear.quadratic(linear.b[:, 0, :0], linear.c[:, 0, :0], self.beta)
        b = local.b + scatter(local.c, graph.src, graph.num_nodes)
        return OneHopHessian(graph, local.j, local.x, local.u, b)
