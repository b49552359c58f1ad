"""Why a replica cannot go on after a training step, in words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from hogwild.errors import ConvergenceWarning
from hogwild.linalg.solution import Solution, Status


def failed_adjoints(caught: Sequence[warnings.WarningMessage], like: Tensor) -> Tensor:
    """On which graphs the adjoint failed, by its warnings, a mask like ``like`` [R, G]."""
    out = torch.zeros_like(like)
    for warning in caught:
        about = warning.message
        if isinstance(about, ConvergenceWarning) and about.failed is not None:
            out |= about.failed
    return out


def diagnose(
    losses: Tensor, gradients: Tensor, found: Solution, forward: Tensor, adjoint: Tensor
) -> dict[int, str]:
    """The reason why each broken replica must stop, from losses [R], gradients [R, P], and the
    graphs on which the ``forward`` and the ``adjoint`` solves failed, [R, G] each."""
    unbounded = ~torch.isfinite(losses) | ~torch.isfinite(gradients).all(1)
    broken = unbounded | forward.any(1) | adjoint.any(1)
    return {
        r: _reason(float(losses[r]), found, r, forward[r], adjoint[r])
        for r in broken.nonzero()[:, 0].tolist()
    }


def _reason(loss: float, found: Solution, r: int, forward: Tensor, adjoint: Tensor) -> str:
    if bool(forward.any()):
        g = int(forward.nonzero()[0, 0])
        return (
            f"the forward solve failed on {int(forward.sum())} graphs (residual "
            f"{float(found.residual[r, g]):.2g} after {int(found.iterations[r, g])} "
            f"iterations): {Status(int(found.status[r, g])).advice}"
        )
    if not abs(loss) < torch.inf:
        return (
            f"the loss was {loss}: look for NaN in the targets (y), and at the features, the loss "
            f"and the learning rate"
        )
    if bool(adjoint.any()):
        return f"the adjoint solve failed on {int(adjoint.sum())} graphs"
    return f"the gradient was not finite: {Status.NOT_FINITE.advice}"
