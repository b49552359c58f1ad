"""Helpers for ``torch.compile`` and for evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hogwild.errors import UnsupportedError
from hogwild.graph.inputs import Inputs

F = TypeVar("F", bound=Callable[..., object])


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
