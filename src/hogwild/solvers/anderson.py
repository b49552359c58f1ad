r"""Anderson acceleration of a fixed-point map, one small least-squares problem per graph.

With residuals :math:`r_i = F(h_i) - h_i` of the last m iterates and their differences
:math:`\Delta r, \Delta F`,

.. math::
    \gamma = \arg\min \|r - \Delta r\, \gamma\|_2, \qquad
    h \leftarrow F(h) - \Delta F\, \gamma .

Where the accelerated residual grows, a graph drops its history and takes a plain Picard step, so
that a contraction still converges.

*Picard iteration* :math:`h \leftarrow F(h)` converges for every contraction, linearly. For an
energy :math:`F(h) = h - \nabla E(h) / K` is a gradient step, with a bound K on the largest
eigenvalue of the Hessian everywhere, so that every step decreases the energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.problems.base import Problem
from hogwild.solvers.loop import Solver, State


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver[Problem]):
    """Anderson acceleration (type II).

    Args:
        memory: Number of differences kept.
        ridge: Relative regularisation of the normal equations.
    """

    max_iter: int = 1000
    memory: int = 5
    ridge: float = 1e-12
    least = {"memory": 1}  # noqa: RUF012

    def init(self, problem: Problem, h: Tensor) -> State:
        state = self.fixed_point_state(problem, h, problem.step(h))
        empty = h.new_zeros(self.memory, *h.shape)
        residual = state.graphs["residual"]
        state.nodes |= {"dr": empty, "df": empty}
        # Inner products of the differences, [m, m, R, G]; one row is new in every iteration.
        gram = residual.new_zeros(self.memory, self.memory, *residual.shape)
        state.graphs |= {"best": residual, "gram": gram}
        return state

    def step(self, problem: Problem, state: State, active: Tensor) -> State:
        graph = problem.graph
        h, image = state.nodes["h"], state.nodes["image"]
        r, dr, df = image - h, state.nodes["dr"], state.nodes["df"]
        # Normal equations [R, G, m, m]; unused slots are zero and the ridge leaves them at γ = 0.
        gram = state.graphs["gram"].permute(2, 3, 0, 1)
        right = graph.dot(dr, r).movedim(0, -1).unsqueeze(-1)
        size = gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(torch.finfo(h.dtype).tiny)
        eye = torch.eye(self.memory, dtype=h.dtype, device=h.device)
        gamma = torch.linalg.solve_ex(gram + self.ridge * size[..., None, None] * eye, right)[0]
        gamma = torch.nan_to_num(gamma[..., 0], 0.0, 0.0, 0.0).movedim(-1, 0)  # [m, R, G]
        keep = graph.wide(active)
        new = torch.where(keep, image - (graph.wide(gamma) * df).sum(0), h)
        new_image = problem.step(new)
        out = self.fixed_point_state(problem, new, new_image)

        # Safeguard: where the residual grew past ten times the best, restart from a Picard step.
        worse = ~(out.graphs["residual"] <= 10.0 * state.graphs["best"]) & active
        restarts = bool(worse.any())
        if restarts:
            new = torch.where(graph.wide(worse), image, new)
            new_image = problem.step(new)
            out = self.fixed_point_state(problem, new, new_image)
        fresh_r, fresh_f = (new_image - new) - r, new_image - image
        dr = torch.where(keep, torch.cat([dr[1:], fresh_r[None]]), dr)
        df = torch.where(keep, torch.cat([df[1:], fresh_f[None]]), df)
        row = graph.dot(dr, dr[-1])
        gram = state.graphs["gram"]
        gram = torch.cat([torch.cat([gram[1:, 1:], row[None, :-1]]), row[:, None]], 1)
        gram = torch.where(active, gram, state.graphs["gram"])
        if restarts:
            drop = graph.wide(worse)
            dr, df = torch.where(drop, 0.0, dr), torch.where(drop, 0.0, df)
            gram = torch.where(worse, 0.0, gram)
        out.nodes |= {"dr": dr, "df": df}
        best = torch.minimum(state.graphs["best"], out.graphs["residual"])
        out.graphs |= {"best": best, "gram": gram}
        return out


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
