"""How good predictions are: a metric with its targets and the items that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import InputError
from hogwild.metrics import Metric, choose
from hogwild.metrics import Score as Function


@dataclass(frozen=True)
class Score:
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


def score_of(
    prediction: Tensor,
    data: Data | Sequence[Data],
    metric: str | Function | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
) -> Score | None:
    """The score of predictions like these, [..., N, out]; ``None``: there are no targets. The
    other arguments are those of :func:`hogwild.robustness`; targets that do not fit raise."""
    if target is None:
        target = (data if isinstance(data, Data) else Batch.from_data_list(list(data))).y
    keep = None if mask is None else _check_mask(mask, prediction.size(-2))
    if target is None:
        if metric is not None:
            raise InputError(
                f"metric={metric!r} was given and data has no y; expected data.y, or target=..."
            )
        return None
    if target.is_floating_point() and bool(target.isnan().any()):
        raise InputError(
            f"NaN values in the target: {int(target.isnan().sum())}; expected numbers, "
            f"or target= and mask= without those that are missing"
        )
    chosen = prediction
    if keep is not None:
        chosen = prediction[..., keep, :]
        if target.dim() and target.size(0) == keep.numel():
            target = target[keep]
    return Score(choose(metric, higher_is_better, chosen, target), target, keep)


def _check_mask(mask: Tensor, n: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any()):
        raise InputError(
            f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of it "
            f"set; expected a boolean [{n}], one for each prediction, with some of them set"
        )
    return mask
