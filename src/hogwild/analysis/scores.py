"""How good predictions are: a few metrics by name, any function, and a default for the targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import ConfigError, InputError

Score = Callable[[Tensor, Tensor], float | Tensor]
"""From predictions [n, out] and targets [n, ...] to one number."""


@dataclass(frozen=True)
class Metric:
    """A score by name, with what it says of a model."""

    name: str
    score: Score
    maximise: bool
    percent: bool = False

    def show(self, value: float) -> str:
        """A value of it, for people."""
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"

    def each(self, prediction: Tensor, target: Tensor) -> Tensor:
        """[..., n, out] → [...]: of every schedule and replica by itself."""
        flat = prediction.reshape(-1, *prediction.shape[-2:])
        values = [float(self.score(p, target)) for p in flat]
        return torch.tensor(values, dtype=torch.float64).view(prediction.shape[:-2])


def _correct(prediction: Tensor, target: Tensor) -> Tensor:
    """Which classes are right: the largest output, or the signs of as many outputs as labels."""
    if target.numel() != prediction.numel():
        return prediction.argmax(-1) == target.flatten()
    return (prediction > 0) == target.reshape(prediction.shape).bool()


def _error(prediction: Tensor, target: Tensor) -> Tensor:
    return prediction - target.reshape(prediction.shape).to(prediction.dtype)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", lambda p, t: _correct(p, t).double().mean(), True, True),
        Metric("error", lambda p, t: 1.0 - _correct(p, t).double().mean(), False, True),
        Metric("mse", lambda p, t: _error(p, t).square().mean(), False),
        Metric("rmse", lambda p, t: _error(p, t).square().mean().sqrt(), False),
        Metric("mae", lambda p, t: _error(p, t).abs().mean(), False),
    )
}
CLASSES = ("accuracy", "error")


def _binary(target: Tensor) -> bool:
    return bool(((target == 0) | (target == 1)).all())


def _default(prediction: Tensor, target: Tensor) -> str:
    """Integers are classes, unless a single output is asked for numbers such as counts."""
    if target.is_floating_point():
        return "rmse"
    return "rmse" if prediction.size(-1) == 1 and not _binary(target) else "accuracy"


def choose(
    given: str | Score | None, maximise: bool | None, prediction: Tensor, target: Tensor
) -> Metric:
    """The metric asked for, or the one the targets suggest; targets that do not fit it raise."""
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Metric("metric" if name == "<lambda>" else name, given, bool(maximise))
    if maximise is not None:
        raise ConfigError(
            f"maximise={maximise!r} was given with metric={given!r}, whose direction is known; "
            f"expected it with a function only"
        )
    given = _default(prediction, target) if given is None else given
    if given not in METRICS:
        raise ConfigError(
            f"metric={given!r}; expected a function (prediction, target) -> float, or one of "
            f"{', '.join(METRICS)}"
        )
    n, out = prediction.shape[-2:]
    allowed = (n * out, n) if given in CLASSES else (n * out,)
    if target.dim() == 0 or target.size(0) != n or target.numel() not in allowed:
        shapes = f"[{n}] or {[n, out]}" if n in allowed else f"{[n, out]}"
        raise InputError(
            f"the target has shape {list(target.shape)} and predictions {[n, out]}; expected a "
            f"target {shapes} for metric={given!r}: one row for each prediction (nodes, or graphs "
            f"with pool='mean'), or a function as metric"
        )
    if given in CLASSES and target.numel() == n * out and not _binary(target):
        raise InputError(
            f"the target holds values other than 0 and 1, and predictions have {out} output(s) for "
            f"as many labels; expected labels 0 and 1 (an output above zero means 1), or "
            f"metric='rmse'"
        )
    if given in CLASSES and target.numel() != n * out and n:
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= out:
            raise InputError(
                f"the target names classes {low} to {high}; expected 0 to {out - 1}, since "
                f"predictions have {out} outputs (leave unlabelled nodes out with mask=...)"
            )
    return METRICS[given]
