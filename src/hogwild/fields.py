r"""Fields of small matrices: one tiny dense matrix per node or edge, stored structure-of-arrays.

Every tensor of the solver keeps the node or edge index in its *last* dimension, ``[R, …, n]``
with ``R`` replicas in front, so that elementwise kernels and the matrix products with the shared
weights run over long contiguous rows although every single matrix is only 2 × 2 or 4 × 4.

=====================  ==========================================  =====================
function               computes, for each replica and each row n   shapes
=====================  ==========================================  =====================
``mv(M, x)``           :math:`M x`                                 [R,a,b,n], [R,b,n]
``mtv(M, x)``          :math:`M^\top x`                            [R,a,b,n], [R,a,n]
``mtm(M, N)``          :math:`M^\top N`                            [R,s,a,n], [R,s,b,n]
``gather(x, index)``   ``x[..., index]``                           [R,a,N], [E]
``scatter(x, i, N)``   sums the rows with the same index           [R,a,E], [E]
``as_field(x, dtype)`` the same numbers, rows last                 [n,a] or [R,n,a]
=====================  ==========================================  =====================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Above this many elements an intermediate product no longer fits the caches, and a loop of fused
# multiply-adds over the contracted index is faster than "multiply, then sum".
_CACHE_ELEMENTS = 1 << 16
# From so many terms a sum on, a GPU moves less memory by copying the matrices row by row and
# multiplying them than by writing and reading all products (counted, not timed).
_TERMS = 8


def as_field(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Features or embeddings as models take and give them, [n, a] or [R, n, a], as a field
    [1 or R, a, n]."""
    return (x if x.dim() == 3 else x.unsqueeze(0)).to(dtype).mT


def _contract(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Sum over s of ``left[s] * right[s]`` without materialising the products."""
    out = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        # Out of place under autograd (the backward needs the operands), in place otherwise.
        out = torch.addcmul(out, a, b) if out.requires_grad else out.addcmul_(a, b)
    return out


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """:func:`mtm` as products of the matrices of every row."""
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
    """Rows of ``x`` by index: [R, a, N], [E] -> [R, a, E]."""
    return x.gather(-1, index.expand(*x.shape[:-1], index.numel()))


def scatter(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of the rows with equal index: [R, a, E], [E] -> [R, a, size]."""
    out = x.new_zeros(*x.shape[:-1], size)
    return out.scatter_add(-1, index.expand_as(x), x)


def scatter_into(out: Tensor, index: Tensor, x: Tensor) -> None:
    """Add the rows of ``x`` to the rows of ``out`` named by index, in place: [R, …, n]."""
    out.view(*x.shape[:-1], out.size(-1)).scatter_add_(-1, index.expand_as(x), x)


@dataclass(frozen=True)
class Packed:
    """Several fields [..., n] side by side, row by row: reading a few rows of all of them is then
    one gather of contiguous memory instead of one scattered gather for every number of a row."""

    rows: Tensor  # [n, width]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, fields: Sequence[Tensor]) -> Packed:
        size = fields[0].size(-1)
        flat = [x.reshape(x.shape[:-1].numel(), size) for x in fields]
        return cls(torch.cat(flat).T.contiguous(), tuple(x.shape[:-1] for x in fields))

    def at(self, index: Tensor) -> list[Tensor]:
        """The fields at these rows, [..., len(index)] each."""
        some = self.rows.index_select(0, index).T.contiguous()
        parts = some.split([shape.numel() for shape in self.shapes])
        return [x.view(*shape, index.numel()) for x, shape in zip(parts, self.shapes, strict=True)]
