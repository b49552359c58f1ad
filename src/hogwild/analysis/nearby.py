r"""The Hessian of an energy in a box around a point, between proved bounds.

For all embeddings :math:`h'` with :math:`|h'_a - h_a| \le s_a`, entry by entry,

.. math:: |\nabla^2 E(h') - \nabla^2 E(h)| \le R(s), \qquad
          \sum_j |\nabla^2 e^j(h') - \nabla^2 e^j(h)| \le R(s).

:math:`\nabla^2 E(h)` is the true Hessian, and :math:`R(s)` is proved
(:meth:`hogwild_node.local.LocalEnergy.variation`). The comparison matrix M of the box has the least
possible diagonal and minus the largest possible couplings. If :math:`M w > 0` for some
:math:`w > 0`, then M is an M-matrix, every Hessian in the box is *scaled diagonally dominant*, and
:math:`|\nabla^2 E(h')^{-1}| \le M^{-1}`.

Unknowns are ordered node by node: entry a is channel a mod k of node a div k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import splu
from torch import Tensor

from hogwild.problems.base import Objective
from hogwild_node.local import LocalQuadratic

Matrix: TypeAlias = csr_matrix
ROUNDING = 1e-12
"""Share of all terms that is added to R for rounding errors."""


@dataclass(frozen=True)
class Nearby:
    """An energy near the embeddings ``h`` [R, k, N]."""

    problem: Objective
    h: Tensor

    @property
    def known(self) -> bool:
        """Whether bounds on the change of the Hessian are known."""
        return self.problem.is_quadratic or self._variation(torch.zeros_like(self.h)) is not None

    def hessians(self) -> tuple[list[Matrix], list[Matrix]]:
        r"""For each replica the Hessian :math:`\sum_j \nabla^2 e^j`, and the sum of absolute values
        :math:`\sum_j |\nabla^2 e^j|`."""
        everyone = self.problem.graph.everyone
        model = self.problem.node.quadratic(self.h, everyone.current(self.h), everyone)
        return assemble(model, self.problem), assemble(model, self.problem, absolute=True)

    def variation(self, reach: Tensor) -> list[Matrix]:
        """R(s) for each replica, where s is the ``reach`` [R, k, N]."""
        found = self._variation(reach)
        if found is None:
            size = self.h[0].numel()
            return [csr_matrix((size, size)) for _ in self.h]
        upper, lower = (assemble(model, self.problem, absolute=True) for model in found)
        return [abs(a - b) + ROUNDING * a for a, b in zip(upper, lower, strict=True)]

    def _variation(self, reach: Tensor) -> tuple[LocalQuadratic, LocalQuadratic] | None:
        everyone = self.problem.graph.everyone
        views = everyone.current(self.h), everyone.current(reach)
        return self.problem.node.variation(self.h, views[0], everyone, (reach, views[1]))


def flat(x: Tensor) -> np.ndarray:
    """Entries node by node: [R, k, N] -> [R, N k]."""
    found: np.ndarray = x.detach().cpu().double().movedim(-1, 1).flatten(1).numpy()
    return found


def unflat(x: np.ndarray, like: Tensor) -> Tensor:
    """The inverse of :func:`flat`, on the device of ``like`` [R, k, N]."""
    r, k, n = like.shape
    return torch.as_tensor(x).reshape(r, n, k).movedim(1, -1).to(like)


def assemble(model: LocalQuadratic, problem: Objective, absolute: bool = False) -> list[Matrix]:
    """The sum of the Hessians of all nodes' models, or of their absolute values, one matrix
    [N k, N k] for each replica."""
    graph = problem.graph
    src, dst, nodes = graph.src, graph.dst, torch.arange(graph.num_nodes, device=graph.src.device)
    pattern, through = graph.pattern, model.through()
    wedges = torch.einsum(
        "rcaw,rcbw->rabw", model.j[..., pattern.left], through[..., pattern.right]
    )
    parts = [
        (nodes, nodes, model.b),
        (dst, src, model.x),
        (src, dst, model.x.transpose(1, 2)),
        (src, src, model.toward_curvature()),
        (src[pattern.left], src[pattern.right], wedges),
        (src[pattern.right], src[pattern.left], wedges.transpose(1, 2)),
    ]
    rows = torch.cat([row for row, _, _ in parts]).cpu().numpy()
    cols = torch.cat([col for _, col, _ in parts]).cpu().numpy()
    values = torch.cat([block.double() for _, _, block in parts], -1).movedim(-1, 1).cpu().numpy()
    k, size = values.shape[-1], values.shape[-1] * graph.num_nodes
    inner = np.arange(k)
    i = np.broadcast_to(k * rows[:, None, None] + inner[:, None], values.shape[1:]).ravel()
    j = np.broadcast_to(k * cols[:, None, None] + inner, values.shape[1:]).ravel()
    values = np.abs(values) if absolute else values
    return [csr_matrix(coo_matrix((x.ravel(), (i, j)), shape=(size, size))) for x in values]


@dataclass(frozen=True)
class Dominance:
    r"""How far the couplings of every entry are outweighed by its own curvature.

    Attributes:
        ratio: A proved bound on the spectral radius of the couplings over the diagonal,
            :math:`\max_a \sum_{b \ne a} P_{ab} w_b / (d_a w_a)`. Below one, all Hessians are
            scaled diagonally dominant. Infinite where this fails.
        weights: w > 0, the largest is one, [n].
    """

    ratio: float
    weights: np.ndarray

    @property
    def holds(self) -> bool:
        """Whether scaled diagonal dominance is proved."""
        return self.ratio < 1.0


def dominance(diagonal: np.ndarray, couplings: Matrix, passes: int = 30) -> Dominance:
    """Find weights for which the diagonal [n] outweighs the nonnegative couplings [n, n].

    The Perron vector of the couplings over the diagonal is the best choice. It is found by inverse
    iteration, which begins at equal weights and stops once it gains little.
    """
    none = Dominance(np.inf, np.ones_like(diagonal))
    if not (diagonal > 0.0).all():
        return none
    try:
        factor = splu((diags(diagonal) - couplings).tocsc())
    except RuntimeError:  # exactly singular
        return none
    best, w = none, np.ones_like(diagonal)
    for _ in range(passes):
        w = factor.solve(diagonal * w)
        if not (np.isfinite(w).all() and (w > 0.0).all()):
            return none if not best.holds else best
        w = w / w.max()
        found = Dominance(float((couplings @ w / (diagonal * w)).max()), w)
        gained = (1.0 - found.ratio) > 1.05 * (1.0 - best.ratio)
        best = found if found.ratio < best.ratio else best
        if not gained:
            break
    return best


def split(matrix: Matrix) -> tuple[np.ndarray, Matrix]:
    """The diagonal of a matrix, and the rest."""
    diagonal = matrix.diagonal()
    return diagonal, csr_matrix(matrix - diags(diagonal))
