"""Training steps on a GPU as CUDA graphs.

A training step on small graphs is a few hundred kernels of microseconds each. Launching them one by
one from Python takes longer than running them. A batch that comes again every epoch therefore has
its whole step recorded: forward solve, loss, adjoint, clipping and AdamW. A replay reads and writes
the loop's own tensors in place: parameters, moments, warm starts, and which replicas are alive.

After a replay one small tensor is read. If a solve failed, or a loss or a gradient was not finite,
then the replay has changed nothing, and the loop makes the same step again, kernel by kernel: it
finds the replicas that must stop, and the reasons.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from hogwild.linalg.solution import Solution, postponed
from hogwild.models.base import Kind
from hogwild.models.layered import GCN
from hogwild.training.batches import Taken, inputs_of

if TYPE_CHECKING:
    from hogwild.training.loop import Loop

T = TypeVar("T")
MOST = 1_000
"""Batches that are recorded; further ones are not."""


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


class Recorder:
    """The recorded steps of a training run."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._seen: dict[int, Taken] = {}
        self._steps: dict[int, RecordedStep | None] = {}  # None: it cannot be recorded

    @staticmethod
    def applies(loop: Loop) -> bool:
        """Whether steps of this run may be recorded: on a GPU, with batches that come again, and a
        task of the library (a loss of the user's own may do anything)."""
        return (
            loop.batches.device.type == "cuda"
            and not loop.reshuffles
            and type(loop.task).__module__.startswith("hogwild.tasks.")
        )

    def step(self, taken: Taken, mask: Tensor) -> Tensor | None:
        """The loss of every replica [R] from a replay of one optimiser step on a kept batch;
        ``None``: nothing was changed, and the loop must make the step itself."""
        key = id(taken)
        if key not in self._seen:  # record at the second sight: there are warm starts then
            if len(self._seen) < MOST:
                self._seen[key] = taken
            return None
        if key not in self._steps:
            self._steps[key] = self._recorded(taken, mask)
        found = self._steps[key]
        if found is not None and found.places != places(self.loop):
            found = self._steps[key] = self._recorded(taken, mask)
        return None if found is None else found()

    def _recorded(self, taken: Taken, mask: Tensor) -> RecordedStep | None:
        model = self.loop.model
        if model.kind is Kind.EXPLICIT and type(model) is not GCN:
            return None  # GAT's layers wait for the device; others may draw numbers in every step
        if model.kind is not Kind.EXPLICIT:
            paths = model.solver_path(inputs_of(model, taken.data))
            if not all(path.startswith("compiled") for path in paths):
                return None
        try:
            return RecordedStep(self.loop, taken, mask)
        except NotRecorded as error:
            warnings.warn(f"the training step is not recorded: {error}", stacklevel=4)
            return None


class RecordedStep:
    """One optimiser step on one batch."""

    def __init__(self, loop: Loop, taken: Taken, mask: Tensor) -> None:
        self.loop, self.taken = loop, taken
        self.counts = mask.any(1)
        self.mask = mask | ~self.counts.unsqueeze(1)  # a mean over nothing would be NaN
        self.lr = torch.zeros((), dtype=torch.float64, device=mask.device)
        # The recording reads plans that belong to the graphs of the batch.
        inputs = inputs_of(loop.model, taken.data)
        checks = {part.validate for part in loop.model.modules() if hasattr(part, "validate")}
        self._graphs = [inputs.graph(validate=bool(check)) for check in checks]
        self.places = places(loop)
        self._replay = self._record()

    def _record(self) -> Replay:
        return Replay(self.body, self.mask.device, self._gradients)

    def __call__(self) -> Tensor | None:
        """Make the step. Returns the loss of every replica [R]; ``None`` if it must be repeated
        kernel by kernel."""
        loop = self.loop
        self.lr.fill_(loop.config.lr_at(loop.epoch))
        (summary,) = self._replay()
        fine, iterations, *_ = summary.tolist()
        if not fine:
            return None
        loop.iterations = max(loop.iterations, int(iterations))
        return summary[2:].clone()

    def body(self) -> tuple[Tensor]:
        """The step: [2 + R], whether all went well, the largest number of iterations, and the loss
        of every replica."""
        loop, rows = self.loop, self.taken.nodes
        h0 = loop.warm.get(rows)
        with postponed() as failed:
            losses, gradients, found, h = self._gradients(h0)
        learning = loop.alive & self.counts
        finite = torch.isfinite(losses) & torch.isfinite(gradients).all(1)
        matters = self.mask & learning.unsqueeze(1)  # replicas that have stopped may fail
        broken = torch.stack([(learning & ~finite).any(), *((f & matters).any() for f in failed)])
        fine = ~broken.any()
        loop.update(gradients, learning & fine, self.lr)
        if h0 is not None and loop.config.warm_start:
            loop.warm.put(torch.where(fine, h, h0), rows)
        numbers = torch.stack([fine.double(), found.iterations.max().double()])
        return (torch.cat([numbers, losses.double()]),)

    def _gradients(self, h0: Tensor | None = None) -> tuple[Tensor, Tensor, Solution, Tensor]:
        """Losses [R], gradients [R, P], the solution and embeddings of all levels [R, N, K]."""
        loop = self.loop
        learning = loop.alive & self.counts

        def total() -> tuple[Tensor, tuple[Tensor, Solution, Tensor]]:
            losses, found, h = loop.losses(self.taken, self.mask, h0)
            return torch.where(learning, losses, 0.0).sum(), (losses.detach(), found, h)

        parts, (losses, found, h) = gradients_of(loop.model, total)
        gradients = loop.rows.joined(parts)
        return losses, gradients, found, h


def places(loop: Loop) -> list[int]:
    """Where the tensors lie that a recording reads and writes. A callback may put others in their
    place."""
    own = [*loop.model.parameters(), *loop.model.buffers(), loop.alive]
    own += loop.optimiser.state().values()
    own += [] if loop.warm.value is None else [loop.warm.value]
    return [t.data_ptr() for t in own]


class _Within(nn.Module):
    """A function that calls a model, as a module around the model."""

    def __init__(self, model: nn.Module, function: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self) -> Any:
        return self.function()


def gradients_of(
    model: nn.Module, function: Callable[[], tuple[Tensor, T]]
) -> tuple[tuple[Tensor | None, ...], T]:
    """The gradients of a function in the parameters that require them, and what else the function
    returned. The function calls the model and returns a scalar first.

    For autograd the parameters are new tensors on the same memory. A parameter's own node in
    autograd's graph may belong to an earlier pass, on another stream, which must not be recorded.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    new = {name: p.detach().requires_grad_() for name, p in own.items()}
    around = {f"model.{name}": p for name, p in new.items()}
    total, rest = torch.func.functional_call(_Within(model, function), around, ())
    return torch.autograd.grad(total, list(new.values()), allow_unused=True), rest
