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

**Higher derivatives.** Where autograd records the backward pass (``create_graph=True``),
:math:`\lambda` is itself attached as a solution: its residual is

.. math:: g'(\lambda; v, h, \theta)
    = \Bigl(\frac{\partial g}{\partial h}\Bigr)^{\!\top} \lambda - v, \qquad
    v = \frac{\partial \mathcal L}{\partial h^*},

and torch computes :math:`- \lambda^\top \partial g / \partial \theta` by operations that it can
differentiate in :math:`\lambda`, in the attached solution :math:`h^*` and in :math:`\theta`. This
holds for derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from hogwild.errors import ON_FAILURE, ConvergenceError, UnsupportedError, require_one_of
from hogwild.kernels.native import applied, batched, by_torch
from hogwild.linalg.linear import LinearSolver
from hogwild.linalg.solution import Solution
from hogwild.ops import all_finite, precise
from hogwild.problems.base import FixedPoint, Objective, Problem

Backward = Callable[[Tensor, Tensor], tuple[Solution, tuple[Tensor | None, ...]]]
"""From the solution and :math:`\\partial L / \\partial h^*` [R, k, N] to how the adjoint solve
ended, and to the gradients of the tensors that the solution depends on."""
Build = Callable[[Sequence[Tensor | None]], Problem]
"""The problem that is made of some tensors, attached to them."""
Solve = Callable[[Tensor, bool], Solution]
"""The solution of the transposed system :math:`(\\partial g / \\partial h)^\\top \\lambda = v`
(true), or of the system itself (false)."""

Systems = Callable[[Problem, Tensor], Solve]
"""The linear systems of a detached problem at its solution h."""
P = TypeVar("P", bound=Problem)


def tolerance(rtol: float | None, dtype: torch.dtype, wanted: torch.dtype) -> float:
    """The relative tolerance of an adjoint solve: ``rtol``, or by default 1e-10 in float64 and 1e-5
    in float32. Where gradients are ``wanted`` in float32, which has no more digits, a solve in
    float64 ends at 1e-6."""
    if rtol is not None:
        return rtol
    if dtype != torch.float64:
        return 1e-5
    return 1e-10 if wanted == torch.float64 else 1e-6


