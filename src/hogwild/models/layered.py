r"""Explicit GNNs: a fixed number of layers, each a function of the layer before.

.. math::
    h_i^{\ell+1} = f^\ell_\theta\bigl(h_i^\ell, \{h_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \hat y_i = o_\phi(h_i^L).

Under asynchrony a node at layer 2 may read the embedding of a neighbour that is still at layer 0.
All layers therefore have the same width k: an encoder on every node maps the features to width k,
and every convolution maps width k to width k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from hogwild.errors import AsynchronyError, ConfigError, require_all_positive, require_positive
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv, Kind
from hogwild.models.gnn import ConvGNN
from hogwild.models.keywords import keywords, refuse_unknown
from hogwild.models.layer import Layer, build, gcn_node, try_out
from hogwild.models.levels import LayeredProblem
from hogwild.models.locality import AllEdges, Edges, StarEdges, surroundings_needed
from hogwild.models.readout import Readout
from hogwild.nn import replicas as ensemble
from hogwild.nn.mlp import MLP
from hogwild_node.problems import LocalLayers


@dataclass(eq=False)
class LayeredGNNProblem(LayeredProblem):
    """The layers of a :class:`LayeredGNN`. The state of a node is its embedding, which the node
    sends.

    A node starts at :meth:`start` and makes ``depth`` updates, the ℓ-th with layer ℓ. The readout
    reads its last state. Without delays this is the forward pass of the model. The paper shows that
    it fails with delays if a node keeps one value only.
    """

    conv: Layers
    edges: AllEdges
    encoded: Tensor  # [R, k, N]
    surrounded: tuple[bool, ...]  # for each layer: whether leaves need their own edges

    def start(self) -> Tensor:
        return self.encoded

    def value(self, layer: int, h: Tensor, at: Star) -> Tensor:
        return h

    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        edges = StarEdges.of(self.edges, at, self.surrounded[layer])
        x = edges.values(h.mT, inbox.mT)
        return self.conv.layer(layer, x, edges)[:, : at.size].mT

    @property
    def node(self) -> LocalLayers:
        return gcn_node(self.conv._stack, self.edges, self.encoded) or self


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
        layers: BasicGNN | Iterable[nn.Module],
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
        self.layers, self.num_layers = nn.ModuleList(stack), len(stack)
        self.takes_edge_attr = any("edge_attr" in layer.reads for layer in stack)
        self.takes_edge_weight = any("edge_weight" in layer.reads for layer in stack)
        if replicas is not None:
            self.layers = cast("nn.ModuleList", ensemble.stack(self.layers, replicas))
            for i, layer in enumerate(self._stack):
                what = f"layer {i} ({layer}), {replicas} replicas at once,"
                try_out(layer, what, k, edge_dim, replicas)

    @property
    def _stack(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))

    @property
    def label(self) -> str:
        return f"a stack of {self._stack[0]}"

    def reset_parameters(self) -> None:
        if self.encoder is not None:
            self.encoder.reset_parameters()
        if self.replicas is None:
            ensemble.redraw(self.layers)
        else:
            ensemble.redraw_each(self.layers, self.replicas)

    def layer(self, index: int, x: Tensor, edges: Edges, bare: bool = False) -> Tensor:
        """Apply one layer: [R, n, k] → [R, n, k], where R = 1 without replicas. ``bare`` is that
        of :class:`~hogwild.models.layer.Layer`."""
        layer = self.layers[index]
        if self.replicas is None:
            return layer(x[0], edges, bare).unsqueeze(0)
        return ensemble.apply(layer, x, edges, bare)

    def _encode(self, inputs: Inputs) -> tuple[Tensor, AllEdges]:
        """Check the inputs; return the values before the first layer [R, N, k] and the edges."""
        inputs = self.accept(inputs)
        graph = self.graph(inputs)
        h = inputs.x if self.encoder is None else self.encoder(inputs.x)
        h = h.expand(self.replicas or 1, *h.shape[-2:])
        return h, AllEdges(graph, inputs.edge_index, inputs.edge_attr, inputs.edge_weight)

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The embeddings after the last layer; the diagnostics report ``depth`` iterations."""
        h, graph = self._embed(inputs, h0)
        return Solution.exact(h, graph.num_graphs, self.num_layers)

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The embeddings without diagnostics, so that ``torch.compile`` sees plain layers."""
        return self._embed(inputs, h0)[0]

    def _embed(self, inputs: Inputs, h0: Tensor | None) -> tuple[Tensor, Graph]:
        if h0 is not None:
            raise ConfigError(
                "h0 was given to an explicit model, which has no solve to start; expected h0=None"
            )
        h, edges = self._encode(inputs)
        for index in range(self.num_layers):
            h = self.layer(index, h, edges)
        return (h[0] if self.replicas is None else h), edges.graph

    def problem(self, inputs: Inputs) -> LayeredProblem:
        """The layers, one node at a time.

        Raises:
            AsynchronyError: A layer reads more than a node and its neighbours.
        """
        h, edges = self._encode(inputs)
        surrounded, k, depth = self._probe(edges, h), self.hidden_channels, self.num_layers
        return LayeredGNNProblem(
            edges.graph, self.replicas or 1, k, depth, (k,) * (depth + 1),
            self, edges, h.mT, surrounded,
        )  # fmt: skip

    def _probe(self, edges: AllEdges, like: Tensor) -> tuple[bool, ...]:
        """Whether each layer needs the neighbours' own edges; raise if a layer needs even more."""
        if self.training and any(isinstance(m, _BatchNorm) for m in self.modules()):
            raise AsynchronyError(
                "a BatchNorm in training mode normalises over all nodes; call model.eval() before "
                "running a model asynchronously"
            )
        hint = ". The model is in training mode: call model.eval() first if it has dropout"
        return tuple(
            surroundings_needed(
                partial(self.layer, i, bare=True),
                f"layer {i} ({layer})",
                replace(edges),  # with an empty cache: the probe runs without autograd
                like,
                hint if self.training else "",
            )
            for i, layer in enumerate(self._stack)
        )

    def require_asynchronous(self, inputs: Inputs) -> None:
        inputs = self.accept(inputs)
        like = next(self.parameters(), inputs.x)
        like = like.new_zeros(self.replicas or 1, inputs.num_nodes, self.hidden_channels)
        attr = None
        if self.edge_dim is not None:
            random = torch.Generator().manual_seed(0)
            shape = (inputs.edge_index.size(1), self.edge_dim)
            attr = torch.randn(shape, generator=random).to(like)
        graph = inputs.graph(validate=self.validate)
        self._probe(AllEdges(graph, inputs.edge_index, attr, None), like)

    def extra_repr(self) -> str:
        layers = ", ".join(dict.fromkeys(repr(layer.conv) for layer in self._stack))
        options = {"edge_dim": self.edge_dim, "replicas": self.replicas}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        sizes = f"{self.in_channels}, hidden_channels={self.hidden_channels}"
        return ", ".join([sizes, f"{self.num_layers} layers of {layers}", *given])


