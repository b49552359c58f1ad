"""The CUDA driver and NVRTC, called through ``ctypes``: compile a source file, load it, launch it.

NVRTC comes with torch. What it compiles is kept in a cache folder (:func:`cache_folder`). Loaded
kernels stay for the life of the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hogwild.files import write_atomically
from hogwild.kernels.build import SOURCE


class CudaError(RuntimeError):
    """A call of the CUDA driver or of NVRTC failed."""


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``HOGWILD_CACHE``, or hogwild in the user's cache."""
    asked = os.environ.get("HOGWILD_CACHE")
    if asked:
        return Path(asked)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hogwild"


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"there is no CUDA driver: {error}") from error


@cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC: the one that was installed with torch, or the system's."""
    major = (torch.version.cuda or "12").split(".")[0]
    name = f"libnvrtc.so.{major}"
    installed = [f for folder in sys.path for f in Path(folder).glob(f"nvidia/*/lib/{name}")]
    for place in (*installed, name, "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"):
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            continue
    raise CudaError(f"{name} was not found, which compiles kernels for this GPU")


def _check(code: int, what: str) -> None:
    if code:
        raise CudaError(f"{what} failed with CUDA error {code}")


def compile_cubin(
    text: str, name: str, headers: tuple[str, ...], capability: tuple[int, int]
) -> bytes:
    """Machine code of a source file with these headers, from the cache or from NVRTC."""
    folder = SOURCE.parent
    included = {header: (folder / header).read_text() for header in headers}
    flags = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    parts = [text, *included.values(), *flags, torch.version.cuda or ""]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    kept_at = cache_folder() / f"{digest}.cubin"
    if kept_at.exists():
        return kept_at.read_bytes()
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    many = ctypes.c_char_p * len(included)
    sources = many(*(h.encode() for h in included.values()))
    names = many(*(n.encode() for n in included))
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), len(included), sources, names
    )
    _check(created, "nvrtcCreateProgram")
    try:
        options = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), options)
        if failed:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CudaError(f"NVRTC could not compile the kernels: {log.value.decode()[:4000]}")
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        code = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    with suppress(OSError):  # a cache that cannot be written costs time, and nothing else
        write_atomically(kept_at, code.raw)
    return code.raw


def load(
    text: str, name: str, headers: tuple[str, ...], device: int, wanted: tuple[str, ...]
) -> dict[str, ctypes.c_void_p]:
    """The loaded kernels of a source file on one GPU; their blocks may have all shared memory."""
    code = compile_cubin(text, name, headers, torch.cuda.get_device_capability(device))
    module = ctypes.c_void_p()
    functions: dict[str, ctypes.c_void_p] = {}
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the context of this GPU current
        loaded = _driver().cuModuleLoadData(ctypes.byref(module), code)
        _check(loaded, "cuModuleLoadData")
        for kernel in wanted:
            one = ctypes.c_void_p()
            _check(
                _driver().cuModuleGetFunction(ctypes.byref(one), module, kernel.encode()), kernel
            )
            # 8: the most dynamic shared memory of a block
            granted = _driver().cuFuncSetAttribute(one, 8, most_shared(device))
            _check(granted, "cuFuncSetAttribute")
            functions[kernel] = one
    return functions


def launch(
    function: ctypes.c_void_p, grid: tuple[int, int], threads: int, shared: int, stream: int,
    arguments: Any,
) -> None:  # fmt: skip
    """Start a kernel; ``arguments`` are the addresses of its arguments."""
    code = _driver().cuLaunchKernel(
        function, *grid, 1, threads, 1, 1, shared, ctypes.c_void_p(stream), arguments, None
    )
    _check(code, "the launch of a kernel")


def launch_together(
    function: ctypes.c_void_p, grid: tuple[int, int], threads: int, shared: int, stream: int,
    arguments: Any,
) -> None:  # fmt: skip
    """Start a kernel whose blocks wait for each other: all of them run at the same time."""
    code = _driver().cuLaunchCooperativeKernel(
        function, *grid, 1, threads, 1, 1, shared, ctypes.c_void_p(stream), arguments
    )
    _check(code, "the cooperative launch of a kernel")


def argument_addresses(arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The arguments of :func:`launch` from structures, numbers of ctypes and addresses, and what
    must stay alive until the kernel is launched."""
    plain = (ctypes.Structure, ctypes.c_double, ctypes.c_longlong)
    holders = [a if isinstance(a, plain) else ctypes.c_void_p(a) for a in arguments]
    pointers = [ctypes.cast(ctypes.byref(h), ctypes.c_void_p) for h in holders]
    return (ctypes.c_void_p * len(holders))(*pointers), holders


def most_shared(device: int) -> int:
    """Bytes of shared memory that a block may have."""
    return _attribute(97, device)  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def multiprocessors(device: int) -> int:
    """Multiprocessors of a GPU."""
    return _attribute(16, device)  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def resident(function: ctypes.c_void_p, threads: int, shared: int, device: int) -> int:
    """Blocks of a kernel that share a multiprocessor; 0 where all blocks cannot run at once."""
    if not _attribute(95, device):  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        return 0
    found = ctypes.c_int()
    with torch.cuda.device(device):
        code = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(found), function, threads, ctypes.c_size_t(shared)
        )
    return 0 if code else found.value


@cache
def _attribute(number: int, device: int) -> int:
    found = ctypes.c_int()
    code = _driver().cuDeviceGetAttribute(ctypes.byref(found), number, device)
    _check(code, "cuDeviceGetAttribute")
    return found.value