@dataclass(frozen=True)
class Adjoint:
    """How the adjoint system is solved.

    Args:
        linear: The linear solver.
        rtol: Relative tolerance of iterative linear solvers; ``None`` is the default of
            :func:`tolerance`.
    """

    linear: LinearSolver = field(default_factory=LinearSolver)
    rtol: float | None = None

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative tolerance of a solve in this dtype."""
        return tolerance(self.rtol, dtype, dtype)

    def at(self, problem: Problem, h: Tensor) -> Solve:
        """The linear systems of a detached problem at its solution ``h``."""
        linear, rtol = self.linear, self.tolerance(h.dtype)
        if isinstance(problem, Objective):
            hessian = problem.evaluate(h).hessian()
            return lambda v, _: linear.solve(hessian, v, rtol)  # symmetric
        assert isinstance(problem, FixedPoint)

        def solve(v: Tensor, transpose: bool) -> Solution:
            known = problem.adjoint(h, v) if transpose else None
            if known is not None:
                return linear.exactly(known, problem.graph)
            return linear.solve_tangent(problem.linearise(h), -v, rtol, transpose=transpose)

        return solve


def differentiable(
    problem: Problem, h: Tensor, adjoint: Adjoint | None = None, on_failure: str = "raise"
) -> Tensor:
    r"""The solution ``h`` [R, k, N] as a differentiable function of all that the problem is made
    of.

    The system of an energy is solved by the factorisation of Newton's method, or by conjugate
    gradients; the system of a fixed point by :meth:`LinearSolver.solve_tangent`, unless the problem
    knows its adjoint in closed form.

    Args:
        problem: The problem, attached to autograd. Derivatives of second and higher order exist in
            its fields (:func:`~hogwild_node.tree.over`).
        h: Its solution.
        adjoint: How the linear system is solved.
        on_failure: What happens if the linear solve misses its tolerance, as in
            :class:`~hogwild.models.ImplicitConv`.
    """
    h, adjoint = h.detach(), adjoint or Adjoint()
    linear, rtol = adjoint.linear, adjoint.tolerance(h.dtype)
    sources = problem.sources
    if isinstance(problem, Objective):
        at = problem.evaluate(h)  # the Hessian uses its intermediate results, too
        residual = at.gradient

        def dual(grad: Tensor) -> Solution:
            return linear.solve(at.hessian(), grad, rtol)

    elif isinstance(problem, FixedPoint):
        residual, solve = problem.residual(h), adjoint.at(problem.detach(), h)

        def dual(grad: Tensor) -> Solution:
            return solve(grad, True)

    else:
        raise TypeError(f"expected an Objective or a FixedPoint, got {type(problem).__name__}")
    if not residual.requires_grad:
        return h

    def backward(_: Tensor, grad: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        found = dual(grad)
        return found, (-found.value, *[None] * len(sources))

    require_one_of(ON_FAILURE, on_failure=on_failure)
    return attach(
        h, (residual, *sources), backward, lambda given: rebuilt(problem, sources, given[1:]),
        adjoint.at, on_failure,
    )  # fmt: skip


def rebuilt(problem: P, sources: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> P:
    """The problem that has these tensors in place of its sources."""
    known = {id(x): y for x, y in zip(sources, given, strict=True) if x is not None}
    return problem.map(lambda x: known.get(id(x), x))


def attach(
    h: Tensor,
    tensors: Sequence[Tensor | None],
    backward: Backward,
    build: Build,
    systems: Systems,
    on_failure: str,
) -> Tensor:
    """The solution ``h`` as a function of ``tensors``, whose gradients ``backward`` computes.
    Derivatives of higher order are those of the problem that ``build`` makes of the tensors;
    ``systems`` are its linear systems."""

    def residual(h: Tensor, *tensors: Tensor | None) -> Tensor:
        found = build(tensors).residual(h)
        _require_known(found, (h, *tensors))
        return found

    def solver(h: Tensor, *tensors: Tensor | None) -> Solve:
        return systems(build(tensors).detach(), h)

    out: Tensor = applied(_Attach, h, _Implicit(residual, solver, on_failure, backward), *tensors)
    return out


@dataclass(frozen=True)
class _Implicit:
    """A solution h of :math:`g(h, \\theta) = 0` as autograd differentiates it.

    Attributes:
        residual: :math:`g(h, \\theta)`, by operations of torch.
        solver: From h and θ, both detached, to the linear systems at h.
        on_failure: What happens if a linear solve misses its tolerance.
        backward: A faster way to the first derivatives, if there is one.
    """

    residual: Callable[..., Tensor]
    solver: Callable[..., Solve]
    on_failure: str
    backward: Backward | None = None

    def dual(self, solve: Solve) -> _Implicit:
        r""":math:`\lambda` as a solution that depends on v, h and θ, where ``solve`` solves the
        linear systems at h."""

        def residual(dual: Tensor, v: Tensor, h: Tensor, *tensors: Tensor | None) -> Tensor:
            h = h.view_as(h)
            found = self.residual(h, *tensors)
            (pulled,) = torch.autograd.grad(found, h, dual, create_graph=True)
            return pulled - v

        def solver(*_: Tensor | None) -> Solve:
            return lambda v, transpose: solve(v, not transpose)

        return _Implicit(residual, solver, self.on_failure)

    def checked(self, found: Solution, grad: Tensor) -> Solution:
        """A linear solve that has converged, unless it need not."""
        if self.on_failure != "ignore" and found.failed:
            if self.on_failure == "raise" and not all_finite(grad):
                raise ConvergenceError(
                    "the gradient of the loss holds NaN or infinite values before it reaches the "
                    "embeddings, so that no solve can help: look for NaN in the targets (y), and "
                    "at the loss"
                )
            found.check(self.on_failure, what="adjoint solve")
        return found


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, one: _Implicit, *tensors: Tensor | None) -> Tensor:
        out = h.clone()
        ctx.one = one
        ctx.save_for_backward(out, *tensors)  # autograd then notices changes in place
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        one: _Implicit = ctx.one
        if batched(grad):
            raise UnsupportedError(
                "many gradients of a solve were wanted at once (vectorize=True, "
                "is_grads_batched=True or torch.func.vmap); expected one after the other, "
                "vectorize=False"
            )
        h, *tensors = ctx.saved_tensors
        with precise(grad.device.type):
            if one.backward is not None and not torch.is_grad_enabled():
                found, gradients = one.backward(h, grad)
                one.checked(found, grad)
                return None, None, *gradients
            with torch.no_grad():
                solve = one.solver(*(None if x is None else x.detach() for x in (h, *tensors)))
                dual = one.checked(solve(grad.detach(), True), grad).value
            if torch.is_grad_enabled():
                dual = applied(_Attach, dual, one.dual(solve), grad, h, *tensors)
            wanted = (False, *ctx.needs_input_grad[2:])
            return None, None, *by_torch(one.residual, (h, *tensors), wanted, -dual)[1:]


def _require_known(residual: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """Raise if a residual depends on a leaf of autograd that is none of these tensors: a second
    derivative would silently lack a term."""
    given = [x for x in tensors if x is not None and x.requires_grad]
    seen = {x.grad_fn for x in given}
    left = [residual.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not any(leaf is x for x in given):
            raise UnsupportedError(
                f"the problem reads a tensor of shape {list(leaf.shape)} that is none of its "
                f"fields, so that second derivatives (create_graph=True) would lack a term; "
                f"expected a field of the dataclass for every tensor that needs a gradient "
                f"(hogwild_node.tree.over declares it)"
            )
        left += [function for function, _ in node.next_functions]
