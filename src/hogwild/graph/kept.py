"""What is derived from a graph: computed once, and kept on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from hogwild.graph.graph import Graph

P = ParamSpec("P")
V = TypeVar("V")


def kept(analysis: Callable[Concatenate[Graph, P], V]) -> Callable[Concatenate[Graph, P], V]:
    """A function of a graph, and of hashable arguments, that is computed once for each of them.

    The value lies on the graph, in a place that belongs to the function alone, and goes with the
    graph. A function that returns an empty table declares a place for what is found later::

        @kept
        def components(graph: Graph) -> Components: ...  # the same object at every call

        @kept
        def plans(graph: Graph) -> dict[Key, Plan]:
            return {}  # filled by whoever makes plans for this graph

    It runs outside of inference mode: what is kept must serve training, too.
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
