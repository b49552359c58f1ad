r"""Linear solves by matrix–vector products alone, one Krylov process per graph and replica.

Inner products run over each graph's own nodes, every graph has its own step lengths and stops by
its own residual: a graph's answer does not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hogwild.fields import mv
from hogwild.graph import Graph
from hogwild.solvers.base import Hessian, Solution, Status

LinearMap = Callable[[Tensor], Tensor]


def block_jacobi(hessian: Hessian) -> LinearMap:
    r"""Preconditioner: the inverse of every node's own k × k block, an SPD block each."""
    diagonal = hessian.diagonal()
    if diagonal is None:
        return lambda r: r
    inverse = torch.linalg.inv_ex(diagonal.permute(0, 3, 1, 2))[0]  # [R, N, k, k]
    inverse = inverse.permute(0, 2, 3, 1).contiguous()

    def apply(r: Tensor) -> Tensor:
        return mv(inverse, r)

    return apply


def cg(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    *,
    precondition: LinearMap | None = None,
    rtol: float | Tensor = 1e-10,
    atol: float | Tensor = 0.0,
    max_iter: int = 1000,
) -> Solution:
    r"""Preconditioned conjugate gradients for :math:`A x = b`, A symmetric positive definite.

    Stops a graph when :math:`\|b - A x\|_2 \le \text{rtol} \|b\|_2` or
    :math:`\|b - A x\|_\infty \le \text{atol}`.

    Args:
        apply: ``A`` on [R, k, N].
        rhs: ``b`` [R, k, N].
        rtol: Relative tolerance, a number or [R, G].
    """
    precondition = precondition or (lambda r: r)
    norm = graph.dot(rhs, rhs).sqrt()
    limit = norm * rtol
    x, r = torch.zeros_like(rhs), rhs
    z = precondition(r)
    p, rz = z, graph.dot(r, z)
    residual = norm
    iterations = torch.zeros(norm.shape, dtype=torch.long, device=norm.device)
    # Reading a mask on the host stalls a GPU's queue: look at it every few iterations only.
    stride = 8 if rhs.is_cuda else 1
    active = (residual > limit) & (graph.norm(r) > atol)
    for i in range(max_iter):
        if i % stride == 0 and not bool(active.any()):
            break
        ap = apply(p)
        curvature = graph.dot(p, ap)
        step = torch.where(active, rz / curvature, torch.zeros_like(rz))
        wide = graph.wide(step)
        x = torch.addcmul(x, wide, p)
        r = torch.addcmul(r, wide, ap, value=-1.0)
        z = precondition(r)
        new_rz = graph.dot(r, z)
        ratio = torch.where(active, new_rz / rz, torch.zeros_like(rz))
        p = torch.addcmul(z, graph.wide(ratio), p)
        rz = torch.where(active, new_rz, rz)
        residual = graph.dot(r, r).sqrt()
        iterations = iterations + active
        active = active & (residual > limit) & torch.isfinite(residual)
        if not isinstance(atol, float) or atol > 0.0:
            active = active & (graph.norm(r) > atol)
    # What stopped before the last iteration met one of the two tolerances.
    limit = torch.where(active, limit, torch.maximum(limit, residual))
    return _solution(x, residual, limit, iterations)


def gmres(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    restart: int = 30,
    max_iter: int = 1000,
) -> Solution:
    r"""Restarted GMRES for :math:`A x = b` with any nonsingular A (a fixed point's adjoint).

    Arguments as in :func:`cg`; ``restart`` vectors are kept between restarts.
    """
    norm = graph.dot(rhs, rhs).sqrt()
    limit = (norm * rtol).clamp_min(atol)
    x, r = torch.zeros_like(rhs), rhs
    residual = norm
    iterations = torch.zeros(norm.shape, dtype=torch.long, device=norm.device)

    total = 0
    while total < max_iter:
        active = (residual > limit) & torch.isfinite(residual)
        if not bool(active.any()):
            break
        beta = graph.dot(r, r).sqrt()
        basis = [r / graph.wide(beta.clamp_min(torch.finfo(r.dtype).tiny))]
        m = min(restart, max_iter - total)
        hess = r.new_zeros(*beta.shape, m + 1, m)
        for j in range(m):
            w = apply(basis[j])
            for _ in range(2):  # Gram–Schmidt twice keeps the basis orthogonal to rounding
                for i, v in enumerate(basis):
                    c = graph.dot(w, v)
                    hess[..., i, j] += c
                    w = torch.addcmul(w, graph.wide(c), v, value=-1.0)
            length = graph.dot(w, w).sqrt()
            # A graph whose Krylov space is exhausted has its exact answer: zero directions.
            exhausted = length <= 1e-14 * hess[..., : j + 1, j].norm(dim=-1)
            length = length.masked_fill(exhausted, 0.0)
            hess[..., j + 1, j] = length
            basis.append(
                torch.where(
                    graph.wide(exhausted), 0.0, w / graph.wide(length.masked_fill(exhausted, 1.0))
                )
            )
        target = r.new_zeros(*beta.shape, m + 1, 1)
        target[..., 0, 0] = beta
        # Rank-deficient where a Krylov space is exhausted: the least-squares solution by pinv.
        hess = torch.where(active[..., None, None] & torch.isfinite(hess), hess, 0.0)
        coefficients = torch.linalg.pinv(hess) @ target  # [R, G, m, 1]
        coefficients = torch.where(active[..., None], coefficients[..., 0], 0.0)
        for j in range(m):
            x = torch.addcmul(x, graph.wide(coefficients[..., j]), basis[j])
        r = rhs - apply(x)
        residual = torch.where(active, graph.dot(r, r).sqrt(), residual)
        iterations = iterations + m * active
        total += m
    return _solution(x, residual, limit, iterations)


def _solution(x: Tensor, residual: Tensor, limit: Tensor, iterations: Tensor) -> Solution:
    status = torch.full(residual.shape, int(Status.MAX_ITERATIONS), device=residual.device)
    status.masked_fill_(residual <= limit, int(Status.CONVERGED))
    status.masked_fill_(~torch.isfinite(residual), int(Status.NOT_FINITE))
    return Solution(x, status, iterations, residual)
