"""Energy GNNs: embeddings that minimise a learned, strongly convex energy.

`Graph Neural Networks Gone Hogwild <https://openreview.net/forum?id=WfxPVtYRlL>`_ (Solodova,
Richardson, Oktay & Adams, ICLR 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from hogwild.engines.chunks import ChunkedEnergyKernel
from hogwild.engines.cuda import CudaEnergyKernel
from hogwild.engines.energy import ACTIVATIONS, EnergyKernel
from hogwild.engines.large import LargeEnergyKernel
from hogwild.engines.posing import Design, Posing, given_by
from hogwild.errors import (
    AsynchronyError,
    ConfigError,
    require_all_positive,
    require_one_of,
    require_widths,
)
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.kernels.attention import attend
from hogwild.kernels.native import Missing, found
from hogwild.linalg.linear import LinearSolver
from hogwild.models.base import Kind
from hogwild.models.contraction import renormalised
from hogwild.models.gnn import ImplicitGNN
from hogwild.models.implicit import ImplicitConv, Solving
from hogwild.models.mode import opaque, refuse_transforms
from hogwild.nn.activations import Activation
from hogwild.nn.attention import NeighbourhoodAttention
from hogwild.nn.mlp import MLP
from hogwild.nn.picnn import PICNN
from hogwild.problems.base import Problem, Recipe
from hogwild.problems.energy import EnergyProblem
from hogwild.problems.streamed import Pose, StreamedEnergy, is_large
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton
from hogwild_node.networks import PICNNParameters, Slot, mlp
from hogwild_node.round import Round
from hogwild_node.tree import EDGES, FIXED, NODES, SHARED, over


def message_gain(rounds: int, message: str) -> float:
    """Initial slope of a network in its monotone inputs (messages and outputs of earlier rounds).

    The slope is small enough that a fresh energy is well conditioned at degree 50, and large enough
    that neighbours influence each other from the first epoch. Edge-wise messages need a smaller
    slope because they already couple neighbours strongly (:data:`COUPLING`), and because the
    curvature of a sum of messages grows with the square of the degree.
    ``benchmarks/training_step.py`` times the solves of such fresh energies.
    """
    if message == "edge":
        return 0.06 if rounds == 1 else 0.02
    return 0.25 if rounds == 1 else 0.075


KERNELS: dict[str, tuple[type[EnergyKernel], ...]] = {
    "cpu": (ChunkedEnergyKernel, EnergyKernel), "cuda": (LargeEnergyKernel, CudaEnergyKernel),
}  # fmt: skip
"""The compiled solves, by the kind of device; the first one that pays is used."""


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


STARTS = ("zero", "learned")


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
        rounds: Rounds of messages inside the one convex energy. With L > 1 rounds the energy of a
            node depends on nodes L hops away, so that only a solver can minimise it.
        beta: Strong convexity :math:`\beta`.
        widths: Hidden widths of the PICNNs; ``None``: (w, w) with w = max(4, k/4) rounded down, at
            k ≤ 19 the paper's (4, 4) (:func:`default_widths`).
        act: Activation of the PICNNs, smooth, convex and nondecreasing.
        gate: Positive part of the PICNNs' gates, ``"softplus"`` or ``"relu"``.
        start: Where nodes start in asynchronous runs: ``"zero"``, or ``"learned"``: at a guess from
            their own features, an MLP. The answer in the limit does not depend on it. It learns
            from losses of answers in time (``deadline`` of :func:`hogwild.train`).

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
        rounds: int = 1,
        beta: float = 0.04,
        widths: Sequence[int] | None = None,
        act: str | Activation = "softplus",
        gate: str = "softplus",
        start: str = "zero",
        **kwargs: Unpack[Solving],
    ) -> None:
        super().__init__(in_channels, hidden_channels, **kwargs)
        if message not in ("edge", "node"):
            raise ConfigError(f"message={message!r}; expected 'edge' or 'node'")
        aggr = "sum" if aggr == "add" else aggr
        if aggr not in ("sum", "mean"):
            raise ConfigError(
                f"aggr={aggr!r}; expected 'sum' (or 'add') or 'mean' (only nonnegative sums keep "
                f"the energy convex and its gradients local)"
            )
        require_all_positive(
            message_channels=message_channels, rounds=rounds, heads=heads, edge_dim=edge_dim
        )
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
        self.edge_dim, self.rounds, self.beta = edge_dim, rounds, float(beta)
        self._designs: dict[tuple[bool, float], Design] = {}

        k, h = hidden_channels, heads or 1
        lead = () if self.replicas is None else (self.replicas,)
        per_head = lead if heads is None else (*lead, heads)
        ends = 2 if message == "edge" else 1
        merged = message_channels * (h if concat else 1)
        slots = (in_channels,) * ends
        if message == "edge" and edge_dim is not None:
            slots = (*slots, edge_dim)
        self.message_nets, self.loop_nets = nn.ModuleList(), nn.ModuleList()
        self.update_nets = nn.ModuleList()
        inner = 0  # width of the previous round's outputs
        for depth in range(rounds):
            signal = [False] * k + [True] * inner  # nondecreasing in earlier rounds' outputs
            both = [m for m in signal for _ in range(ends)]
            out = 1 if depth == rounds - 1 else k
            mono = [True] * merged + signal
            for nets, features, monotone, width, batch_shape in (
                (self.message_nets, slots, both, message_channels, per_head),
                (self.loop_nets, (in_channels,), signal, merged, lead),
                (self.update_nets, (in_channels,), mono, out, lead),
            ):
                nets.append(
                    PICNN(
                        features, len(monotone), (*widths, width), monotone=monotone, act=act,
                        gate=gate, batch_shape=batch_shape, gain=message_gain(rounds, message),
                    )
                )  # fmt: skip
            inner = out
        require_one_of(STARTS, start=start)
        self.guess: MLP | None = None
        if start == "learned":
            self.guess = MLP(in_channels, (widths[0], k), replicas=self.replicas)
        self._agree()
        self.attention: NeighbourhoodAttention | None = None
        if heads is not None:
            self.attention = NeighbourhoodAttention(
                in_channels, edge_dim, message_channels, batch_shape=per_head
            )

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in self.modules():
            if isinstance(module, PICNN | NeighbourhoodAttention | MLP):
                module.reset_parameters()
        self._agree()

    @torch.no_grad()
    def _agree(self) -> None:
        r"""Make fresh messages depend on differences, :math:`m(h_i - h_j)`.

        A fresh energy then resembles that of a graph Laplacian. Along a chain, more than half of a
        node's signal survives each hop. With independent weights on both ends less than 35 % would
        survive, which leaves too little to learn from.
        """
        if self.guess is not None:  # a fresh guess is zero
            self.guess.weight[-1].zero_()
            self.guess.bias[-1].zero_()
        for message, loop, update in self._networks():
            for wy in message.wy if self.message == "edge" else ():
                own, other = wy.unflatten(-1, (-1, 2)).unbind(-1)  # (channel, end): i, then j
                free = ~message.monotone[::2]
                own.copy_(torch.where(free, COUPLING * own, own))
                other.copy_(torch.where(free, -own, other))
            for wy, monotone in ((w, net.monotone) for net in (loop, update) for w in net.wy):
                wy.copy_(torch.where(monotone, wy, ALONE * wy))

    def _networks(self) -> Iterator[tuple[PICNN, PICNN, PICNN]]:
        """(message, self message, update) of every round."""
        nets = zip(self.message_nets, self.loop_nets, self.update_nets, strict=True)
        return cast("Iterator[tuple[PICNN, PICNN, PICNN]]", nets)

    def default_solver(self) -> Solver:
        return Newton()

    def problem(self, inputs: Inputs) -> EnergyProblem | StreamedEnergy:
        """The energy of these inputs, attached to the autograd graph. A large graph is evaluated in
        blocks, unless its linear systems are factorised."""
        inputs = self.accept(inputs)
        graph, x, heard, edge_attr = self.fields(inputs)
        weights = self._weights(graph, x, heard, edge_attr, inputs.edge_weight)
        found = self._energy(
            graph, Given(self, self._networks_in(x.dtype), x, heard, edge_attr, *weights)
        )
        found.begin = self._guessed(x)
        found.recipe = Recipe(graph, inputs, self.kernel)
        return found

    def _energy(self, graph: Graph, given: Given) -> EnergyProblem | StreamedEnergy:
        """The energy of these features and parameters."""
        shape = (self.replicas or 1, self.hidden_channels)
        if self.rounds == 1 and is_large(graph, shape[0]):
            linear = LinearSolver(self.solver.linear)
            if not linear.factorises(graph, *shape):
                return StreamedEnergy(graph, self.beta, given, shape, given.x)
        x, heard = given.x, given.heard
        sender = Slot(x, graph.src) if heard is None else Slot(heard)
        edge_slots = self._slots(Slot(x, graph.dst), sender, given.edge_attr)
        rounds = [
            self._round(networks, [Slot(x)], edge_slots, given.weight, given.loop_weight)
            for networks in given.networks
        ]
        return EnergyProblem(graph, self.beta, rounds)

    def posed_again(self, kernel: EnergyKernel, sources: Sequence[Tensor | None]) -> Problem:
        x, heard, edge_attr, weight, loop_weight, *given = sources
        assert x is not None
        left = iter(p for p in given if p is not None)
        networks = [tuple(net.parameters_of(x.dtype, left) for net in next(self._networks()))]
        return self._energy(
            kernel.graph,
            Given(
                self, networks, kernel.in_graph_order(x), heard, edge_attr,
                None if weight is None else weight.unsqueeze(2),
                None if loop_weight is None else kernel.in_graph_order(loop_weight),
            ),
        )  # fmt: skip

    def _guessed(self, x: Tensor) -> Tensor | None:
        """Where nodes start, from their features [1 or R, p, N]: [R, k, N]; ``None``: at zero."""
        if self.guess is None:
            return None
        weight, bias = (
            [p.to(x.dtype) for p in some] for some in (self.guess.weight, self.guess.bias)
        )
        rows = x.mT if self.replicas is not None else x[0].mT
        rows = rows.expand(self.replicas, *rows.shape[1:]) if self.replicas is not None else rows
        found: Tensor = mlp(rows, weight, bias, self.guess.negative_slope).mT.contiguous()
        return found if self.replicas is not None else found.unsqueeze(0)

    def kernel(self, inputs: Inputs) -> EnergyKernel | str:
        native = found()
        if isinstance(native, Missing):
            return f"there is no compiled library ({native.reason})"
        if self.rounds > 1:
            return f"rounds={self.rounds}, and the compiled solve knows one round"
        if not self.solver.compiles:
            return f"solver={self.solver}, and the compiled solve is Newton(linear='auto')"
        nets = next(self._networks())
        act = nets[0].act
        if ACTIVATIONS.get(act.name) != act:
            return f"the activation {act.name!r} is not one of {', '.join(ACTIVATIONS)}"
        graph, x, heard, edge_attr = self.fields(inputs)
        if x.dtype != torch.float64:
            return "the solve runs in float32, and the compiled solve in float64"
        if x.device.type not in KERNELS:
            return f"the features are on {x.device}; expected one of {', '.join(KERNELS)}"
        given = given_by(nets)
        if given is None or type(x) is not Tensor:
            return "parameters are functions of others (pruned, for instance), or x is no tensor"
        device = x.device
        if any(p.device != device for p in given):
            return f"the features are on {x.device}, and some parameters are not"
        design = self._design(heard is None)
        if not design.fits:
            return "the networks have more layers, units or inputs than the compiled solve takes"
        sizes = native, graph, design, self.replicas or 1
        kernel = next((kind for kind in KERNELS[x.device.type] if kind.pays(*sizes)), None)
        if kernel is None:
            return "the graph is large or has no small separators: other methods are cheaper there"
        weight, loops = self._weights(graph, x, heard, edge_attr, inputs.edge_weight)
        x = kernel.arranged(native, graph, x)
        loops = None if loops is None else kernel.arranged(native, graph, loops)
        posing = Posing(native, given, design, x, heard, edge_attr, weight, loops)
        made = kernel.of(native, graph, design, posing)
        if self.solver.adjoint_rtol is not None:
            made.rtol = self.solver.adjoint_rtol
        elif given[0].dtype != torch.float64:
            made.rtol = 1e-6  # gradients in float32 have no more digits
        return made

    def _design(self, sent_at_nodes: bool) -> Design:
        """The sizes of the only round, for the compiled solve."""
        known = self._designs.get((sent_at_nodes, self.beta))
        if known is None:
            nets = next(self._networks())
            known = self._designs[sent_at_nodes, self.beta] = Design(
                self.hidden_channels, self.message_channels, self.heads or 1, self.concat,
                self.message == "edge", sent_at_nodes, self.beta, nets[0].act.name, nets[0].gate,
                tuple(net.channels for net in nets), tuple(net.mask for net in nets),
            )  # fmt: skip
        return known

    def _networks_in(self, dtype: torch.dtype) -> list[tuple[PICNNParameters, ...]]:
        """Parameters of (message, self message, update) of every round."""
        return [tuple(net.parameters_of(dtype) for net in nets) for nets in self._networks()]

    def _slots(self, receiver: Slot, sender: Slot, edge_attr: Tensor | None) -> list[Slot]:
        """The features that the message network reads."""
        if self.message != "edge":
            return [sender]
        return [receiver, sender] + ([] if edge_attr is None else [Slot(edge_attr)])

    def _round(
        self,
        networks: tuple[PICNNParameters, ...],
        nodes: list[Slot],
        edges: list[Slot],
        weight: Tensor | None,
        loop_weight: Tensor | None,
    ) -> Round:
        message, loop, update = networks
        return Round(
            message.context(edges), loop.context(nodes), update.context(nodes),
            weight, loop_weight, self.heads or 1, self.concat, self.message == "edge",
        )  # fmt: skip

    def _weights(
        self,
        graph: Graph,
        x: Tensor,
        heard: Tensor | None,
        edge_attr: Tensor | None,
        edge_weight: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Weights ω of the edges [R or 1, H or 1, 1, E] and of the self messages [N]."""
        weight = None if edge_weight is None else edge_weight.to(x.dtype)
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

    @opaque
    def energy(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The energy of embeddings ``h`` [N, k] or [R, N, k] on every graph, [G] or [R, G].
        Autograd differentiates it as usual."""
        inputs = self.accept(inputs)
        refuse_transforms(self, inputs)
        with self._precise(inputs):
            problem, h = self._at(h, inputs)
            value: Tensor = problem.evaluate(h).value
        return value if self.replicas is not None else value[0]

    def require_asynchronous(self, inputs: Inputs) -> None:
        if self.rounds > 1:
            raise AsynchronyError(
                f"rounds={self.rounds}: the energy of a node depends on embeddings {self.rounds} "
                f"hops away, but an asynchronous node only hears its neighbours. Expected "
                f"rounds=1. Several layers, EnergyGNN(..., num_layers={self.rounds}), also look "
                f"{self.rounds} hops far, and each of them is a one-hop energy."
            )
        Inputs.of(inputs).graph(validate=self.validate).require_reverse_links()

    def _distinctions(self) -> dict[str, object]:
        return {
            "message": self.message, "heads": self.heads, "rounds": self.rounds,
            "aggr": None if self.aggr == "sum" else self.aggr, "normalize": self.normalize or None,
            "beta": self.beta, "start": None if self.guess is None else "learned",
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Given(Pose):
    """What an energy is made of: parameters, features and weights, in the precision of the solve.

    Attributes:
        conv: The layer, whose options say how messages are read and merged.
        networks: Parameters of (message, self message, update) of every round.
        x: Features of the nodes, [1 or R, p, N].
        heard: The senders' features as heard, [1 or R, p, E], or ``None``: those of ``x``.
        edge_attr: Features of the edges, [1, r, E], or ``None``.
        weight: Weights of the messages, [R or 1, H or 1, 1, E], or ``None``.
        loop_weight: Weights of the self messages, [N], or ``None``.
    """

    conv: EnergyConv = over(FIXED)
    networks: list[tuple[PICNNParameters, ...]] = over(SHARED)
    x: Tensor = over(NODES)
    heard: Tensor | None = over(EDGES)
    edge_attr: Tensor | None = over(EDGES)
    weight: Tensor | None = over(EDGES)
    loop_weight: Tensor | None = over(NODES)

    def on(self, star: Star, src: Tensor) -> Round:
        def some(value: Tensor | None, index: Tensor | None) -> Tensor | None:
            return None if value is None else value[..., index]

        (networks,), own = self.networks, self.x[..., star.nodes]
        sent = self.x[..., src] if self.heard is None else self.heard[..., star.edges]
        attr = some(self.edge_attr, star.edges)
        edges = self.conv._slots(Slot(own, star.slot), Slot(sent), attr)
        weights = some(self.weight, star.edges), some(self.loop_weight, star.nodes)
        return self.conv._round(networks, [Slot(own)], edges, *weights)


class EnergyGNN(ImplicitGNN):
    """An energy GNN: one or several :class:`EnergyConv` (the paper uses one) and the paper's
    readout. The arguments are those of :class:`~hogwild.models.gnn.ImplicitGNN` and
    :class:`EnergyConv`."""

    layer = EnergyConv

    def energy(self, h: Tensor, inputs: Inputs) -> Tensor:
        """The energy of embeddings ``h`` on every graph: :meth:`EnergyConv.energy`."""
        found: Tensor = self._only("energy").energy(h, self.features(self.accept(inputs)))
        return found
