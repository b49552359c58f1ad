"""The compiled library: where it lies, and how its functions are called.

The sources in ``kernels/source`` are compiled when the package is installed
(:mod:`hogwild.kernels.build`). :func:`library` loads the library for this processor. Without a
compiled library every solve runs on torch, with the same answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from hogwild.errors import UnsupportedError
from hogwild.kernels.build import COMPILED, LEVELS, NATIVE, digest, mark

SWITCH = "HOGWILD_KERNELS"
"""The environment variable that switches the compiled library off, ``HOGWILD_KERNELS=off``, or asks
for one of several instruction sets, such as ``HOGWILD_KERNELS=avx2``."""

T = TypeVar("T")
_WORDS = ctypes.c_char * 512
_PRESSED = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.pythonapi.PyOS_InterruptOccurred)
"""Whether Ctrl-C was pressed and nobody has heard it yet; it counts as heard from then on."""
_INT, _REAL, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "digest": (ctypes.c_char_p, []),
    "level": (_INT, []),
    "plan": (_AT, [_INT, _INT, _AT, _INT, _AT, _AT, _INT, _INT, _REAL, _AT, _INT]),
    "plan_free": (None, [_AT]),
    "listen": (_INT, [_AT]),
    "plan_cost": (None, [_AT, _AT, _AT]),
    "flatten": (_INT, [_AT, _INT, _INT, *[_AT] * 7]),
    "sizes": (_AT, [_AT, _REAL, _AT]),
    "activation": (ctypes.c_int, [_INT, _INT, *[_AT] * 4, _INT]),
    "sizes_free": (None, [_AT]),
    "shapes": (None, [_AT, _AT]),
    "factor": (_AT, [_AT, _INT, _INT, _AT, _AT, _INT, _AT, _INT]),
    "factor_free": (None, [_AT]),
    "factor_solve": (ctypes.c_int, [_AT, _INT, _AT, _INT, _AT, _AT, _INT]),
    "solve": (ctypes.c_int, [_AT, _AT, _REAL, _REAL, *[_INT] * 4, *[_AT] * 5, _INT]),
    "gradient": (ctypes.c_int, [_AT, _AT, _INT, *[_AT] * 3, _INT]),
    "adjoint": (ctypes.c_int, [*[_AT] * 3, _REAL, _INT, *[_AT] * 7, _INT]),
    "gather": (ctypes.c_int, [_INT, _AT, _AT, _INT, _AT, _INT, _AT, _AT, _INT, _AT, _INT]),
    "attend": (ctypes.c_int, [_AT, _REAL, *[_AT] * 5, _INT, *[_AT] * 6, _INT]),
    "attend_back": (ctypes.c_int, [_AT, _REAL, *[_AT] * 5, _INT, *[_AT] * 10, _INT]),
    "project": (ctypes.c_int, [*[_INT] * 4, *[_AT] * 3, *[_INT] * 3, *[_AT] * 2, _INT]),
    "project_back": (ctypes.c_int, [*[_INT] * 4, *[_AT] * 2, *[_INT] * 3, *[_AT] * 3, _INT]),
    "soft": (
        ctypes.c_int,
        [_AT, _INT, *[_AT] * 5, _REAL, _REAL, _AT, _AT, _REAL, _REAL, _AT, _INT, *[_AT] * 6, _INT],
    ),
    "draw": (_INT, [_AT, _INT, *[_AT] * 3]),
    "turn": (ctypes.c_int, [_AT, _AT, _AT, _INT, _AT, _INT, _AT, _INT]),
    "tick": (_INT, [_AT, _AT, _AT, _INT, *[_AT] * 3, _INT, _AT, _INT]),
}  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A loaded library.

    Attributes:
        path: The file.
        instructions: The instruction set that it was compiled for.
    """

    path: Path
    instructions: str

    def __post_init__(self) -> None:
        handle = ctypes.CDLL(str(self.path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(handle, f"hog_{name}")
            function.restype, function.argtypes = result, arguments
            object.__setattr__(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that explains a failure in words; its result, and the words."""
        why = _WORDS()
        return getattr(self, name)(*arguments, why, len(why)), why.value.decode()

    def interruptible(self, call: Callable[[], T]) -> T:
        """Make a call that may last, and hear Ctrl-C meanwhile. The call ends before a signal's
        handler runs, and begins again where the handler raises nothing."""
        while True:
            self.listen(_PRESSED)
            try:
                found = call()
            finally:
                pressed = bool(self.listen(None))
            if not pressed:
                return found
            signal.raise_signal(signal.SIGINT)


def address(x: Tensor | None) -> Any:
    """The address of a contiguous tensor (an integer), or ``None``. Compiled code gets every
    address from here, so that it never reads a tensor without memory of its own."""
    if x is None:
        return None
    try:
        found = x.data_ptr()
    except RuntimeError:  # torch.func, FakeTensor, FunctionalTensor
        found = 0
    if not found and x.numel():  # meta tensors, functionalised tensors
        raise UnsupportedError(
            f"compiled code was handed a {type(x).__name__} of shape {list(x.shape)} that has no "
            f"memory of its own: torch traces, maps or transforms the function that calls it. "
            f"Expected a call with plain tensors; HOGWILD_KERNELS=off computes everything by torch"
        )
    return found


@dataclass(frozen=True)
class Missing:
    """There is no compiled library, and why."""

    reason: str


@cache
def found() -> Library | Missing:
    """The compiled library for this processor, or why there is none."""
    asked = os.environ.get(SWITCH, "").lower()
    if asked == "off":
        return Missing(f"switched off by {SWITCH}=off")
    names = [p.stem.removeprefix("hogwild_") for p in COMPILED.glob("hogwild_*.so")]
    if not names:
        return Missing(
            "not compiled when hogwild was installed (python -m hogwild.kernels.build needs a "
            "C++ compiler)"
        )
    levels = list(LEVELS)
    if asked not in ("", "on", NATIVE, *levels):
        return Missing(f"{SWITCH}={asked}; expected on, off or one of {', '.join(levels)}")
    if asked in levels and asked not in names:
        return Missing(
            f"{SWITCH}={asked}, and the library is compiled for {', '.join(sorted(names))} "
            "(python -m hogwild.kernels.build --all compiles every instruction set)"
        )
    try:
        name = names[0]
        if len(names) > 1:
            first = Library(COMPILED / f"hogwild_{levels[0]}.so", levels[0])
            known = levels[: int(first.level()) + 1]
            if asked in levels and asked not in known:
                return Missing(f"{SWITCH}={asked}, and this processor knows {known[-1]} at most")
            name = asked if asked in known else known[-1]
        one = Library(COMPILED / f"hogwild_{name}.so", name)
    except (OSError, AttributeError) as error:
        return Missing(f"the library cannot be loaded: {error}")
    carried = one.digest().decode()
    if carried != mark(name):
        same = name == NATIVE and carried.startswith(f"{digest()}-")
        why = "compiled for another processor" if same else "older than its sources"
        return Missing(f"{why}: python -m hogwild.kernels.build compiles it again")
    return one


def library() -> Library | None:
    """The compiled library for this processor, or ``None``."""
    one = found()
    return one if isinstance(one, Library) else None


PAGE, WORTH = 1 << 21, 1 << 20
"""Bytes of a large page, and of an array that is worth one."""


def large_pages(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """An empty tensor in large pages, where the system has them: random reads of a large array then
    wait less for addresses. The memory is fresh: pages that were written once stay small."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    cpu = device is None or device.type == "cpu"
    if not cpu or size < WORTH or library() is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    room = mmap.mmap(-1, size + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the system has none
        room.madvise(mmap.MADV_HUGEPAGE)
    bytes_ = torch.frombuffer(room, dtype=torch.uint8)
    begin = -bytes_.data_ptr() % PAGE
    return bytes_[begin : begin + size].view(dtype).view(shape)


# -- functions of torch that compiled code replaces -----------------------------------------------

SMALL = 1 << 20
"""Multiplications up to which one thread is faster than BLAS on several: about half a
millisecond."""


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
