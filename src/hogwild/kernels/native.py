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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

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
    "order": (ctypes.c_int, [_INT, _INT, _AT, _AT, _AT, _AT, _INT]),
    "plan_cost": (None, [_AT, _AT, _AT]),
    "flatten": (_INT, [_AT, _INT, _INT, *[_AT] * 7]),
    "sizes": (_AT, [_AT, _REAL, _AT]),
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
    "read": (ctypes.c_int, [_AT, _REAL, _AT, _INT, *[_AT] * 5, _INT]),
    "read_back": (ctypes.c_int, [_AT, _REAL, _AT, _INT, *[_AT] * 7, _INT]),
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
