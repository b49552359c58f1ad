"""A small MLP with an optional replica dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import require_probability
from hogwild_node.networks import mlp


class MLP(nn.Module):
    r"""Fully connected layers with leaky ReLU between them.

    The leaky ReLU keeps the gradient of every unit nonzero. With ReLU, all units of a narrow MLP
    are sometimes zero for every input from the first epoch on, and the replica never learns.

    Args:
        in_channels: Width of the input.
        channels: Widths of the layers; the last is the width of the output.
        replicas: ``None``, or the number R of independent parameter sets.
        negative_slope: Slope of the leaky ReLU for negative inputs.
        dropout: Probability of dropout of hidden units in training.

    Shapes:
        [n, in] or [R, n, in] → [n, out], or [R, n, out] with replicas.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        replicas: int | None = None,
        negative_slope: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.channels = (in_channels, *channels)
        self.replicas = replicas
        self.negative_slope = negative_slope
        self.dropout = require_probability("dropout", dropout)
        lead = () if replicas is None else (replicas,)
        self.weight = nn.ParameterList(
            nn.Parameter(torch.empty(*lead, b, a)) for a, b in pairwise(self.channels)
        )
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(*lead, b)) for b in self.channels[1:])
        self.reset_parameters()

    @property
    def gain(self) -> float:
        """Gain of fresh weights, whose variance is gain² / fan-in: He's gain for the leaky ReLU."""
        return math.sqrt(2.0 / (1.0 + self.negative_slope**2))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for weight, bias in zip(self.weight, self.bias, strict=True):
            fan_in = weight.size(-1)
            bound = self.gain * math.sqrt(3.0 / fan_in)
            weight.uniform_(-bound, bound)
            bias.uniform_(-1.0 / math.sqrt(fan_in), 1.0 / math.sqrt(fan_in))

    @property
    def drops(self) -> bool:
        """Whether hidden units are dropped now."""
        return self.training and self.dropout > 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.replicas is not None and x.dim() == 2:
            x = x.expand(self.replicas, *x.shape)
        weight, bias = items(self.weight), items(self.bias)
        drop = partial(F.dropout, p=self.dropout) if self.drops else None
        out: Tensor = mlp(x, weight, bias, self.negative_slope, drop)
        return out

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.channels}{replicas}"


def items(group: nn.ParameterList) -> list[Tensor]:
    """The parameters in a list, also those that torch computes from others. The list's own iterator
    looks every parameter up by its number's name, which takes longer."""
    found = group._parameters
    plain = list(found) == _names(len(group))
    return [p for p in found.values() if p is not None] if plain else list(group)


@cache
def _names(count: int) -> list[str]:
    return [str(i) for i in range(count)]
