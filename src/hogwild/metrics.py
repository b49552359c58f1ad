r"""Losses and metrics of predictions, for all replicas at once.

Tasks, training and the analysis of asynchronous runs use the same functions. A :class:`Metric` has
a name and says whether higher is better. :data:`METRICS` holds the metrics by name, and
:func:`choose` finds the one that a user asked for or that the targets suggest. Comparisons use
:func:`cost`: lower is always better there.

Shapes: predictions ``out`` [..., n, c], targets [n] or [n, c], ``keep`` bool [n] or [..., n] (which
rows count; ``None``: all), results [...]. The leading ``...`` is empty, R replicas, or Q schedules
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hogwild.errors import ConfigError, InputError

Score = Callable[[Tensor, Tensor], float | Tensor]
"""A user's function: from predictions [n, c] and targets [n, …] to a number."""
Measure = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""From predictions [..., n, c], targets and the rows that count to [...]."""
Constant = Callable[[Tensor, int], Tensor]
"""From targets and the number of channels c to the best prediction [1, c] for all rows."""


@dataclass(frozen=True)
class Metric:
    """A measure with a name.

    Attributes:
        name: Its name, for reports and options.
        measure: From predictions [..., n, c], targets and the rows that count to [...].
        higher_is_better: Whether higher values are better; otherwise lower ones are.
        percent: Whether reports show it in per cent.
        constant: The best constant prediction for these targets, up to ties; ``None``: unknown, as
            for a function of the user's.
    """

    name: str
    measure: Measure
    higher_is_better: bool = False
    percent: bool = False
    constant: Constant | None = None

    def __call__(self, out: Tensor, y: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.measure(out, y, keep)

    def show(self, value: float) -> str:
        """A value as text."""
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"


def cost(values: Tensor, higher_is_better: bool) -> Tensor:
    """Values of a metric, negated where higher is better: lower costs are better."""
    return -values if higher_is_better else values


# -- one row at a time ----------------------------------------------------------------------------


def mean(values: Tensor, keep: Tensor | None) -> Tensor:
    """Mean of the values [..., n] that count."""
    if keep is None:
        return values.mean(-1)
    return torch.where(keep, values, 0).sum(-1) / keep.sum(-1)


def rowwise(each: Callable[[Tensor, Tensor], Tensor]) -> Measure:
    """The mean of a function of (predictions [..., n, c], targets) to [..., n] as a measure."""
    return lambda out, y, keep: mean(each(out, y), keep)


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """Squared error of every row, averaged over its channels: [..., n]."""
    return _difference(out, y).square().mean(-1)


def absolute_error(out: Tensor, y: Tensor) -> Tensor:
    """Absolute error of every row, averaged over its channels: [..., n]."""
    return _difference(out, y).abs().mean(-1)


def _difference(out: Tensor, y: Tensor) -> Tensor:
    """Predictions minus targets [n, c], or [n] where c = 1."""
    return out - y.reshape(out.shape[-2:]).to(out.dtype)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every row with its class [n]; one channel is the logit of class 1."""
    if out.size(-1) == 1:
        logit = out[..., 0]
        target = y.to(out.dtype).expand_as(logit)
        return F.binary_cross_entropy_with_logits(logit, target, reduction="none")
    target = y.expand(out.shape[:-1]).unsqueeze(-1)
    return -out.log_softmax(-1).gather(-1, target).squeeze(-1)


def wrong(out: Tensor, y: Tensor) -> Tensor:
    """Share of wrong answers of every row, [..., n] in double precision. With classes [n] it is 1
    where the likeliest class is wrong, else 0; one channel is the logit of class 1. With labels
    [n, c] every channel is a yes-or-no question, and a logit above 0 means yes."""
    if y.numel() == out.size(-2) * out.size(-1):
        return ((out > 0) != y.reshape(out.shape[-2:]).bool()).double().mean(-1)
    return (out.argmax(-1) != y.flatten()).double()


