r"""Explicitly defined GNNs: a fixed number of layers, each node's value a function of the layer
before.

.. math::
    h_i^{\ell+1} = f^\ell_\theta\bigl(h_i^\ell, \{h_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \hat y_i = o_\phi(h_i^L).

Under asynchrony a node at layer 2 hears a neighbour that is still at layer 0, and uses what it
hears. All layers must therefore speak of embeddings of one width: a node-local encoder leads from
the features to it, and every convolution is k → k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn.models.basic_gnn import BasicGNN

from hogwild.errors import AsynchronyError, ConfigError, GraphError, require_all_positive
from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv, Kind
from hogwild.models.gcn_node import gcn_node
from hogwild.models.gnn import ConvGNN
from hogwild.models.layer import Layer, build, try_out
from hogwild.models.layers import LayeredProblem
from hogwild.models.locality import AllEdges, Edges, StarEdges, surroundings_needed
from hogwild.models.readout import Readout
from hogwild.nn import replicas as ensemble
from hogwild.nn.mlp import MLP
from hogwild_node.layers import LocalLayers


@dataclass(eq=False)
class LayeredGNNProblem(LayeredProblem):
    """The layers of a :class:`LayeredGNN`: a node's state is its embedding, and the node sends it.

    A node starts at :meth:`start` and makes ``depth`` updates, the ℓ-th with :meth:`update` of
    layer ℓ; what it holds afterwards goes to the model's readout. Without delays this is the
    model's forward pass; with them, and one value a node, it is what the paper shows to fail.
    """

    conv: Layers
    edges: AllEdges
    encoded: Tensor  # [R, k, N]
    surrounded: tuple[bool, ...]  # by layer: whether leaves need their own edges

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
    r"""An encoder, and layers k → k: the convolution of an explicit model.

    Args:
        layers: The layers; they become part of the model.
        in_channels: Width of the node features.
        hidden_channels: Width k; ``None``: read from the layers.
        act: Activation after every layer, a name or a function; ``None``: none.
        norm: A PyG norm by name, or a module, before the activation of every layer. The norm must
            treat every node by itself.
        dropout: Probability; in training only.
        edge_dim: Width of the edge features; ``None``: read from the layers.
        encoder: Map the features to width k by an affine function; otherwise ``in_channels`` must
            be k.
        replicas: ``None``, or a number R of independent parameter sets, evaluated side by side.
        validate: Check the *values* of the inputs, too (finite, in range, sorted).
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
        require_all_positive(in_channels=in_channels, replicas=replicas)
        k, edge_dim, stack = build(layers, hidden_channels, edge_dim, act, norm, dropout)
        if not encoder and in_channels != k:
            raise ConfigError(
                f"in_channels={in_channels} and embeddings of width {k} without an encoder; "
                f"expected in_channels={k}, or encoder=True"
            )
        self.in_channels, self.hidden_channels, self.edge_dim = in_channels, k, edge_dim
        self.replicas, self.validate = replicas, validate
        self.encoder = MLP(in_channels, (k,), replicas=replicas) if encoder else None
        self.layers = nn.ModuleList(stack)
        if replicas is not None:
            self.layers = cast("nn.ModuleList", ensemble.stack(self.layers, replicas))
            for i, layer in enumerate(self._stack):
                what = f"layer {i} ({layer}), {replicas} replicas at once,"
                try_out(layer, what, k, edge_dim, replicas)

    @property
    def _stack(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def reset_parameters(self) -> None:
        if self.encoder is not None:
            self.encoder.reset_parameters()
        if self.replicas is None:
            ensemble.redraw(self.layers)
        else:
            ensemble.redraw_each(self.layers, self.replicas)

    def layer(self, index: int, x: Tensor, edges: Edges, bare: bool = False) -> Tensor:
        """One layer on any graph: [R, n, k] → [R, n, k], R = 1 without replicas; ``bare`` as in
        :class:`~hogwild.models.layer.Layer`."""
        layer = self.layers[index]
        if self.replicas is None:
            return layer(x[0], edges, bare).unsqueeze(0)
        return ensemble.apply(layer, x, edges, bare)

    def _encode(self, inputs: Inputs) -> tuple[Tensor, AllEdges]:
        """Values before the first layer [R, N, k], and the edges; the inputs are checked first."""
        inputs = Inputs.of(inputs)
        graph, weight = self.graph(inputs), inputs.edge_weight
        if weight is not None and not any("edge_weight" in s.reads for s in self._stack):
            raise GraphError(
                f"edge_weight was given to layers that do not read it ({self._stack[0]}); leave it "
                f"out, or give it as edge_attr to layers that read edge features"
            )
        h = inputs.x if self.encoder is None else self.encoder(inputs.x)
        h = h.expand(self.replicas or 1, *h.shape[-2:])
        return h, AllEdges(graph, inputs.edge_index, inputs.edge_attr, weight)

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The embeddings after the last layer; the diagnostics say ``depth`` iterations."""
        h, graph = self._embed(inputs, h0)
        return Solution.exact(h, graph.num_graphs, self.depth)

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        """The embeddings without diagnostics, so that ``torch.compile`` sees plain layers."""
        return self._embed(inputs, h0)[0]

    def _embed(self, inputs: Inputs, h0: Tensor | None) -> tuple[Tensor, Graph]:
        if h0 is not None:
            raise ConfigError(
                "h0 was given to an explicit model, whose layers start from the features; expected "
                "h0=None"
            )
        h, edges = self._encode(inputs)
        for index in range(self.depth):
            h = self.layer(index, h, edges)
        return (h[0] if self.replicas is None else h), edges.graph

    def problem(self, inputs: Inputs) -> LayeredProblem:
        """The layers one node at a time.

        Raises:
            AsynchronyError: A layer turns out to read more than a node and its neighbours.
        """
        h, edges = self._encode(inputs)
        surrounded, k = self._probe(edges, h), self.hidden_channels
        return LayeredGNNProblem(
            edges.graph, self.replicas or 1, k, self.depth, (k,) * (self.depth + 1), "overwriting",
            self, edges, h.mT, surrounded,
        )  # fmt: skip

    def _probe(self, edges: AllEdges, like: Tensor) -> tuple[bool, ...]:
        """Whether each layer needs the edges of the neighbours; raises where that is not enough."""
        if self.training and any(isinstance(m, _BatchNorm) for m in self.modules()):
            raise AsynchronyError(
                "a BatchNorm in training mode normalises over all nodes at hand; call model.eval() "
                "before running a model asynchronously"
            )
        hint = ". The model is in training mode: with dropout call model.eval() first"
        return tuple(
            surroundings_needed(
                partial(self.layer, i, bare=True),
                f"layer {i} ({layer})",
                replace(edges),  # a fresh one, so that nothing is kept that autograd cannot use
                like,
                hint if self.training else "",
            )
            for i, layer in enumerate(self._stack)
        )

    def require_asynchronous(self, inputs: Inputs) -> None:
        inputs = Inputs.of(inputs)
        like = next(self.parameters()).new_zeros(
            self.replicas or 1, inputs.num_nodes, self.hidden_channels
        )
        attr = None
        if self.edge_dim is not None:
            random = torch.Generator().manual_seed(0)
            shape = (inputs.edge_index.size(1), self.edge_dim)
            attr = torch.randn(shape, generator=random).to(like)
        graph = inputs.graph(validate=self.validate)
        self._probe(AllEdges(graph, inputs.edge_index, attr, None), like)

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.in_channels}, hidden_channels={self.hidden_channels}{replicas}"


class ExplicitGNN(ConvGNN):
    """What all models of a fixed number of layers share: their convolution is :class:`Layers`."""

    conv: Layers

    def __init__(
        self,
        layers: BasicGNN | Iterable[nn.Module],
        in_channels: int,
        *,
        out_channels: int,
        pool: str | None = None,
        readout: Sequence[int] = (4, 4),
        **kwargs: Any,
    ) -> None:
        conv = Layers(layers, in_channels, **kwargs)
        k, replicas = conv.hidden_channels, conv.replicas
        head = Readout(k, out_channels=out_channels, widths=readout, pool=pool, replicas=replicas)
        super().__init__(conv, head)

    def predict(self, inputs: Inputs, h0: Tensor | None = None) -> Tensor:
        return self.read(self.conv.predict(self.features(Inputs.of(inputs)), h0), inputs)


class LayeredGNN(ExplicitGNN):
    r"""A *new* model of any stack of PyG's (or your own) one-hop message-passing layers.

    The layers given are a pattern: the model has copies of them, with parameters freshly drawn, and
    an encoder and a readout of its own, for :func:`hogwild.train`. The layers given stay as they
    are. A model that is already trained goes to :func:`hogwild.simulate` as it is, see
    :func:`hogwild.wrap`. Layers with gradients are refused, in case they were meant to be kept.

    The order is: encoder of each node, then layer by layer convolution, norm, activation and
    dropout, then the readout of all models. Synchronously this is the ordinary forward pass;
    :meth:`problem` offers the same layers one node at a time.

    Args:
        layers: Convolutions k → k, called as ``layer(x, edge_index)``, with ``edge_attr`` and
            ``edge_weight`` where they take these; or a PyG model such as
            ``torch_geometric.nn.GraphSAGE(k, k, num_layers=3)``, whose convolutions, norms,
            activation and dropout are the pattern (it has none after its last layer).
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        pool: ``None`` predicts for every node; ``"mean"`` for every graph.
        readout: Hidden widths of the readout MLPs.
        kwargs: Additional arguments of :class:`~hogwild.models.Layers`: ``hidden_channels``,
            ``act``, ``norm``, ``dropout``, ``edge_dim``, ``encoder``, ``replicas``, ``validate``.

    Shapes:
        x [N, p] (or [R, N, p]), edge_index [2, E], edge_attr [E, r], batch [N], edge_weight [E]
        → [N, out] or [R, N, out]; with ``pool`` [G, out] or [R, G, out].
    """

    def __init__(
        self, layers: BasicGNN | Iterable[nn.Module], in_channels: int, **kwargs: Any
    ) -> None:
        super().__init__(_drawn(layers), in_channels, **kwargs)


def _drawn(layers: BasicGNN | Iterable[nn.Module]) -> BasicGNN | Iterable[nn.Module]:
    """The layers of this model: copies of those given, with parameters freshly drawn."""
    given = layers if isinstance(layers, nn.Module) else list(layers)
    parts = [given] if isinstance(given, nn.Module) else given
    if not all(isinstance(part, nn.Module) for part in parts):
        return given  # refused as soon as layers are built of it
    parameters = [p for part in parts for p in part.parameters()]
    if any(nn.parameter.is_lazy(p) for p in parameters):
        return given  # likewise
    if any(p.grad is not None for p in parameters):
        raise ConfigError(
            f"the parameters of {type(parts[0]).__name__} have gradients, so they are being "
            f"trained, and LayeredGNN builds a new model around fresh copies. A trained model "
            f"goes to hogwild.simulate and hogwild.robustness as it is, or as "
            f"hogwild.wrap(model); for a new one expected layers that were never trained"
        )
    if isinstance(given, nn.Module):
        return cast("BasicGNN", ensemble.fresh(given))
    return list(cast("nn.ModuleList", ensemble.fresh(nn.ModuleList(given))))
