"""Nested dataclasses of arrays, and operations on all of their arrays.

A model on a graph is a dataclass of arrays, numbers and other such dataclasses. Every field
declares what the last dimension of its arrays counts::

    @dataclass(frozen=True)
    class Message:
        weight: Array = over(SHARED)    # [R, k, k]: the same for all nodes
        bias: Array = over(NODES)       # [R, k, N]
        strength: Array = over(EDGES)   # [E]

A field without a declaration inherits that of the field that contains it. :func:`walk` visits all
arrays. It implements detaching, and the selection of replicas, nodes and edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Self

from hogwild_node.ops import Array, is_array, namespace
from hogwild_node.star import Star

SHARED, NODES, EDGES, FIXED = "shared", "nodes", "edges", "fixed"
"""What the last dimension of a field's arrays counts: ``NODES``, ``EDGES``, or neither
(``SHARED``). :func:`walk` skips ``FIXED`` fields."""


_SEQUENCES = (tuple, list)


def over(what: str, default: Any = MISSING, **options: Any) -> Any:
    """A field of a dataclass that declares what the last dimension of its arrays counts;
    ``options`` are those of :func:`dataclasses.field`."""
    if default is not MISSING:
        options["default"] = default
    return field(metadata={"over": what}, **options)


@cache
def _fields(kind: type) -> tuple[tuple[str, str | None], ...]:
    """The names of a dataclass's fields, each with what it declares, if it does; nothing for a
    type that is no dataclass."""
    told = fields(kind) if is_dataclass(kind) else ()
    return tuple((f.name, f.metadata.get("over")) for f in told if f.init)


def walk(x: Any, visit: Callable[[Array, str], Array], what: str = SHARED) -> Any:
    """A copy of ``x`` in which ``visit(array, what)`` replaces every array; ``what`` is what the
    last dimension of the array counts."""
    kind: Any = type(x)
    if is_array(x):
        return visit(x, what)
    if issubclass(kind, _SEQUENCES):
        return kind(walk(each, visit, what) for each in x)
    values = {}
    for name, own in _fields(kind):
        value = getattr(x, name)
        values[name] = value if own == FIXED else walk(value, visit, own or what)
    return kind(**values) if values else x


def arrays(x: Any, what: str = SHARED) -> Iterator[tuple[Array, str]]:
    """All arrays, in the order of :func:`walk`, each with what its last dimension counts."""
    if is_array(x):
        yield x, what
    elif isinstance(x, _SEQUENCES):
        for each in x:
            yield from arrays(each, what)
    kind: Any = type(x)
    for name, own in _fields(kind):
        if own != FIXED:
            yield from arrays(getattr(x, name), own or what)


@dataclass(frozen=True)
class Packed:
    """Several fields [..., n], stored row by row. One gather of contiguous memory then reads a few
    rows of all fields."""

    rows: Array  # [n, width]
    places: tuple[tuple[slice, tuple[int, ...]], ...]  # the columns and the shape of every field

    @classmethod
    def of(cls, found: list[Array]) -> Packed:
        xp, size = namespace(found[0]), found[0].shape[-1]
        flat = [xp.reshape(x, (math.prod(x.shape[:-1]), size)) for x in found]
        ends = list(accumulate(x.shape[0] for x in flat))
        places = tuple(
            (slice(end - part.shape[0], end), tuple(x.shape[:-1]))
            for end, part, x in zip(ends, flat, found, strict=True)
        )
        return cls(xp.contiguous(xp.concat(flat).T), places)

    def at(self, index: Array) -> list[Array]:
        """The fields at these rows, [..., len(index)] each."""
        xp, count = namespace(self.rows), index.shape[0]
        some = xp.contiguous(xp.rows(self.rows, index).T)
        return [xp.reshape(some[columns], (*shape, count)) for columns, shape in self.places]


class OnGraph:
    """The base class of dataclasses whose arrays belong to a graph (:func:`over`)."""

    def map(self, fn: Callable[[Array], Array]) -> Self:
        """Apply a function to every array."""
        return walk(self, lambda x, _: fn(x))

    @cached_property
    def _packed(self) -> dict[str, Packed]:
        found = list(arrays(self))
        kept = {what: [x for x, of in found if of == what] for what in (NODES, EDGES)}
        return {what: Packed.of(some) for what, some in kept.items() if some}

    def at(self, star: Star) -> Self:
        """Select the nodes and edges of a star. Constants of the whole graph do not change."""
        if star.nodes is None or star.edges is None:
            return self
        index = {NODES: star.nodes, EDGES: star.edges}
        some = {what: iter(packed.at(index[what])) for what, packed in self._packed.items()}
        return walk(self, lambda x, what: next(some[what]) if what in some else x)

    def cut(
        self, count: int, replicas: Array | None, nodes: Array | None, edges: Array | None
    ) -> Self:
        """Select some of ``count`` replicas, some nodes and some edges; ``None`` selects all.

        The first dimension of an array of at least two dimensions counts replicas, or replicas
        times heads. It has size one if all replicas share the array.
        """
        index = {NODES: nodes, EDGES: edges}

        def visit(x: Array, what: str) -> Array:
            rows = index.get(what)
            x = x if rows is None else x[..., rows]
            if replicas is None or x.ndim == 1 or (x.shape[0] == 1 and count > 1):
                return x
            xp, heads = namespace(x), x.shape[0] // count
            if heads == 1:
                return x[replicas]
            some = xp.reshape(x, (count, heads, *x.shape[1:]))[replicas]
            return xp.reshape(some, (heads * some.shape[0], *x.shape[1:]))

        return walk(self, visit)
