"""The small dense arithmetic around a compiled solve (``source/dense.h``).

Matrix products of a few thousand numbers take BLAS longer to prepare than to compute, above all on
several threads: a training step on small graphs has a dozen of them. The compiled library computes
them on one thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from hogwild.kernels.native import Library, address

SMALL = 1 << 20
"""Multiplications up to which one thread is faster than BLAS on several: about half a
millisecond."""


@cache
def _names(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def items(group: nn.Module) -> list[Tensor] | None:
    """The parameters in a list of parameters, which takes longer to give them. ``None``: torch has
    replaced some by functions of others (pruning, parametrisations)."""
    found = group._parameters
    plain = list(found) == _names(len(group))  # type: ignore[arg-type]
    given: list[Tensor] = [p for p in found.values() if p is not None]
    return given if plain and len(given) == len(found) else None


def readable(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether compiled code on a CPU can read these tensors: contiguous ones of this dtype in the
    memory of this process."""
    return all(
        (type(x) is nn.Parameter or type(x) is Tensor)
        and x.is_cpu
        and x.dtype == dtype
        and x.is_contiguous()
        and not x.is_neg()
        for x in tensors
    )


def unheard(net: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether this is the library's own network of this kind, and nobody listens to it."""
    return type(net) is kind and not (
        net._forward_hooks or net._forward_pre_hooks or net._backward_hooks
        or net._backward_pre_hooks or "forward" in net.__dict__ or _has_any_global_hook()
    )  # fmt: skip


def traced() -> bool:
    """Whether torch must see every operation: it compiles, traces, transforms functions,
    differentiates forwards, or somebody else computes (tensors without numbers, for instance)."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def watched() -> bool:
    """Whether torch must see every operation, or chooses its dtype."""
    return traced() or torch.is_autocast_enabled("cpu")


def applied(function: Any, *given: Any) -> Any:
    """``function.apply(*given)`` of a :class:`torch.autograd.Function`. Where no function is
    transformed, torch's own ``apply`` only looks at every argument once more, which takes as long
    as all else that it does."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*given)
    return super(torch.autograd.Function, function).apply(*given)


def by_torch(
    function: Callable[..., Tensor], given: Sequence[Any], wanted: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a function of these tensors, of those that are wanted. Autograd records
    these gradients where it records anything now."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # One tensor may be a function of another. Views of both are independent of each other.
        own = [x.view_as(x) if n else x for x, n in zip(given, wanted, strict=True)]
        over = [x for x, needed in zip(own, wanted, strict=True) if needed]
        value = function(*own)
        if not (over and value.requires_grad):
            return (None,) * len(own)
        found = iter(torch.autograd.grad(value, over, grad, create_graph=again, allow_unused=True))
    return tuple(next(found) if needed else None for needed in wanted)


def recorded(grad: Tensor) -> bool:
    """Whether compiled code cannot compute gradients from ``grad``: somebody will differentiate
    them again, or torch computes many of them at once."""
    return torch.is_grad_enabled() or batched(grad)


def batched(grad: Tensor) -> bool:
    """Whether a gradient stands for many (``is_grads_batched``), or for one that is
    transformed."""
    return (
        torch._C._functorch.is_legacy_batchedtensor(grad)
        or torch._C._are_functorch_transforms_active()
    )


def addresses(tensors: Sequence[Tensor]) -> bytes:
    """The addresses of contiguous tensors, as an array for the compiled library."""
    return struct.pack(f"{len(tensors)}P", *[address(x) for x in tensors])


def integers(numbers: Sequence[int]) -> bytes:
    """An array of 64-bit integers for the compiled library."""
    return struct.pack(f"{len(numbers)}q", *numbers)


def require(outcome: tuple[int, str]) -> None:
    """Raise unless a call succeeded."""
    failed, why = outcome
    if failed:
        raise MemoryError(f"the compiled library failed: {why}")


def gather(
    native: Library,
    arrays: Sequence[Tensor],
    sizes: bytes,
    index: Tensor,
    into: Sequence[Tensor],
    lengths: bytes,
) -> None:
    """Write entries of contiguous arrays side by side, by their numbers ``index`` [n], into other
    contiguous arrays side by side, [n] in all. The entry behind the last array is zero. ``sizes``
    and ``lengths`` are the numbers of entries of the arrays."""
    single, to_single = (some[0].dtype == torch.float32 for some in (arrays, into))
    require(
        native.call(
            "gather", len(arrays), addresses(arrays), sizes, single, address(index), len(into),
            addresses(into), lengths, to_single,
        )
    )  # fmt: skip


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of features [1 or R, p, n]; replicas may share them."""
    replica, column, row = x.stride()
    return replica if x.size(0) > 1 else 0, column, row


def project(native: Library, weight: Tensor, x: Tensor, shift: Tensor | None) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] + [R, T] -> [R, T, n]."""
    r, t, p = weight.shape
    out, x = weight.new_empty(r, t, x.size(-1)), x.resolve_neg()
    require(
        native.call(
            "project", r, t, p, x.size(-1), address(weight), address(shift), address(x),
            *strides(x), address(out),
        )
    )  # fmt: skip
    return out


def project_back(native: Library, found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight [R, T, p] and shift [R, T] of :func:`project`, from those of its
    result."""
    r, t, n = found.shape
    weight, shift, x = found.new_empty(r, t, x.size(-2)), found.new_empty(r, t), x.resolve_neg()
    require(
        native.call(
            "project_back", r, t, x.size(-2), n, address(found), address(x), *strides(x),
            address(weight), address(shift),
        )
    )  # fmt: skip
    return weight, shift
