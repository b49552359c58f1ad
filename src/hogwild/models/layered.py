r"""Explicit GNNs: a fixed number of layers, each a function of the layer before.

.. math::
    h_i^{\ell+1} = f^\ell_\theta\bigl(h_i^\ell, \{h_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \hat y_i = o_\phi(h_i^L).

Under asynchrony a node at layer 2 may read the embedding of a neighbour that is still at layer 0.
All layers therefore have the same width k: an encoder on every node maps the features to width k,
and every convolution maps width k to width k.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from hogwild.errors import AsynchronyError, ConfigError, require_all_positive, require_positive
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv, Exported, Kind, keywords, refuse_unknown
from hogwild.models.gnn import ConvGNN
from hogwild.models.program import Fields, LayeredProblem, Program
from hogwild.models.readout import Readout
from hogwild.models.stars import activation, gcn_node, normalises, without_normalisation
from hogwild.models.trial import layered
from hogwild.nn import replicas as ensemble
from hogwild.nn.networks import MLP
from hogwild_node.activations import identity, leaky_relu, tanh
from hogwild_node.problems import LocalLayers


class Layer(nn.Module):
    """A convolution, followed by a norm, an activation and dropout on every node."""

    def __init__(
        self,
        conv: nn.Module,
        act: Callable[[Tensor], Tensor] | None,
        dropout: float,
    ) -> None:
        super().__init__()
        if not isinstance(conv, nn.Module):
            raise ConfigError(f"a layer is a {type(conv).__name__}; expected a torch.nn.Module")
        self.conv, self.act = conv, act
        self.norm: nn.Module | None = None
        self.dropout = nn.Dropout(dropout) if dropout else None
        takes = inspect.signature(conv.forward).parameters
        self.reads = tuple(name for name in ("edge_attr", "edge_weight") if name in takes)
        self.title = type(conv).__name__  # in errors

    def forward(self, x: Tensor, fields: Fields) -> Tensor:
        """[N, k] → [N, k]."""
        h = self._convolve(x, fields)
        if self.norm is not None:
            h = self.norm(h)
        if self.act is not None:
            h = self.act(h)
        return h if self.dropout is None else self.dropout(h)

    def _convolve(self, x: Tensor, fields: Fields) -> Tensor:
        conv = cast("Any", self.conv)
        if normalises(conv):
            name = "edge_weight" if "edge_weight" in fields.edges else None
            out: Tensor = without_normalisation(conv)(x, *fields.normalised(conv, name, x.dtype))
            return out
        out = conv(x, fields.index, **{name: fields.edges.get(name) for name in self.reads})
        return out


class LayerList(nn.ModuleList):
    """Layers, one after the other."""

    def forward(self, x: Tensor, fields: Fields) -> Tensor:
        """[N, k] → [N, k]."""
        for layer in self:
            x = layer(x, fields)
        return x


def build(
    layers: Iterable[nn.Module],
    hidden_channels: int | None,
    edge_dim: int | None,
    act: str | Callable[[Tensor], Tensor] | None,
    norm: str | nn.Module | None,
    dropout: float,
) -> tuple[int, int | None, list[Layer]]:
    """Build the layers; the arguments are those of :class:`Layers`.

    Returns:
        The width of the embeddings, the width of the edge features, and the layers.
    """
    if not isinstance(layers, Iterable) or isinstance(layers, nn.Sequential):
        raise ConfigError(
            f"layers is one {type(layers).__name__}; expected a list of convolutions as the first "
            f"argument: LayeredGNN([SAGEConv(k, k), ...], in_channels, out_channels=...). "
            f"hogwild.wrap takes a whole model of PyG"
        )
    try:
        function = activation_resolver(act)
    except ValueError as error:
        raise ConfigError(f"act={act!r}; expected one of PyG's, a function or None") from error
    stack = [Layer(conv, function, dropout) for conv in layers]
    if not stack:
        raise ConfigError("layers is empty; expected at least one convolution")
    width = hidden_channels or _first(stack, "in_channels")
    if width is None or hidden_channels not in (None, width):
        raise ConfigError(
            f"hidden_channels={hidden_channels}; expected hidden_channels=k for layers k → k that "
            f"have no in_channels"
        )
    require_all_positive(hidden_channels=width, edge_dim=edge_dim)
    if edge_dim is None:
        edge_dim = _first(stack, "edge_dim")
    elif not any("edge_attr" in layer.reads for layer in stack):
        raise ConfigError(f"edge_dim={edge_dim}, but none of the layers takes edge_attr")
    for i, layer in enumerate(stack):
        if norm is not None:
            layer.norm = _norm(norm, width)
        parts = [type(part).__name__ for part in (layer.conv, layer.norm) if part is not None]
        layer.title = f"layer {i} ({', '.join(parts)})"
        if any(getattr(part, "cached", False) for part in layer.modules()):
            raise ConfigError(
                f"{layer.title} was built with cached=True and would use the normalised weights of "
                f"the first graph for every graph; expected cached=False (hogwild caches these "
                f"weights for each graph)"
            )
        if any(nn.parameter.is_lazy(p) for p in layer.parameters()):
            raise ConfigError(
                f"{layer.title} does not know its input width yet; expected in_channels={width}"
            )
    return width, edge_dim, stack


def _norm(norm: str | nn.Module, width: int) -> nn.Module:
    """The norm of this name, or a copy of the given module."""
    try:
        return cast("nn.Module", copy.deepcopy(normalization_resolver(norm, width)))
    except ValueError as error:
        raise ConfigError(f"norm={norm!r}; expected one of PyG's, a module or None") from error


def _first(stack: list[Layer], attribute: str) -> int | None:
    """The first value that a convolution has for an attribute."""
    found = (getattr(layer.conv, attribute, None) for layer in stack)
    return next((value for value in found if value is not None), None)


def layers_of(sequence: nn.Module) -> list[Layer]:
    """The layers in a :class:`LayerList`."""
    return [layer for layer in sequence.children() if isinstance(layer, Layer)]


def _call(layers: LayerList, fields: Fields) -> Tensor:
    out: Tensor = layers(fields.nodes["x"], fields)
    return out


class Layers(Conv):
    r"""The convolution of an explicit model: an encoder, and layers of width k.

    Args:
        layers: The layers; they become part of the model.
        in_channels: Width of the node features.
        hidden_channels: Width k; with ``None`` it is read from the layers.
        act: Activation after every layer, a name or a function; ``None`` for no activation.
        norm: The name of a PyG norm, or a module, applied before the activation of every layer. The
            norm must process every node separately.
        dropout: Probability of dropout during training.
        edge_dim: Width of the edge features; with ``None`` it is read from the layers.
        encoder: Map the features to width k by an affine function. Without an encoder,
            ``in_channels`` must be k.
        replicas: ``None``, or a number R of independent parameter sets, evaluated side by side.
        validate: Also check the *values* of the inputs (finite, in range, sorted).
    """

    kind = Kind.EXPLICIT

    def __init__(
        self,
        layers: Iterable[nn.Module],
        in_channels: int,
        *,
        hidden_channels: int | None = None,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        norm: str | nn.Module | None = None,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        encoder: bool = True,
        replicas: int | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        require_positive("in_channels", in_channels)
        require_all_positive(replicas=replicas)
        k, edge_dim, stack = build(layers, hidden_channels, edge_dim, act, norm, dropout)
        if not encoder and in_channels != k:
            raise ConfigError(
                f"in_channels={in_channels} was given without an encoder, and the layers have "
                f"width {k}; expected in_channels={k}, or encoder=True"
            )
        self.in_channels, self.hidden_channels, self.edge_dim = in_channels, k, edge_dim
        self.replicas, self.validate = replicas, validate
        self.encoder = MLP(in_channels, (k,), replicas=replicas) if encoder else None
        self.layers, self.num_layers = LayerList(stack), len(stack)
        self.takes_edge_attr = any("edge_attr" in layer.reads for layer in stack)
        self.takes_edge_weight = any("edge_weight" in layer.reads for layer in stack)
        if replicas is not None:
            self.layers = cast("LayerList", ensemble.stack(self.layers, replicas))
        copy.deepcopy(self).eval().try_out()

    @torch.no_grad()
    def try_out(self) -> None:
        """Raise unless every layer maps width k to width k on a path of three nodes."""
        k, r = self.hidden_channels, self.replicas or 1
        like = next(self.layers.parameters(), torch.empty(0))
        index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]], device=like.device)
        attr = None if self.edge_dim is None else like.new_ones(4, self.edge_dim)
        inputs = Inputs(like.new_ones(3, k), index, attr)
        fields = Fields.of(inputs, inputs.graph(), inputs.x)
        advice = (
            f"expected a layer from width {k} to width {k} that is called as layer(x, edge_index), "
            f"optionally with edge_attr and edge_weight: an asynchronous node reads its "
            f"neighbours' values of any layer. The encoder maps the features to width {k}, and the "
            f"readout maps width {k} to predictions"
        )
        for i, layer in enumerate(layers_of(self.layers)):
            name = layer.title + (f", {r} replicas at once," if self.replicas else "")
            try:
                out = self._layer(i, like.new_ones(r, 3, k), fields)
            except Exception as error:  # a foreign layer may raise anything
                message = f"{name} raised on an input [3, {k}]: {error}; {advice}"
                raise ConfigError(message) from error
            if tuple(out.shape) != (r, 3, k):
                raise ConfigError(f"{name} maps [3, {k}] to {list(out.shape[1:])}; {advice}")

    @property
    def label(self) -> str:
        return f"a stack of {type(layers_of(self.layers)[0].conv).__name__}"

    def reset_parameters(self) -> None:
        if self.encoder is not None:
            self.encoder.reset_parameters()
        if self.replicas is None:
            ensemble.redraw(self.layers)
        else:
            ensemble.redraw_each(self.layers, self.replicas)

    def _encode(self, inputs: Inputs) -> tuple[Tensor, Fields]:
        """Check the inputs; return the values before the first layer [(R,) N, k] and what the
        layers read, with the values of the first replica."""
        inputs = self.accept(inputs)
        graph = self.graph(inputs)
        h = inputs.x if self.encoder is None else self.encoder(inputs.x)
        if self.replicas is None:
            return h, Fields.of(inputs, graph, h)
        h = h.expand(self.replicas, *h.shape[-2:])
        return h, Fields.of(inputs, graph, h[0])

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The embeddings after the last layer; the diagnostics report ``num_layers`` iterations."""
        inputs = Inputs.of(inputs)
        return Solution.exact(self.predict(inputs, h0), inputs.num_graphs, self.num_layers)

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The embeddings without diagnostics, so that ``torch.compile`` sees plain layers."""
        if h0 is not None:
            raise ConfigError(
                "h0 was given to an explicit model, which has no solve to start; expected h0=None"
            )
        return self._run(self.layers, *self._encode(inputs))

    def _run(self, part: nn.Module, x: Tensor, fields: Fields) -> Tensor:
        """A layer, or all of them, of all replicas: [(R,) n, k] → [(R,) n, k]."""
        if self.replicas is None:
            out: Tensor = part(x, fields)
            return out
        return ensemble.apply(part, lambda x: part(x, fields), x)

    def problem(self, inputs: Inputs) -> LayeredProblem:
        """The layers, one node at a time.

        Raises:
            AsynchronyError: A layer reads more than a node and its neighbours.
        """
        h, fields = self._encode(inputs)
        single = self.layers if self.replicas is None else ensemble.replica(self.layers, 0)
        program = Program(self.label, single, Layer, _call, layer=self._layer, node=self._node)
        encoded = h if self.replicas is not None else h.unsqueeze(0)
        return layered(program, fields, encoded.mT)

    def _layer(self, index: int, x: Tensor, fields: Fields) -> Tensor:
        """One layer of all replicas: [R, n, k] → [R, n, k], where R = 1 without replicas."""
        x = x if self.replicas is not None else x[0]
        out = self._run(self.layers[index], x, fields)
        return out if self.replicas is not None else out.unsqueeze(0)

    def exported(self) -> Exported:
        layers = layers_of(self.layers)
        acts, convs = {activation(layer) for layer in layers}, [layer.conv for layer in layers]
        known: dict[Any, str] = {identity: "identity", leaky_relu: "relu", tanh: "tanh"}
        plain = all(normalises(c) and c.add_self_loops and not c.improved for c in convs)
        if not plain or len(acts) != 1 or not acts <= known.keys():
            raise AsynchronyError(
                "the layers are not those of a plain GCN (GCNConv with its default normalisation, "
                "one activation for all layers, no norm), and only these run without torch; "
                "expected hogwild.GCN, or an EnergyGNN"
            )
        return {"kind": "gcn", "act": known[acts.pop()], "num_layers": self.num_layers}, {}

    def _node(self, problem: LayeredProblem) -> LocalLayers | None:
        return gcn_node(layers_of(self.layers), problem)

    def extra_repr(self) -> str:
        layers = ", ".join(dict.fromkeys(repr(layer.conv) for layer in layers_of(self.layers)))
        options = {"edge_dim": self.edge_dim, "replicas": self.replicas}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        sizes = f"{self.in_channels}, hidden_channels={self.hidden_channels}"
        return ", ".join([sizes, f"{self.num_layers} layers of {layers}", *given])


class LayeredGNN(ConvGNN):
    r"""A model from any PyG-style message-passing layers of one hop.

    It applies an encoder, then the convolution, norm, activation and dropout of every layer, and
    then the readout. The layers become part of the model, with the parameters that they have; with
    ``replicas`` they are a pattern, of which every replica draws its own parameters.
    :func:`hogwild.simulate` takes a whole model that was trained elsewhere (:func:`hogwild.wrap`).

    Args:
        layers: Convolutions of width k, called as ``layer(x, edge_index)``, with ``edge_attr`` and
            ``edge_weight`` if they take them.
        in_channels: Width of the node features.
        kwargs: ``out_channels``, ``pool`` and ``readout`` as in
            :class:`~hogwild.models.gnn.ConvGNN`, and arguments of :class:`~hogwild.models.Layers`.
    """

    conv: Layers

    def __init__(
        self,
        layers: Iterable[nn.Module],
        in_channels: int,
        *,
        out_channels: int | None = None,
        pool: str | None = None,
        readout: Readout | Sequence[int] = (4, 4),
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        refuse_unknown(cls, kwargs, keywords(cls, ConvGNN) | keywords(Layers, Conv))
        conv = Layers(layers, in_channels, **kwargs)
        super().__init__(conv, readout, out_channels=out_channels, pool=pool)


class GCN(LayeredGNN):
    r"""A graph convolutional network at the paper's size: five layers of width 10.

    With :math:`\tilde A = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}`,

    .. math::
        m_i^\ell = \sum_{j \in \mathcal N(i) \cup \{i\}} \tilde A_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    where :math:`h_i^0` is an affine function of the features. The weights :math:`\tilde A_{ij}` are
    constants of the graph; a node needs its neighbours' degrees for them.

    ``in_channels`` and ``kwargs`` are as in :class:`LayeredGNN`.

    Args:
        hidden_channels: Width of every layer.
        num_layers: Number of layers.
        bias: Add a bias to every :math:`m_i^\ell`, as PyG does and the paper's equation does not.

    ``edge_weight`` holds the entries of :math:`A`. As in PyG, a self-loop replaces the node's entry
    in :math:`I`.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 10,
        num_layers: int = 5,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        require_all_positive(num_layers=num_layers, hidden_channels=hidden_channels)
        convs = [GCNConv(hidden_channels, hidden_channels, bias=bias) for _ in range(num_layers)]
        super().__init__(convs, in_channels, **kwargs)