class ExplicitGNN(ConvGNN):
    """The base class of models with a fixed number of layers."""

    conv: Layers

    def __init__(
        self,
        layers: BasicGNN | Iterable[nn.Module],
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

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        inputs = self.accept(inputs)
        return self.read(self.conv.predict(self.encoded(inputs), h0), inputs)


class LayeredGNN(ExplicitGNN):
    r"""A *new* model from any PyG-style message-passing layers of one hop.

    The model contains copies of the given layers with fresh parameters, an encoder and a readout.
    The given layers do not change. :func:`hogwild.simulate` takes a trained model directly
    (:func:`hogwild.wrap`). Layers whose parameters have gradients are refused, because their
    trained parameters would be lost.

    The model applies the encoder, then the convolution, norm, activation and dropout of every
    layer, and then the readout.

    Args:
        layers: Convolutions of width k, called as ``layer(x, edge_index)``, with ``edge_attr`` and
            ``edge_weight`` if they take them; or a PyG model such as
            ``torch_geometric.nn.GraphSAGE(k, k, num_layers=3)``, whose convolutions, norms,
            activation and dropout are copied (its last layer has none of the latter three).
        in_channels: Width of the node features.
        kwargs: ``out_channels``, ``pool`` and ``readout`` as in
            :class:`~hogwild.models.gnn.ConvGNN`, and arguments of :class:`~hogwild.models.Layers`.
    """

    def __init__(
        self, layers: BasicGNN | Iterable[nn.Module], in_channels: int, **kwargs: Any
    ) -> None:
        super().__init__(_drawn(layers), in_channels, **kwargs)


def _drawn(layers: BasicGNN | Iterable[nn.Module]) -> BasicGNN | Iterable[nn.Module]:
    """Copies of the given layers with fresh parameters."""
    if not isinstance(layers, nn.Module | Iterable):
        raise ConfigError(
            f"layers={layers!r}; expected a list of convolutions, or a PyG model, as the first "
            f"argument: LayeredGNN(layers, in_channels, out_channels=...)"
        )
    given = layers if isinstance(layers, nn.Module) else list(layers)
    parts = [given] if isinstance(given, nn.Module) else given
    if not all(isinstance(part, nn.Module) for part in parts):
        return given  # Layers raises the error
    parameters = [p for part in parts for p in part.parameters()]
    if any(nn.parameter.is_lazy(p) for p in parameters):
        return given  # Layers raises the error
    if any(p.grad is not None for p in parameters):
        raise ConfigError(
            f"the parameters of {type(parts[0]).__name__} have gradients, so they were trained, "
            f"but LayeredGNN builds a new model with fresh parameters; expected layers that were "
            f"never trained. hogwild.simulate and hogwild.robustness take a trained model as it "
            f"is, or as hogwild.wrap(model)"
        )
    if isinstance(given, nn.Module):
        return cast("BasicGNN", ensemble.fresh(given))
    return list(cast("nn.ModuleList", ensemble.fresh(nn.ModuleList(given))))


class GCN(ExplicitGNN):
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


class GAT(ExplicitGNN):
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
