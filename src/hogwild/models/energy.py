"""Energy GNNs: embeddings that minimise a learned, strongly convex energy.

`Graph Neural Networks Gone Hogwild <https://openreview.net/forum?id=WfxPVtYRlL>`_ (Solodova,
Richardson, Oktay & Adams, ICLR 2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, require_all_positive, require_one_of, require_widths
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Exported, Kind, portable
from hogwild.models.contraction import renormalised
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import Checked, ImplicitConv, Solving
from hogwild.models.validation import opaque
from hogwild.nn.activations import Activation
from hogwild.nn.attention import NeighbourhoodAttention, attend
from hogwild.nn.networks import PICNN
from hogwild.problems.energy import Design, EnergyProblem
from hogwild_node.activations import ACTIVATIONS

GAINS = {"edge": 0.06, "node": 0.25}
"""Initial slopes of networks in their monotone inputs, the messages: small enough that a fresh
energy is well conditioned at degree 50, and large enough that neighbours influence each other from
the first epoch. Edge-wise messages need a smaller slope because they already couple neighbours
strongly (:data:`COUPLING`), and because the curvature of a sum of messages grows with the square of
the degree. ``benchmarks/training_step.py`` times the solves of such fresh energies."""


def default_widths(hidden_channels: int) -> tuple[int, int]:
    """Hidden widths of the PICNNs and width of a message, for embeddings of this width: w and w/2
    with w = max(4, k/4), rounded down.

    These are the paper's 4 and 2 up to k = 19. Above, the networks grow with the embeddings, in the
    paper's proportions. Without that, four hidden units would read all k numbers of an embedding.
    """
    width = max(4, hidden_channels // 4)
    return width, width // 2


COUPLING, ALONE = 4.0, 0.3
"""Factors on initial weights: ``COUPLING`` on the difference between neighbours, ``ALONE`` on a
node's own embedding in its self message and update. ``benchmarks/training_step.py`` times the
solves of fresh energies, which depend on both."""


class EnergyConv(ImplicitConv):
    r"""A layer whose embeddings minimise a learned convex energy.

    .. math::
        H^* = \arg\min_H \sum_i u(m_i, h_i, x_i) + \tfrac\beta2 \|h_i\|^2, \qquad
        m_i = \sum_{j \in N(i)} \omega_{ij}\, m(h_i, h_j, x_i, x_j, e_{ij}) + m_\circ(h_i, x_i).

    The minimiser is unique. The order of updates, delays and the starting point therefore do not
    change the answer.

    ``in_channels``, ``hidden_channels`` and ``kwargs`` are as in
    :class:`~hogwild.models.ImplicitConv`. The default solver is Newton's method.

    Args:
        message: ``"edge"``: :math:`m(h_i, h_j, x_i, x_j, e_{ij})`; ``"node"``: :math:`m(h_j, x_j)`.
        message_channels: Width of a message (of each head); ``None``: half of the default of
            ``widths``, at k ≤ 19 the paper's 2.
        heads: ``None``, or a number of attention heads, each with its own message network and its
            own weights (softmax over the neighbourhood, from features only).
        concat: Concatenate the heads' messages (otherwise average them).
        aggr: ``"sum"`` (also ``"add"``) or ``"mean"`` of the neighbours' messages.
        normalize: Weigh messages by the symmetrically renormalised adjacency
            :math:`(D + I)^{-1/2} (A + I) (D + I)^{-1/2}`, the self message by its diagonal.
        edge_dim: Width r of the edge features, or ``None``.
        beta: Strong convexity :math:`\beta`.
        widths: Hidden widths of the PICNNs; ``None``: (w, w) with w = max(4, k/4) rounded down, at
            k ≤ 19 the paper's (4, 4) (:func:`default_widths`).
        act: Activation of the PICNNs, smooth, convex and nondecreasing.
        gate: Positive part of the PICNNs' gates, ``"softplus"`` or ``"relu"``.

    Conventions:
        A self-loop in ``edge_index`` is an ordinary message from a node to itself. It is added to
        the separately parameterised self message that every node has. Each of several parallel
        edges counts, also in the mean and in the softmax of the attention, where an edge of weight
        0 counts too. An isolated node minimises its own energy. On a directed graph node i hears
        the senders of the edges into it. An asynchronous run needs the reverse links, because
        gradients travel against the edges.
    """

    kind = Kind.OPTIMISATION
    takes_edge_attr = True

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 2,
        message: str = "edge",
        message_channels: int | None = None,
        heads: int | None = None,
        concat: bool = True,
        aggr: str = "sum",
        normalize: bool = False,
        edge_dim: int | None = None,
        beta: float = 0.04,
        widths: Sequence[int] | None = None,
        act: str | Activation = "softplus",
        gate: str = "softplus",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        require_one_of(GAINS, message=message)
        aggr = "sum" if aggr == "add" else aggr
        if aggr not in ("sum", "mean"):
            raise ConfigError(
                f"aggr={aggr!r}; expected 'sum' (or 'add') or 'mean' (only nonnegative sums keep "
                f"the energy convex and its gradients local)"
            )
        require_all_positive(message_channels=message_channels, heads=heads, edge_dim=edge_dim)
        width, narrow = default_widths(hidden_channels)
        widths = (width, width) if widths is None else require_widths("widths", widths)
        message_channels = narrow if message_channels is None else message_channels
        if not 0 < beta < math.inf:
            raise ConfigError(f"beta={beta!r}; expected a positive number (strong convexity)")
        if heads is not None and (aggr == "mean" or normalize):
            raise ConfigError(
                "attention already averages over the neighbourhood: heads cannot be combined with "
                "aggr='mean' or normalize=True"
            )
        if message == "node" and edge_dim is not None and heads is None:
            raise ConfigError(
                "node-wise messages do not read edge features: use message='edge', or heads=... "
                "whose attention reads them, or leave edge_dim out"
            )
        self.message, self.message_channels = message, message_channels
        self.heads, self.concat, self.aggr, self.normalize = heads, concat, aggr, normalize
        self.edge_dim, self.beta = edge_dim, float(beta)
        self._designs: dict[tuple[bool, float, Activation, str], Design] = {}

        k, h = hidden_channels, heads or 1
        lead = () if self.replicas is None else (self.replicas,)
        per_head = lead if heads is None else (*lead, heads)
        ends = 2 if message == "edge" else 1
        merged = message_channels * (h if concat else 1)
        slots = (in_channels,) * ends
        if message == "edge" and edge_dim is not None:
            slots = (*slots, edge_dim)
        signal = [False] * k
        both, mono = signal * ends, [True] * merged + signal

        def network(
            features: tuple[int, ...], monotone: list[bool], width: int, batch: tuple[int, ...]
        ) -> nn.ModuleList:
            """A list of one network, whose parameters are called as in older checkpoints."""
            net = PICNN(
                features, len(monotone), (*widths, width), monotone=monotone, act=act, gate=gate,
                batch_shape=batch, gain=GAINS[message],
            )  # fmt: skip
            return nn.ModuleList([net])

        self.message_nets = network(slots, both, message_channels, per_head)
        self.loop_nets = network((in_channels,), signal, merged, lead)
        self.update_nets = network((in_channels,), mono, 1, lead)
        self._agree()
        self.attention: NeighbourhoodAttention | None = None
        if heads is not None:
            self.attention = NeighbourhoodAttention(
                in_channels, edge_dim, message_channels, batch_shape=per_head
            )

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in self.modules():
            if isinstance(module, PICNN | NeighbourhoodAttention):
                module.reset_parameters()
        self._agree()

    @torch.no_grad()
    def _agree(self) -> None:
        r"""Make fresh messages depend on differences, :math:`m(h_i - h_j)`.

        A fresh energy then resembles that of a graph Laplacian. Along a chain, more than half of a
        node's signal survives each hop. With independent weights on both ends less than 35 % would
        survive, which leaves too little to learn from.
        """
        message, loop, update = self.networks
        for wy in message.wy if self.message == "edge" else ():
            own, other = wy.unflatten(-1, (-1, 2)).unbind(-1)  # (channel, end): i, then j
            own.mul_(COUPLING)
            other.copy_(-own)
        for wy, monotone in ((w, net.monotone) for net in (loop, update) for w in net.wy):
            wy.copy_(torch.where(monotone, wy, ALONE * wy))

    @property
    def networks(self) -> tuple[PICNN, PICNN, PICNN]:
        """The networks of messages, self messages and updates."""
        lists = (self.message_nets, self.loop_nets, self.update_nets)
        return cast("tuple[PICNN, PICNN, PICNN]", tuple(nets._modules["0"] for nets in lists))

    def problem(self, inputs: Inputs) -> EnergyProblem:
        """The energy of these inputs, attached to the autograd graph."""
        found, nets = self.fields(inputs), self.networks
        return EnergyProblem(
            found.graph, self._design(nets, found.heard is None),
            tuple(p for net in nets for p in net.every_parameter()),
            found.x, found.heard, found.attr, *self._weights(found),
        )  # fmt: skip

    def _design(self, nets: Sequence[PICNN], sent_at_nodes: bool) -> Design:
        """The sizes of the networks."""
        key = sent_at_nodes, self.beta, nets[0].act, nets[0].gate  # what may change
        known = self._designs.get(key)
        if known is None:
            known = self._designs[key] = Design(
                self.hidden_channels, self.message_channels, self.heads or 1, self.concat,
                self.message == "edge", *key,
                tuple(net.channels for net in nets), tuple(net.mask for net in nets),
            )  # fmt: skip
        return known

    def _weights(self, found: Checked) -> tuple[Tensor | None, Tensor | None]:
        """Weights ω of the edges [R or 1, H or 1, 1, E] and of the self messages [N]."""
        graph, x, heard, edge_attr, weight = found
        loop_weight = None
        if self.normalize:
            ones = x.new_ones(graph.num_edges) if weight is None else weight
            whole = renormalised(graph, ones)
            weight, loop_weight = whole.edge, whole.loop
        elif self.aggr == "mean":
            share = graph.in_degree.clamp_min(1).to(x.dtype).reciprocal()[graph.dst]
            weight = share if weight is None else weight * share
        if weight is not None:
            weight = weight.view(1, 1, 1, graph.num_edges)
        if self.attention is not None:
            alpha = attend(self.attention, x, edge_attr, graph, heard)
            alpha = alpha.view(self.replicas or 1, self.heads or 1, 1, graph.num_edges)
            weight = alpha if weight is None else alpha * weight
        return weight, loop_weight

    def exported(self) -> Exported:
        net = self.networks[2]  # all networks have one activation and one kind of gate
        act = portable(net.act, ACTIVATIONS)
        config = {"kind": "energy", "act": act, "gate": net.gate, "beta": self.beta}
        options = ("message", "message_channels", "heads", "concat", "aggr", "normalize")
        return config | {name: getattr(self, name) for name in options}, {}

    @opaque
    def energy(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The energy of embeddings ``h`` [N, k] or [R, N, k] on every graph, [G] or [R, G].
        Autograd differentiates it as usual."""
        return self.measured(h, inputs, lambda problem, h: problem.evaluate(h).value)


class EnergyGNN(ImplicitGNN):
    """An energy GNN: one or several :class:`EnergyConv` (the paper uses one) and the paper's
    readout. The arguments are those of :class:`~hogwild.models.gnn.ImplicitGNN` and
    :class:`EnergyConv`."""

    layer = EnergyConv

    def energy(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The energy of embeddings ``h`` on every graph: :meth:`EnergyConv.energy`."""
        found: Tensor = self._only("energy").energy(h, self.encoded(inputs))
        return found