def binary_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every row with its labels [n, c], averaged over them: [..., n]."""
    target = y.to(out.dtype).expand_as(out)
    return F.binary_cross_entropy_with_logits(out, target, reduction="none").mean(-1)


# -- all rows together ----------------------------------------------------------------------------


def relative_rmse(out: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
    r"""Root mean squared error over the mean target.

    The paper divides by the "root mean value" of the test targets, which we read as the mean. The
    constant predictor then errs by :math:`\sqrt{12.5}/25 = 14.1\,\%` on sums and by about 47 % on
    counting (mean over ten folds). The paper's GCN, whose five layers do not reach far enough, has
    13.1 and 40.7 %. With the root of the mean the constant predictor would err by 71 % and more.
    """
    target = y.reshape(len(y), -1).to(out.dtype).mean(-1)
    return mean(squared_error(out, y), keep).sqrt() / mean(target, keep)


def micro_f1(out: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
    r"""2 TP / (2 TP + FP + FN) over all rows and labels [n, c] together; a logit above 0 means
    yes."""
    yes, true = out > 0, y.bool()
    if keep is not None:
        yes, true = yes & keep[..., None], true & keep[..., None]
    both = (yes & true).sum((-2, -1)).to(out.dtype)
    return 2 * both / (yes.sum((-2, -1)) + true.sum((-2, -1)))


def average_precision(out: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
    r"""Average precision, mean over the labels: :math:`\sum_t (R_t - R_{t-1}) P_t`.

    t runs over the *distinct* scores from high to low and :math:`P_t`, :math:`R_t` are precision
    and recall of "at least t", so rows with equal scores count together and their order does not
    matter. A label that no row, or every row, has is left out of the mean, as OGB's evaluator does.
    """
    weight = torch.ones_like(out) if keep is None else keep[..., None].to(out.dtype)
    out, y, weight = torch.broadcast_tensors(out, y.to(out.dtype), weight)
    score, rank = out.mT.sort(descending=True)  # [..., c, n]
    weight = weight.mT.gather(-1, rank)
    hit = y.mT.gather(-1, rank) * weight
    # Each row's precision is read at the last row of its score: the first end at or after it.
    n = score.size(-1)
    position = torch.arange(n, device=out.device)
    last = torch.ones_like(score, dtype=torch.bool)
    last[..., :-1] = score[..., :-1] != score[..., 1:]
    end = torch.where(last, position, n).flip(-1).cummin(-1).values.flip(-1)
    precision = (hit.cumsum(-1) / weight.cumsum(-1).clamp(min=1)).gather(-1, end)
    positives, rows = hit.sum(-1), weight.sum(-1)  # [..., c]
    each = (hit * precision).sum(-1) / positives
    return mean(each, (positives > 0) & (positives < rows))


def one_by_one(score: Score) -> Measure:
    """A user's function as a measure: it is called for every replica, with the rows that count."""

    def measure(out: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
        lead = out.shape[:-2]
        if keep is None:
            found = [score(o, y) for o in out.reshape(-1, *out.shape[-2:])]
        else:
            lead = torch.broadcast_shapes(lead, keep.shape[:-1])
            each = out.expand(*lead, -1, -1).reshape(-1, *out.shape[-2:])
            rows = keep.expand(*lead, -1).reshape(-1, keep.size(-1))
            found = [score(o[r], y[r]) for o, r in zip(each, rows, strict=True)]
        numbers = [
            v if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64) for v in found
        ]
        return torch.stack(numbers).view(lead)

    return measure


# -- metrics by name ------------------------------------------------------------------------------


def average(y: Tensor, channels: int) -> Tensor:
    """The mean target, [1, c]."""
    return y.double().mean(0).reshape(1, -1)


def median(y: Tensor, channels: int) -> Tensor:
    """The median of every column of the targets, [1, c]."""
    return y.median(0).values.reshape(1, -1)


def majority(y: Tensor, channels: int) -> Tensor:
    """Logits [1, channels] of the most frequent class. With labels [n, channels], or one channel,
    a logit is 1 where most rows have the label, else −1."""
    if channels == 1 or y.dim() == 2:
        return 2.0 * (y.double().mean(0) > 0.5).float().reshape(1, -1) - 1.0
    return F.one_hot(torch.bincount(y).argmax(), channels).float()[None]


def best_constant_f1(y: Tensor) -> Tensor:
    """Logits [1, c] of the labels that give the best micro-F1 when every row of ``y`` [n, c] gets
    them: the k most frequent labels for some k. With shares p, F1 = 2 Σ_{first k} p / (k + Σ p)."""
    share, label = y.double().mean(0).sort(descending=True)
    count = torch.arange(1, len(share) + 1, device=y.device)
    f1 = 2 * share.cumsum(0) / (count + share.sum())
    logits = torch.full_like(share, -1.0)
    logits[label[: int(f1.argmax()) + 1]] = 1.0
    return logits[None].float()


ACCURACY = Metric("accuracy", rowwise(lambda o, y: 1.0 - wrong(o, y)), True, True, majority)
ERROR = Metric("error", rowwise(wrong), False, True, majority)
MSE = Metric("mse", rowwise(squared_error), constant=average)
RMSE = Metric("rmse", lambda o, y, keep: mean(squared_error(o, y), keep).sqrt(), constant=average)
MAE = Metric("mae", rowwise(absolute_error), constant=median)
RELATIVE_ERROR = Metric("relative error", relative_rmse, percent=True, constant=average)
MICRO_F1 = Metric("micro-F1", micro_f1, True, True, lambda y, channels: best_constant_f1(y))
AVERAGE_PRECISION = Metric("AP", average_precision, True, constant=average)  # all constants tie
CROSS_ENTROPY = Metric("cross-entropy", rowwise(cross_entropy))
BINARY_CROSS_ENTROPY = Metric("binary cross-entropy", rowwise(binary_cross_entropy))
"""The two cross-entropies are losses, and are not offered as metrics."""

