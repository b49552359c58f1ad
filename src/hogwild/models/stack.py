r"""A stack of implicit layers: the solution of one layer is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

Every layer of the stack, a *level*, is a one-hop problem. A stack can therefore run asynchronously
with packets between neighbours: each level follows the solution of the level below while that
solution still changes (:mod:`hogwild.rules.stack`). ``EnergyConv(rounds=...)`` instead nests
several rounds of messages inside one convex energy, whose nodes would need packets from several
hops away.
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
    """A stack of implicit layers, used as one convolution.

    Args:
        levels: The layers, the lowest first. Every layer above the first reads
            [features ‖ embeddings of the layer below], so its ``in_channels`` is p + k.
    """

    def __init__(self, levels: Sequence[ImplicitConv]) -> None:
        super().__init__()
        wrong = [type(level).__name__ for level in levels if not isinstance(level, ImplicitConv)]
        if wrong or not levels:
            raise ConfigError(
                f"levels holds {', '.join(wrong) or 'nothing'}; expected one or several implicit "
                f"layers, such as EnergyConv"
            )
        first = levels[0]
        if len({level.replicas for level in levels}) > 1:
            raise ConfigError(
                f"the layers have replicas={', '.join(str(x.replicas) for x in levels)}; expected "
                f"the same number for all of them"
            )
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
        self.hidden_channels, self.num_layers = levels[-1].hidden_channels, len(levels)

    @property
    def convs(self) -> list[ImplicitConv]:
        """The layers, the lowest first."""
        return [level for level in self.levels if isinstance(level, ImplicitConv)]

    def reset_parameters(self) -> None:
        for conv in self.convs:
            conv.reset_parameters()

    def problem(self, inputs: Inputs) -> StackProblem:
        inputs = Inputs.of(inputs)
        first = self.convs[0].problem(inputs).detach()
        # Only the values of the features are checked. Embeddings may diverge during a run.
        unchecked = [copy.copy(conv) for conv in self.convs]
        for conv in unchecked:
            conv.validate = False
        widths = [conv.hidden_channels for conv in unchecked]
        posed = [conv.problem for conv in unchecked]
        return StackProblem(first, widths, posed, inputs, self.replicas is not None)

    def solutions(
        self, inputs: Inputs, h0: Tensor | Sequence[Tensor] | None = None
    ) -> list[Solution]:
        """The embeddings of every level, the lowest first; every solve starts at ``h0``, or at the
        start of its level in a list of starts."""
        inputs, found = Inputs.of(inputs), list[Solution]()
        starts = h0 if isinstance(h0, Sequence) else [h0] * len(self.convs)
        for conv, start in zip(self.convs, starts, strict=True):
            x = beside(inputs.x, found[-1].value) if found else inputs.x
            found.append(conv.embed(replace(inputs, x=x), start))
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
