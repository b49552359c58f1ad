"""Models that consist of an input stage (:class:`Features`), a convolution and a readout."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.errors import (
    ConfigError,
    FeatureError,
    FeatureWarning,
    is_integer,
    require_positive,
    require_probability,
    require_widths,
)
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.kernels.native import traced
from hogwild.linalg.solution import Solution, unreadable
from hogwild.models.base import AnyProblem, Conv, Kind, Model, keywords, refuse_unknown
from hogwild.models.implicit import ImplicitConv, Stack
from hogwild.models.readout import Readout
from hogwild.models.validation import (
    check_inputs,
    first_parameter,
    large_features,
    opaque,
    refuse_batch,
    require_finite,
    widened,
)
from hogwild.nn.networks import MLP
from hogwild.nn.standardize import Standardize
from hogwild.problems.base import Problem


class Features(nn.Module):
    r"""Standardises node and edge features (:class:`~hogwild.nn.Standardize`), and encodes the node
    features, each node by itself. Edge features [E] become a column [E, 1].

    An encoder is an MLP with an activation after its last layer, too. The convolution then reads
    the encoded features, and nothing else does: agents tell their neighbours encoded features.

    All replicas share the statistics of the edge features.

    Args:
        in_channels: Width p of the node features. With −1 it is that of the first features, and
            parameters that depend on it are made then (:meth:`begin`); this needs an encoder.
        edge_dim: Width of the edge features; ``None`` if the model reads no edge features.
        replicas: Number of independent parameter sets, or ``None``.
        encoder: Widths of the encoder's layers; empty: there is no encoder.
        dropout: Probability of dropout of features and of the encoder's units in training.

    Attributes:
        out_channels: Width of the features that the convolution reads.
        ignores_edges: Whether a model without edge features ignores ``edge_attr`` instead of
            raising an error.
        advises: Whether the first large features in training mode give a warning, if no statistics
            were fitted by then.
    """

    def __init__(
        self,
        in_channels: int,
        edge_dim: int | None = None,
        replicas: int | None = None,
        *,
        encoder: Sequence[int] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        lazy = is_integer(in_channels) and in_channels == -1
        if lazy and not encoder:
            raise ConfigError(
                "in_channels=-1 was given without an encoder, and all layers read the features; "
                "expected an encoder, which alone then waits for them, or the number of features"
            )
        if not lazy:
            require_positive("in_channels", in_channels)
        self.edge_dim, self.replicas = edge_dim, replicas
        self.dropout = require_probability("dropout", dropout)
        self.nodes = None if lazy else Standardize(in_channels, replicas=replicas)
        self.edges = None if edge_dim is None else Standardize(edge_dim, replicas=replicas)
        self.encoder = (
            MLP(in_channels, encoder, replicas=replicas, dropout=dropout) if encoder else None
        )
        self.out_channels = encoder[-1] if encoder else in_channels
        self.ignores_edges = False
        self.advises = True

    @property
    def in_channels(self) -> int:
        """Width p of the node features; −1: it is not known yet."""
        return -1 if self.nodes is None else self.nodes.channels

    @torch.inference_mode(False)  # or the parameters could never be trained
    def begin(self, in_channels: int) -> None:
        """Make what depends on the width of the features, if it was not known."""
        if self.nodes is None:
            assert self.encoder is not None
            like = self.encoder.bias[0]
            self.nodes = Standardize(in_channels, replicas=self.replicas).to(like)
            self.encoder.begin(in_channels)

    def reset_parameters(self) -> None:
        """Draw fresh parameters. The statistics stay."""
        if self.encoder is not None:
            self.encoder.reset_parameters()

    def __repr__(self) -> str:
        given = [f"encoder={self.encoder.channels[1:]}"] if self.encoder is not None else []
        given += [f"dropout={self.dropout}"] if self.dropout else []
        given += ["standardised" if self.fitted else "as they are"]
        return f"Features({', '.join([str(self.in_channels), *given])})"

    @property
    def fitted(self) -> bool:
        """Whether any statistics were fitted."""
        return any(part is not None and part.fitted for part in (self.nodes, self.edges))

    @property
    def encodes(self) -> bool:
        """Whether :meth:`encode` changes features."""
        return self.encoder is not None or (self.training and self.dropout > 0.0)

    def encode(self, x: Tensor) -> Tensor:
        """The encoded features, [(R,) n, p] → [(R,) n, :attr:`out_channels`]."""
        if self.training and self.dropout and self.replicas is not None:
            x = x.expand(self.replicas, *x.shape[-2:])  # every replica drops others
        x = F.dropout(x, self.dropout, self.training)
        if self.encoder is None:
            return x
        x = F.leaky_relu(self.encoder(x), self.encoder.negative_slope)
        return F.dropout(x, self.dropout, self.training)

    def forward(self, inputs: Inputs) -> Inputs:
        """The inputs with standardised features. Invalid features pass through unchanged, and the
        layers raise the error."""
        if self.advises and self.training and not traced():
            self._advise(inputs)
        x = inputs.x if self.nodes is None else self.nodes(inputs.x)
        edge_attr = self._edge_attr(inputs)
        if x is inputs.x and edge_attr is inputs.edge_attr:
            return inputs
        return replace(inputs, x=x, edge_attr=edge_attr)

    def _advise(self, inputs: Inputs) -> None:
        """Look at the features of the first batch of a training, once: they may be large."""
        self.advises = False
        given = {"x": inputs.x, "edge_attr": inputs.edge_attr}
        known = {
            name: t
            for name, t in given.items()
            if type(t) is Tensor and t.layout == torch.strided and not t.is_meta
        }
        if not self.fitted and (found := large_features(**known)):
            warnings.warn(FeatureWarning(found), stacklevel=4)

    def _edge_attr(self, inputs: Inputs) -> Tensor | None:
        edge_attr = inputs.edge_attr
        if self.edges is None and self.ignores_edges and not _per_node(edge_attr, inputs.x):
            return None
        refuse_batch(edge_attr)
        if self.edges is None or edge_attr is None:
            return edge_attr
        if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and self.edges.channels == 1:
            edge_attr = edge_attr.unsqueeze(1)
        standardised: Tensor = self.edges(edge_attr)
        return standardised

    def fit(self, graphs: Sequence[Data], members: Tensor | None = None) -> None:
        """Compute the statistics from graphs; ``members`` [R, G] says which replica trains on
        which graph."""
        if members is not None:  # graphs that no replica trains on are left out
            used = members.any(0).nonzero()[:, 0]
            graphs, members = [graphs[i] for i in used.tolist()], members[:, used]
        nodes = _columns(graphs, "x", self.in_channels)
        self.begin(nodes[0].size(1))
        assert self.nodes is not None
        edges = [] if self.edges is None else _columns(graphs, "edge_attr", self.edges.channels)
        self.nodes.fit(nodes, members)
        if self.edges is not None and any(t.size(0) > 0 for t in edges):
            self.edges.fit(edges)

    def _save_to_state_dict(self, *args: Any) -> None:
        if self.nodes is None:
            raise ConfigError(
                "the model has no parameters yet, because in_channels=-1 and no features were "
                "seen; expected a call of the model, or model.standardize(data), before this"
            )
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        offset = state.get(f"{prefix}nodes.offset")
        if offset is not None:
            self.begin(offset.size(-1))
        super()._load_from_state_dict(state, prefix, *args)


def _columns(graphs: Sequence[Data], name: str, width: int) -> list[Tensor]:
    """Floating-point features [n, width] of all graphs; edge features [n] become a column."""
    found = []
    for i, graph in enumerate(graphs):
        t = graph.get(name)
        if t is not None and t.dim() == 1 and name == "edge_attr":
            t = t.unsqueeze(1)
        if t is None or not t.is_floating_point() or t.dim() != 2:
            what = "" if t is None else f" of dtype {t.dtype} and shape {list(t.shape)}"
            raise FeatureError(
                f"graph {i} has {'no ' if t is None else ''}{name}{what}, and the model reads "
                f"{name}; expected floating-point features [n, {width}]"
            )
        found.append(t)
    return found


def _per_node(edge_attr: object, x: object) -> bool:
    """Whether ``edge_attr`` looks like a ``batch`` vector."""
    if not isinstance(edge_attr, Tensor) or not isinstance(x, Tensor):
        return False
    return edge_attr.dtype == torch.long and edge_attr.shape == x.shape[-2:-1]


class ConvGNN(Model):
    """The base class of models that consist of a convolution and a readout.

    ``hidden_channels``, ``num_layers`` and ``edge_dim`` are as in ``conv``, and ``in_channels`` as
    in ``features``.

    Args:
        conv: Maps features to embeddings: any convolution of this library, your own subclass of
            :class:`~hogwild.models.ImplicitConv`, or a :class:`~hogwild.models.Stack` of several.
        readout: Maps embeddings to predictions: the hidden widths of the readout's MLPs, or a
            :class:`~hogwild.Readout`, which then decides ``out_channels`` and ``pool``.
        out_channels: Width of the predictions.
        pool: ``None`` predicts for every node. ``"mean"``, ``"add"``, ``"max"`` or
            ``"attention"`` predicts for every graph: this value of the node predictions goes
            through a second MLP (:class:`~hogwild.Readout`).
        features: Standardises the features (:meth:`standardize`), and encodes them if it has an
            encoder; by default there is none.
    """

    def __init__(
        self,
        conv: Conv,
        readout: Readout | Sequence[int] = (4, 4),
        *,
        out_channels: int | None = None,
        pool: str | None = None,
        features: Features | None = None,
        **unknown: object,
    ) -> None:
        super().__init__()
        refuse_unknown(type(self), unknown, keywords(type(self), Model))
        if not isinstance(conv, Conv):
            raise ConfigError(
                f"conv is a {type(conv).__name__}; expected a convolution of hogwild such as "
                f"EnergyConv(in_channels). A stack of PyG's layers is a model by itself: "
                f"hogwild.LayeredGNN(layers, in_channels, out_channels=...)"
            )
        if not isinstance(getattr(conv, "kind", None), Kind):
            raise ConfigError(
                f"{type(conv).__name__} has no kind; expected a class attribute such as "
                f"kind = hogwild.models.Kind.FIXED_POINT, its place in the paper's taxonomy"
            )
        if not isinstance(readout, Readout):
            widths = require_widths("readout", readout, " or a hogwild.Readout")
            if out_channels is None:
                raise ConfigError(
                    f"{type(self).__name__} was built without out_channels; expected the width of "
                    f"the predictions, out_channels=..., or readout=hogwild.Readout(...)"
                )
            readout = Readout(
                conv.hidden_channels, out_channels=out_channels, widths=widths, pool=pool,
                replicas=conv.replicas,
            )  # fmt: skip
        elif out_channels is not None or pool is not None:
            raise ConfigError(
                f"out_channels={out_channels!r} and pool={pool!r} were given beside a Readout, "
                f"which has its own; expected them in the constructor of the Readout"
            )
        if (readout.in_channels, readout.replicas) != (conv.hidden_channels, conv.replicas):
            raise ConfigError(
                f"the readout has in_channels={readout.in_channels} and replicas="
                f"{readout.replicas}, the convolution hidden_channels={conv.hidden_channels} and "
                f"replicas={conv.replicas}; expected equal numbers"
            )
        if features is None:
            features = Features(conv.in_channels, conv.edge_dim, conv.replicas)
        given = (features.out_channels, features.edge_dim, features.replicas)
        if given != (conv.in_channels, conv.edge_dim, conv.replicas):
            raise ConfigError(
                f"the features come with width {given[0]}, edge_dim={given[1]} and "
                f"replicas={given[2]}, and the convolution has in_channels={conv.in_channels}, "
                f"edge_dim={conv.edge_dim} and replicas={conv.replicas}; expected equal numbers"
            )
        self.conv, self.readout, self.features = conv, readout, features
        self.features.advises = conv.kind != Kind.EXPLICIT
        self.kind, self.replicas, self.num_layers = conv.kind, conv.replicas, conv.num_layers
        self.hidden_channels, self.edge_dim = conv.hidden_channels, conv.edge_dim
        self.out_channels = readout.out_channels

    @property
    def in_channels(self) -> int:
        """Width of the node features; −1: it is not known yet."""
        return self.features.in_channels

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for part in (self.features, self.conv, self.readout):
            part.reset_parameters()

    def encoded(self, inputs: Inputs) -> Inputs:
        """What the convolution reads: inputs with standardised and encoded features."""
        inputs = self.features(self.accept(inputs))
        return self._encoded(inputs) if self.features.encodes else inputs

    @opaque
    def _encoded(self, inputs: Inputs) -> Inputs:
        check_inputs(inputs, self.conv, self.in_channels)
        self.features.begin(inputs.x.size(-1))
        x = self.features.encode(inputs.x)
        if self.conv.validate and not unreadable(x):
            require_finite("the output of the encoder", x, "an encoder with finite parameters")
        return replace(inputs, x=x)

    def standardize(self, data: Data | Iterable[Data]) -> Self:
        """Compute offset and scale of every feature, by which the model then standardises its
        features.

        Call this method once, before training, on the training graphs.

        Args:
            data: A PyG ``Data``, ``Batch``, list, dataset or ``DataLoader``.

        Returns:
            The model itself.
        """
        self.features.fit(graphs_of(data))
        return self

    def problem(self, inputs: Inputs) -> AnyProblem:
        inputs = self.encoded(inputs)
        found = self.conv.problem(inputs)
        if isinstance(found, Problem):
            attr, weight = inputs.edge_attr, inputs.edge_weight
            edge = (0 if attr is None else attr.size(-1)) + (weight is not None)
            found.widths = inputs.x.size(-1), edge
        return found

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        return self.conv.embed(self.encoded(inputs), h0)

    def solver_path(self, inputs: Inputs) -> list[str]:
        return self.conv.solver_path(self.encoded(inputs))

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        inputs = Inputs.of(inputs)
        return self.read(self.conv.predict(self.encoded(inputs), h0), inputs)

    def read(self, h: Tensor, inputs: Inputs) -> Tensor:
        inputs = Inputs.of(inputs)
        lead = () if self.replicas is None else (self.replicas,)
        expected = (*lead, inputs.num_nodes, self.hidden_channels)
        if tuple(h.shape) != expected:
            raise FeatureError(
                f"the embeddings have shape {tuple(h.shape)}; expected {list(expected)}, as "
                f"model.embed(data).value has it"
            )
        dtype = first_parameter(self.readout, h).dtype
        return self.readout(widened(h, dtype), inputs.batch, inputs.batch_size)

    def require_asynchronous(self, inputs: Inputs) -> None:
        self.conv.require_asynchronous(inputs)


class GNN(ConvGNN):
    """A model from any convolution and a readout; the arguments are those of :class:`ConvGNN`.

    .. code-block:: python

        model = GNN(EnergyConv(3, hidden_channels=8), out_channels=2)
        y = model(x, edge_index, batch=batch)

    The models by name, such as :class:`~hogwild.EnergyGNN`, are built like this one.
    """


class ImplicitGNN(ConvGNN):
    """The base class of the named implicit models, such as :class:`~hogwild.EnergyGNN`.

    ``out_channels``, ``pool`` and ``readout`` are as in :class:`ConvGNN`.

    Args:
        in_channels: Width of the node features.
        num_layers: Number of layers; every layer reads the features and the solution of the layer
            below, :math:`[x \\,\\|\\, h]`.
        kwargs: Additional arguments of every layer.
    """

    layer: ClassVar[Any]
    """The class of the layers."""

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int | None = None,
        num_layers: int = 1,
        pool: str | None = None,
        readout: Readout | Sequence[int] = (4, 4),
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        refuse_unknown(cls, kwargs, keywords(cls, ConvGNN) | keywords(self.layer, Conv))
        require_positive("num_layers", num_layers)
        conv: Conv
        conv = first = self.layer(in_channels, **kwargs)
        assert isinstance(first, ImplicitConv)
        if num_layers > 1:
            width = in_channels + first.hidden_channels
            conv = Stack([first, *(self.layer(width, **kwargs) for _ in range(num_layers - 1))])
        super().__init__(conv, readout, out_channels=out_channels, pool=pool)

    def _only(self, what: str) -> Any:
        """The convolution of a model of one layer, for methods that belong to one layer."""
        if not isinstance(self.conv, self.layer):
            raise ConfigError(
                f"the model has {self.num_layers} layers and one {what} for each; expected a model "
                f"of one layer, or a method of one of the layers, which are in model.conv.levels"
            )
        return self.conv