class GAT(LayeredGNN):
    r"""A graph attention network at the paper's size: five layers of three heads of width 3.

    .. math::
        \alpha_{ij} &= \operatorname{softmax}_{j \in \mathcal N(i) \cup \{i\}}
            \operatorname{LeakyReLU}\bigl((\theta_a^\ell)^\top
            [\theta_m^\ell h_i^\ell \,\|\, \theta_m^\ell h_j^\ell \,\|\, \theta_e^\ell e_{ij}]\bigr)
        \\
        m_i^\ell &= \sum_{j \in \mathcal N(i) \cup \{i\}} \alpha_{ij}\, \theta_m^\ell h_j^\ell,
        \qquad h_i^{\ell + 1} = \operatorname{ReLU}(m_i^\ell),

    where :math:`h_i^0` is an affine function of the features. The messages of the heads are
    concatenated. Without edge features the last term is missing; :math:`e_{ii}` is the mean of the
    features of the edges into i.

    ``in_channels``, ``bias`` and ``kwargs`` are as in :class:`GCN`.

    Args:
        hidden_channels: Width of every layer, the sum over all heads.
        num_layers: Number of layers.
        heads: Number of heads.
        edge_dim: Width of the edge features, or ``None``.

    As in PyG, self-loops are removed before every node gets one.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        hidden_channels: int = 9,
        num_layers: int = 5,
        heads: int = 3,
        edge_dim: int | None = None,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        require_all_positive(
            num_layers=num_layers, hidden_channels=hidden_channels, heads=heads, edge_dim=edge_dim
        )
        if hidden_channels % heads:
            raise ConfigError(
                f"hidden_channels={hidden_channels} and heads={heads}; expected a multiple of the "
                f"number of heads, whose messages are concatenated"
            )
        convs = [
            GATConv(hidden_channels, hidden_channels // heads, heads, edge_dim=edge_dim, bias=bias)
            for _ in range(num_layers)
        ]
        super().__init__(convs, in_channels, **kwargs)
