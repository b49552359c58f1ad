"""The result of a solve: the solution, its status on every graph, and advice where it failed."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import ConvergenceError, ConvergenceWarning

_unread: list[Tensor] | None = None
"""Failures of solves while kernels are recorded, when nothing can be read. All threads share the
list: autograd has threads of its own."""


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


class Status(enum.IntEnum):
    """How a solve ended. :attr:`outcome` says it in words; :attr:`advice` adds the likely cause."""

    CONVERGED = 0
    MAX_ITERATIONS = 1
    STALLED = 2
    NOT_FINITE = 3

    @property
    def outcome(self) -> str:
        return _OUTCOME[self]

    @property
    def advice(self) -> str:
        return f"{_OUTCOME[self]}{_GUESS.get(self, '')}"


_OUTCOME = {
    Status.CONVERGED: "converged to the tolerance",
    Status.MAX_ITERATIONS: (
        "ran out of iterations: raise max_iter; other solvers than Newton may need very many"
    ),
    Status.STALLED: "no step decreased the residual any further",
    Status.NOT_FINITE: (
        "met NaN or infinity: check features and parameters (exploding training, missing "
        "normalisation)"
    ),
}
_GUESS = {
    Status.STALLED: (
        ": the tolerance is below the rounding error at this scale. Standardise large features "
        "(model.standardize), solve in float64 if the solve is not (solve_dtype), or loosen the "
        "tolerance"
    ),
}
"""The likely cause, if no other is known."""
_ROUNDING = (
    "where the residual no longer moves, it is at the rounding error of this scale: normalise "
    "large features or loosen the tolerance"
)


@dataclass
class Solution:
    """The result of a solve on every graph.

    Attributes:
        value: The embeddings, [N, k] or [R, N, k].
        status: A :class:`Status` for each graph, [G] or [R, G] (integers).
        iterations: Iterations each graph took, same shape; -1: they and the residuals are unknown.
        residual: Largest absolute residual of each graph, same shape.
        stacked: Of a stack of several layers: the solutions of all layers, the lowest first.
    """

    value: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    stacked: Sequence[Solution] = ()

    @property
    def levels(self) -> Sequence[Solution]:
        """The solutions of all layers, the lowest first; without a stack this one."""
        return self.stacked or (self,)

    @property
    def side_by_side(self) -> Tensor:
        """The embeddings of all layers, [(R,) N, sum of their widths]."""
        return torch.cat([level.value for level in self.levels], -1)

    @classmethod
    def exact(cls, value: Tensor, graphs: int, iterations: int) -> Solution:
        """Embeddings [N, k] or [R, N, k] that were computed, not solved for."""
        shape = (*value.shape[:-2], graphs)
        status = torch.full(shape, int(Status.CONVERGED), device=value.device)
        return cls(value, status, torch.full_like(status, iterations), value.new_zeros(shape))

    @classmethod
    def of(
        cls,
        value: Tensor,
        residual: Tensor,
        limit: float | Tensor,
        iterations: Tensor,
        stalled: Tensor | None = None,
    ) -> Solution:
        """A solution whose status follows from its residual: a graph has converged if its residual
        is at most ``limit``."""
        status = torch.full(residual.shape, int(Status.MAX_ITERATIONS), device=residual.device)
        if stalled is not None:
            status.masked_fill_(stalled, int(Status.STALLED))
        status.masked_fill_(residual <= limit, int(Status.CONVERGED))
        status.masked_fill_(~torch.isfinite(residual), int(Status.NOT_FINITE))
        return cls(value, status, iterations, residual)

    @classmethod
    def of_levels(cls, found: Sequence[Solution], every: bool = False) -> Solution:
        """The last level's embeddings, or those of ``every`` level side by side. Iterations are
        summed over the levels; residuals and statuses are the worst of all levels."""
        return cls(
            torch.cat([f.value for f in found], -1) if every else found[-1].value,
            torch.stack([f.status for f in found]).amax(0),
            torch.stack([f.iterations for f in found]).sum(0),
            torch.stack([f.residual for f in found]).amax(0),
            found,
        )

    @property
    def converged(self) -> Tensor:
        """Whether each graph converged, same shape as :attr:`status`."""
        return self.status == Status.CONVERGED

    @property
    def failed(self) -> bool:
        """Whether a graph did not converge; false while a CUDA graph is recorded, because nothing
        can be read then (:func:`postponed`)."""
        if unreadable(self.status):
            postpone(~self.converged)
            return False
        return bool(self.status.count_nonzero())  # CONVERGED is zero

    def check(
        self,
        on_failure: str = "raise",
        what: str = "forward solve",
        cause: Callable[[], str] | None = None,
    ) -> Solution:
        """Raise (or warn) with the graphs, residuals and likely causes unless all graphs converged.

        Args:
            on_failure: ``"raise"``, ``"warn"`` or ``"ignore"``.
            what: The name of the solve, for the message.
            cause: A function that looks for a cause which the solver cannot know. Its line of text
                replaces the solver's guess, unless it is empty.
        """
        if on_failure == "ignore" or not self.failed:
            return self
        message = self._diagnosis(what, "" if cause is None else cause())
        if on_failure == "raise":
            raise ConvergenceError(message)
        warnings.warn(ConvergenceWarning(message, ~self.converged), stacklevel=3)
        return self

    def _diagnosis(self, what: str, cause: str = "") -> str:
        failed = (~self.converged).nonzero()
        lines = [f"the {what} did not converge on {len(failed)} of {self.status.numel()} problems:"]
        for index in failed[:5].tolist():
            at = tuple(index)
            where = f"graph {at[-1]}"
            if len(at) == 2 and self.status.size(0) > 1:
                where += f" of replica {at[0]}"
            count = int(self.iterations[at])
            told = f": residual {float(self.residual[at]):.3g} after {count} iterations"
            lines.append(f"  {where}{told if count >= 0 else ''}")
        if len(failed) > 5:
            lines.append(f"  … and {len(failed) - 5} more")
        seen = self.status[~self.converged].unique().tolist()
        if cause:
            lines += [cause, *(Status(code).outcome for code in seen)]
        else:
            lines += [Status(code).advice for code in seen]
            lines += [_ROUNDING] * (Status.MAX_ITERATIONS in seen)
        lines.append("(on_failure='warn' or 'ignore' continues with the last iterate.)")
        return "\n".join(lines)
