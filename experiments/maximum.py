r"""MaxGNN, a baseline of maxima whose result depends on no order, delay or repetition of updates: a
model of our own, by the library's public interfaces.

Every node has an encoding :math:`a_i` of its features. A value loses a decrement :math:`d_{ij}` on
the way from node j to node i, channel by channel:

.. math::
    h_i = \max\Bigl(a_i,\; \max_{j \in N(i)} (h_j - d_{ij})\Bigr), \qquad
    a_i = \operatorname{MLP}(x_i), \quad
    d_{ij} = \delta + \operatorname{softplus}(W [x_i, x_j, e_{ij}] + b),

with a constant :math:`\delta > 0`. This is the max-plus equation of Bellman and Ford. Its solution
is the best over all walks :math:`j = i_0 \to i_1 \to \dots \to i_l = i` that end in i,

.. math:: h^*_i = \max_{\text{walks}} \; a_j - \sum_{s=1}^{l} d_{i_s i_{s-1}} .

**Updates reach it exactly and in finite time.** A fixed point is at least the value of every walk.
From any node follow the neighbours that attain the maximum: values grow by at least δ from node to
node, so that the walk ends, at a node with :math:`h_j = a_j`. The fixed point is therefore unique.
An update is a maximum of what was heard, and so monotone. Once every inbox holds only values of l
*phases* (after a phase every node has updated from values of the phase before),

.. math::
    \max_{\text{walks of fewer than } l \text{ edges}} \bigl(\dots\bigr) \;\le\; h_i \;\le\;
    \max\bigl(h^*_i,\, W - l\,\delta\bigr) ,

with W the largest value in any node or inbox at the start, by induction. Rounding preserves the
order of numbers, so every schedule gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.models import ImplicitConv, Kind
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import Solving
from hogwild.nn.networks import MLP
from hogwild.ops import as_field, gather
from hogwild.problems import FixedPoint
from hogwild.solvers import Picard
from hogwild_node.local import LocalMap
from hogwild_node.tree import EDGES, FIXED, NODES, over

START = -3.0
"""Initial bias of the decrements. softplus(-3) ≈ 0.05, so that values travel far at first."""


@dataclass
class MaxProblem(FixedPoint, LocalMap):
    """Find the best walk to every node, on every graph, replica and channel."""

    graph: Graph = over(FIXED)
    encoding: Tensor = over(NODES)  # [R, k, N] a
    decrement: Tensor = over(EDGES)  # [R, k, E] d > 0
    monotone = True

    @property
    def replicas(self) -> int:
        return self.encoding.size(0)

    @property
    def channels(self) -> int:
        return self.encoding.size(1)

    def start(self) -> Tensor:
        """The encoding, which lies at or below the solution."""
        return self.encoding.clone()

    def update(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        own, heard = at.at_nodes(self.encoding), inbox - at.at_edges(self.decrement)
        best = own.scatter_reduce(-1, at.slot.expand_as(heard), heard, "amax")
        if not best.requires_grad:
            return best
        # The gradient goes to one winner. Autograd of the maximum would divide it among ties.
        return torch.cat([heard, own], -1).gather(-1, _winners(own, heard, best, at))

    def displacement(self, error: float) -> Tensor:
        r"""A bound on the distance to the fixed point if every number heard is wrong by at most ε.

        Such errors change the decrement of each edge by at most ε. The value of the best walk to i
        is at least :math:`a_i`, and each of its edges loses at least :math:`d - \epsilon`, so it
        has at most :math:`(\max a - \min a) / (\min d - \epsilon)` edges. Every edge adds an error
        of at most ε."""
        graph, a = self.graph, self.encoding - self.encoding.amin()
        spread = graph.max((graph.spread(graph.max(a)) - a).amax(1))  # [R, G]
        least = float(self.decrement.amin()) if self.decrement.numel() else math.inf
        return spread * (error / (least - error) if error < least else math.inf)

    def senders(self, h: Tensor) -> Tensor:
        """The neighbour whose value attains the maximum at each node, [R, k, N + 1]; N if the
        node's own encoding does."""
        graph, n = self.graph, self.graph.num_nodes
        heard = gather(h, graph.src) - self.decrement
        best = self.update(h, gather(h, graph.src), graph.everyone)
        sender = torch.cat([graph.src, graph.src.new_full((n,), n)])
        found = sender[_winners(self.encoding, heard, best, graph.everyone)]
        return F.pad(found, (0, 1), value=n)

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        return _send(F.pad(v, (0, 1)), self.senders(h))[..., :-1]

    def adjoint(self, h: Tensor, grad: Tensor) -> Tensor:
        r"""The exact solution. The winners form a forest, so :math:`J^\top` is nilpotent and

        .. math:: (I - J^\top)^{-1} = \prod_s \bigl(I + (J^\top)^{2^s}\bigr),

        where every factor is a scatter to the ancestors :math:`2^s` generations up.
        """
        ancestor, total = self.senders(h), F.pad(grad, (0, 1))
        for _ in range(int(self.graph.sizes.max()).bit_length()):
            total = total + _send(total, ancestor)
            ancestor = ancestor.gather(-1, ancestor)
        return -total[..., :-1]


