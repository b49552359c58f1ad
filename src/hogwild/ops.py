r"""The array functions of :mod:`hogwild_node.ops` for torch, and products of small matrices, one
for each node or edge.

Every tensor has the node or edge index in its *last* dimension, ``[R, …, n]`` with ``R`` replicas
first. Elementwise kernels and products with shared weights then run over long contiguous rows,
although every single matrix is only 2 × 2 or 4 × 4.

=====================  ==========================================  =====================
function               computes, for each replica and each row n   shapes
=====================  ==========================================  =====================
``mv(M, x)``           :math:`M x`                                 [R,a,b,n], [R,b,n]
``mtv(M, x)``          :math:`M^\top x`                            [R,a,b,n], [R,a,n]
``mtm(M, N)``          :math:`M^\top N`                            [R,s,a,n], [R,s,b,n]
``gather(x, index)``   ``x[..., index]``                           [R,…,N], [E]
``scatter(x, i, N)``   sums the rows with the same index           [R,…,E], [E]
``as_field(x, dtype)`` the same numbers, rows last                 [n,a] or [R,n,a]
=====================  ==========================================  =====================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from hogwild_node.ops import Namespace, register

# Products with more elements do not fit the CPU's caches. A loop of fused multiply-adds over the
# contracted index is then faster than a multiplication followed by a sum.
_CACHE_ELEMENTS = 1 << 16
# For sums with at least this many terms, a GPU moves less memory if it copies the matrices row by
# row and multiplies them than if it writes and reads all products (counted, not timed).
_TERMS = 8


@contextmanager
def precise(device: str) -> Iterator[None]:
    """A context without autocast on this kind of device, and without TF32 on a GPU: bfloat16 and
    TF32 are too coarse for a solve."""
    coarse = device == "cuda" and _tf32()
    automatic = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False) if automatic else nullcontext():
        if coarse:
            torch.backends.cuda.matmul.allow_tf32 = False
        try:
            yield
        finally:
            if coarse:
                torch.backends.cuda.matmul.allow_tf32 = True


def _tf32() -> bool:
    """Whether products in single precision are rounded to TF32. Since version 2.9 torch has a
    second switch for it, and where that one was used refuses to read the first one."""
    chosen = torch.backends.cuda.matmul
    found: str | None = getattr(chosen, "fp32_precision", None)
    return bool(chosen.allow_tf32) if found is None else found == "tf32"


def all_finite(x: Tensor) -> bool:
    """Whether a tensor holds no NaN and no infinite values. One of them makes the sum NaN or
    infinite. A sum that is not finite may also come from large numbers; then every number is
    looked at."""
    return math.isfinite(float(x.detach().sum())) or bool(torch.isfinite(x).all())


def as_field(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Transpose features or embeddings: [n, a] or [R, n, a] -> [1 or R, a, n]."""
    return (x if x.dim() == 3 else x.unsqueeze(0)).to(dtype).mT


