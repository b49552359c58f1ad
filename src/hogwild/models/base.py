"""What every model shares: input checks and the replica convention."""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.errors import DeviceError, DTypeError, FeatureError, GraphError


def check_features(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    edge_weight: Tensor | None,
    *,
    in_channels: int,
    edge_dim: int | None,
    replicas: int | None,
    dtype: torch.dtype,
    device: torch.device,
    validate: bool,
) -> None:
    """Raise on anything a model cannot use; value checks (they read the device) if ``validate``."""
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
    for name, t in (
        ("x", x),
        ("edge_index", edge_index),
        ("edge_attr", edge_attr),
        ("edge_weight", edge_weight),
    ):
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
    if not validate:
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
            f"edge_weight[{at}] is {float(edge_weight[at]):.4g}; expected nonnegative weights: a "
            f"negative one would make the energy nonconvex"
        )
