r"""The problems of a stack of implicit layers on one graph: each is posed by the solution below.

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
    """What the next level reads: features and embeddings, [..., n, p + k]."""
    return torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)


@dataclass(eq=False)
class StackProblem:
    """The problems of all levels on one graph. The problem of level 0 is known. The problem of any
    other level is posed, again and again, by the embeddings of the level below.

    Attributes:
        first: The problem of level 0, cut off from autograd.
        widths: Width of every level's embeddings.
        posed: Poses the problem of each level for its inputs.
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
        """The problem itself: it is cut off from autograd."""
        return self

    def pose(self, level: int, own: Tensor, heard: Tensor) -> Problem:
        """The problem of a level above the first, cut off from autograd.

        The problem at a node depends on that node's own embedding and on what that node heard, and
        on nothing else.

        Args:
            own: The embeddings of the level below, [R, k, N].
            heard: Those of the sender of every edge, as its receiver last heard them, [R, k, E].
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
        """The problems of all levels where asynchronous nodes begin."""
        problems = [self.first]
        for level in range(1, len(self.posed)):
            below = problems[-1].start()
            problems.append(self.pose(level, below, gather(below, self.graph.src)))
        return problems

    def settled(self, answers: Sequence[Tensor]) -> list[Problem]:
        """The problems of all levels where every node holds, and has heard, these embeddings of
        each level, [R, k, N]."""
        source = self.graph.src
        above = [self.pose(s, h, gather(h, source)) for s, h in enumerate(answers[:-1], 1)]
        return [self.first, *above]

    def start(self) -> Tensor:
        """Where asynchronous nodes begin, [R, channels, N]."""
        return torch.cat([problem.start() for problem in self.begun], 1)
