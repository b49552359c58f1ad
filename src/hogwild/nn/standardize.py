r"""Standardised features, which do not depend on units.

.. math:: x'_c = (x_c - o_c) / s_c

for every column c, with an offset and a scale computed from the data. Features :math:`a x + b` with
:math:`a > 0` give the same :math:`x'`.

========================  ==================  ======================  ==========================
column                    offset              scale                   becomes
========================  ==================  ======================  ==========================
ordinary                  mean                standard deviation      mean 0, deviation 1
with outliers             mean                largest distance / 8    mean 0, at most 8
two values                the smaller one     their difference        0 and 1
one value v               0                   :math:`|v|`, or 1       the sign of v
========================  ==================  ======================  ==========================

A column of two values is an indicator, so one-hot features do not change. A division by the
standard deviation would make rare indicators very large. A column of one value becomes its sign, so
that features that are all 1 stay 1. Only for such a column does a shift :math:`b` matter.

A column has *outliers* where a value is more than 8 standard deviations from the mean
(:data:`FARTHEST`). No standardised feature of the graphs that were fitted is therefore larger than
8 in absolute value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, FeatureError, require_positive

FARTHEST = 8.0
"""Largest absolute value of a standardised feature. Fresh energies with such features have
condition numbers below 10³ (``tests/models/test_scale.py``). With larger features the condition
number grows quickly (docs/decisions.md)."""
ROUNDING = 8.0
"""Number of rounding errors by which the values of a column may differ and still count as one."""


class Standardize(nn.Module):
    """Subtracts an offset from every feature and divides by a scale. Both are buffers, which the
    ``state_dict`` contains. Before :meth:`fit` is called, the module is the identity.

    Args:
        channels: Number p of features.
        replicas: ``None``, or a number R of replicas, each with its own statistics.

    Shapes:
        x [n, p] → [n, p]; with replicas [n, p] or [R, n, p] → [R, n, p]. If the statistics of all
        replicas are equal, [n, p] → [n, p].
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, channels: int, *, replicas: int | None = None) -> None:
        super().__init__()
        self.channels = require_positive("channels", channels)
        self.replicas = None if replicas is None else require_positive("replicas", replicas)
        shape = (channels,) if replicas is None else (replicas, channels)
        self.register_buffer("offset", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self._compared: tuple[object, bool, bool] | None = None  # see _compare

    @property
    def fitted(self) -> bool:
        """Whether the module differs from the identity."""
        return bool((self.offset != 0).any() | (self.scale != 1).any())

    @torch.no_grad()
    def fit(self, tensors: Iterable[Tensor], members: Tensor | None = None) -> Standardize:
        """Compute offset and scale.

        Args:
            tensors: Features [n, p], one tensor or several, such as one for each graph.
            members: Which of the G tensors count for each replica, bool [R, G]; all by default.
        """
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._check(given)
        if members is None:
            rows = [statistics(given)] * (self.replicas or 1)
        else:
            if members.shape != (self.replicas or 1, len(given)):
                raise ConfigError(
                    f"members has shape {list(members.shape)}; expected "
                    f"[{self.replicas or 1}, {len(given)}]"
                )
            known: dict[tuple[bool, ...], tuple[Tensor, Tensor]] = {}
            rows = []
            for row in members.tolist():
                if tuple(row) not in known:
                    chosen = [t for t, counts in zip(given, row, strict=True) if counts]
                    known[tuple(row)] = statistics(chosen)
                rows.append(known[tuple(row)])
        for buffer, values in zip((self.offset, self.scale), zip(*rows, strict=True), strict=True):
            buffer.copy_(torch.stack(values) if self.replicas is not None else values[0])
        return self

    def _check(self, given: Sequence[Tensor]) -> None:
        for i, t in enumerate(given):
            if not isinstance(t, Tensor) or t.dim() != 2 or t.size(1) != self.channels:
                what = list(t.shape) if isinstance(t, Tensor) else type(t).__name__
                raise FeatureError(
                    f"features for the statistics are {what}; expected tensors [n, {self.channels}]"
                )
            if not bool(torch.isfinite(t).all()):
                raise FeatureError(
                    f"features for the statistics hold NaN or infinite values (first in graph "
                    f"{i}); expected finite numbers: impute or drop them"
                )
        if not sum(t.size(0) for t in given):
            raise FeatureError("there are no features to standardise; expected at least one row")

    def forward(self, x: Tensor) -> Tensor:
        """x' in the dtype of x. An invalid x is returned unchanged; the model raises the error."""
        if (
            not isinstance(x, Tensor)
            or x.layout != torch.strided
            or not x.is_floating_point()
            or x.dim() < 2
            or x.size(-1) != self.channels
        ):
            return x
        if x.device.type == "cpu" and not torch.compiler.is_compiling() and self._compare()[1]:
            return x
        offset, scale = self.offset, self.scale
        if self.replicas is not None:
            offset, scale = offset.unsqueeze(1), scale.unsqueeze(1)  # [R, 1, p]
            if self._compare()[0]:
                offset, scale = offset[0], scale[0]
        return (x - offset.to(x)) / scale.to(x)

    def _compare(self) -> tuple[bool, bool]:
        """Whether all replicas standardise alike, and whether the module is the identity; computed
        again only after a change, because the comparison waits for the device."""
        both = (self.offset, self.scale)
        state = tuple((t.data_ptr(), t._version) for t in both)
        if self._compared is None or self._compared[0] != state:
            alike = all(bool((t == t[:1]).all()) for t in both)
            self._compared = state, alike, not self.fitted
        return self._compared[1:]

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.channels}{replicas}" + ("" if self.fitted else ", the identity")


def statistics(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Offset and scale of every column of features [n, p], [p] each, in float64."""
    x = torch.cat([t.detach().double() for t in tensors])
    eps = max(torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0 for t in tensors)
    low, high = x.aminmax(dim=0)
    size, spread = torch.maximum(low.abs(), high.abs()), high - low
    one = spread <= ROUNDING * eps * size
    two = ((x == low) | (x == high)).all(0)
    # Relative to the middle and the spread of the column, sums of squares do not overflow, and a
    # large mean costs no digits.
    middle, unit = low + spread / 2, torch.where(spread > 0, spread, 1.0)
    z = (x - middle) / unit
    center = z.mean(0)
    farthest = torch.maximum(z.amax(0) - center, center - z.amin(0))
    spread_z = torch.maximum(z.std(0, correction=0), farthest / FARTHEST)
    mean, deviation = middle + center * unit, spread_z * unit
    size = torch.where(size > 0, size, 1.0)
    offset = torch.where(one, 0.0, torch.where(two, low, mean))
    scale = torch.where(one, size, torch.where(two, spread, deviation))
    return offset, scale
