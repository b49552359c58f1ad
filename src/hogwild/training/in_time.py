"""The term of a deadline in a training step: its value, its gradients, and what is left out.

A long run may have very large gradients, or none that are finite. The norm of the term's gradient
is therefore clipped like that of the loss itself. Where a term or its gradient is not finite, it is
left out, and ``loop.left_out`` counts it; a replica for which this happens :data:`LEAVE` times in a
row stops.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hogwild.training.deadline import Deadline
from hogwild.training.optimiser import clip
from hogwild.training.shelf import Taken

if TYPE_CHECKING:
    from hogwild.training.loop import Loop

LEAVE = 20
"""Terms of a deadline without a finite gradient, in a row, after which a replica stops."""


def term(loop: Loop, deadline: Deadline, taken: Taken, mask: Tensor) -> Tensor:
    """The term of the deadline, [R], without its weight."""
    return loop.task_loss(deadline.synchronous(loop.model, taken.data), taken.data, mask)


def gradients(loop: Loop, deadline: Deadline, taken: Taken, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The term of the deadline [R], and its gradients [R, P], both weighted."""
    loop.rows.forget()
    losses = term(loop, deadline, taken, mask)
    torch.where(loop.alive, losses, 0.0).sum().backward()
    found, losses = loop.rows.gradients(), losses.detach()
    good = torch.isfinite(losses) & torch.isfinite(found).all(1)
    _count(loop, good | ~loop.alive)
    found = torch.where(good.unsqueeze(1), found, 0.0)
    weight = deadline.weight
    return weight * torch.where(good, losses, 0.0), weight * clip(found, loop.config.clip)


def _count(loop: Loop, good: Tensor) -> None:
    """Count the terms that are left out: those that are not ``good`` [R]."""
    loop.left_out = loop.left_out + (~good).long()
    loop.in_a_row = torch.where(good, 0, loop.in_a_row + 1)
    for r in (loop.in_a_row >= LEAVE).nonzero()[:, 0].tolist():
        if bool(loop.alive[r]):
            loop.stop(
                r, True,
                f"the term of the deadline was not finite in {LEAVE} training steps in a row: "
                f"take a smaller deadline or a smaller unroll (deadline_options)",
            )  # fmt: skip


def warn(loop: Loop) -> None:
    """Warn about terms that were left out."""
    for r in loop.left_out.nonzero()[:, 0].tolist():
        warnings.warn(
            f"replica {r} learned nothing from the deadline in {int(loop.left_out[r])} "
            f"training steps, whose term had no finite gradient; expected none: take a smaller "
            f"deadline or unroll (deadline_options), or a smaller learning rate",
            stacklevel=5,
        )
