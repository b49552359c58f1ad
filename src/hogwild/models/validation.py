"""Checks of a call of a model: its inputs, and whether torch traces or transforms it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

from hogwild.errors import (
    DeviceError,
    DTypeError,
    FeatureError,
    GraphError,
    InputError,
    UnsupportedError,
)
from hogwild.graph.cached import Recent
from hogwild.graph.inputs import SPARSE, Inputs, graphs_of
from hogwild.linalg.solution import unreadable
from hogwild.ops import all_finite

if TYPE_CHECKING:
    from hogwild.models.base import Conv

F = TypeVar("F", bound=Callable[..., object])
_FINITE: Recent[bool] = Recent(64)
"""Tensors whose values were found finite, while they live unchanged: in a loop over the same graphs
they are checked once."""
LARGE = 50.0
"""Absolute value above which a feature counts as large. Standardised features rarely reach it."""


def large_features(**features: Tensor | None) -> str:
    """A sentence that names features so large that a solve may fail because of them; or ``""``."""
    sizes = {
        name: float(v.detach().abs().max())
        for name, v in features.items()
        if v is not None and v.numel() and v.is_floating_point()
    }
    found = [f"{name} has entries up to {size:.4g}" for name, size in sizes.items() if size > LARGE]
    if not found:
        return ""
    return (
        f"{' and '.join(found)} in absolute value. Such large features unsettle training, and make "
        f"an EnergyGNN nearly piecewise linear, which slows the solver down. Standardise the "
        f"features: call model.standardize(data) before training (hogwild.train does)"
    )


def refuse_batch(edge_attr: object) -> None:
    """Raise if ``edge_attr`` is a batch vector, which is the third argument of some PyG models."""
    if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and edge_attr.dtype == torch.long:
        raise DTypeError(
            f"edge_attr is a vector of {edge_attr.numel()} integers; did you mean batch=...? (the "
            f"third positional argument is edge_attr) Expected floating-point edge features"
        )


def require_finite(
    name: str, value: Tensor | None, advice: str = "finite numbers: impute or drop them"
) -> None:
    """Raise if a tensor holds NaN or infinite values."""
    if value is None or _FINITE.get((value,)):
        return
    if all_finite(value):
        _FINITE.put(True, (value,))
    else:
        bad = (~torch.isfinite(value)).nonzero()
        raise FeatureError(
            f"{name} holds NaN or infinite values (first at {tuple(bad[0].tolist())}); expected "
            f"{advice}"
        )


def first_parameter(module: nn.Module, default: Any) -> Any:
    """``next(module.parameters(), default)`` without the search for all submodules, which takes
    longer than a small solve."""
    for value in module._parameters.values():
        if value is not None:
            return value
    for child in module._modules.values():
        if child is not None and (found := first_parameter(child, None)) is not None:
            return found
    return default


def widened(x: Any, dtype: torch.dtype) -> Any:
    """Floating-point numbers of a lower precision in this one. Numbers of a higher precision are
    returned unchanged, unless this is a half precision, which nobody takes for its digits."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not dtype.is_floating_point:
        return x
    fits = dtype.itemsize == 2 or torch.promote_types(x.dtype, dtype) == dtype
    return x.to(dtype) if fits else x


def in_precision_of(module: nn.Module, inputs: Inputs) -> Inputs:
    """The inputs with the features in the dtype of the module's parameters (:func:`widened`), as an
    encoder under autocast or ``Trainer(precision="64-true")`` needs it."""
    like = first_parameter(module, None)
    if like is None:
        return inputs
    given = {name: getattr(inputs, name) for name in ("x", "edge_attr", "edge_weight", "heard")}
    found = {name: widened(value, like.dtype) for name, value in given.items()}
    changed = {name: value for name, value in found.items() if value is not given[name]}
    return replace(inputs, **changed) if changed else inputs


