r"""The problems of a stack of implicit layers on one graph. The problem of each level depends on
the solution of the level below:

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.ops import gather
from hogwild.problems.base import Problem


def beside(x: Tensor, h: Tensor) -> Tensor:
    """The input of the next level: features and embeddings side by side, [..., n, p + k]."""
    return torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)


@dataclass(eq=False)
class StackProblem:
    """The problems of all levels on one graph. The problem of level 0 is fixed. The problem of any
    other level changes with the embeddings of the level below.

    Attributes:
        first: The problem of level 0, detached from autograd.
        widths: Width of every level's embeddings.
        posed: For each level, the function that builds its problem from its inputs.
        inputs: The inputs of level 0.
        replicated: Whether embeddings have a replica dimension.
    """

    first: Problem
    widths: list[int]
    posed: Sequence[Callable[[Inputs], Problem]]
    inputs: Inputs
    replicated: bool

    @property
    def graph(self) -> Graph:
        return self.first.graph

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
        return self.posed[level](inputs).detach()

    def _as_features(self, h: Tensor) -> Tensor:
        """[R, k, n] -> [(R,) n, k], in the precision of the features."""
        h = h.mT.to(self.inputs.x.dtype)
        return h if self.replicated else h[0]

    @cached_property
    def begun(self) -> list[Problem]:
        """The problems of all levels at the starting point of asynchronous runs."""
        problems = [self.first]
        for level in range(1, len(self.posed)):
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
