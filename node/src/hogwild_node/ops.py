r"""Array functions for NumPy and other libraries: one namespace for every library of arrays.

A namespace has the functions of the `Python array API <https://data-apis.org/array-api>`_ that this
package uses, and the hooks below, which the standard lacks or a library does faster. This file
defines the namespace of NumPy. Other libraries register theirs by the type of their arrays::

    register(torch.Tensor, TORCH)

Every array has the index of the node or edge in its *last* dimension, ``[R, …, n]``, with R
replicas first. The hooks:

=============================  =============================================  =====================
hook                           computes                                       shapes
=============================  =============================================  =====================
``affine(b, W, x)``            :math:`b + W x`                                [B,a,n], [B,a,c]
``product(W, x)``              :math:`W x`                                    [B,a,c], [B,c,n]
``mv(M, x)``                   :math:`M x` at every n                         [R,a,b,n], [R,b,n]
``mtv(M, x)``                  :math:`M^\top x` at every n                    [R,a,b,n], [R,a,n]
``mtm(M, N)``                  :math:`M^\top N` at every n                    [R,s,a,n], [R,s,b,n]
``gather(x, index)``           ``x[..., index]``                              [...,N], [E]
``rows(x, index)``             ``x[index]``                                   [n,a], [A]
``collect(x, index, size)``    sums of the entries with equal index           [...,E], [E]
``largest(x, index, y)``       largest of x and the y with its index          [...,A], [E], [...,E]
``put(x, index, value)``       ``x[..., index] = value``, in place            [...,N], [A], [...,A]
``solve(A, B)``                :math:`A^{-1} B`; NaN where A is singular      [...,k,k], [...,k,l]
``inverse(A)``                 :math:`A^{-1}`; NaN where A is singular        [...,k,k]
``linear(x, W, b)``            :math:`x W^\top + b`, row by row               [...,n,c], [...,a,c]
``project(W, x)``              :math:`W x`, x shared by all W or one a set    [B,a,p], [1|R,p,n]
``softplus(x)``                :math:`\log(1 + e^x)`                          any
``leaky_relu(x, s)``           :math:`\max(x, 0) + s \min(x, 0)`              any
``constant(x)``                x, cut off from automatic differentiation      any
``sigmoid(x)``                 :math:`1 / (1 + e^{-x})`                       any
``true_at(mask)``              positions of the true entries                  [n]
``add_diagonal(x, value)``     x plus a multiple of the identity; x may change [R,k,k,n]
``as_numbers(mask, x)``         zeros and ones of the type of x                any
``integers(x)``                the nearest whole numbers                      any
``replaced(x, mask, value)``   a copy of x with ``value`` where the mask holds [...,n], [n], [...,m]
``positions(numbers, x)``      whole numbers to index x with                  [n]
``range(n, x)``                0, …, n − 1, to index x with                   [n]
``filled(shape, value, x)``    a constant array of the type of x              any
``identity(k, x)``             the identity of the type of x                  [k,k]
``expand_dims(x, axis)``       x with a new dimension; the axis is negative   any
``contiguous(x)``              the same, in contiguous memory                 any
``known_equal(x, y)``          whether a cheap look shows that x equals y     any
``chunks(numbers, x)``         slices of x's rows, ``numbers`` of work a row   [...,n]
=============================  =============================================  =====================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

_UFUNCS: Any = np  # untyped, because NumPy's types do not allow an ellipsis in ufunc.at
Array = Any
"""An array of any registered library: ``numpy.ndarray``, ``torch.Tensor``, …"""


class _Namespaces(dict[type, Any]):
    """The namespace of every type that was looked up; ``None`` for a type that is no array's."""

    def __missing__(self, kind: type) -> Any:
        known = (self.get(base) for base in kind.__mro__)
        self[kind] = next((space for space in known if space is not None), None)
        return self[kind]


_NAMESPACES = _Namespaces()


def register(kind: type, space: Any) -> None:
    """Arrays of this type, and of types derived from it, have this namespace."""
    for other in [other for other, found in _NAMESPACES.items() if found is None]:
        del _NAMESPACES[other]  # it may derive from the new type
    _NAMESPACES[kind] = space


def is_array(x: object) -> bool:
    """Whether x is an array of a registered library."""
    return _NAMESPACES[type(x)] is not None


def namespace(x: object) -> Any:
    """The namespace of an array's library."""
    found = _NAMESPACES[type(x)]
    if found is None:
        raise TypeError(
            f"a {type(x).__name__} was given; expected an array of a known library (NumPy's, or "
            f"torch's where hogwild is installed)"
        )
    return found


