r"""A stack of implicit layers: the solution of one layer is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

Every layer of the stack, a *level*, is a one-hop problem. A stack can therefore run asynchronously
with packets between neighbours: each level follows the solution of the level below while that
solution still changes (:mod:`hogwild.rules.levels`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from hogwild.errors import ConfigError, require_one_of
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.base import Conv
from hogwild.models.implicit import ImplicitConv
from hogwild.ops import gather
from hogwild.problems.base import Problem

JUMPS = ("last", "cat", "max")


def beside(x: Tensor, h: Tensor) -> Tensor:
    """The input of the next level: features and embeddings side by side, [..., n, p + k]."""
    return torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)


@dataclass(eq=False)
class StackProblem:
    """The problems of all levels on one graph. The problem of level 0 is fixed. The problem of any
    other level changes with the embeddings of the level below.

    Attributes:
        first: The problem of level 0, detached from autograd.
        levels: The layers.
        inputs: The inputs of level 0.
    """

    first: Problem
    levels: Sequence[ImplicitConv]
    inputs: Inputs

    @property
    def graph(self) -> Graph:
        return self.first.graph

    @property
    def widths(self) -> list[int]:
        """Width of every level's embeddings."""
        return [level.hidden_channels for level in self.levels]

    @property
    def channels(self) -> int:
        """Width of all levels' embeddings together."""
        return sum(self.widths)

    def detach(self) -> StackProblem:
        """The problem itself, which is already detached."""
        return self

    def pose(self, level: int, own: Tensor, heard: Tensor) -> Problem:
        """The problem of a level above the first, detached from autograd.

        The problem at a node depends only on the node's own embedding and on what the node heard.

        Args:
            level: The level.
            own: The embeddings of the level below, [R, k, N].
            heard: The sender's embedding on every edge, as its receiver last heard it, [R, k, E].
        """
        x, source = self.inputs.x, self.graph.src
        inputs = replace(
            self.inputs,
            x=beside(x, self._as_features(own)),
            heard=beside(x[..., source, :], self._as_features(heard)),
        )
        return self.levels[level].problem(inputs).detach()

    def _as_features(self, h: Tensor) -> Tensor:
        """[R, k, n] -> [(R,) n, k], in the precision of the features."""
        h = h.mT.to(self.inputs.x.dtype)
        return h[0] if self.levels[0].replicas is None else h

    @cached_property
    def begun(self) -> list[Problem]:
        """The problems of all levels at the starting point of asynchronous runs."""
        problems = [self.first]
        for level in range(1, len(self.levels)):
            below = problems[-1].start()
            problems.append(self.pose(level, below, gather(below, self.graph.src)))
        return problems

    def settled(self, answers: Sequence[Tensor]) -> list[Problem]:
        """The problems of all levels if every node has these embeddings of each level [R, k, N],
        and all its neighbours have heard them."""
        source = self.graph.src
        above = [self.pose(s, h, gather(h, source)) for s, h in enumerate(answers[:-1], 1)]
        return [self.first, *above]

    def start(self) -> Tensor:
        """The starting point of asynchronous runs, [R, channels, N]."""
        return torch.cat([problem.start() for problem in self.begun], 1)


class Stack(Conv):
    """A stack of implicit layers, used as one convolution.

    Args:
        levels: The layers, the lowest first. Every layer above the first reads
            [features ‖ embeddings of the layer below], so its ``in_channels`` is p + k.
        jk: Jumping knowledge, as in PyG: what the readout reads. ``None`` or ``"last"``: the
            embeddings of the last layer. ``"cat"`` or ``"max"``: those of all layers, side by side
            or their largest entries. The embeddings of the stack are then those of all layers, side
            by side.
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
        if jk == "max" and len(set(widths)) > 1:
            raise ConfigError(
                f"jk='max' of layers of the widths {', '.join(map(str, widths))}; expected layers "
                f"of one width, or jk='cat'"
            )
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

    @property
    def level_channels(self) -> list[int]:
        return [conv.hidden_channels for conv in self.convs]

    @property
    def readout_channels(self) -> int:
        return self.level_channels[-1] if self.jk == "max" else self.hidden_channels

    def for_readout(self, h: Tensor) -> Tensor:
        return h if self.jk != "max" else h.unflatten(-1, (self.num_layers, -1)).amax(-2)

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

    def solutions(self, inputs: Inputs, h0: Tensor | None = None) -> list[Solution]:
        """The embeddings of every level, the lowest first. Every solve starts at ``h0`` [(R,) N,
        k], or at its own columns of an ``h0`` that has the embeddings of all levels side by side,
        [(R,) N, sum of the :attr:`level_channels`]."""
        inputs, found = self.accept(inputs), list[Solution]()
        widths = self.level_channels
        starts: Sequence[Tensor | None] = [h0] * len(widths)
        rows = getattr(inputs.x, "shape", ())[-2:-1]  # the layers raise the error of a wrong x
        whole = (*rows, sum(widths))
        if len(widths) > 1 and isinstance(h0, Tensor) and tuple(h0.shape[-2:]) == whole:
            starts = h0.split(widths, -1)
        for conv, start in zip(self.convs, starts, strict=True):
            x = beside(inputs.x, found[-1].value) if found else inputs.x
            found.append(conv.embed(replace(inputs, x=x), start))
        return found

    def solver_path(self, inputs: Inputs) -> list[str]:
        inputs = self.accept(inputs)
        found, x = list[str](), inputs.x
        for conv in self.convs:
            found += conv.solver_path(replace(inputs, x=x))
            below = inputs.x.new_zeros(*inputs.x.shape[:-1], conv.hidden_channels)
            x = beside(inputs.x, below)  # the path depends on the width, not on the values
        return found

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """The last level's embeddings, or with ``jk`` those of every level side by side
        (:meth:`Solution.of_levels`). ``h0`` is that of :meth:`solutions`."""
        return self.joined(self.solutions(inputs, h0))

    def joined(self, levels: Sequence[Solution]) -> Solution:
        return Solution.of_levels(levels, every=self.jk is not None)

    def require_asynchronous(self, inputs: Inputs) -> None:
        for s, conv in enumerate(self.convs):
            conv.require_asynchronous(inputs)
            if s:
                conv.require_level()
