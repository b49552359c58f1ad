r"""Small problems on a GPU: record an iteration once as a CUDA graph, then replay it.

A Newton step on a few hundred nodes is a few hundred kernels of microseconds each. Launching them
one by one from Python takes longer than running them; a CUDA graph launches them all at once. The
tensors of each new problem (new parameters every epoch) are copied into the recorded tensors.

Large problems gain nothing and are never recorded, and there are no recordings on a CPU. A
recording belongs to one graph. Several threads or streams must not use it at the same time.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from hogwild.graph import Graph, kept
from hogwild.linalg.operator import Posed
from hogwild_node.tree import arrays

Body = Callable[..., tuple[Tensor, ...]]

SMALL = {"cpu": 2_000, "cuda": 200_000}
"""Number of node embeddings below which a batch is small. Chosen with one slow graph in a
batch on a CPU, and by ``benchmarks/training_step.py`` on a GPU."""


def is_small(h: Tensor) -> bool:
    """Whether cutting out a smaller batch costs more than an iteration. On a GPU this holds as long
    as launching kernels costs more than running them."""
    return h.size(0) * h.size(-1) < SMALL.get(h.device.type, 0)


class Recordable(Posed, Protocol):
    """A problem that can be solved by replaying a recording."""

    @property
    def signature(self) -> tuple[object, ...]:
        """Everything beside tensors and their shapes that decides what is computed."""


enabled = True
"""Set to ``False`` to launch every kernel from Python, for debugging."""


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


class Recording:
    """``body(problem, *inputs)`` as a CUDA graph over its own copies of all tensors."""

    def __init__(self, body: Body, problem: Recordable, inputs: tuple[Tensor, ...]) -> None:
        # No reference to the problem or its graph is kept: the graph owns the recording, and a
        # cycle would hold GPU memory that Python's garbage collector does not see.
        own = problem.map(torch.clone)
        self.inputs = [x.clone() for x in inputs]
        self.tensors = leaves(own)
        self.loaded = weakref.ref(problem)
        # Only the copies are bound: see above.
        run = partial(body, own, *self.inputs)
        self.replay = Replay(run, self.inputs[0].device, run)

    def __call__(self, problem: Recordable, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.loaded() is not problem:
            torch._foreach_copy_(self.tensors, leaves(problem))
            self.loaded = weakref.ref(problem)
        torch._foreach_copy_(self.inputs, list(inputs))
        return tuple(x.clone() for x in self.replay())


def leaves(problem: Recordable) -> list[Tensor]:
    """Every tensor a problem is made of, in a fixed order."""
    return [x for x, _ in arrays(problem)]


@dataclass
class Recorded:
    """The recordings on one graph, and which keys were seen; ``None``: recording failed."""

    seen: set[Hashable] = field(default_factory=set)
    recordings: dict[Hashable, Recording | None] = field(default_factory=dict)


@kept
def recorded(graph: Graph) -> Recorded:
    """The recordings on this graph; the graph owns them."""
    return Recorded()


@torch.no_grad()
def replay(
    key: Hashable, body: Body, problem: Recordable, *inputs: Tensor
) -> tuple[Tensor, ...] | None:
    """Outputs of ``body(problem, *inputs)`` by replay; ``None`` where there is no recording.

    ``body`` must not wait for the device. Its outputs may depend only on ``key``, the problem's
    :attr:`Recordable.signature`, its graph and its tensors.
    """
    graph, h = problem.graph, inputs[0]
    if not (enabled and h.is_cuda and problem.has_blocks and is_small(h)):
        return None
    known = recorded(graph)
    key = (key, problem.signature, h.dtype, tuple(x.shape for x in leaves(problem)))
    if key not in known.seen:  # record at the second sight
        known.seen.add(key)
        return None
    if key not in known.recordings:
        try:
            known.recordings[key] = Recording(body, problem, inputs)
        except NotRecorded as error:
            warnings.warn(f"a solve is not recorded: {error}", stacklevel=2)
            known.recordings[key] = None
    recording = known.recordings[key]
    return None if recording is None else recording(problem, inputs)
