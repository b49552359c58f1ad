"""Sparse Hessians: their extreme eigenvalues, and what bounds their couplings."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix, diags, identity
from scipy.sparse.linalg import ArpackError, eigsh, splu
from torch import Tensor

from hogwild.linalg.operator import Hessian

LARGEST = 10_000
"""With more unknowns than this there is no factorisation."""
DENSE = 200
"""With at most this many unknowns all eigenvalues are computed."""


def matrices(hessian: Hessian) -> list[csc_matrix]:
    """The Hessian of all graphs together, [kN, kN], one matrix for each replica; unknowns are
    ordered node by node. The Hessian must have blocks."""
    diagonal, off = (_numpy(x.movedim(-1, 1)) for x in hessian.blocks())  # [R, n, k, k]
    pattern, n, k = hessian.graph.pattern, hessian.graph.num_nodes, diagonal.shape[-1]
    rows, cols = _numpy(pattern.rows), _numpy(pattern.cols)
    out = []
    for own, other in zip(diagonal, off, strict=True):
        place = np.arange(n)
        some = other.any((1, 2))  # of d neighbours an energy may couple none of the d²/2 pairs
        upper = of_blocks(rows[some], cols[some], other[some], n, k)
        out.append(csc_matrix(of_blocks(place, place, own, n, k) + upper + upper.T))
    return out


def _numpy(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return (x.to(torch.float64) if x.is_floating_point() else x).numpy()


def of_blocks(rows: np.ndarray, cols: np.ndarray, values: np.ndarray, n: int, k: int) -> csc_matrix:
    """A matrix with blocks [M, k, k] at these block rows and columns; blocks at one place add
    up."""
    inner = np.arange(k)
    i = (k * rows[:, None, None] + inner[:, None]) + np.zeros((1, 1, k), dtype=rows.dtype)
    j = (k * cols[:, None, None] + inner[None, :]) + np.zeros((1, k, 1), dtype=cols.dtype)
    return csc_matrix(coo_matrix((values.ravel(), (i.ravel(), j.ravel())), shape=(k * n, k * n)))


def extremes(matrix: csc_matrix) -> tuple[float, float] | None:
    """The smallest and the largest eigenvalue of a symmetric matrix that is positive definite;
    ``None``: the matrix is too large."""
    if matrix.shape[0] <= DENSE:
        values = np.linalg.eigvalsh(matrix.toarray())
        return float(values[0]), float(values[-1])
    if matrix.shape[0] > LARGEST:
        return None
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])
    try:
        least = eigsh(matrix, k=1, sigma=0.0, v0=start, return_eigenvectors=False)
        most = eigsh(matrix, k=1, which="LA", v0=start, return_eigenvectors=False, tol=1e-9)
    except ArpackError:  # no convergence
        return None
    return float(least[0]), float(most[0])


def jacobi(matrix: csc_matrix) -> csr_matrix:
    """The absolute values off the diagonal of a matrix, over the diagonal, row by row."""
    diagonal = matrix.diagonal()
    return csr_matrix(diags(1.0 / diagonal) @ abs(matrix - diags(diagonal)))


def perron(matrix: csr_matrix) -> float:
    r"""A proved upper bound on the spectral radius of a nonnegative matrix N [n, n]:
    :math:`\max_a (N w)_a / w_a` for some :math:`w > 0`.

    The Perron vector is the best w. Powers of N approach it from anywhere, and, where the spectral
    radius is below one, powers of :math:`(I - N)^{-1}` come nearer.
    """
    if matrix.shape[0] == 0:
        return 0.0
    w, best = np.ones(matrix.shape[0]), np.inf
    for _ in range(300):
        moved = matrix @ w
        best = min(best, float((moved / w).max()))
        w = moved + 1e-2 * best * w  # stays positive in rows of zeros
        w = np.maximum(w / max(w.max(), 1e-300), 1e-12)
    try:
        factor = splu(csc_matrix(identity(matrix.shape[0]) - matrix))
    except RuntimeError:  # exactly singular
        return best
    for _ in range(30):
        w = factor.solve(w)
        if not (np.isfinite(w).all() and (w > 0.0).all()):
            return best
        w = w / w.max()
        bound = float((matrix @ w / w).max())
        if bound >= best:
            return best
        best = bound
    return best
