r"""Gradient descent with a step that needs no tuning.

.. math:: h \leftarrow h - \nabla E(h) / K

K bounds the largest eigenvalue of the Hessian everywhere, so every step decreases the energy.
Asynchronous nodes with ``rule="gradient"`` take such steps, too. As a solver it is a baseline:
Newton's method is much faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.problems.base import Objective
from hogwild.solvers.loop import Solver, State


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Solver[Objective]):
    """Gradient descent with the step 1/K from :meth:`Objective.lipschitz`."""

    max_iter: int = 100_000

    def init(self, problem: Objective, h: Tensor) -> State:
        state = self.objective_state(problem, h, at := problem.evaluate(h))
        state.nodes["gradient"] = at.gradient
        state.graphs["step"] = 1.0 / problem.lipschitz()
        return state

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        rate = torch.where(active, state.graphs["step"], 0.0)
        h = state.nodes["h"] - problem.graph.wide(rate) * state.nodes["gradient"]
        new = self.objective_state(problem, h, at := problem.evaluate(h))
        new.nodes["gradient"] = at.gradient
        new.graphs["step"] = state.graphs["step"]
        return new