def _winners(own: Tensor, heard: Tensor, best: Tensor, at: Star) -> Tensor:
    """Position in [heard ‖ own] of every node's maximum, [R, k, A]. Among equal values the node's
    own comes first, then the edges in their order."""
    e, here = heard.size(-1), torch.arange(own.size(-1), device=own.device)
    wins = (heard == gather(best, at.slot)) & (heard > gather(own, at.slot))
    place = torch.where(wins, torch.arange(e, device=own.device), e)
    first = torch.full_like(own, e, dtype=torch.long)
    first = first.scatter_reduce(-1, at.slot.expand_as(place), place, "amin")
    return torch.where(first < e, first, e + here)


def _send(v: Tensor, to: Tensor) -> Tensor:
    """Add every node's value at the node ``to``; values at the last index are dropped."""
    out = torch.zeros_like(v).scatter_add(-1, to, v)
    out[..., -1] = 0.0
    return out


class MaxConv(ImplicitConv):
    r"""A layer whose embeddings are the values of best walks, a baseline for expressiveness: a
    maximum passes on the value of one neighbour and drops the others, so it cannot count.

    Args:
        edge_dim: Width r of the edge features, or ``None``.
        widths: Hidden widths of the encoder.
        least: The constant :math:`\delta > 0`, which bounds how long wrong values can survive.

    Conventions:
        Self-loops never attain the maximum. Among parallel edges the edge with the least decrement
        counts. An isolated node has :math:`h_i = a_i`. Values travel along the edges only, so
        directed graphs need no reverse links. The gradient goes through one best walk: among equal
        values the node's own comes first, then the edges in their order.
    """

    kind = Kind.FIXED_POINT
    hops = 1
    takes_edge_attr, takes_edge_weight = True, False

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        edge_dim: int | None = None,
        widths: Sequence[int] = (16, 16, 16),
        least: float = 0.01,
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if not 0 < least < math.inf:
            raise ConfigError(
                f"least={least!r}; expected a positive number (every cycle must lose value)"
            )
        self.edge_dim, self.least = edge_dim, float(least)
        ends = 2 * in_channels + (edge_dim or 0)
        self.encoder = MLP(in_channels, (*widths, hidden_channels), replicas=self.replicas)
        self.decrement = MLP(ends, (hidden_channels,), replicas=self.replicas)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.encoder.reset_parameters()
        self.decrement.reset_parameters()
        torch.nn.init.constant_(self.decrement.bias[0], START)

    def default_solver(self) -> Picard:
        """Until no value changes."""
        return Picard(atol=0.0, rtol=0.0)

    def problem(self, inputs: Inputs) -> MaxProblem:
        """The fixed point of these inputs, attached to the autograd graph."""
        inputs = self.accept(inputs)
        x, edge_attr = inputs.x, inputs.edge_attr
        graph = self.graph(inputs)
        heard = x[..., graph.src, :] if inputs.heard is None else inputs.heard
        ends = [x[..., graph.dst, :], heard]
        if edge_attr is not None:
            ends.append(edge_attr.expand(*x.shape[:-2], *edge_attr.shape))
        loss = F.softplus(self.decrement(torch.cat(ends, -1)))
        encoding, loss = (as_field(v, self.precision(x)) for v in (self.encoder(x), loss))
        return MaxProblem(graph, encoding, self.least + loss)


class MaxGNN(ImplicitGNN):
    """A GNN of best walks: one or several :class:`MaxConv` and the paper's readout."""

    layer = MaxConv
