r"""Several implicit layers on top of each other: the solution of one is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

Every layer is a one-hop problem of its own, a *level*. A stack can therefore run asynchronously on
one-hop packets, each level tracking the still-moving solution of the level below
(:mod:`hogwild.rules.stack`). The other way to several rounds of messages,
``EnergyConv(rounds=...)``, nests the rounds inside one convex energy; its nodes would have to hear
from several hops away.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv
from hogwild.models.implicit import ImplicitConv
from hogwild.models.levels import StackProblem, beside


class Stack(Conv):
    """Implicit layers on top of each other, as one convolution.

    Args:
        levels: The layers, from the features up. Every layer but the first reads
            [features ‖ previous embeddings], so its ``in_channels`` is p + k.
    """

    def __init__(self, levels: Sequence[ImplicitConv]) -> None:
        super().__init__()
        first = levels[0]
        for s, (below, level) in enumerate(pairwise(levels), 1):
            expected = first.in_channels + below.hidden_channels
            if level.in_channels != expected:
                raise ConfigError(
                    f"layer {s} has in_channels={level.in_channels}; expected {expected}: it reads "
                    f"the {first.in_channels} features and the {below.hidden_channels} channels of "
                    f"the layer below"
                )
        self.levels = nn.ModuleList(levels)
        self.kind, self.replicas, self.validate = first.kind, first.replicas, first.validate
        self.in_channels, self.edge_dim = first.in_channels, first.edge_dim
        self.hidden_channels = levels[-1].hidden_channels

    @property
    def convs(self) -> list[ImplicitConv]:
        """The layers, from the features up."""
        return [level for level in self.levels if isinstance(level, ImplicitConv)]

    def reset_parameters(self) -> None:
        for conv in self.convs:
            conv.reset_parameters()

    def problem(self, inputs: Inputs) -> StackProblem:
        inputs = Inputs.of(inputs)
        first = self.convs[0].problem(inputs).detach()
        # The values of features are checked once. Later inputs are embeddings, which may diverge.
        unchecked = [copy.copy(conv) for conv in self.convs]
        for conv in unchecked:
            conv.validate = False
        widths = [conv.hidden_channels for conv in unchecked]
        posed = [conv.problem for conv in unchecked]
        return StackProblem(first, widths, posed, inputs, self.replicas is not None)

    def solutions(self, inputs: Inputs, h0: Tensor | None = None) -> list[Solution]:
        """Every level's embeddings, from the features up; every level starts at ``h0``."""
        inputs, found = Inputs.of(inputs), list[Solution]()
        for conv in self.convs:
            x = beside(inputs.x, found[-1].value) if found else inputs.x
            found.append(conv.embed(replace(inputs, x=x), h0))
        return found

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The last level's embeddings. Iterations are summed over the levels; residuals and
        statuses are the worst of all levels."""
        found = self.solutions(inputs, h0)
        return Solution(
            found[-1].value,
            torch.stack([f.status for f in found]).amax(0),
            torch.stack([f.iterations for f in found]).sum(0),
            torch.stack([f.residual for f in found]).amax(0),
        )

    def require_asynchronous(self, inputs: Inputs) -> None:
        for conv in self.convs:
            conv.require_asynchronous(inputs)
