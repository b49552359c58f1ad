"""One layer of an explicit GNN: a convolution, then a norm, an activation and dropout.

The user gives a list of convolutions or one of PyG's models. :func:`build` makes layers of them
and tests every layer on a small graph.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.nn.resolver import activation_resolver, normalization_resolver

from hogwild.errors import AsynchronyError, ConfigError, require_positive
from hogwild.graph import Graph
from hogwild.models.locality import (
    AllEdges,
    Edges,
    normalises,
    refuse_beyond_one_hop,
    without_normalisation,
)
from hogwild.nn import replicas as ensemble
from hogwild_node.activations import identity, leaky_relu, tanh
from hogwild_node.problems import GCN, GCNLayer


class Layer(nn.Module):
    """A convolution, followed by a norm, an activation and dropout on every node."""

    def __init__(
        self,
        conv: nn.Module,
        norm: nn.Module | None = None,
        act: Callable[[Tensor], Tensor] | None = None,
        dropout: float = 0.0,
        act_first: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(conv, nn.Module):
            raise ConfigError(f"a layer is a {type(conv).__name__}; expected a torch.nn.Module")
        self.conv, self.norm, self.act = conv, norm, act
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.act_first = act_first
        self.reads = _arguments(conv)

    def __str__(self) -> str:
        return type(self.conv).__name__

    def forward(self, x: Tensor, edges: Edges, bare: bool = False) -> Tensor:
        """[N, k] → [N, k]. With ``bare`` the output of the convolution alone is appended:
        [N, 2k]."""
        h = out = self._convolve(x, edges)
        if self.act is not None and self.act_first:
            h = self.act(h)
        if self.norm is not None:
            h = self.norm(h)
        if self.act is not None and not self.act_first:
            h = self.act(h)
        if self.dropout is not None:
            h = self.dropout(h)
        return torch.cat([h, out], -1) if bare else h

    def _convolve(self, x: Tensor, edges: Edges) -> Tensor:
        conv, index, weight = cast("Any", self.conv), edges.index, edges.weight
        if normalises(conv):
            index, weight = edges.normalised(conv.improved, conv.add_self_loops, x.dtype)
            conv = without_normalisation(conv)
        options: dict[str, Tensor | None] = {}
        if "edge_attr" in self.reads:
            options["edge_attr"] = edges.attr
        if "edge_weight" in self.reads:
            options["edge_weight"] = weight
        out: Tensor = conv(x, index, **options)
        return out


def _arguments(conv: nn.Module) -> frozenset[str]:
    """Which of ``edge_attr`` and ``edge_weight`` a convolution takes."""
    given = inspect.signature(conv.forward).parameters.values()
    optional = ("edge_attr", "edge_weight")
    needed = [p for p in given if p.default is p.empty and p.name not in optional]
    needed = [p for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) != 2 and not any(p.kind is p.VAR_POSITIONAL for p in given):
        raise ConfigError(
            f"{type(conv).__name__}.forward takes ({', '.join(map(str, given))}); expected a layer "
            f"that is called as layer(x, edge_index), optionally with edge_attr and edge_weight. "
            f"Pass other arguments to its constructor, or write a module that calls it with them"
        )
    return frozenset(p.name for p in given if p.name in optional)


def build(
    layers: BasicGNN | Iterable[nn.Module],
    hidden_channels: int | None,
    edge_dim: int | None,
    act: str | Callable[[Tensor], Tensor] | None,
    norm: str | nn.Module | None,
    dropout: float,
) -> tuple[int, int | None, list[Layer]]:
    """Build and test the layers; the arguments are those of :class:`~hogwild.models.LayeredGNN`.

    Returns:
        The width of the embeddings, the width of the edge features, and the layers.
    """
    if isinstance(layers, BasicGNN):
        if act != "relu" or norm is not None or dropout:
            raise ConfigError(
                f"{type(layers).__name__} has its own activation, norms and dropout, but act, norm "
                f"or dropout was given; expected these options in the constructor of "
                f"{type(layers).__name__}"
            )
        stack, width = _take_over(layers), layers.hidden_channels
    elif isinstance(layers, nn.Module) and not isinstance(layers, nn.ModuleList):
        raise ConfigError(
            f"layers is one {type(layers).__name__}; expected a list of convolutions, or a PyG "
            f"model such as torch_geometric.nn.GraphSAGE"
        )
    else:
        try:
            function = activation_resolver(act)
        except ValueError as error:
            raise ConfigError(f"act={act!r}; expected one of PyG's, a function or None") from error
        stack = [Layer(conv, None, function, dropout) for conv in layers]
        width = _told(stack, "in_channels") if hidden_channels is None else hidden_channels
    if not stack:
        raise ConfigError("layers is empty; expected at least one convolution")
    if width is None or hidden_channels not in (None, width):
        raise ConfigError(
            f"hidden_channels={hidden_channels}, and the layers have width {width}; expected "
            f"hidden_channels=k for layers k → k that have no in_channels"
        )
    require_positive("hidden_channels", width)
    edge_dim = _told(stack, "edge_dim") if edge_dim is None else edge_dim
    if edge_dim is not None:
        require_positive("edge_dim", edge_dim)
        if not any("edge_attr" in layer.reads for layer in stack):
            raise ConfigError(f"edge_dim={edge_dim}, but none of the layers takes edge_attr")
    for i, layer in enumerate(stack):
        if norm is not None:
            layer.norm = _norm(norm, width)
        refuse_beyond_one_hop(layer)
        try_out(layer, f"layer {i} ({layer})", width, edge_dim)
    return width, edge_dim, stack


def _take_over(model: BasicGNN) -> list[Layer]:
    """The layers of a PyG model. As in PyG, the last layer has no norm, activation or dropout."""
    if model.jk_mode is not None:
        raise AsynchronyError(
            f"jk={model.jk_mode!r}: jumping knowledge reads the embeddings of all layers, but a "
            f"node only keeps its latest embedding; expected jk=None"
        )
    norms = [None if isinstance(norm, nn.Identity) else norm for norm in model.norms]
    last = len(model.convs) - 1
    return [
        Layer(conv, norm, model.act, model.dropout.p, model.act_first) if i < last else Layer(conv)
        for i, (conv, norm) in enumerate(zip(model.convs, norms, strict=True))
    ]


def _norm(norm: str | nn.Module, width: int) -> nn.Module:
    """The norm of this name, or a copy of the given module."""
    try:
        return cast("nn.Module", copy.deepcopy(normalization_resolver(norm, width)))
    except ValueError as error:
        raise ConfigError(f"norm={norm!r}; expected one of PyG's, a module or None") from error


def _told(stack: list[Layer], attribute: str) -> int | None:
    """The value that the layers have for an attribute; ``None`` if no layer has the attribute."""
    found = {getattr(layer.conv, attribute, None) for layer in stack} - {None}
    if len(found) > 1:
        raise ConfigError(
            f"the layers have {attribute}={', '.join(sorted(map(str, found)))}; expected the same "
            f"number for all layers. An asynchronous node reads its neighbours' values of any "
            f"layer, so all layers must map width k to width k, and the encoder maps the features "
            f"to width k"
        )
    return next(iter(found), None)


@torch.no_grad()
def try_out(
    layer: Layer, name: str, k: int, edge_dim: int | None, replicas: int | None = None
) -> None:
    """Raise unless a layer maps width k to width k on a path of three nodes."""
    for part in layer.modules():
        if getattr(part, "cached", False):
            raise ConfigError(
                f"{name} was built with cached=True and would use the normalised weights of the "
                f"first graph for every graph; expected cached=False (hogwild caches these weights "
                f"for each graph)"
            )
    if any(nn.parameter.is_lazy(p) for p in layer.parameters()):
        raise ConfigError(f"{name} does not know its input width yet; expected in_channels={k}")
    like = next((p for p in layer.parameters()), torch.empty(0))
    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]], device=like.device)
    graph = Graph(index[0], index[1], torch.zeros(3, dtype=torch.long, device=like.device), 3, 1)
    attr = None if edge_dim is None else like.new_ones(4, edge_dim)
    edges = AllEdges(graph, index, attr, None)
    advice = (
        f"expected a layer from width {k} to width {k}, because an asynchronous node reads its "
        f"neighbours' values of any layer. The encoder maps the features to width {k}, and the "
        f"readout maps width {k} to predictions"
    )
    trial = copy.deepcopy(layer).eval()
    try:
        if replicas is None:
            out = trial(like.new_ones(3, k), edges)
        else:
            out = ensemble.apply(trial, like.new_ones(replicas, 3, k), edges)
    except Exception as error:  # a foreign layer may raise anything
        raise ConfigError(f"{name} raised on an input [3, {k}]: {error}; {advice}") from error
    found = list(out.shape[-2:]) if isinstance(out, Tensor) else f"a {type(out).__name__}"
    if found != [3, k]:
        raise ConfigError(f"{name} maps [3, {k}] to {found}; {advice}")


# -- without torch --------------------------------------------------------------------------------

_ACTS: dict[str, Callable[..., Any]]
_ACTS = {"identity": identity, "relu": leaky_relu, "tanh": tanh}


def gcn_node(layers: Sequence[Layer], edges: AllEdges, encoded: Tensor) -> GCN | None:
    """The layers as a :class:`hogwild_node.GCN`; ``None`` if any of them is not a layer of a GCN.

    Args:
        layers: The layers; with replicas, their parameters are [R, …].
        edges: The edges of the whole graph.
        encoded: Values before the first layer, [R, k, N].
    """
    acts = [_act(layer) for layer in layers]
    convs: list[Any] = [layer.conv for layer in layers]
    alike = {(conv.improved, conv.add_self_loops) for conv in convs if normalises(conv)}
    if None in acts or not all(map(normalises, convs)) or len(alike) != 1:
        return None
    r, k = encoded.shape[:2]
    count = edges.graph.num_edges
    improved, loops = alike.pop()
    weight = edges.normalised(improved, loops, encoded.dtype)[1]
    parameters = [
        GCNLayer(
            conv.lin.weight.reshape(r, k, k),
            encoded.new_zeros(r, k, 1) if conv.bias is None else conv.bias.reshape(r, k, 1),
            act or identity,
        )
        for conv, act in zip(convs, acts, strict=True)
    ]
    loop = weight[count:] if loops else None
    return GCN(encoded, tuple(parameters), weight[:count], loop, (k,) * (len(convs) + 1))


def _act(layer: Layer) -> Callable[..., Any] | None:
    """The activation of a layer without torch; ``None`` if the layer is not one of a GCN."""
    name = activation(layer)
    if name is None or (layer.dropout is not None and layer.training):
        return None
    slope = getattr(layer.act, "negative_slope", 0.0)
    return partial(leaky_relu, negative_slope=slope) if name == "leaky_relu" else _ACTS[name]


def activation(layer: Layer) -> str | None:
    """The name of a layer's activation; ``None`` if the layer has a norm or an unknown
    activation."""
    if layer.norm is not None:
        return None
    names = {type(None): "identity", nn.Identity: "identity", nn.ReLU: "relu", nn.Tanh: "tanh"}
    return (names | {nn.LeakyReLU: "leaky_relu"}).get(type(layer.act))
