"""The state of a training run, to a checkpoint and back.

The next epoch is a function of this state: the current and the best parameters, the optimiser's
memory, warm starts, the random state, and which replicas have stopped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hogwild.errors import CheckpointError
from hogwild.training import checkpoint

if TYPE_CHECKING:
    from hogwild.training.loop import Loop

_KEPT = ("alive", "best_score", "best_loss", "best_epoch", "loss", "score")
"""Tensors of a loop, beside the model, the optimiser and the warm starts."""
_COUNTS = ("left_out", "in_a_row")
"""Tensors that checkpoints of earlier versions do not have."""


@dataclass(frozen=True)
class Stop:
    """Why a replica stopped before the last epoch."""

    epoch: int  # at which it stopped
    failed: bool  # there was an error; otherwise validation no longer improved
    reason: str  # in words


def of(loop: Loop) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and everything else, for :func:`hogwild.training.checkpoint.save`."""
    tensors = {f"model/{k}": v for k, v in loop.model.state_dict().items()}
    tensors |= {f"best/{k}": v for k, v in loop.best.items()}
    tensors |= {f"optimiser/{k}": v for k, v in loop.optimiser.state()}
    tensors |= {f"loop/{k}": getattr(loop, k) for k in (*_KEPT, *_COUNTS)}
    tensors["random/cpu"] = torch.get_rng_state()
    if loop.shelf.device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(loop.shelf.device)
    if loop.warm.value is not None:
        tensors["warm"] = loop.warm.value
    extra: dict[str, Any] = {
        "epoch": loop.epoch,
        "judged": loop.judged,
        "data": loop.shelf.counts,
        "config": loop.config.as_dict(),
        "stops": [None if s is None else asdict(s) for s in loop.stops],
    }
    return tensors, extra


def restore(loop: Loop, found: checkpoint.Checkpoint, where: str) -> dict[str, Tensor]:
    """Put a new loop into the state of a checkpoint in the folder ``where``; returns the random
    state."""
    device, counts = loop.shelf.device, loop.shelf.counts
    before = found.extra.get("data")
    if before not in (None, counts):
        raise CheckpointError(
            f"{where} is of a run on other data: {before}, now {counts}; expected the same graphs, "
            f"or a new folder"
        )
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    try:
        checkpoint.fit(loop.model, groups["model"], where)
        best = groups["best"]
        loop.best = {k: best[k].to(device).view_as(v) for k, v in loop.best.items()}
        for name, _ in loop.optimiser.state():
            setattr(loop.optimiser, name, groups["optimiser"][name].to(device))
        for name in _KEPT:
            setattr(loop, name, groups["loop"][name].to(device))
        for name in _COUNTS:
            if name in groups["loop"]:
                setattr(loop, name, groups["loop"][name].to(device))
        warm = groups["warm"][""].to(device) if "warm" in groups else None
        if warm is not None and warm.size(-1) == sum(loop.model.conv.level_channels):
            loop.warm.value = warm  # older versions kept the last level only
        loop.stops = [None if s is None else Stop(**s) for s in found.extra["stops"]]
        loop.epoch = found.extra["epoch"]
        loop.judged = found.extra["judged"]
        return groups["random"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{where} is no checkpoint of a training run ({error!r}); expected a folder that one "
            f"was made in, or a new one"
        ) from error
