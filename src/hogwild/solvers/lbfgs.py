r"""Limited-memory BFGS (the paper's solver), with a history and a line search for every graph.

The direction is Nocedal's two-loop recursion over the last ``memory`` pairs
:math:`s = h' - h, y = \nabla E(h') - \nabla E(h)`; :mod:`hogwild.solvers.search` finds the
length of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.problems.base import Objective
from hogwild.solvers.loop import Solver, State
from hogwild.solvers.search import search


@dataclass(frozen=True, kw_only=True)
class LBFGS(Solver[Objective]):
    """L-BFGS.

    Args:
        memory: Number of pairs kept.
        max_backtracks: Refused steps after which a graph has stalled.
    """

    max_iter: int = 1000
    memory: int = 10
    max_backtracks: int = 40
    least = {"memory": 1, "max_backtracks": 1}  # noqa: RUF012

    def init(self, problem: Objective, h: Tensor) -> State:
        at = problem.evaluate(h)
        state = self.objective_state(problem, h, at)
        empty = h.new_zeros(self.memory, *h.shape)
        state.nodes |= {"gradient": at.gradient, "s": empty, "y": empty}
        state.graphs |= {
            "rho": h.new_zeros(self.memory, *at.value.shape),  # 1 / sᵀy, zero: no pair
            # First step: a unit move at most, until curvature is known.
            "gamma": 1.0 / problem.graph.dot(at.gradient, at.gradient).sqrt().clamp_min(1.0),
        }
        return state

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        graph, h, g = problem.graph, state.nodes["h"], state.nodes["gradient"]
        s, y, rho = state.nodes["s"], state.nodes["y"], state.graphs["rho"]
        q, alphas = g, []
        for i in range(self.memory - 1, -1, -1):  # newest pair last in memory
            alpha = rho[i] * graph.dot(s[i], q)
            q = q - graph.wide(alpha) * y[i]
            alphas.append(alpha)
        q = graph.wide(state.graphs["gamma"]) * q
        for i, alpha in zip(range(self.memory), reversed(alphas), strict=True):
            q = q + graph.wide(alpha - rho[i] * graph.dot(y[i], q)) * s[i]
        d = torch.where(graph.wide(active), -q, 0.0)
        now = state.at or problem.evaluate(h)
        slope = graph.dot(g, d)
        one = torch.ones_like(slope)
        new, at, _, refused = search(problem, h, now, d, slope, one, active, self.max_backtracks)

        out = self.objective_state(problem, new, at)
        ds, dy = new - h, at.gradient - g
        sy, yy = graph.dot(ds, dy), graph.dot(dy, dy)
        use = active & (sy > 1e-14 * yy) & (yy > 0)
        fresh_rho = torch.where(use, 1.0 / sy, 0.0)
        # Frozen graphs and useless pairs keep their history: shift only where a pair was made.
        shift = graph.wide(use)
        out.nodes |= {
            "gradient": at.gradient,
            "s": torch.where(shift, torch.cat([s[1:], ds[None]]), s),
            "y": torch.where(shift, torch.cat([y[1:], dy[None]]), y),
        }
        out.graphs |= {
            "rho": torch.where(use, torch.cat([rho[1:], fresh_rho[None]]), rho),
            "gamma": torch.where(use, sy / yy, state.graphs["gamma"]),
            "stalled": refused,
        }
        return out
