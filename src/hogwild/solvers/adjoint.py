r"""Implicit differentiation: the dual system of the paper's appendix, and nothing else.

At the solution the residual vanishes, :math:`g(h^*, \theta) = 0`, with :math:`g = \nabla_h E` for
an energy and :math:`g = F(h) - h` for a fixed point. For a loss :math:`\mathcal L(h^*)`,

.. math::
    \Bigl(\frac{\partial g}{\partial h}\Bigr)^{\!\top} \lambda
        = \frac{\partial \mathcal L}{\partial h^*}, \qquad
    \frac{d \mathcal L}{d \theta} = - \lambda^\top \frac{\partial g}{\partial \theta}.

:func:`attach` takes the *residual tensor*, evaluated once at the detached solution with autograd
on: its backward solves for :math:`\lambda` and hands :math:`-\lambda` to the residual as its
gradient, and autograd finds the parameters, features, edge features and edge weights by itself.
Memory does not grow with the number of solver iterations: none of them is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hogwild.errors import ConvergenceError
from hogwild.linalg.capture import replay
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.solution import Solution, check_on_failure
from hogwild.problems.base import FixedPoint, Objective, Problem

DualSolve = Callable[[Tensor], Solution]
"""From :math:`\\partial L / \\partial h^*` [R, k, N] to a :class:`Solution` holding λ."""


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, h: Tensor, dual: DualSolve, on_failure: str) -> Tensor:
        ctx.dual, ctx.on_failure = dual, on_failure
        return h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with torch.autocast(grad.device.type, enabled=False):
            found: Solution = ctx.dual(grad)
        failed = ctx.on_failure == "raise" and not bool(found.converged.all())
        if failed and not bool(torch.isfinite(grad).all()):
            raise ConvergenceError(
                "the gradient of the loss holds NaN or infinite values before it reaches the "
                "embeddings, so that no solve can help: look for NaN in the targets (y), and at "
                "the loss"
            )
        found.check(ctx.on_failure, what="adjoint solve")
        return -found.value, None, None, None


def attach(residual: Tensor, h: Tensor, dual: DualSolve, on_failure: str = "raise") -> Tensor:
    """The solution ``h`` as a differentiable function of whatever ``residual`` depends on.

    Args:
        residual: g(h, θ) at the detached solution, [R, k, N], with its autograd graph.
        h: The detached solution, [R, k, N].
        dual: Solves the dual system; its status is checked, a failure is never silent.
        on_failure: ``"raise"``, ``"warn"`` or ``"ignore"``.
    """
    out: Tensor = _Attach.apply(residual, h, dual, check_on_failure(on_failure))
    return out


def differentiable(
    problem: Problem, h: Tensor, linear: LinearSolver, rtol: float, on_failure: str = "raise"
) -> Tensor:
    """The solution ``h`` [R, k, N] of a problem, as a differentiable function of all it depends on.

    An energy's Hessian is symmetric and positive definite: its dual system is solved with the
    Newton factor or CG. A fixed point's :math:`J^\\top - I` is neither: GMRES,
    unless the problem knows its adjoint.

    Args:
        problem: The problem, attached to autograd.
        h: Its detached solution.
        linear: Solver for Hessian systems.
        rtol: Relative tolerance of the dual system.
    """
    h = h.detach()
    if isinstance(problem, Objective):
        at = problem.evaluate(h)  # its intermediate results serve the Hessian, too
        residual = at.gradient

        def dual(grad: Tensor) -> Solution:
            if grad.is_cuda and linear.is_direct(problem):
                found = replay(f"dual-{linear.kind}", factor_and_solve, problem.detach(), h, grad)
                if found is not None:
                    return linear.exactly(found[0], problem.graph)
            return linear.solve(at.hessian(), grad, rtol)

        def factor_and_solve(problem: Objective, h: Tensor, grad: Tensor) -> tuple[Tensor]:
            return (linear.solve(problem.evaluate(h).hessian(), grad, rtol).value,)

    elif isinstance(problem, FixedPoint):
        residual, cut = problem.residual(h), problem.detach()

        def dual(grad: Tensor) -> Solution:
            with torch.no_grad():
                known = cut.adjoint(h, grad)
                if known is not None:
                    return linear.exactly(known, cut.graph)
                return linear.solve_tangent(cut.linearise(h), -grad, rtol, transpose=True)

    else:
        raise TypeError(f"expected an Objective or a FixedPoint, got {type(problem).__name__}")
    return attach(residual, h, dual, on_failure) if residual.requires_grad else h
