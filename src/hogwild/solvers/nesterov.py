r"""Nesterov's method with constants that are known beforehand.

.. math::
    h_{t+1} = y_t - \nabla E(y_t) / L, \qquad
    y_{t+1} = h_{t+1} + \frac{\sqrt\kappa - 1}{\sqrt\kappa + 1} (h_{t+1} - h_t), \qquad
    \kappa = L / \beta,

for an energy with :math:`\beta \preceq \nabla^2 E \preceq L` everywhere. The energy above its
minimum falls by :math:`1 - 1/\sqrt\kappa` a step (Nesterov, *Lectures on Convex Optimization*,
2018, theorem 2.2.3). The method needs no line search and no factorisation, and nothing is tuned.
Its residual is measured once in :attr:`Nesterov.block` steps: a check costs as much as a step, and
on a GPU it waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.problems.base import Objective
from hogwild.solvers.loop import Solver, State


@dataclass(frozen=True, kw_only=True)
class Nesterov(Solver[Objective]):
    """Accelerated gradient steps with the bounds of :meth:`Objective.convexity` and
    :meth:`Objective.lipschitz`.

    Args:
        block: Steps between two looks at the residual, which count as one iteration.
    """

    max_iter: int = 1000
    block: int = 16
    least = {"block": 1}  # noqa: RUF012

    def init(self, problem: Objective, h: Tensor) -> State:
        most, root = problem.lipschitz(), (problem.lipschitz() / problem.convexity()).sqrt()
        state = self.objective_state(problem, h, problem.evaluate(h))
        state.nodes["ahead"] = h
        state.graphs |= {"rate": 1.0 / most, "momentum": (root - 1.0) / (root + 1.0)}
        return state

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        graph, names = problem.graph, ("rate", "momentum")
        rate, momentum = (graph.wide(state.graphs[name]) for name in names)
        h, ahead = state.nodes["h"], state.nodes["ahead"]
        for _ in range(self.block):
            new = torch.addcmul(ahead, rate, problem.evaluate(ahead).gradient, value=-1.0)
            ahead = torch.addcmul(new, momentum, new - h)
            h = new
        mask = graph.wide(active)
        h = torch.where(mask, h, state.nodes["h"])
        out = self.objective_state(problem, h, problem.evaluate(h))
        out.nodes["ahead"] = torch.where(mask, ahead, state.nodes["ahead"])
        out.graphs |= {name: state.graphs[name] for name in names}
        return out
