"""The small dense arithmetic around a compiled solve (``source/dense.h``).

Matrix products of a few thousand numbers take BLAS longer to prepare than to compute, above all on
several threads: a training step on small graphs has a dozen of them. The compiled library computes
them on one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from hogwild.kernels.native import Library
from hogwild.kernels.plan import address

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
        for x in tensors
    )


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of contiguous tensors."""
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def integers(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """An array for the compiled library."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def require(outcome: tuple[int, str]) -> None:
    """Raise unless a call succeeded."""
    failed, why = outcome
    if failed:
        raise MemoryError(f"the compiled library failed: {why}")


def gather(
    native: Library,
    arrays: Sequence[Tensor],
    sizes: ctypes.Array[ctypes.c_int64],
    index: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Entries of contiguous arrays side by side, by their numbers ``index`` [n]: [n]. The entry
    behind the last array is zero. ``sizes`` are the lengths of the arrays."""
    out = torch.empty(index.numel(), dtype=dtype)
    single = arrays[0].dtype == torch.float32
    require(
        native.call(
            "gather", len(arrays), addresses(arrays), sizes, single, index.numel(),
            index.data_ptr(), dtype == torch.float32, out.data_ptr(),
        )
    )  # fmt: skip
    return out


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of features [1 or R, p, n]; replicas may share them."""
    replica, column, row = x.stride()
    return replica if x.size(0) > 1 else 0, column, row


def project(native: Library, weight: Tensor, x: Tensor, shift: Tensor | None) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] + [R, T] -> [R, T, n]."""
    r, t, p = weight.shape
    out = torch.empty(r, t, x.size(-1), dtype=weight.dtype)
    require(
        native.call(
            "project", r, t, p, x.size(-1), weight.data_ptr(), address(shift), x.data_ptr(),
            *_strides(x), out.data_ptr(),
        )
    )  # fmt: skip
    return out


def project_back(native: Library, found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight [R, T, p] and shift [R, T] of :func:`project`, from those of its
    result."""
    r, t, n = found.shape
    weight = torch.empty(r, t, x.size(-2), dtype=found.dtype)
    shift = torch.empty(r, t, dtype=found.dtype)
    require(
        native.call(
            "project_back", r, t, x.size(-2), n, found.data_ptr(), x.data_ptr(), *_strides(x),
            weight.data_ptr(), shift.data_ptr(),
        )
    )  # fmt: skip
    return weight, shift
