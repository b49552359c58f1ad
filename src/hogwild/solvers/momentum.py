r"""Accelerated gradient steps whose number follows from the condition number.

For an energy with :math:`\beta \preceq \nabla^2 E \preceq L` everywhere, the *triple momentum
method* (Van Scoy, Freeman & Lynch, IEEE Control Systems Letters 2018) iterates

.. math::
    y_t = \xi_t + \gamma\, (\xi_t - \xi_{t-1}), \qquad
    \xi_{t+1} = \xi_t + \mu\, (\xi_t - \xi_{t-1}) - \alpha \nabla E(y_t),

with :math:`\rho = 1 - \sqrt{\beta / L}` and

.. math::
    \alpha = \frac{1 + \rho}{L}, \qquad \mu = \frac{\rho^2}{2 - \rho}, \qquad
    \gamma = \frac{\rho^2}{(1 + \rho)(2 - \rho)} .

The distance to the minimum falls by :math:`\rho` a step, from any start, and no method that reads
gradients alone has a better guarantee. There is no line search, no factorisation and no inner
product: the constants need the condition number :math:`\kappa = L / \beta` alone, and so does the
number of steps, about :math:`\sqrt\kappa \ln(\sqrt\kappa / \epsilon)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hogwild.errors import ConfigError, is_number
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Objective
from hogwild.solvers.loop import Solver, State, solve
from hogwild.solvers.newton import Newton

N = TypeVar("N", float, Tensor)


def triple(least: N, most: N) -> tuple[N, N, N]:
    """Step size, momentum and look-ahead for eigenvalues from ``least`` to ``most``."""
    rho = 1.0 - (least / most) ** 0.5
    keep = rho**2 / (2.0 - rho)
    return (1.0 + rho) / most, keep, keep / (1.0 + rho)


@dataclass(frozen=True, kw_only=True)
class TripleMomentum(Solver[Objective]):
    """Accelerated steps where the condition number is known and moderate, and Newton's method
    elsewhere.

    Args:
        most: The largest condition number for which steps are taken; beyond it
            :class:`~hogwild.solvers.Newton` solves.
    """

    most: float = 1e4
    max_iter: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.most) or not self.most > 0:
            raise ConfigError(f"most={self.most!r}; expected a positive condition number")

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        atol, rtol = super().tolerances(dtype)
        # Gradients are near their minimum when the last step is taken: rounding allows this much.
        return atol, 1e-6 if self.rtol is None and dtype == torch.float32 else rtol

    def whole(self, problem: Objective, h0: Tensor) -> Solution | None:
        condition = problem.condition
        if condition is None:
            condition = float((problem.lipschitz() / problem.convexity()).max())
        if condition > self.most:
            newton = Newton(
                atol=self.atol, rtol=self.rtol, linear=self.linear, adjoint_rtol=self.adjoint_rtol
            )
            return solve(problem, newton, h0)
        return None

    def init(self, problem: Objective, h: Tensor) -> State:
        found = triple(problem.convexity(), problem.lipschitz())
        return self._at(problem, h, h, h, dict(zip(("rate", "keep", "ahead"), found, strict=True)))

    def step(self, problem: Objective, state: State, active: Tensor) -> State:
        graph, moving = problem.graph, problem.graph.wide(active)
        y, x, before, gradient = (state.nodes[name] for name in ("h", "x", "before", "gradient"))
        momentum = {name: state.graphs[name] for name in ("rate", "keep", "ahead")}
        rate, keep, ahead = (graph.wide(value) for value in momentum.values())
        fresh = x + keep * (x - before) - rate * gradient
        following = fresh + ahead * (fresh - x)
        y, x, before = (
            torch.where(moving, new, old) for new, old in ((following, y), (fresh, x), (x, before))
        )
        return self._at(problem, y, x, before, momentum)

    def _at(
        self, problem: Objective, y: Tensor, x: Tensor, before: Tensor, momentum: dict[str, Tensor]
    ) -> State:
        state = self.objective_state(problem, y, at := problem.evaluate(y))
        state.nodes |= {"x": x, "before": before, "gradient": at.gradient}
        state.graphs |= momentum
        return state