def check_inputs(inputs: Inputs, conv: Conv, in_channels: int | None = None) -> None:
    """Raise if the inputs do not fit the convolution. Values are only checked with
    ``conv.validate``, because these checks synchronise with the device. ``in_channels`` is the
    width of features that are not encoded yet; −1: any width."""
    x: Any = inputs.x  # the caller may have given any type
    edge_index: Any = inputs.edge_index
    width = conv.in_channels if in_channels is None else in_channels
    shown = "in_channels" if width == -1 else width
    _require_tensors(x, edge_index, shown)
    features = {"x": x}
    if inputs.edge_attr is not None:
        features["edge_attr"] = inputs.edge_attr
    if inputs.edge_weight is not None:
        features["edge_weight"] = inputs.edge_weight
    every = features | {"edge_index": edge_index}
    for name, t in every.items():
        if not isinstance(t, Tensor) or t.layout != torch.strided:
            kind = str(t.layout) if isinstance(t, Tensor) else type(t).__name__
            sparse = name == "edge_index" and "sparse" in kind.lower()
            instead = f" of senders and receivers, [2, num_edges]: {SPARSE}" * sparse
            raise InputError(f"{name} is a {kind}; expected a dense torch.Tensor{instead}")
    if edge_index.dim() != 2:
        raise GraphError(f"edge_index has shape {tuple(edge_index.shape)}; expected [2, num_edges]")
    refuse_batch(inputs.edge_attr)
    like = first_parameter(conv, x)  # layers without parameters take any features
    dtype, device = like.dtype, like.device
    for name, t in features.items():
        if t.dtype != dtype:
            raise DTypeError(
                f"{name} has dtype {t.dtype} and the model's parameters {like.dtype}; expected one "
                f"dtype: use {name}.to({like.dtype}), or model.to({t.dtype})"
                if t.is_floating_point()
                else f"{name} has dtype {t.dtype}; expected floating-point features of "
                f"{like.dtype}: {name}.to({like.dtype}) for numbers, "
                f"torch.nn.functional.one_hot for categories"
            )
    for name, t in every.items():
        if t.device != device:
            raise DeviceError(
                f"{name} is on {t.device} and the model on {like.device}; expected one device: "
                f"move the data or the model with .to(...)"
            )
    lead = x.shape[:-2]
    if x.dim() < 2 or width not in (-1, x.size(-1)) or lead not in ((), (conv.replicas,)):
        shapes = f"[num_nodes, {shown}]"
        if conv.replicas is not None:
            shapes += f" or [{conv.replicas}, num_nodes, {shown}]"
        column = ": a single feature is a column, x.unsqueeze(1)" * (x.dim() == 1)
        raise FeatureError(f"x has shape {tuple(x.shape)}; expected {shapes}{column}")
    _check_edge_shapes(inputs, conv)
    if conv.validate and not unreadable(x):
        for name, t in features.items():
            require_finite(name, t)
        weight = inputs.edge_weight
        if weight is not None and bool((weight < 0).any()):
            at = int((weight < 0).nonzero()[0, 0])
            raise GraphError(
                f"edge_weight[{at}] is {float(weight[at]):.4g}; expected nonnegative weights: "
                f"with negative weights an energy may not be convex, and a map may not be a "
                f"contraction"
            )


def _require_tensors(x: object, edge_index: object, in_channels: int | str) -> None:
    """Raise if the caller gave one object in place of two tensors."""
    if isinstance(x, Tensor) and edge_index is not None:
        return
    if isinstance(x, HeteroData):
        graphs_of(x)  # raises, and says how to convert it
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


def _check_edge_shapes(inputs: Inputs, conv: Conv) -> None:
    """Raise if the convolution does not read these edge features or edge weights."""
    edge_attr, edge_weight, edge_dim = inputs.edge_attr, inputs.edge_weight, conv.edge_dim
    num_edges = inputs.edge_index.size(-1)
    if edge_dim is None and edge_attr is not None:
        width = 1 if edge_attr.dim() == 1 else edge_attr.size(-1)
        ways = [f"build the model with edge_dim={width}"] if conv.takes_edge_attr else []
        if conv.takes_edge_weight:
            ways.append("pass one number for each edge as edge_weight=...")
        raise FeatureError(
            f"edge_attr of shape {tuple(edge_attr.shape)} was given to a model built without edge "
            f"features ({conv.label}; the third positional argument is edge_attr); "
            f"{', '.join([*ways, 'or leave edge_attr out' if ways else 'leave edge_attr out'])}"
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
    if edge_weight is not None and not conv.takes_edge_weight:
        instead = "pass the weights as edge_attr=edge_weight[:, None] to a model with edge_dim=1"
        raise GraphError(
            f"edge_weight was given, but {conv.label} does not read edge weights; expected "
            f"edge_weight=None{f', or {instead}' if conv.takes_edge_attr else ''}"
        )
    if edge_weight is not None and tuple(edge_weight.shape) != (num_edges,):
        raise GraphError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected [{num_edges}], one weight "
            f"for each column of edge_index"
        )