def _contract(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over s of ``left[s] * right[s]`` without materialising the products."""
    out = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        # Out of place under autograd (the backward needs the operands), in place otherwise.
        out = torch.addcmul(out, a, b) if out.requires_grad else out.addcmul_(a, b)
    return out


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """:func:`mtm` by batched matrix products."""
    rows = left.movedim(-1, -3).mT @ right.movedim(-1, -3)  # [R, n, a, b]
    return rows.movedim(-3, -1).contiguous()


def _is_large(x: Tensor, factor: int) -> bool:
    return x.device.type == "cpu" and x.numel() * factor > _CACHE_ELEMENTS


def mv(matrix: Tensor, x: Tensor) -> Tensor:
    """``M x`` per row: [R, a, b, n], [R, b, n] -> [R, a, n]."""
    if _is_large(matrix, 1):
        return _contract(list(matrix.unbind(-2)), list(x.unsqueeze(-3).unbind(-2)))
    return (matrix * x.unsqueeze(-3)).sum(-2)


def mtv(matrix: Tensor, x: Tensor) -> Tensor:
    """``Mᵀ x`` per row: [R, a, b, n], [R, a, n] -> [R, b, n]."""
    if _is_large(matrix, 1):
        return _contract(list(matrix.unbind(-3)), list(x.unsqueeze(-2).unbind(-3)))
    return (matrix * x.unsqueeze(-2)).sum(-3)


def mtm(left: Tensor, right: Tensor) -> Tensor:
    """``Mᵀ N`` per row: [R, s, a, n], [R, s, b, n] -> [R, a, b, n]."""
    if _is_large(left, right.size(-2)):
        return _contract(list(left.unsqueeze(-2).unbind(-4)), list(right.unsqueeze(-3).unbind(-4)))
    if left.is_cuda and left.size(-3) >= _TERMS:
        return _multiply(left, right)
    return (left.unsqueeze(-2) * right.unsqueeze(-3)).sum(-4)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``x`` by index: [R, …, N], [E] -> [R, …, E]."""
    return x.gather(-1, index.expand(*x.shape[:-1], index.numel()))


def scatter(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of the rows with equal index: [R, …, E], [E] -> [R, …, size]."""
    out = x.new_zeros(*x.shape[:-1], size)
    return out.scatter_add(-1, index.expand_as(x), x)


def distinct(rows: Tensor, cols: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct pairs of indices below ``size``: the number of every pair, [n], and the two
    entries of every distinct pair, [M] each."""
    pairs, number = torch.unique(rows * size + cols, return_inverse=True)
    return number, pairs // size, pairs % size


CHUNK_ELEMENTS = 1 << 18
"""Most numbers of one Jacobian that a CPU computes at a time."""


class Torch(Namespace):
    """The namespace of torch: the functions of torch, and the hooks of :mod:`hogwild_node.ops`."""

    mv, mtv, mtm = staticmethod(mv), staticmethod(mtv), staticmethod(mtm)
    gather, collect = staticmethod(gather), staticmethod(scatter)
    affine, constant = staticmethod(torch.baddbmm), staticmethod(Tensor.detach)
    product, expand_dims = staticmethod(torch.bmm), staticmethod(torch.unsqueeze)
    contiguous, leaky_relu = staticmethod(Tensor.contiguous), staticmethod(F.leaky_relu)
    max, repeat = staticmethod(torch.amax), staticmethod(torch.repeat_interleave)

    @staticmethod
    def rows(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index)

    @staticmethod
    def largest(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return x.scatter_reduce(-1, index.expand_as(y), y, "amax")

    @staticmethod
    def put(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
        return x.index_copy_(-1, index, value)

    @staticmethod
    def solve(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve_ex(a, b)[0]

    @staticmethod
    def inverse(a: Tensor) -> Tensor:
        return torch.linalg.inv_ex(a)[0]

    @staticmethod
    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if weight.dim() == 2:
            return F.linear(x, weight, bias)
        return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)

    @staticmethod
    def project(weight: Tensor, x: Tensor) -> Tensor:
        batch, out = weight.shape[:2]
        if x.size(0) == 1:  # all parameter sets share the features: one matrix product
            return (weight.reshape(batch * out, -1) @ x[0]).view(batch, out, x.size(-1))
        rows = weight.reshape(x.size(0), -1, x.size(-2))  # all heads of a replica read its features
        return torch.bmm(rows, x).view(batch, out, x.size(-1))

    @staticmethod
    def softplus(x: Tensor) -> Tensor:
        return F.softplus(x, threshold=40.0)  # exact in float64 up to rounding

    @staticmethod
    def add_diagonal(x: Tensor, value: float) -> Tensor:
        x.diagonal(dim1=1, dim2=2).add_(value)
        return x

    @staticmethod
    def true_at(mask: Tensor) -> Tensor:
        return mask.nonzero()[:, 0]

    @staticmethod
    def as_numbers(mask: Tensor, like: Tensor) -> Tensor:
        return mask.to(like.dtype)

    @staticmethod
    def integers(x: Tensor) -> Tensor:
        return x.round().to(torch.long)

    @staticmethod
    def replaced(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        return x.index_copy(-1, mask.nonzero()[:, 0], value)

    @staticmethod
    def positions(numbers: tuple[int, ...], like: Tensor) -> Tensor:
        return _positions(numbers, like.device)

    @staticmethod
    def range(count: int, like: Tensor) -> Tensor:
        return torch.arange(count, device=like.device)

    @staticmethod
    def filled(shape: Sequence[int], value: float, like: Tensor) -> Tensor:
        return like.new_full(tuple(shape), value)

    @staticmethod
    def identity(size: int, like: Tensor) -> Tensor:
        return torch.eye(size, dtype=like.dtype, device=like.device)

    @staticmethod
    def known_equal(x: Tensor, y: Tensor) -> bool:
        return x is y  # to compare numbers would wait for the device

    @staticmethod
    def chunks(numbers: int, like: Tensor) -> list[slice]:
        count = like.size(-1)
        rows = max(CHUNK_ELEMENTS // max(numbers, 1), 256)
        if like.device.type != "cpu" or count <= 2 * rows:
            return [slice(0, count)]
        return [slice(i, min(i + rows, count)) for i in range(0, count, rows)]


@cache
def _positions(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the cached tensor must also work in training
        return torch.tensor(numbers, device=device)


TORCH = Torch(torch)
register(Tensor, TORCH)
