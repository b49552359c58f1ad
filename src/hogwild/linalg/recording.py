"""CUDA graphs: kernels are recorded once and launched all at once from then on.

Launching a few hundred kernels of microseconds one by one from Python takes longer than running
them. Nothing can be read back while kernels are recorded. What is checked by reading a tensor is
skipped then. Whether solves failed is kept for later: a recording of
:mod:`hogwild.training.recorded` computes a summary from it, which is read after every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

_unread: list[Tensor] | None = None  # of all threads: autograd has threads of its own


def unreadable(x: Tensor) -> bool:
    """Whether kernels on the device of ``x`` are being recorded, so that ``x`` has no values."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def postpone(failed: Tensor) -> None:
    """Keep failures of solves, a mask [G] or [R, G], for :func:`postponed`."""
    if _unread is not None:
        _unread.append(failed)


@contextmanager
def postponed() -> Iterator[list[Tensor]]:
    """Within this context, the failures that nobody could read."""
    global _unread
    before, _unread = _unread, []
    try:
        yield _unread
    finally:
        _unread = before


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The one stream of a device to record on: cuBLAS keeps a workspace for every stream (32 MiB on
    recent GPUs) until the process ends."""
    return torch.cuda.Stream(device)


@cache
def keeper(device: torch.device) -> torch.cuda.CUDAGraph:
    """A tiny graph that owns the one memory pool of a device for the temporaries of all recordings:
    a pool whose last graph is gone cannot be used again.

    Recordings may share the pool: they run one at a time, write before they read, and their results
    are copied out. With a pool for each recording, thirty batches would fill most of a GPU.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, stream=recording_stream(device)):
        torch.zeros((), device=device)
    return graph


class NotRecorded(RuntimeError):
    """A function cannot be recorded as a CUDA graph."""


class Replay:
    """A function without arguments as a CUDA graph. It reads tensors that change in place, and its
    outputs are those of the last replay, until another recording is replayed.

    Args:
        body: The function; it must not wait for the device.
        device: The device of all its tensors.
        rehearse: Called twice before recording, on the stream of the recording: plans and library
            handles are made then.
    """

    def __init__(
        self,
        body: Callable[[], tuple[Tensor, ...]],
        device: torch.device,
        rehearse: Callable[[], object],
    ) -> None:
        side = recording_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(2):
                rehearse()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph, pool = torch.cuda.CUDAGraph(), keeper(device).pool()
        try:
            with torch.cuda.graph(self.graph, pool=pool, stream=side):
                self.outputs = body()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            keeper.cache_clear()  # a recording that broke off leaves its pool unusable
            first = error.__context__ or error  # the other one says only that there was one
            reason = str(first).partition("\n")[0]
            raise NotRecorded(f"CUDA cannot record it ({reason})") from first

    def __call__(self) -> tuple[Tensor, ...]:
        self.graph.replay()
        return self.outputs
