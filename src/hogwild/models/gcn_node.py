"""Conversion of a trained GCN to :class:`hogwild_node.GCN`, which runs without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from hogwild.models.layer import Layer
from hogwild.models.locality import AllEdges, normalises
from hogwild_node.activations import identity, leaky_relu, tanh
from hogwild_node.problems import GCN, GCNLayer

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
