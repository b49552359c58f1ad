r"""A stack of implicit layers: the solution of one layer is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

Every layer is a level of the program (:class:`~hogwild.models.program.StackProblem`), so that a
stack runs asynchronously with packets between neighbours: each level follows the solution of the
level below while that solution still changes (:mod:`hogwild.rules.levels`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn

from hogwild.errors import ConfigError, require_one_of
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv
from hogwild.models.implicit import ImplicitConv
from hogwild.models.program import StackProblem, beside

JUMPS = ("last", "cat")


class Stack(Conv):
    """A stack of implicit layers, used as one convolution.

    Args:
        levels: The layers, the lowest first. Every layer above the first reads
            [features ‖ embeddings of the layer below], so its ``in_channels`` is p + k.
        jk: Jumping knowledge, as in PyG: the embeddings of the stack, which the readout reads.
            ``None`` or ``"last"``: those of the last layer. ``"cat"``: those of all layers, side by
            side.
    """

    def __init__(self, levels: Sequence[ImplicitConv], *, jk: str | None = None) -> None:
        super().__init__()
        if jk is not None:
            require_one_of(JUMPS, jk=jk)
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
        widths = [level.hidden_channels for level in levels]
        self.jk = None if jk == "last" else jk
        self.levels = nn.ModuleList(levels)
        self.kind, self.replicas, self.validate = first.kind, first.replicas, first.validate
        self.in_channels, self.edge_dim = first.in_channels, first.edge_dim
        self.hidden_channels = widths[-1] if self.jk is None else sum(widths)
        self.num_layers = len(levels)

    def extra_repr(self) -> str:
        jk = "" if self.jk is None else f", jk={self.jk!r}"
        return "[" + ", ".join(map(repr, self.convs)) + "]" + jk

    @property
    def convs(self) -> list[ImplicitConv]:
        """The layers, the lowest first."""
        return [level for level in self.levels if isinstance(level, ImplicitConv)]

    def reset_parameters(self) -> None:
        for conv in self.convs:
            conv.reset_parameters()

    def problem(self, inputs: Inputs) -> StackProblem:
        inputs = self.accept(inputs)
        first = self.convs[0].problem(inputs).detach()
        # Only the values of the features are checked. Embeddings may diverge during a run.
        unchecked = [copy.copy(conv) for conv in self.convs]
        for conv in unchecked:
            conv.validate = False
        return StackProblem(first, unchecked, inputs)

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The last level's embeddings, or with ``jk`` those of every level side by side
        (:meth:`Solution.of_levels`). Every solve starts at ``h0`` [(R,) N, k], or at its own
        columns of an ``h0`` [(R,) N, …] that has the embeddings of all levels side by side."""
        inputs, found = self.accept(inputs), list[Solution]()
        widths = [conv.hidden_channels for conv in self.convs]
        starts: Sequence[Tensor | None] = [h0] * len(widths)
        rows = getattr(inputs.x, "shape", ())[-2:-1]  # the layers raise the error of a wrong x
        whole = (*rows, sum(widths))
        if len(widths) > 1 and isinstance(h0, Tensor) and tuple(h0.shape[-2:]) == whole:
            starts = h0.split(widths, -1)
        for conv, start in zip(self.convs, starts, strict=True):
            x = beside(inputs.x, found[-1].value) if found else inputs.x
            found.append(conv.embed(replace(inputs, x=x), start))
        return Solution.of_levels(found, every=self.jk is not None)

    def solver_path(self, inputs: Inputs) -> list[str]:
        inputs = self.accept(inputs)
        found, x = list[str](), inputs.x
        for conv in self.convs:
            found += conv.solver_path(replace(inputs, x=x))
            below = inputs.x.new_zeros(*inputs.x.shape[:-1], conv.hidden_channels)
            x = beside(inputs.x, below)  # the path depends on the width, not on the values
        return found

    def require_asynchronous(self, inputs: Inputs) -> None:
        for s, conv in enumerate(self.convs):
            conv.require_asynchronous(inputs)
            if s:
                conv.require_level()
