"""Kernels are recorded as a CUDA graph: nothing can be read back meanwhile.

What is checked by reading a tensor is skipped then. Whether solves failed is kept for later: a
recording of :mod:`hogwild.training.recorded` computes a summary from it, which is read after every
replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
