r"""Implicit differentiation: the gradient of a loss through a solve, by one linear system.

At the solution the residual vanishes, :math:`g(h^*, \theta) = 0`, with :math:`g = \nabla_h E` for
an energy and :math:`g = F(h) - h` for a fixed point. For a loss :math:`\mathcal L(h^*)`,

.. math::
    \Bigl(\frac{\partial g}{\partial h}\Bigr)^{\!\top} \lambda
        = \frac{\partial \mathcal L}{\partial h^*}, \qquad
    \frac{d \mathcal L}{d \theta} = - \lambda^\top \frac{\partial g}{\partial \theta}.

:func:`differentiable` evaluates the residual once, at the detached solution and with autograd on.
The backward pass solves for :math:`\lambda` and gives :math:`-\lambda` to the residual as its
gradient. No iteration of the solver is recorded, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hogwild.errors import ON_FAILURE, ConvergenceError, require_one_of
from hogwild.kernels.dense import applied
from hogwild.linalg.capture import replay
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.solution import Solution
from hogwild.ops import all_finite, precise
from hogwild.problems.base import FixedPoint, Objective, Problem

Backward = Callable[[Tensor], tuple[Solution, tuple[Tensor | None, ...]]]
"""From :math:`\\partial L / \\partial h^*` [R, k, N] to how the adjoint solve ended, and to the
gradients of the tensors that the solution depends on."""


@dataclass(frozen=True)
class Adjoint:
    """How the adjoint system is solved.

    Args:
        linear: The linear solver.
        rtol: Relative tolerance of iterative linear solvers; ``None`` is 1e-10 in float64 and 1e-5
            in float32.
    """

    linear: LinearSolver = field(default_factory=LinearSolver)
    rtol: float | None = None

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative tolerance for this dtype."""
        if self.rtol is not None:
            return self.rtol
        return 1e-10 if dtype == torch.float64 else 1e-5


def differentiable(
    problem: Problem, h: Tensor, adjoint: Adjoint | None = None, on_failure: str = "raise"
) -> Tensor:
    r"""The solution ``h`` [R, k, N] as a differentiable function of all that the problem is made
    of.

    The system of an energy is solved by the factorisation of Newton's method, or by conjugate
    gradients; the system of a fixed point by :meth:`LinearSolver.solve_tangent`, unless the problem
    knows its adjoint in closed form.

    Args:
        problem: The problem, attached to autograd.
        h: Its solution.
        adjoint: How the linear system is solved.
        on_failure: What happens if the linear solve misses its tolerance, as in
            :class:`~hogwild.models.ImplicitConv`.
    """
    h, adjoint = h.detach(), adjoint or Adjoint()
    linear, rtol = adjoint.linear, adjoint.tolerance(h.dtype)
    if isinstance(problem, Objective):
        at = problem.evaluate(h)  # the Hessian uses its intermediate results, too
        residual = at.gradient

        def dual(grad: Tensor) -> Solution:
            if grad.is_cuda and linear.is_direct(problem):
                key = (differentiable, linear)
                found = replay(key, factor_and_solve, problem.detach(), h, grad)
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
    if not residual.requires_grad:
        return h

    def backward(grad: Tensor) -> tuple[Solution, tuple[Tensor]]:
        found = dual(grad)
        return found, (-found.value,)

    return attach(h, (residual,), backward, on_failure)


def attach(
    h: Tensor, tensors: Sequence[Tensor | None], backward: Backward, on_failure: str
) -> Tensor:
    """The solution ``h`` as a function of ``tensors``, whose gradients ``backward`` computes."""
    require_one_of(ON_FAILURE, on_failure=on_failure)
    out: Tensor = applied(_Attach, h, backward, on_failure, *tensors)
    return out


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, backward: Backward, on_failure: str, *tensors: Tensor | None
    ) -> Tensor:
        ctx.solved, ctx.on_failure = backward, on_failure
        ctx.save_for_backward(*tensors)  # autograd then notices changes in place
        return h.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        with precise(grad.device.type):
            found, gradients = ctx.solved(grad)
        if ctx.on_failure != "ignore" and found.failed:
            if ctx.on_failure == "raise" and not all_finite(grad):
                raise ConvergenceError(
                    "the gradient of the loss holds NaN or infinite values before it reaches the "
                    "embeddings, so that no solve can help: look for NaN in the targets (y), and "
                    "at the loss"
                )
            found.check(ctx.on_failure, what="adjoint solve")
        return None, None, None, *gradients
