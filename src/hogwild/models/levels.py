r"""Problems of several levels on one graph, as the rules use them: the layers of an explicit model
(:class:`LayeredProblem`), and a stack of implicit layers (:class:`StackProblem`), where the problem
of each level depends on the solution of the level below,

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}]) .
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.graph.inputs import Inputs
from hogwild.ops import gather
from hogwild.problems.base import Problem
from hogwild_node.problems import LocalLayers


@dataclass(eq=False)
class LayeredProblem(LocalLayers):
    r"""The layers of an explicit model on one graph, one node at a time.

    In :class:`~hogwild.LayeredGNN` the state and the value of a node are both its embedding
    :math:`h_i^\ell`. In a wrapped model (:func:`hogwild.wrap`) the value is the input of the ℓ-th
    convolution. The state holds the results of all convolutions so far, from which the user's code
    computes the next input.

    Attributes:
        graph: The graph.
        replicas: R; 1 for a model without replicas.
        channels: Width of a node's state.
        depth: L, the number of layers.
        widths: Widths of the values of layers 0, …, L: L + 1 numbers. Only the rule
            ``"overwriting"`` sends values of layer L.
    """

    graph: Graph
    replicas: int
    channels: int
    depth: int
    widths: tuple[int, ...]

    def detach(self) -> LayeredProblem:
        """The problem itself."""
        return self

    @abstractmethod
    def start(self) -> Tensor:
        """Every node's state before the first layer, [R, channels, N]."""

    def initial(self, at: Star) -> Tensor:
        return at.at_nodes(self.start())

    @property
    def node(self) -> LocalLayers:
        """The layers as a node computes them; the layers of a GCN need no torch."""
        return self


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
