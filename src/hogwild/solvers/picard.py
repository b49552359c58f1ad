r"""Picard iteration :math:`h \leftarrow F(h)`: converges for every contraction, linearly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.problems.base import Problem
from hogwild.solvers.loop import Solver, State


@dataclass(frozen=True, kw_only=True)
class Picard(Solver[Problem]):
    """Apply the fixed-point map until it no longer moves anything."""

    max_iter: int = 10_000

    def init(self, problem: Problem, h: Tensor) -> State:
        return self.fixed_point_state(problem, h, problem.step(h))

    def step(self, problem: Problem, state: State, active: Tensor) -> State:
        mask = problem.graph.wide(active)
        h = torch.where(mask, state.nodes["image"], state.nodes["h"])
        return self.fixed_point_state(problem, h, problem.step(h))