def opaque(method: F) -> F:
    """Exclude a method from ``torch.compile``. The control flow of a solve depends on values, so a
    traced solve breaks into dozens of graphs that take minutes to compile."""
    found: F = torch.compiler.disable(method, reason="its control flow depends on values")
    return found


def refuse_transforms(model: nn.Module, inputs: Inputs) -> None:
    """Raise where torch traces, maps or transforms the function that calls a solve: its control
    flow depends on values, and compiled code may compute it.

    Raises:
        UnsupportedError: With another way to the same end.
    """
    if torch._C._get_tracing_state() is not None:
        raise UnsupportedError(_TRACED.format("torch.jit.trace"))
    if torch._C._are_functorch_transforms_active():
        kinds = {level.key().name for level in torch._C._functorch.get_interpreter_stack() or ()}
        raise UnsupportedError(_MAPPED if "Vmap" in kinds else _TRANSFORMED)
    x = inputs.x
    if isinstance(x, Tensor) and x.is_meta:
        raise UnsupportedError(
            "the features are on the meta device, which holds no values; expected a device that "
            "does: model.to_empty(device=...), then model.load_state_dict(...)"
        )
    if isinstance(x, FakeTensor | FunctionalTensor):
        raise UnsupportedError(_TRACED.format("torch.export (or make_fx, or a FakeTensorMode)"))
    if torch._C._len_torch_dispatch_stack() and get_proxy_mode() is not None:
        raise UnsupportedError(_TRACED.format("torch.export (or make_fx)"))
    if forward_ad._current_level >= 0:
        given = (x, inputs.heard, inputs.edge_attr, inputs.edge_weight, *model.parameters())
        if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in given):
            raise UnsupportedError(_FORWARD)


_TRACED = (
    "{} cannot record a solve, because the number of its iterations depends on values; expected a "
    "call of the model itself: torch.save(model) keeps it, hogwild.export writes it for agents "
    "without torch, and torch.compile leaves solves as they are"
)
_MAPPED = (
    "torch.func.vmap cannot map over a solve; expected a model with replicas=R, which solves R "
    "parameter sets side by side, or one batch of many graphs (torch_geometric.data.Batch)"
)
_TRANSFORMED = (
    "torch.func (grad, jacrev, functionalize, …) cannot transform a solve; expected "
    "torch.autograd.grad(create_graph=True) or torch.autograd.functional (jacobian, hessian, hvp, "
    "jvp), which differentiate solves to any order"
)
_FORWARD = (
    "a solve has no derivatives in forward mode (torch.autograd.forward_ad); expected "
    "torch.autograd.functional.jvp, which computes the same by two backward passes"
)


def uncompiled(model: Any) -> Any:
    """The original module of a compiled module; any other object is returned unchanged. A compiled
    module shares all parameters with the original, but hides its class and the calls inside it."""
    return model._modules.get("_orig_mod", model) if isinstance(model, nn.Module) else model


_studied: ContextVar[bool] = ContextVar("studied", default=False)


def studied() -> bool:
    """Whether a model is studied (:func:`evaluating`): runs are compared with its answers to more
    digits than float32 has, so that layers without a ``solve_dtype`` compute in float64."""
    return _studied.get()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model that is simulated, certified or measured into evaluation mode within a context;
    restore the mode of each module after."""
    mode = {module: module.training for module in model.modules()}
    model.eval()
    before = _studied.set(True)
    try:
        yield
    finally:
        _studied.reset(before)
        for module, training in mode.items():
            module.training = training
