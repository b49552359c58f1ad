r"""AdamW for an ensemble: every replica is a row, with its own clipping, steps and count.

With :math:`\theta` [R, P] the parameters of all replicas, one replica a row,

.. math::
    \theta \leftarrow (1 - \eta\lambda)\,\theta - \eta\,
        \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}, \qquad
    m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2.

It differs from ``torch.optim.AdamW`` in that rows may pause: a replica that has stopped, or that
has no graph in a mini-batch, keeps its parameters, its moments and its own t.

Where a replica cannot go on after a training step, :func:`diagnose` says why, in words.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, ConvergenceWarning
from hogwild.linalg.solution import Solution, Status

BETAS, EPS = (0.9, 0.999), 1e-8
"""β₁, β₂ and ε of ``torch.optim.AdamW``."""


class Rows:
    """The parameters of a model with R replicas (or ``None``) as one matrix [R, P]."""

    def __init__(self, model: nn.Module, replicas: int | None) -> None:
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError(
                f"no parameter of {type(model).__name__} requires a gradient; expected at least one"
            )
        self.replicas = replicas or 1
        self.widths = [p.numel() // self.replicas for p in self.parameters]

    @torch.no_grad()
    def values(self) -> Tensor:
        """The parameters, [R, P]."""
        return torch.cat([p.reshape(self.replicas, -1) for p in self.parameters], 1)

    def forget(self) -> None:
        """Remove the gradients of the last backward pass. The model's ``zero_grad`` searches all
        its modules for parameters first, which takes ten times as long."""
        for p in self.parameters:
            p.grad = None

    def gradients(self) -> Tensor:
        """The gradients of the last backward pass, [R, P]."""
        return self.joined([p.grad for p in self.parameters])

    def joined(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """One gradient for each parameter as a matrix [R, P]; zero where a parameter has none."""
        pairs = zip(self.parameters, gradients, strict=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in pairs]
        return torch.cat([g.reshape(self.replicas, -1) for g in grads], 1)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Overwrite the parameters."""
        pairs = zip(self.parameters, values.split(self.widths, 1), strict=True)
        # One call, not one a parameter.
        torch._foreach_copy_(self.parameters, [part.reshape(p.shape) for p, part in pairs])


def clip(gradients: Tensor, largest: float) -> Tensor:
    """Rows [R, P] scaled down to a norm of at most ``largest``."""
    return gradients * (largest / gradients.norm(dim=1, keepdim=True)).clamp_max(1.0)


class AdamW:
    """AdamW on rows: the moments, which change in place, and a step."""

    def __init__(self, like: Tensor, weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self.m, self.v = torch.zeros_like(like), torch.zeros_like(like)
        self.count = like.new_zeros(like.size(0), 1, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """All tensors of the memory, by name."""
        return {"m": self.m, "v": self.v, "count": self.count}

    def step(self, values: Tensor, gradients: Tensor, lr: float | Tensor, active: Tensor) -> Tensor:
        """New values [R, P]; rows outside ``active`` [R] and their moments stay as they are."""
        row, (b1, b2) = active.unsqueeze(1), BETAS
        self.count += row
        self.m.copy_(torch.where(row, b1 * self.m + (1 - b1) * gradients, self.m))
        self.v.copy_(torch.where(row, b2 * self.v + (1 - b2) * gradients.square(), self.v))
        t = self.count.clamp_min(1.0)
        first = (1 - b1**t).to(values.dtype)
        second = (1 - b2**t).to(values.dtype)
        update = (self.m / first) / ((self.v / second).sqrt() + EPS)
        return torch.where(row, values * (1 - lr * self.weight_decay) - lr * update, values)


def failed_adjoints(caught: Sequence[warnings.WarningMessage], like: Tensor) -> Tensor:
    """On which graphs the adjoint failed, by its warnings, a mask like ``like`` [R, G]."""
    out = torch.zeros_like(like)
    for warning in caught:
        failed = getattr(warning.message, "failed", None)
        if isinstance(warning.message, ConvergenceWarning) and failed is not None:
            out |= failed
    return out


def diagnose(
    losses: Tensor, gradients: Tensor, found: Solution, forward: Tensor, adjoint: Tensor
) -> dict[int, str]:
    """The reason why each broken replica must stop, from losses [R], gradients [R, P], and the
    graphs on which the ``forward`` and the ``adjoint`` solves failed, [R, G] each."""
    unbounded = ~torch.isfinite(losses) | ~torch.isfinite(gradients).all(1)
    reasons = {}
    for r in (unbounded | forward.any(1) | adjoint.any(1)).nonzero()[:, 0].tolist():
        if bool(forward[r].any()):
            g = int(forward[r].nonzero()[0, 0])
            reasons[r] = (
                f"the forward solve failed on {int(forward[r].sum())} graphs (residual "
                f"{float(found.residual[r, g]):.2g} after {int(found.iterations[r, g])} "
                f"iterations): {Status(int(found.status[r, g])).advice}"
            )
        elif not bool(torch.isfinite(losses[r])):
            reasons[r] = (
                f"the loss was {float(losses[r])}: look for NaN in the targets (y), and at the "
                f"features, the loss and the learning rate"
            )
        elif bool(adjoint[r].any()):
            reasons[r] = f"the adjoint solve failed on {int(adjoint[r].sum())} graphs"
        else:
            reasons[r] = f"the gradient was not finite: {Status.NOT_FINITE.advice}"
    return reasons
