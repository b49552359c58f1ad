"""Analyses of a graph: computed once and kept on the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch

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


def kept(analysis: Callable[Concatenate[Graph, P], V]) -> Callable[Concatenate[Graph, P], V]:
    """A function of a graph, and of hashable arguments, that is computed once for each of them.

    The graph owns the value, under the function itself as a key: no two functions share a value. A
    function that returns an empty table declares a place for later results::

        @kept
        def components(graph: Graph) -> Components: ...  # the same object at every call

        @kept
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