class Namespace:
    """The functions of a library of arrays; a subclass adds the hooks."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        setattr(self, name, found)  # the next access finds the attribute and does not come here
        return found


class NumPy(Namespace):
    """The namespace of NumPy: the functions of NumPy (array API since 2.1), and the hooks."""

    @staticmethod
    def moveaxis(x: Array, source: int, destination: int) -> Array:
        return x.transpose(_order(x.ndim, source, destination))  # np.moveaxis costs ten times that

    @staticmethod
    def reshape(x: Array, shape: Sequence[int]) -> Array:
        return x.reshape(shape)  # np.reshape costs three times that

    @staticmethod
    def affine(bias: Array, weight: Array, x: Array) -> Array:
        return bias + weight @ x

    @staticmethod
    def product(weight: Array, x: Array) -> Array:
        return weight @ x

    @staticmethod
    def mv(matrix: Array, x: Array) -> Array:
        return np.add.reduce(matrix * x[..., None, :, :], -2)

    @staticmethod
    def mtv(matrix: Array, x: Array) -> Array:
        return np.add.reduce(matrix * x[..., :, None, :], -3)

    @staticmethod
    def mtm(left: Array, right: Array) -> Array:
        return np.add.reduce(left[..., :, None, :] * right[..., None, :, :], -4)

    @staticmethod
    def gather(x: Array, index: Array) -> Array:
        return x[..., index]

    @staticmethod
    def rows(x: Array, index: Array) -> Array:
        return x[index]

    @staticmethod
    def collect(x: Array, index: Array, size: int) -> Array:
        if size == 1:  # all edges lead to the one node
            return np.add.reduce(x, -1, keepdims=True)
        out = np.zeros((*x.shape[:-1], size), x.dtype)
        _UFUNCS.add.at(out, (..., index), x)
        return out

    @staticmethod
    def largest(x: Array, index: Array, y: Array) -> Array:
        out = x.copy()
        _UFUNCS.maximum.at(out, (..., index), y)
        return out

    @staticmethod
    def put(x: Array, index: Array, value: Array) -> Array:
        x[..., index] = value
        return x

    @staticmethod
    def solve(a: Array, b: Array) -> Array:
        return _or_nan(a, b)

    @staticmethod
    def inverse(a: Array) -> Array:
        eye = np.eye(a.shape[-1], dtype=a.dtype)
        return _or_nan(a, np.broadcast_to(eye, a.shape))

    @staticmethod
    def linear(x: Array, weight: Array, bias: Array) -> Array:
        return x @ weight.mT + bias[..., None, :]

    @staticmethod
    def project(weight: Array, x: Array) -> Array:
        return weight @ x

    @staticmethod
    def softplus(x: Array) -> Array:
        return np.logaddexp(0.0, x)

    @staticmethod
    def leaky_relu(x: Array, slope: float) -> Array:
        return np.where(x > 0.0, x, slope * x)

    @staticmethod
    def constant(x: Array) -> Array:
        return x

    @staticmethod
    def sigmoid(x: Array) -> Array:
        return np.exp(-np.logaddexp(0.0, -x))  # never overflows, and exact for large -x

    @staticmethod
    def add_diagonal(x: Array, value: float) -> Array:
        return x + value * np.eye(x.shape[1], dtype=x.dtype)[:, :, None]

    @staticmethod
    def true_at(mask: Array) -> Array:
        return np.flatnonzero(mask)

    @staticmethod
    def as_numbers(mask: Array, like: Array) -> Array:
        return mask.astype(like.dtype)

    @staticmethod
    def integers(x: Array) -> Array:
        return np.rint(x).astype(np.intp)

    @staticmethod
    def replaced(x: Array, mask: Array, value: Array) -> Array:
        out = x.copy()
        out[..., mask] = value
        return out

    @staticmethod
    def positions(numbers: tuple[int, ...], like: Array) -> Array:
        return _positions(numbers)

    @staticmethod
    def range(count: int, like: Array) -> Array:
        return np.arange(count)

    @staticmethod
    def filled(shape: Sequence[int], value: float, like: Array) -> Array:
        return np.full(shape, value, like.dtype)

    @staticmethod
    def identity(size: int, like: Array) -> Array:
        return np.eye(size, dtype=like.dtype)

    @staticmethod
    def expand_dims(x: Array, axis: int) -> Array:
        return x[_NEW_AXIS[axis]]  # np.expand_dims costs ten times that

    @staticmethod
    def contiguous(x: Array) -> Array:
        return np.ascontiguousarray(x)

    @staticmethod
    def known_equal(x: Array, y: Array) -> bool:
        return x.size == y.size <= 64 and x.tobytes() == y.tobytes()

    @staticmethod
    def chunks(numbers: int, like: Array) -> list[slice]:
        return [slice(0, like.shape[-1])]


_NEW_AXIS = {-1 - after: (..., None, *[slice(None)] * after) for after in range(4)}


def _or_nan(a: Array, b: Array) -> Array:
    """Solve a batch of systems, with NaN for singular ones; NumPy alone raises for the batch."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        out = np.full(b.shape, np.nan, b.dtype)
        for at in np.ndindex(a.shape[:-2]):
            try:
                out[at] = np.linalg.solve(a[at], b[at])
            except np.linalg.LinAlgError:
                continue
        return out


@cache
def _positions(numbers: tuple[int, ...]) -> Array:
    return np.asarray(numbers, dtype=np.intp)


@cache
def _order(ndim: int, source: int, destination: int) -> tuple[int, ...]:
    """The order of axes after one axis has moved."""
    out = list(range(ndim))
    out.insert(destination % ndim, out.pop(source % ndim))
    return tuple(out)


NUMPY = NumPy(np)
register(np.ndarray, NUMPY)
register(np.generic, NUMPY)
