"""Linear systems with Hessians and tangents: the structure and size of the graphs decide how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.errors import ConfigError, require_one_of
from hogwild.graph import Graph
from hogwild.linalg import direct
from hogwild.linalg.krylov import (
    LinearMap,
    System,
    bicgstab,
    block_jacobi,
    cg,
    cg_transposed,
    richardson,
)
from hogwild.linalg.operator import Hessian, NormalEquations, Posed, Tangent
from hogwild.linalg.solution import Solution

LINEAR = ("auto", "direct", "cg")
REFINEMENTS = 2
"""Largest number of corrections of a direct solve with a tangent."""
SLACK = 10.0
"""The residual of a sum may exceed the tolerance of its parts by this factor."""


@dataclass(frozen=True)
class LinearSolver:
    """How ``H x = b`` is solved.

    Args:
        kind: ``"direct"``: by a factorisation, for graphs with small separators. ``"cg"``: by
            conjugate gradients with block-Jacobi preconditioning. ``"auto"``: the cheaper one.
        max_iter: Iterations of conjugate gradients after which a graph is given up.
    """

    kind: str = "auto"
    max_iter: int = 2000

    def __post_init__(self) -> None:
        require_one_of(LINEAR, linear=self.kind)

    def solve(
        self, hessian: Hessian, rhs: Tensor, rtol: float | Tensor, floor: float = 0.0
    ) -> Solution:
        """``H⁻¹ b``; a factorisation is exact, whatever the tolerances of :func:`cg`."""
        entries = None if self.kind == "cg" else hessian.entries()
        shared = entries and direct.factor_of_edges(hessian.graph, *entries)
        if shared is not None:
            return self.exactly(shared.solve(rhs), hessian.graph)
        factor = self._factor(hessian, rhs)
        if factor is not None:
            return self.exactly(factor.solve(rhs), hessian.graph)
        return cg(
            System(hessian.apply, rhs, hessian.graph, rtol),
            precondition=block_jacobi(hessian),
            floor=floor,
            max_iter=self.max_iter,
        )

    @staticmethod
    def exactly(x: Tensor, graph: Graph) -> Solution:
        """An exact result, as a solution."""
        nothing = 0.0 * graph.norm(x)  # NaN where x is not finite
        return Solution.of(x, nothing, 0.0, torch.ones_like(nothing, dtype=torch.long))

    def solve_tangent(
        self, tangent: Tangent, rhs: Tensor, rtol: float | Tensor, *, transpose: bool = False
    ) -> Solution:
        r""":math:`(I - J)^{-1} b`, or with the transpose.

        The first of these that applies: the inverse in closed form; a factorisation of the normal
        equations, where the graph has small separators; plain iterations, then BiCGSTAB where these
        are slow, then conjugate gradients where that breaks down. The corrections of the iterative
        methods add up, so that a residual of ``SLACK`` times the tolerance passes.
        """
        apply = tangent.transpose if transpose else tangent.apply
        system = System(apply, rhs, tangent.graph, rtol)
        direct = self._direct(tangent, rhs, transpose)
        if direct is not None:
            x = direct(rhs)
            for more in reversed(range(REFINEMENTS + 1)):
                r = system.residual(x)
                norm = system.norm(r)
                if not more or bool((norm <= system.limit).all()):
                    break
                x = x + direct(r)
            return Solution.of(x, norm, system.limit, torch.ones_like(norm, dtype=torch.long))
        found = richardson(system)
        back = tangent.apply if transpose else tangent.transpose
        for method in (bicgstab, lambda part: cg_transposed(part, back)):  # fast, then sure
            if bool(found.converged.all()):
                break
            found = _refined(system, found, method)
        return found

    def _direct(self, tangent: Tangent, rhs: Tensor, transpose: bool) -> LinearMap | None:
        r""":math:`(I - J)^{-1}` to rounding, where there is a direct way."""
        # The factor of the normal equations MᵀM is kept with the tangent.
        if self.kind not in tangent.factors:
            tangent.factors[self.kind] = self._factor(NormalEquations(tangent.graph, tangent), rhs)
        factor = tangent.factors[self.kind]
        if factor is None:
            return None
        if transpose:
            return lambda b: tangent.apply(factor.solve(b))
        return lambda b: factor.solve(tangent.transpose(b))

    def is_direct(self, problem: Posed) -> bool:
        """Whether the Hessians (or tangents) of this problem are factorised."""
        shape = (problem.replicas, problem.channels)
        return problem.has_blocks and self.factorises(problem.graph, *shape)

    def factorises(self, graph: Graph, replicas: int, channels: int) -> bool:
        """Whether Hessians with the pattern of this graph are factorised."""
        force = self.kind == "direct"
        return self.kind != "cg" and direct.is_factorised(graph, channels, replicas, force=force)

    def _factor(self, hessian: Hessian, rhs: Tensor) -> direct.Factor | None:
        """The factor of a matrix; ``None`` where Krylov methods are to be used."""
        replicas, channels, _ = rhs.shape
        if hessian.has_blocks and self.factorises(hessian.graph, replicas, channels):
            return direct.factor(hessian.graph, *hessian.blocks())
        if self.kind == "direct":
            raise ConfigError(
                "linear='direct' was given, but this graph has no small separators; expected "
                "linear='auto' or 'cg'"
            )
        return None


def _refined(system: System, found: Solution, method: Callable[[System], Solution]) -> Solution:
    """A solution with a correction on graphs that have not converged.

    A graph whose residual has grown starts again from zero, since correcting a huge error is not
    exact. A correction that does not lower the residual is dropped.
    """
    graph, rhs = system.graph, system.rhs
    done = graph.wide(found.converged)
    left = system.residual(found.value)
    useful = graph.wide(graph.dot(left, left) < graph.dot(rhs, rhs))  # false for NaN
    start = torch.where(done | useful, found.value, 0.0)
    left = torch.where(useful, left, rhs)
    part = replace(system, rhs=torch.where(done, 0.0, left), rtol=0.0, atol=system.limit)
    more = method(part)
    x = start + more.value
    before, after = system.norm(left), system.norm(system.residual(x))
    worse = ~(after <= before)  # true for NaN
    x = torch.where(graph.wide(worse), start, x)
    residual = torch.where(found.converged, found.residual, torch.where(worse, before, after))
    out = Solution.of(x, residual, SLACK * system.limit, found.iterations + more.iterations)
    return replace(out, status=torch.where(found.converged, found.status, out.status))
