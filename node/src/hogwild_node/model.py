r"""A trained model as one node holds it: parameters, and what they make of the node's features.

A node knows its own features, and of each neighbour the features and the degree (they come in the
neighbour's hello), the features and the weight of the edge between them. From these a model builds
what the node computes: a local energy, a row of a map, or layers (:meth:`NodeModel.build`, over the
star of one node). A node that has heard of others, too, builds the same for all of them at once
(:meth:`NodeModel.build_part`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hogwild_node import model_file, networks, soft
from hogwild_node.activations import ACTIVATIONS, NONEXPANSIVE
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.local import BothSides, LocalEnergy, LocalMap
from hogwild_node.model_file import ModelFile
from hogwild_node.networks import PICNNParameters, Slot
from hogwild_node.ops import Array, namespace
from hogwild_node.packets import RULES as CODES
from hogwild_node.problems import GCN, GSD, Contraction, Energy, GCNLayer
from hogwild_node.round import Round
from hogwild_node.rules import RULES, Rule
from hogwild_node.soft import Soft
from hogwild_node.star import Star

LEAST = {"float16": 1e-3, "float32": 1e-4, "float64": 1e-8}
"""The least residuals up to which nodes count as settled, with packets of each precision."""
Local = LocalEnergy | LocalMap | GCN


@dataclass(frozen=True)
class Neighbour:
    """What a node knows of one neighbour.

    Attributes:
        features: The neighbour's features, as it tells them (:meth:`NodeModel.encode`), [q].
        degree: One plus the weights of the neighbour's edges.
        edge_attr: Features of the edge between the two, [r]; ``None``: there are none.
        weight: Weight of that edge.
        back_attr: Features of the edge the other way, [r]; ``None``: not known.
    """

    features: Array
    degree: float = 1.0
    edge_attr: Array | None = None
    weight: float = 1.0
    back_attr: Array | None = None


def star_of(neighbours: int) -> Star:
    """One node with so many neighbours."""
    return Star(1, np.zeros(neighbours, dtype=np.intp))


@dataclass(frozen=True)
class Part:
    """Some nodes of a graph, with what a model reads of them.

    Attributes:
        star: The nodes, and the edges into them that are at hand.
        own: The nodes' features, as they tell them, [A, q].
        near: The features of the senders of edges, [S, q].
        degree: One plus the weights of all edges into each node, also of those not at hand, [A].
        count: The number of these edges, [A]; 1 where it is not known.
        there: The degree of each edge's sender, [E'].
        weight: The weight of each edge, [E'].
        edge_attr: The features of each edge, [E', r]; ``None``: there are none.
        senders: The row of ``near`` of each edge's sender, [E']; ``None``: in order.
    """

    star: Star
    own: Array
    near: Array
    degree: Array
    count: Array
    there: Array
    weight: Array
    edge_attr: Array | None
    senders: Array | None = None

    @classmethod
    def of_node(cls, x: Array, near: Sequence[Neighbour], both: bool = False) -> Part:
        """One node with features ``x`` [q] and these neighbours; where it computes ``both`` sides
        of its edges, with its neighbours, the edges into it and then those out of it
        (:meth:`Star.with_senders`). The two edges of a pair have one weight."""
        d, star = len(near), star_of(len(near))
        weight, there = np.array([n.weight for n in near]), np.array([n.degree for n in near])
        degree, count = np.array([1.0 + float(weight.sum())]), np.array([d])
        features = np.array([n.features for n in near]).reshape(d, x.shape[0])
        rows = [n.edge_attr for n in near if n.edge_attr is not None]
        if not both:
            attr = np.stack(rows) if rows else None
            return cls(star, x[None], features, degree, count, there, weight, attr)
        rows += [n.back_attr for n in near if n.back_attr is not None]
        own, degree = np.concatenate([x[None], features]), np.concatenate([degree, there])
        senders = np.concatenate([np.arange(1, 1 + d), np.zeros(d, dtype=np.intp)])
        return cls(
            star.with_senders(), own, own, degree, np.concatenate([count, np.ones(d)]),
            degree[senders], np.concatenate([weight, weight]), np.stack(rows) if rows else None,
            senders,
        )  # fmt: skip

    def renormalised(self) -> tuple[Array, Array]:
        r""":math:`\tilde A` of each edge [E'], and of each node with itself [A]."""
        return (
            self.weight / np.sqrt(self.degree[self.star.slot] * self.there), 1.0 / self.degree
        )  # fmt: skip


def _fitting(kind: type) -> tuple[str, ...]:
    """The rules of agents for this kind of computation, the usual one first."""
    return tuple(n for n, rule in RULES.items() if n in CODES and issubclass(kind, rule.fits))


class NodeModel(ABC):
    """A trained model without torch.

    Attributes:
        name: Its name on the network.
        in_channels: Width p of the features.
        told_channels: Width q of what a node tells its neighbours of them (:meth:`encode`).
        edge_dim: Width of the edge features; ``None``: none are read.
        channels: Width of a node's embedding.
        rules: The rules that fit the model; the first is the default.
        convexity: Strong convexity of the energy, for error bounds; ``None``: no bound is known.
        pairwise: Whether the energy is :attr:`~hogwild_node.local.LocalEnergy.pairwise`.
        couples: Hops between nodes whose equations depend on each other: 2 for an energy, because a
            node also answers to the energies of its neighbours, and 1 for a map.
    """

    rules: tuple[str, ...]
    convexity: float | None = None
    pairwise: bool = False
    couples: int = 1

    def __init__(self, file: ModelFile) -> None:
        self.config, self.tensors, self.name = file.config, file.tensors, file.name
        self.in_channels = int(file.config["in_channels"])
        self.out_channels = int(file.config["out_channels"])
        self.edge_dim: int | None = file.config["edge_dim"]
        self.channels = int(file.config["hidden_channels"])
        self._encoder = self._layers("features.encoder")
        self.told_channels = self._encoder[1][-1].shape[0] if self._encoder[1] else self.in_channels

    def tolerance(self, precision: str) -> float:
        """The residual up to which a node counts as settled, with packets of this precision."""
        return float((LEAST | self.config.get("tolerance", {}))[precision])

    def build(self, x: Array, near: Sequence[Neighbour], rule: str = "auto") -> Any:
        """What a node with features ``x`` [q] and these neighbours computes by this rule."""
        return self.build_part(Part.of_node(x, near, self.sees_both_sides(rule)))

    def sees_both_sides(self, rule: str) -> bool:
        """Whether nodes compute both sides of their edges by this rule."""
        found = RULES.get(self.choose(rule))
        return self.pairwise and found is not None and found.both_sides

    @abstractmethod
    def build_part(self, part: Part) -> Local:
        """What these nodes compute."""

    def start(self, local: Local) -> Array:
        """Where a node begins, [1, k, 1]."""
        return np.zeros((1, self.channels, 1))

    def choose(self, name: str) -> str:
        """The name of a rule that fits the model; ``"auto"``: the model's own."""
        if name not in ("auto", *self.rules):
            raise SetupError(
                f"rule={name!r} does not fit this model, or no agent has it; expected one of auto, "
                f"{', '.join(self.rules)}"
            )
        return self.rules[0] if name == "auto" else name

    def rule(self, name: str, local: Local, star: Star) -> Rule:
        """The rule of that name, whose packets replace each other: all but ``"balls"``
        (:mod:`hogwild_node.balls`)."""
        made: Any = local
        if self.sees_both_sides(name):
            assert isinstance(local, LocalEnergy)  # the pairwise ones
            made = BothSides(local)
        return RULES[self.choose(name)].of(made, star, self.channels)

    def predict(self, h: Array) -> Array:
        """The prediction [out] of a node with embedding ``h`` [k]."""
        weights, biases = self._layers("readout.node")
        h = self._normalised("readout", h[None, :, None])[..., 0]
        found: Array = networks.mlp(h, weights, biases)[0]
        return found

    def _normalised(self, part: str, x: Array) -> Array:
        """Numbers of nodes [1, q, n] after the norm of a part of the model, if it has one."""
        names = (f"{part}.norm.{name}" for name in ("weight", "bias", "mean", "variance"))
        rows = [self.tensors[name][None, :, None] for name in names if name in self.tensors]
        return networks.normalised(x, *rows) if rows else x

    # -- features ----------------------------------------------------------------------------------

    def check(self, x: Array, near: Sequence[Neighbour]) -> None:
        """Raise :class:`SetupError` on features ``x`` [p] that the model cannot read, or on those
        of neighbours."""
        rows = [("features", x, self.in_channels)]
        rows += [("features of a neighbour", n.features, self.told_channels) for n in near]
        for n in near:
            if (n.edge_attr is None) != (self.edge_dim is None):
                raise SetupError(
                    f"the edge has {'no' if n.edge_attr is None else 'some'} features; expected "
                    f"{'none' if self.edge_dim is None else f'{self.edge_dim} numbers'}"
                )
            if n.edge_attr is not None:
                rows.append(("features of an edge", n.edge_attr, int(self.edge_dim or 0)))
            if not 0.0 <= n.weight < np.inf:
                raise SetupError(f"an edge has weight {n.weight}; expected a number from 0 on")
        for name, row, width in rows:
            if row.shape != (width,) or not bool(np.isfinite(row).all()):
                raise SetupError(
                    f"the {name} are {row.shape[0] if row.ndim == 1 else row.shape} numbers "
                    f"{np.array2string(row, threshold=6)}; expected {width} finite numbers"
                )

    def encode(self, x: Array) -> Array:
        """What a node tells its neighbours of its features: [p] -> [q]. They are standardised and
        encoded where the model has an encoder; otherwise they are told as they are."""
        weights, biases = self._encoder
        if not weights:
            return x
        standard = self._standard("features.nodes", x[None])[0].mT
        found: Array = networks.mlp(standard, weights, biases)[0]
        return namespace(found).leaky_relu(found, networks.FEATURE_SLOPE)

    def _nodes(self, x: Array) -> Array:
        """Features of some nodes as the layer reads them: [n, q] -> [1, q, n]."""
        return x.mT[None] if self._encoder[0] else self._standard("features.nodes", x)

    def _edges(self, part: Part) -> Array | None:
        """Standardised features of the edges, [1, r, E']."""
        if self.edge_dim is None:
            return None
        attr = part.edge_attr if part.edge_attr is not None else np.zeros((0, self.edge_dim))
        return self._standard("features.edges", attr)

    def _standard(self, prefix: str, x: Array) -> Array:
        offset, scale = self.tensors[f"{prefix}.offset"], self.tensors[f"{prefix}.scale"]
        return ((x - offset) / scale).mT[None]

    def _layers(self, prefix: str) -> tuple[list[Array], list[Array]]:
        """Weights and biases of an MLP; none where the model has no such MLP."""
        return self._listed(f"{prefix}.weight"), self._listed(f"{prefix}.bias")

    def _listed(self, prefix: str) -> list[Array]:
        """The tensors of a list of parameters, in order."""
        count = sum(name.startswith(f"{prefix}.") for name in self.tensors)
        return [self.tensors[f"{prefix}.{i}"] for i in range(count)]

    def _encode(self, x: Array, prefix: str = "conv.encoder") -> Array:
        """An MLP on features [1, p, n]: [1, k, n]; without one, the features."""
        found: Array = networks.mlp(x.mT, *self._layers(prefix)).mT
        return found


class _Optimisation(NodeModel):
    """Models whose embeddings minimise an energy."""

    rules = (*_fitting(LocalEnergy), "balls")
    couples = 2


class EnergyModel(_Optimisation):
    """The energy GNN."""

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        self.convexity = float(self.config["beta"])
        self.act = ACTIVATIONS[self.config["act"]]
        self.heads: int | None = self.config["heads"]
        self.nets = [self._network(name) for name in ("message_nets", "loop_nets", "update_nets")]

    def _network(self, name: str) -> PICNNParameters:
        heads = name == "message_nets" and self.heads is not None
        prefix = f"conv.{name}.0"

        def layers(part: str) -> list[Array]:
            return [x if heads else x[None] for x in self._listed(f"{prefix}.{part}")]

        ends = 2 if self.config["message"] == "edge" else 1
        merged = self.config["message_channels"] * (
            self.heads if self.heads is not None and self.config["concat"] else 1
        )
        monotone = {
            "message_nets": [False] * (self.channels * ends),
            "loop_nets": [False] * self.channels,
            "update_nets": [True] * merged + [False] * self.channels,
        }[name]
        return PICNNParameters(
            layers("feature_weight"), layers("feature_bias"), layers("wy"), layers("wz"),
            tuple(monotone), self.act, self.config["gate"],
        )  # fmt: skip

    def build_part(self, part: Part) -> Energy:
        own, there = self._nodes(part.own), Slot(self._nodes(part.near), part.senders)
        edges = self._edges(part)
        weight, loop_weight = self._weigh(own, there, edges, part)
        found = Round.of(
            self.nets, own, there, edges, part.star, weight=weight, loop_weight=loop_weight,
            heads=self.heads or 1, concat=self.config["concat"],
            both_ends=self.config["message"] == "edge",
        )  # fmt: skip
        return Energy(found, float(self.config["beta"]))

    def _weigh(
        self, own: Array, there: Slot, edges: Array | None, part: Part
    ) -> tuple[Array, Array | None]:
        """Weights of the edges [1, H or 1, 1, E'] and of the self messages [A]."""
        weight, loop, star = part.weight, None, part.star
        if self.config["normalize"]:
            weight, loop = part.renormalised()
        elif self.config["aggr"] == "mean":
            weight = weight / np.maximum(part.count, 1)[star.slot]
        weight = weight.reshape(1, 1, 1, star.degree)
        if self.heads is not None:
            theta = {n: self.tensors.get(f"conv.attention.theta_{n}") for n in "xae"}
            alpha = networks.attention(theta["x"], theta["a"], theta["e"], own, there, edges, star)
            weight = weight * alpha.reshape(1, self.heads, 1, star.degree)
        return weight, loop


class DenoisingModel(_Optimisation):
    """Graph signal denoising."""

    pairwise = True

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        self.convexity = 2.0 * float(self.config["gamma"])

    def build_part(self, part: Part) -> GSD:
        target, gamma = self._encode(self._nodes(part.own)), self.config["gamma"]
        root, there = part.degree**-0.5, part.there**-0.5
        return GSD(target, root, there, part.weight, gamma, self.config["beta"])


class SoftModel(_Optimisation):
    """The soft energy GNN."""

    pairwise = True

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        self.convexity = float(self.config["beta"])
        if self.config["condition"] <= soft.QUICK:
            self.rules = tuple(sorted(self.rules, key=lambda name: not self.sees_both_sides(name)))
        names = ("receiver", "sender", "low", "high", "inner", "inner_low", "inner_high")
        self.shared: Any = {name: self.tensors[f"conv.{name}"][None] for name in names}

    def build_part(self, part: Part) -> Soft:
        raw = self._nodes(part.own)
        own = soft.knowing(self._normalised("conv", raw), part.degree)
        heard = self._nodes(part.near)
        heard = heard if part.senders is None else heard[..., part.senders]
        near = self._normalised("conv", heard)
        slot = part.star.slot
        bias, inner_bias = (self.tensors[f"conv.{name}"][None] for name in ("bias", "inner_bias"))
        here, there = soft.scales(
            self.config["aggr"], part.degree[slot], part.there, self.config["max_degree"]
        )
        found = Soft(
            anchor=self._encode(own),
            bias=soft.biases(bias, own, soft.knowing(near, part.there), self._edges(part), slot),
            here=here[None, None], there=there[None, None], weight=part.weight[None, None],
            offset=inner_bias @ own, beta=float(self.config["beta"]), **self.shared,
        )  # fmt: skip
        if not self.config["residual"]:
            return found
        k = self.channels
        below = raw[:, -k:]
        return found.around(below, found.arguments(below, heard[:, -k:], part.star) - found.bias)

    def start(self, local: Local) -> Array:
        assert isinstance(local, Soft)
        return 1.0 * local.anchor[..., :1]


class ContractionModel(NodeModel):
    """IGNN and EIGNN: the fixed point of a contraction."""

    rules = (*_fitting(LocalMap), "balls")

    def build_part(self, part: Part) -> Contraction:
        edge, loop = part.renormalised()
        bias = self._encode(self._nodes(part.own))
        act = NONEXPANSIVE[self.config["act"]].value
        if self.config["act"] == "leaky_relu":
            act = partial(act, negative_slope=self.config["negative_slope"])
        return Contraction(self.tensors["matrix"][None], bias, edge, loop, act)


class GCNModel(NodeModel):
    """A graph convolutional network: a fixed number of layers."""

    rules = _fitting(GCN)

    def build_part(self, part: Part) -> GCN:
        edge, loop = part.renormalised()
        encoded = self._encode(self._nodes(part.own))
        layers, k = [], self.channels
        for i in range(self.config["num_layers"]):
            weight = self.tensors[f"conv.layers.{i}.conv.lin.weight"][None]
            bias = self.tensors.get(f"conv.layers.{i}.conv.bias", np.zeros(k)).reshape(1, k, 1)
            layers.append(GCNLayer(weight, bias, NONEXPANSIVE[self.config["act"]].value))
        widths = (k,) * (len(layers) + 1)
        return GCN(encoded, tuple(layers), edge, loop, widths)

    def start(self, local: Local) -> Array:
        assert isinstance(local, GCN)
        return 1.0 * local.encoded


MODELS: dict[str, type[NodeModel]] = {
    "energy": EnergyModel,
    "denoising": DenoisingModel,
    "soft": SoftModel,
    "contraction": ContractionModel,
    "gcn": GCNModel,
}


def of(file: ModelFile) -> NodeModel:
    """The model in a file."""
    kind = file.config.get("kind")
    if kind not in MODELS:
        raise ModelFileError(
            f"the model is of kind {kind!r}; this version runs {', '.join(MODELS)}: install a "
            f"newer version of hogwild-node"
        )
    return MODELS[kind](file)


def load(path: str | Path) -> NodeModel:
    """The model in the file at this path."""
    return of(model_file.load(path))
