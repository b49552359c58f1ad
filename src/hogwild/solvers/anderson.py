r"""Anderson acceleration of a fixed-point map, one small least-squares problem per graph.

With residuals :math:`r_i = F(h_i) - h_i` of the last m iterates and their differences
:math:`\Delta r, \Delta F`,

.. math::
    \gamma = \arg\min \|r - \Delta r\, \gamma\|_2, \qquad
    h \leftarrow F(h) - \Delta F\, \gamma .

Where the accelerated residual grows, a graph drops its history and takes a plain Picard step, so
that a contraction still converges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.solvers.base import Problem, Solver, State


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 1:
            raise ConfigError(f"memory={self.memory}; expected at least 1")

    def init(self, problem: Problem, h: Tensor) -> State:
        state = self.fixed_point_state(problem, h, problem.step(h))
        empty = h.new_zeros(self.memory, *h.shape)
        state.nodes |= {"dr": empty, "df": empty}
        state.graphs["best"] = state.graphs["residual"]
        return state

    def step(self, problem: Problem, state: State, active: Tensor) -> State:
        graph = problem.graph

        h, image = state.nodes["h"], state.nodes["image"]
        r, dr, df = image - h, state.nodes["dr"], state.nodes["df"]
        # Normal equations [R, G, m, m]; unused slots are zero and the ridge leaves them at γ = 0.
        gram = torch.stack([torch.stack([graph.dot(a, b) for b in dr], -1) for a in dr], -2)
        right = torch.stack([graph.dot(a, r) for a in dr], -1)
        size = gram.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(torch.finfo(h.dtype).tiny)
        eye = torch.eye(self.memory, dtype=h.dtype, device=h.device)
        gram = gram + self.ridge * size[..., None, None] * eye
        gamma = torch.linalg.solve_ex(gram, right.unsqueeze(-1))[0][..., 0]
        gamma = torch.where(torch.isfinite(gamma), gamma, 0.0)
        new = image
        for i in range(self.memory):
            new = new - graph.wide(gamma[..., i]) * df[i]
        new = torch.where(graph.wide(active), new, h)
        new_image = problem.step(new)
        out = self.fixed_point_state(problem, new, new_image)

        # Safeguard: where the residual grew past ten times the best, restart from a Picard step.
        worse = ~(out.graphs["residual"] <= 10.0 * state.graphs["best"]) & active
        if bool(worse.any()):
            new = torch.where(graph.wide(worse), image, new)
            new_image = problem.step(new)
            out = self.fixed_point_state(problem, new, new_image)
        fresh_r, fresh_f = (new_image - new) - r, new_image - image
        keep, drop = graph.wide(active), graph.wide(worse)
        for name, old, fresh in (("dr", dr, fresh_r), ("df", df, fresh_f)):
            shifted = torch.where(keep, torch.cat([old[1:], fresh[None]]), old)
            out.nodes[name] = torch.where(drop, 0.0, shifted)
        out.graphs["best"] = torch.minimum(state.graphs["best"], out.graphs["residual"])
        return out
