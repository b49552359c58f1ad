"""Solving with the Hessian: one choice, made by the structure and size of the graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.errors import ConfigError
from hogwild.graph import Graph
from hogwild.linalg import fronts
from hogwild.linalg.krylov import (
    LinearMap,
    bicgstab,
    block_jacobi,
    cg,
    gmres,
    richardson,
    solution,
)
from hogwild.linalg.normal import NormalEquations
from hogwild.linalg.operator import Hessian, Posed, Tangent
from hogwild.linalg.solution import Solution, Status

LINEAR = ("auto", "direct", "cg")
_NO_SEPARATORS = (
    "linear='direct' was asked for, but this graph has no small separators (or the energy has "
    "several rounds): use linear='auto' or 'cg'"
)
REFINEMENTS = 2
"""Corrections of a direct solve with a tangent whose residual is too large."""
SLACK = 10.0
"""The residual of a sum may exceed the tolerance its parts were computed with by this factor."""


@dataclass(frozen=True)
class LinearSolver:
    """How ``H x = b`` is solved: a direct factorisation where the graph has small separators
    (dense where it is small), conjugate gradients with block-Jacobi preconditioning otherwise."""

    kind: str = "auto"
    max_iter: int = 2000

    def __post_init__(self) -> None:
        if self.kind not in LINEAR:
            raise ConfigError(f"linear={self.kind!r}; expected one of {LINEAR}")

    def solve(
        self,
        hessian: Hessian,
        rhs: Tensor,
        rtol: float | Tensor,
        atol: float | Tensor = 0.0,
    ) -> Solution:
        """``H⁻¹ b``; a direct factorisation is exact whatever the tolerances."""
        if self.kind != "cg":
            factor = self._factor(hessian, rhs)
            if factor is not None:
                return self.exactly(factor.solve(rhs), hessian.graph)
            if self.kind == "direct":
                raise ConfigError(_NO_SEPARATORS)
        return cg(
            hessian.apply,
            rhs,
            hessian.graph,
            precondition=block_jacobi(hessian),
            rtol=rtol,
            atol=atol,
            max_iter=self.max_iter,
        )

    @staticmethod
    def exactly(x: Tensor, graph: Graph) -> Solution:
        """The result of a factorisation, as a solution."""
        once = torch.ones(x.size(0), graph.num_graphs, dtype=torch.long, device=x.device)
        finite = torch.isfinite(graph.norm(x))
        status = torch.where(finite, int(Status.CONVERGED), int(Status.NOT_FINITE))
        return Solution(x, status, once, torch.zeros_like(once, dtype=x.dtype))

    def solve_tangent(
        self, tangent: Tangent, rhs: Tensor, rtol: float | Tensor, *, transpose: bool = False
    ) -> Solution:
        r""":math:`(I - J)^{-1} b`, or with the transpose: in closed form where there is one, by a
        factorisation of the normal equations where the graph has small separators, else by plain
        iterations, by BiCGSTAB where these are slow, and by GMRES where that breaks down. Of these
        a residual of ``SLACK`` times what was asked for passes, since they add up.
        """
        graph = tangent.graph
        apply = tangent.transpose if transpose else tangent.apply
        limit = rtol * graph.dot(rhs, rhs).sqrt()
        direct = self._direct(tangent, rhs, transpose)
        if direct is not None:
            x = direct(rhs)
            for more in reversed(range(REFINEMENTS + 1)):
                r = rhs - apply(x)
                residual = graph.dot(r, r).sqrt()
                if not more or bool((residual <= limit).all()):
                    break
                x = x + direct(r)
            return solution(x, residual, limit, torch.ones_like(residual, dtype=torch.long))
        found = richardson(apply, rhs, graph, rtol=0.0, atol=limit)
        for method in (bicgstab, gmres):  # the fast one, then the sure one
            if bool(found.converged.all()):
                break
            found = _refined(apply, rhs, graph, limit, found, method)
        return found

    def _direct(self, tangent: Tangent, rhs: Tensor, transpose: bool) -> LinearMap | None:
        r""":math:`(I - J)^{-1}` to rounding, where it can be had."""
        if tangent.has_inverse:
            return lambda b: tangent.inverse(b, transpose)
        if self.kind == "cg":
            return None
        # The factor of the normal equations MᵀM is kept with the tangent.
        if self.kind not in tangent.factors and tangent.has_blocks:
            tangent.factors[self.kind] = self._factor(NormalEquations(tangent.graph, tangent), rhs)
        factor = tangent.factors.get(self.kind)
        if factor is None and self.kind == "direct":
            raise ConfigError(_NO_SEPARATORS)
        if factor is None:
            return None
        if transpose:
            return lambda b: tangent.apply(factor.solve(b))
        return lambda b: factor.solve(tangent.transpose(b))

    def is_direct(self, problem: Posed) -> bool:
        """Whether a Hessian (or tangent) of this problem will be factorised."""
        if self.kind == "cg" or not problem.has_blocks:
            return False
        force = self.kind == "direct"
        plan = fronts.plan_for(problem.graph, problem.channels, problem.replicas, force=force)
        return plan is not None

    def _factor(self, hessian: Hessian, rhs: Tensor) -> fronts.Factor | None:
        if not hessian.has_blocks:
            return None
        replicas, channels, _ = rhs.shape
        force = self.kind == "direct"
        plan = fronts.plan_for(hessian.graph, channels, replicas, force=force)
        return None if plan is None else plan.factor(*hessian.blocks())


def _refined(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    limit: Tensor,
    found: Solution,
    method: Callable[..., Solution],
) -> Solution:
    """A solution with a correction where it had not converged; with a new one where it had gone
    astray, since what cancels something huge is not exact. What counts is the residual of the
    sum."""
    done = graph.wide(found.converged)
    left = rhs - apply(found.value)
    useful = graph.dot(left, left) < graph.dot(rhs, rhs)  # false where not a number
    start = torch.where(done | graph.wide(useful), found.value, 0.0)
    left = torch.where(graph.wide(useful), left, rhs)
    more = method(apply, torch.where(done, 0.0, left), graph, rtol=0.0, atol=limit)
    x = start + more.value
    after = rhs - apply(x)
    before, norm = (graph.dot(r, r).sqrt() for r in (left, after))
    worse = ~(norm <= before)  # also where it is not a number
    x = torch.where(graph.wide(worse), start, x)
    residual = torch.where(found.converged, found.residual, torch.where(worse, before, norm))
    out = solution(x, residual, SLACK * limit, found.iterations + more.iterations)
    return replace(out, status=torch.where(found.converged, found.status, out.status))
