"""Analyses of a graph, computed once and kept on the graph; and values that were made from tensors,
kept for as long as the tensors live unchanged.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hogwild.graph.graph import Graph

P = ParamSpec("P")
V = TypeVar("V")


class once(cached_property[V]):
    """A property that is computed once, as of Python 3.12. Before, all objects of a class share one
    lock: threads wait for each other, and a child of a fork for threads that it does not have. Two
    threads may compute a value twice."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        assert self.attrname is not None
        value = instance.__dict__[self.attrname] = self.func(instance)
        return value


class derived(once[V]):
    """A property of a graph that is computed once, outside of inference mode: a value that is kept
    must serve training, too."""

    def __init__(self, analysis: Callable[[Any], V]) -> None:
        super().__init__(wraps(analysis)(torch.inference_mode(False)(analysis)))


def cached(analysis: Callable[Concatenate[Graph, P], V]) -> Callable[Concatenate[Graph, P], V]:
    """A function of a graph, and of hashable arguments, that is computed once for each of them.

    The graph owns the value, under the function itself as a key: no two functions share a value. A
    function that returns an empty table declares a place for later results::

        @cached
        def components(graph: Graph) -> Components: ...  # the same object at every call

        @cached
        def plans(graph: Graph) -> dict[Key, Plan]:
            return {}  # filled by the function that makes plans for this graph

    As with :class:`derived`, the function runs outside of inference mode.
    """

    @wraps(analysis)
    def found(graph: Graph, *args: P.args, **kwargs: P.kwargs) -> V:
        key = (found, args, *kwargs.items())
        if key not in graph.analyses:
            with torch.inference_mode(False):
                graph.analyses[key] = analysis(graph, *args, **kwargs)
        value: V = graph.analyses[key]
        return value

    return found


Ref = Callable[[], Tensor | None]
Tensors = tuple[Tensor | None, ...]


class Recent(Generic[V]):
    """The last ``size`` values. A value is found by the identity and version of the tensors that it
    was made from (some may be ``None``), and by other options.

    The table keeps no tensor alive, and drops a value as soon as one of its tensors is freed. Torch
    counts changes in place (``Tensor._version``), but does not count those of tensors that were
    made in inference mode: values made from such tensors are not kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[Hashable, tuple[list[Ref], V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, tensors: Tensors, *options: Hashable) -> V | None:
        """The value that was put there for these tensors and options, or ``None``."""
        key = _key(tensors, options)
        found = self._kept.get(key)
        if found is None or any(ref() is not x for ref, x in zip(found[0], tensors, strict=True)):
            return None
        self._kept.move_to_end(key)
        return found[1]

    def put(self, value: V, tensors: Tensors, *options: Hashable) -> None:
        """Keep a value, if changes of its tensors are counted."""
        key = _key(tensors, options)
        if key is not None:
            self._kept[key] = [self._ref(x, key) for x in tensors], value
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)

    def _ref(self, x: Tensor | None, key: Hashable) -> Ref:
        """A weak reference that removes the value when its tensor is freed."""
        if x is None:
            return lambda: None
        return weakref.ref(x, lambda _: self._kept.pop(key, None))


def _key(tensors: Tensors, options: tuple[Hashable, ...]) -> Hashable | None:
    """Identity and version of the tensors, with the options; ``None``: torch counts no versions."""
    found: list[Hashable] = []
    for x in tensors:
        if x is not None and x.is_inference():
            return None
        try:
            found.append(None if x is None else (id(x), x._version, x.data_ptr(), x.shape))
        except RuntimeError:  # torch.func wraps it: it has no memory of its own
            return None
    return tuple(found), options
