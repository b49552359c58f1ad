r"""Fixed-point models: a node replaces its embedding by :math:`F_i` of what it last heard.

.. math:: h_i \leftarrow F_i(h_i, \{h_j(\tau^i_j) : j \in N(i)\})

Converges under partial asynchrony where F contracts in a weighted maximum norm over the nodes;
there is no step size. The packet is :math:`h_j`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.fields import gather
from hogwild.graph import Star
from hogwild.problems.base import FixedPoint, Problem
from hogwild.rules.base import Rule, self_loops


class FixedPointRule(Rule):
    """One application of the map's own row."""

    def __init__(self, problem: FixedPoint) -> None:
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels

    def pose(self, problem: Problem) -> None:
        assert isinstance(problem, FixedPoint)
        self.problem = problem

    def begin(self, h: Tensor) -> None:
        return None

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        loops = self_loops(self.graph, at)
        if loops is not None:  # a node's view of itself is never stale
            inbox = torch.where(loops, gather(h, at.slot), inbox)
        return self.problem.update(h, inbox, at), None

    def forget(self, nodes: Tensor) -> None:
        pass  # nothing but the embedding itself is remembered
