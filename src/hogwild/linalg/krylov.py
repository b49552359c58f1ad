r"""Linear solves by matrix–vector products alone, one Krylov process per graph and replica.

Inner products run over each graph's own nodes, every graph has its own step lengths and stops by
its own residual: a graph's answer does not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian
from hogwild.linalg.solution import Solution, Status
from hogwild.ops import mv

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
    norm, limit, iterations = _begin(rhs, graph, rtol, 0.0)
    x, r = torch.zeros_like(rhs), rhs
    z = precondition(r)
    p, rz = z, graph.dot(r, z)
    residual = norm
    stride = _stride(rhs)
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
    return solution(x, residual, limit, iterations)


def gmres(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    *,
    rtol: float | Tensor = 1e-10,
    atol: float | Tensor = 0.0,
    restart: int = 30,
    max_iter: int = 1000,
) -> Solution:
    r"""Restarted GMRES for :math:`A x = b` with any nonsingular A (a fixed point's adjoint).

    Stops a graph when :math:`\|b - A x\|_2 \le \max(\text{rtol} \|b\|_2, \text{atol})`. Other
    arguments as in :func:`cg`; ``restart`` vectors are kept between restarts.
    """
    tiny = torch.finfo(rhs.dtype).tiny
    norm, limit, iterations = _begin(rhs, graph, rtol, atol)
    x, r = torch.zeros_like(rhs), rhs
    residual = norm
    stride = _stride(rhs)

    total = 0
    while total < max_iter:
        active = (residual > limit) & torch.isfinite(residual)
        if not bool(active.any()):
            break
        m = min(restart, max_iter - total)
        beta = residual
        basis = rhs.new_empty(m + 1, *rhs.shape)
        basis[0] = torch.where(graph.wide(active), r / graph.wide(beta.clamp_min(tiny)), 0.0)
        # The Hessenberg matrix as Q R: products of Givens rotations Qᵀ, and R.
        rotation = torch.eye(m + 1, dtype=r.dtype, device=r.device).repeat(*beta.shape, 1, 1)
        upper = r.new_zeros(*beta.shape, m, m)
        going, size = active, m
        for j in range(m):
            if j % stride == 0 and not bool(going.any()):
                size = j
                break
            w, known = apply(basis[j]), basis[: j + 1]
            column = r.new_zeros(*beta.shape, m + 1)
            for _ in range(2):  # Gram–Schmidt twice keeps the basis orthogonal to rounding
                c = graph.dot(known, w)  # [j + 1, R, G]
                w = w - (graph.wide(c) * known).sum(0)
                column[..., : j + 1] += c.movedim(0, -1)
            length = graph.dot(w, w).sqrt()
            # A graph whose Krylov space is exhausted has its exact answer: zero directions.
            exhausted = length <= 1e-14 * column.norm(dim=-1)
            column[..., j + 1] = length.masked_fill(exhausted, 0.0)
            column = torch.where(torch.isfinite(column), column, 0.0)
            column = (rotation @ column.unsqueeze(-1))[..., 0]
            a, b = column[..., j], column[..., j + 1]
            rho = torch.hypot(a, b)
            upper[..., : j + 1, j] = column[..., : j + 1]
            upper[..., j, j] = torch.where(rho > 0, rho, 1.0)
            cos, sin = (t.unsqueeze(-1) / upper[..., j, j, None] for t in (a, b))
            cos = torch.where(rho.unsqueeze(-1) > 0, cos, 1.0)
            one, two = rotation[..., j, :].clone(), rotation[..., j + 1, :].clone()
            rotation[..., j, :] = cos * one + sin * two
            rotation[..., j + 1, :] = cos * two - sin * one
            iterations = iterations + going
            # Its own residual decides when a graph stops; then its directions are zero, too.
            going = going & (beta * rotation[..., j + 1, 0].abs() > limit) & ~exhausted
            basis[j + 1] = torch.where(
                graph.wide(going), w / graph.wide(length.clamp_min(tiny)), 0.0
            )
        target = (beta.unsqueeze(-1) * rotation[..., :size, 0]).unsqueeze(-1)
        solved = torch.linalg.solve_triangular(upper[..., :size, :size], target, upper=True)
        solved = torch.where(active[..., None], solved[..., 0], 0.0).movedim(-1, 0)  # [m, R, G]
        x = x + (graph.wide(solved) * basis[:size]).sum(0)
        r = rhs - apply(x)
        residual = torch.where(active, graph.dot(r, r).sqrt(), residual)
        total += size
    return solution(x, residual, limit, iterations)


def bicgstab(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    *,
    rtol: float | Tensor = 1e-10,
    atol: float | Tensor = 0.0,
    max_iter: int = 1000,
) -> Solution:
    r"""Stabilised biconjugate gradients for :math:`A x = b` with any nonsingular A.

    Two products and a fixed number of vectors an iteration, where GMRES orthogonalises against
    all earlier ones; but it can break down: the status says on which graphs. Arguments as in
    :func:`gmres`.
    """
    norm, limit, iterations = _begin(rhs, graph, rtol, atol)
    x, r, shadow, p = torch.zeros_like(rhs), rhs, rhs, rhs
    rho = norm.square()
    stride = _stride(rhs)
    active = (norm > limit) & torch.isfinite(norm)

    def ratio(a: Tensor, b: Tensor) -> Tensor:
        """a / b where a graph still moves; zero elsewhere and where it breaks down."""
        return torch.nan_to_num(torch.where(active, a / b, 0.0), 0.0, 0.0, 0.0)

    for i in range(max_iter):
        if i % stride == 0 and not bool(active.any()):
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
        # Half: what is updated drifts from the true residual, which has to pass in the end.
        active = active & (square.sqrt() > 0.5 * limit) & (beta != 0)
    r = rhs - apply(x)
    return solution(x, graph.dot(r, r).sqrt(), limit, iterations)


def richardson(
    apply: LinearMap,
    rhs: Tensor,
    graph: Graph,
    *,
    rtol: float | Tensor = 1e-10,
    atol: float | Tensor = 0.0,
    max_iter: int = 48,
) -> Solution:
    r"""The plain iteration :math:`x \leftarrow x + (b - A x)`, for A near the identity.

    Nothing is cheaper where it converges fast; a graph on which, at its present rate, ``max_iter``
    more iterations would not do is given up at once. Arguments as in :func:`gmres`.
    """
    norm, limit, iterations = _begin(rhs, graph, rtol, atol)
    x, r, residual = torch.zeros_like(rhs), rhs, norm
    active = (norm > limit) & torch.isfinite(norm)
    block = 4  # checking a step costs about as much as taking it
    for _ in range(0, max_iter, block):
        if not bool(active.any()):
            break
        y, s = x, r
        for _ in range(block):
            y = y + s
            s = rhs - apply(y)
        wide = graph.wide(active)
        x, r = torch.where(wide, y, x), torch.where(wide, s, r)
        new = torch.where(active, graph.dot(r, r).sqrt(), residual)
        iterations = iterations + block * active
        soon = new * (new / residual).pow(max_iter / block) <= limit
        active, residual = active & (new > limit) & soon, new
    return solution(x, residual, limit, iterations)


def _begin(
    rhs: Tensor, graph: Graph, rtol: float | Tensor, atol: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`\|b\|_2`, the norm :math:`\max(\text{rtol} \|b\|_2, \text{atol})` of a residual that
    is small enough, and the number of iterations so far, none; [R, G] each."""
    norm = graph.dot(rhs, rhs).sqrt()
    least = torch.as_tensor(atol, dtype=norm.dtype, device=norm.device)
    iterations = torch.zeros(norm.shape, dtype=torch.long, device=norm.device)
    return norm, torch.clamp_min(norm * rtol, least), iterations


def _stride(x: Tensor) -> int:
    """Iterations between two looks at a mask: reading one on the host stalls a GPU's queue."""
    return 8 if x.is_cuda else 1


def solution(x: Tensor, residual: Tensor, limit: Tensor, iterations: Tensor) -> Solution:
    """``x`` with the status that its residual deserves."""
    status = torch.full(residual.shape, int(Status.MAX_ITERATIONS), device=residual.device)
    status.masked_fill_(residual <= limit, int(Status.CONVERGED))
    status.masked_fill_(~torch.isfinite(residual), int(Status.NOT_FINITE))
    return Solution(x, status, iterations, residual)