METRICS = {
    metric.name: metric
    for metric in (ACCURACY, ERROR, MSE, RMSE, MAE, RELATIVE_ERROR, MICRO_F1, AVERAGE_PRECISION)
}
CLASSES = (ACCURACY, ERROR)
"""Metrics of one class a row, or of labels."""
LABELS = (MICRO_F1, AVERAGE_PRECISION)
"""Metrics of labels only."""


def _binary(target: Tensor) -> bool:
    return bool(((target == 0) | (target == 1)).all())


def name_of(score: Score) -> str:
    """The name of a user's function, for reports."""
    name: str = getattr(score, "__name__", type(score).__name__)
    return "metric" if name == "<lambda>" else name


def choose(
    given: str | Score | None, higher_is_better: bool | None, prediction: Tensor, target: Tensor
) -> Metric:
    """The metric asked for, or the one the targets suggest; targets that do not fit it raise.

    Args:
        given: A name, a metric, a function, or ``None``. The metric of a function has its name.
        higher_is_better: Only with a function; ``None``: lower values are better.
        prediction: [..., n, out]
        target: [n] or [n, out]; anything with a function.
    """
    if callable(given) and not isinstance(given, Metric):
        return Metric(name_of(given), one_by_one(given), bool(higher_is_better))
    if higher_is_better is not None:
        raise ConfigError(
            f"higher_is_better={higher_is_better!r} was given with metric={given!r}, whose "
            f"direction is known; expected it with a function only"
        )
    if isinstance(given, Metric):
        return given
    if given is None:
        # Integers are classes, except where a single output meets numbers other than 0 and 1.
        counts = prediction.size(-1) == 1 and not _binary(target)
        given = "rmse" if target.is_floating_point() or counts else "accuracy"
    if given not in METRICS:
        raise ConfigError(
            f"metric={given!r}; expected a function (prediction, target) -> float, or one of "
            f"{', '.join(METRICS)}"
        )
    metric = METRICS[given]
    _check_target(metric, prediction, target)
    return metric


def _check_target(metric: Metric, prediction: Tensor, target: Tensor) -> None:
    n, out = prediction.shape[-2:]
    allowed = (n * out, n) if metric in CLASSES else (n * out,)
    if target.dim() == 0 or target.size(0) != n or target.numel() not in allowed:
        shapes = f"[{n}] or {[n, out]}" if n in allowed else f"{[n, out]}"
        raise InputError(
            f"the target has shape {list(target.shape)} and predictions {[n, out]}; expected a "
            f"target {shapes} for metric={metric.name!r}: one row for each prediction (nodes, or "
            f"graphs with pool='mean'), or a function as metric"
        )
    labels = metric in LABELS or (metric in CLASSES and target.numel() == n * out)
    if labels and not _binary(target):
        raise InputError(
            f"the target holds values other than 0 and 1, and predictions have {out} output(s) for "
            f"as many labels; expected labels 0 and 1 (an output above zero means 1), or "
            f"metric='rmse'"
        )
    if metric in CLASSES and not labels and n:
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= out:
            raise InputError(
                f"the target names classes {low} to {high}; expected 0 to {out - 1}, since "
                f"predictions have {out} outputs (leave unlabelled nodes out with mask=...)"
            )


# -- predictions of one graph against targets ------------------------------------------------------


@dataclass(frozen=True)
class Scorer:
    """A metric of predictions [..., N, out] against given targets.

    Attributes:
        metric: The metric.
        target: The targets of the items that count.
        keep: Which items count, [N]; ``None``: all.
    """

    metric: Metric
    target: Tensor
    keep: Tensor | None = None

    def __call__(self, prediction: Tensor) -> Tensor:
        """The metric of predictions [..., N, out], [...] in double precision on the CPU."""
        chosen = prediction if self.keep is None else prediction[..., self.keep, :]
        return self.metric(chosen, self.target).double().cpu()

    @classmethod
    def of(
        cls,
        prediction: Tensor,
        target: Tensor,
        metric: str | Score | None = None,
        higher_is_better: bool | None = None,
        mask: Tensor | None = None,
    ) -> Scorer:
        """The score of predictions like these, [..., N, out]. The other arguments are those of
        :func:`hogwild.robustness`; targets that do not fit raise."""
        n = prediction.size(-2)
        if mask is not None and (
            mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any())
        ):
            raise InputError(
                f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of "
                f"it set; expected a boolean [{n}], one for each prediction, with some of them set"
            )
        if target.is_floating_point() and bool(target.isnan().any()):
            raise InputError(
                f"NaN values in the target: {int(target.isnan().sum())}; expected numbers, "
                f"or target= and mask= without those that are missing"
            )
        if mask is not None:
            prediction = prediction[..., mask, :]
            if target.dim() and target.size(0) == n:
                target = target[mask]
        return cls(choose(metric, higher_is_better, prediction, target), target, mask)
