"""Checks of a model's inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data.data import BaseData

from hogwild.errors import DeviceError, DTypeError, FeatureError, GraphError, InputError
from hogwild.graph.inputs import Inputs


class Reader(Protocol):
    """A module that reads graphs with features of known widths."""

    in_channels: int
    edge_dim: int | None
    replicas: int | None
    validate: bool

    def parameters(self) -> Iterator[nn.Parameter]: ...


LARGE = 50.0
"""Absolute value above which a feature counts as large. Standardised features rarely reach it."""


def large_features(**features: Tensor | None) -> str:
    """A sentence that names features so large that a solve may fail because of them; or ``""``."""
    sizes = {k: float(v.abs().max()) for k, v in features.items() if v is not None and v.numel()}
    found = [f"{name} has entries up to {size:.4g}" for name, size in sizes.items() if size > LARGE]
    if not found:
        return ""
    return (
        f"{' and '.join(found)} in absolute value. Such large features make the problem nearly "
        f"piecewise linear, which slows the solver down. Standardise the features: call "
        f"model.standardize(data) before training (hogwild.train does)"
    )


def refuse_batch(edge_attr: object) -> None:
    """Raise if ``edge_attr`` is a batch vector, which is the third argument of some PyG models."""
    if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and edge_attr.dtype == torch.long:
        raise DTypeError(
            f"edge_attr is a vector of {edge_attr.numel()} integers; did you mean batch=...? (the "
            f"third positional argument is edge_attr) Expected floating-point edge features"
        )


def check_inputs(inputs: Inputs, reader: Reader) -> None:
    """Raise if the inputs do not fit the reader. Values are only checked with ``reader.validate``,
    because these checks synchronise with the device."""
    x: Any = inputs.x  # the caller may have given any type
    edge_index: Any = inputs.edge_index
    edge_attr, edge_weight = inputs.edge_attr, inputs.edge_weight
    in_channels, edge_dim, replicas = reader.in_channels, reader.edge_dim, reader.replicas
    like = next(iter(reader.parameters()), x)  # layers without parameters take any features
    dtype, device = getattr(like, "dtype", None), getattr(like, "device", None)
    given = (
        ("x", x),
        ("edge_index", edge_index),
        ("edge_attr", edge_attr),
        ("edge_weight", edge_weight),
    )
    if isinstance(x, BaseData):
        raise InputError(
            f"the model was called with a {type(x).__name__}; expected its tensors: "
            f"model(data.x, data.edge_index, data.edge_attr, data.batch), without those that the "
            f"data lacks"
        )
    if isinstance(x, Inputs):
        raise InputError("the model was called with Inputs; expected model.predict(inputs)")
    if x is None or edge_index is None:
        missing = "x" if x is None else "edge_index"
        raise InputError(
            f"{missing} is missing; expected model(x, edge_index) with features [num_nodes, "
            f"{in_channels}] and edges [2, num_edges]. A graph without edges has "
            f"edge_index=torch.empty(2, 0, dtype=torch.long)"
        )
    for name, t in given:
        if t is not None and (not isinstance(t, Tensor) or t.layout != torch.strided):
            kind = t.layout if isinstance(t, Tensor) else type(t).__name__
            raise InputError(f"{name} is a {kind}; expected a dense torch.Tensor")
    if edge_index.dim() != 2:
        raise GraphError(f"edge_index has shape {tuple(edge_index.shape)}; expected [2, num_edges]")
    refuse_batch(edge_attr)
    for name, t in (("x", x), ("edge_attr", edge_attr), ("edge_weight", edge_weight)):
        if t is None:
            continue
        if t.dtype != dtype:
            raise DTypeError(
                f"{name} has dtype {t.dtype} and the model's parameters {dtype}; expected one "
                f"dtype: use {name}.to({dtype}), or model.to({t.dtype})"
                if t.is_floating_point()
                else f"{name} has dtype {t.dtype}; expected floating-point features of {dtype}"
            )
    for name, t in given:
        if t is not None and t.device != device:
            raise DeviceError(
                f"{name} is on {t.device} and the model on {device}; expected one device: move "
                f"the data or the model with .to(...)"
            )
    lead = () if replicas is None else (replicas,)
    if (
        x.dim() not in (2, 2 + len(lead))
        or x.size(-1) != in_channels
        or (x.dim() == 3 and x.size(0) != replicas)
    ):
        shapes = f"[num_nodes, {in_channels}]"
        if replicas is not None:
            shapes += f" or [{replicas}, num_nodes, {in_channels}]"
        raise FeatureError(f"x has shape {tuple(x.shape)}; expected {shapes}")
    num_edges = edge_index.size(-1)
    if edge_dim is None and edge_attr is not None:
        if edge_attr.dim() == 1:
            raise FeatureError(
                f"edge_attr of shape {tuple(edge_attr.shape)} was given to a model built without "
                f"edge features; did you mean edge_weight=...? (the third positional argument is "
                f"edge_attr)"
            )
        raise FeatureError(
            f"edge_attr of shape {tuple(edge_attr.shape)} was given to a model built without edge "
            f"features; build it with edge_dim={edge_attr.size(-1)} or leave edge_attr out"
        )
    if edge_dim is not None and edge_attr is None:
        raise FeatureError(
            f"edge_attr is missing: the model was built with edge_dim={edge_dim} and expects "
            f"edge_attr [{num_edges}, {edge_dim}]"
        )
    if edge_attr is not None and tuple(edge_attr.shape) != (num_edges, edge_dim):
        raise FeatureError(
            f"edge_attr has shape {tuple(edge_attr.shape)}; expected [{num_edges}, {edge_dim}], "
            f"one row for each column of edge_index"
        )
    if edge_weight is not None and tuple(edge_weight.shape) != (num_edges,):
        raise GraphError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected [{num_edges}], one weight "
            f"for each column of edge_index"
        )
    if not reader.validate:
        return
    for name, t in (("x", x), ("edge_attr", edge_attr), ("edge_weight", edge_weight)):
        if t is not None and t.numel() and not bool(torch.isfinite(t).all()):
            bad = (~torch.isfinite(t)).nonzero()
            raise FeatureError(
                f"{name} holds {len(bad)} values that are NaN or infinite (first at "
                f"{tuple(bad[0].tolist())}); expected finite numbers: impute or drop them"
            )
    if edge_weight is not None and edge_weight.numel() and bool((edge_weight < 0).any()):
        at = int((edge_weight < 0).nonzero()[0, 0])
        raise GraphError(
            f"edge_weight[{at}] is {float(edge_weight[at]):.4g}; expected nonnegative weights: "
            f"with negative weights an energy may not be convex, and a map may not be a "
            f"contraction"
        )
