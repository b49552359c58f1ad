r"""Linear solves by matrix–vector products alone, one Krylov process for each graph and replica.

Inner products run over each graph's own nodes. Every graph has its own step lengths and stops by
its own residual: its answer does not depend on the other graphs of the batch. After ``max_iter``
iterations a graph is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian
from hogwild.linalg.solution import Solution
from hogwild.ops import mv

LinearMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class System:
    r"""Linear systems :math:`A x = b`, one on each graph and replica.

    A graph is solved when :math:`\|b - A x\|_2 \le \max(\text{rtol} \|b\|_2, \text{atol})`.

    Args:
        apply: A on [R, k, N], block diagonal over graphs.
        rhs: b, [R, k, N].
        graph: The graphs.
        rtol: Relative tolerance, a number or [R, G].
        atol: Absolute tolerance, likewise.
    """

    apply: LinearMap
    rhs: Tensor
    graph: Graph
    rtol: float | Tensor = 1e-10
    atol: float | Tensor = 0.0

    @cached_property
    def limit(self) -> Tensor:
        """The residual norm [R, G] at which a graph is solved."""
        norm = self.norm(self.rhs)
        atol = torch.as_tensor(self.atol, dtype=norm.dtype, device=norm.device)
        return torch.clamp_min(norm * self.rtol, atol)

    def norm(self, r: Tensor) -> Tensor:
        """Euclidean norm over each graph: [R, k, N] -> [R, G]."""
        return self.graph.dot(r, r).sqrt()

    def residual(self, x: Tensor) -> Tensor:
        """b − A x."""
        return self.rhs - self.apply(x)

    def begin(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""At x = 0: x, the residual norm, the graphs that are not solved yet, and the iterations
        so far."""
        norm = self.norm(self.rhs)
        count = torch.zeros(norm.shape, dtype=torch.long, device=norm.device)
        return torch.zeros_like(self.rhs), norm, (norm > self.limit) & torch.isfinite(norm), count


def idle(active: Tensor, iteration: int) -> bool:
    """Whether no graph moves any more; on a GPU only every eighth iteration asks, since reading a
    mask waits for the device."""
    return iteration % (8 if active.is_cuda else 1) == 0 and not bool(active.any())


def block_jacobi(hessian: Hessian) -> LinearMap:
    """Preconditioner: the inverse of every node's own k × k block, which is positive definite."""
    diagonal = hessian.diagonal()
    if diagonal is None:
        return lambda r: r
    inverse = torch.linalg.inv_ex(diagonal.permute(0, 3, 1, 2))[0]  # [R, N, k, k]
    inverse = inverse.permute(0, 2, 3, 1).contiguous()
    return lambda r: mv(inverse, r)


def cg(
    system: System,
    *,
    precondition: LinearMap = lambda r: r,
    floor: float = 0.0,
    max_iter: int = 1000,
) -> Solution:
    r"""Conjugate gradients, for symmetric positive definite A. ``precondition`` approximates
    :math:`A^{-1}`. A graph is also solved when :math:`\|b - A x\|_\infty` is at most ``floor``."""
    graph, limit, apply = system.graph, system.limit, system.apply
    x, residual, active, iterations = system.begin()
    r = system.rhs
    p = precondition(r)
    rz = graph.dot(r, p)
    active = active & (graph.norm(r) > floor)
    for i in range(max_iter):
        if idle(active, i):
            break
        ap = apply(p)
        step = torch.where(active, rz / graph.dot(p, ap), 0.0)
        wide = graph.wide(step)
        x = torch.addcmul(x, wide, p)
        r = torch.addcmul(r, wide, ap, value=-1.0)
        z = precondition(r)
        new_rz = graph.dot(r, z)
        ratio = torch.where(active, new_rz / rz, 0.0)
        p = torch.addcmul(z, graph.wide(ratio), p)
        rz = torch.where(active, new_rz, rz)
        residual = system.norm(r)
        iterations = iterations + active
        active = active & (residual > limit) & torch.isfinite(residual)
        if floor > 0.0:
            active = active & (graph.norm(r) > floor)
    # A graph that stopped before the last iteration met one of the two tolerances.
    limit = torch.where(active, limit, torch.maximum(limit, residual))
    return Solution.of(x, residual, limit, iterations)


def cg_transposed(system: System, transpose: LinearMap, *, max_iter: int = 1000) -> Solution:
    r"""Conjugate gradients for :math:`A A^\top y = b`, for any nonsingular A: :math:`x = A^\top y`.

    They never break down, and take the more iterations the worse A is conditioned.
    """
    found = cg(replace(system, apply=lambda y: system.apply(transpose(y))), max_iter=max_iter)
    return replace(found, value=transpose(found.value))


def bicgstab(system: System, *, max_iter: int = 1000) -> Solution:
    r"""Stabilised biconjugate gradients, for any nonsingular A.

    An iteration takes two products. It can break down: the status says on which graphs.
    """
    graph, limit, apply = system.graph, system.limit, system.apply
    x, norm, active, iterations = system.begin()
    r = shadow = p = system.rhs
    rho = norm.square()

    def ratio(a: Tensor, b: Tensor) -> Tensor:
        """a / b on active graphs; zero elsewhere and where a graph breaks down."""
        return torch.nan_to_num(torch.where(active, a / b, 0.0), 0.0, 0.0, 0.0)

    for i in range(max_iter):
        if idle(active, i):
            break
        v = apply(p)
        alpha = ratio(rho, graph.dot(shadow, v))
        wide = graph.wide(alpha)
        x, s = torch.addcmul(x, wide, p), torch.addcmul(r, wide, v, value=-1.0)
        t = apply(s)
        omega = ratio(*graph.dot(torch.stack([s, t]), t))
        wide = graph.wide(omega)
        x, r = torch.addcmul(x, wide, s), torch.addcmul(s, wide, t, value=-1.0)
        new, square = graph.dot(torch.stack([shadow, r]), r)
        beta = ratio(new * alpha, rho * omega)
        p = torch.addcmul(r, graph.wide(beta), torch.addcmul(p, wide, v, value=-1.0))
        rho = new
        iterations = iterations + active
        # Half the limit: the updated residual drifts from the true one, which is tested in the end.
        active = active & (square.sqrt() > 0.5 * limit) & (beta != 0)
    return Solution.of(x, system.norm(system.residual(x)), limit, iterations)


def richardson(system: System, *, max_iter: int = 48) -> Solution:
    r"""The plain iteration :math:`x \leftarrow x + (b - A x)`, for A near the identity.

    It is the cheapest method where it converges fast. A graph is given up as soon as ``max_iter``
    more iterations would not suffice at its present rate.
    """
    graph, limit, rhs = system.graph, system.limit, system.rhs
    x, residual, active, iterations = system.begin()
    r = rhs
    block = 4  # checking a step costs about as much as a step
    for _ in range(0, max_iter, block):
        if idle(active, 0):
            break
        y, s = x, r
        for _ in range(block):
            y = y + s
            s = system.residual(y)
        wide = graph.wide(active)
        x, r = torch.where(wide, y, x), torch.where(wide, s, r)
        new = torch.where(active, system.norm(r), residual)
        iterations = iterations + block * active
        soon = new * (new / residual).pow(max_iter / block) <= limit
        active, residual = active & (new > limit) & soon, new
    return Solution.of(x, residual, limit, iterations)
