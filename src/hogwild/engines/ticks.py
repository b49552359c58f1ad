"""The simulator's bookkeeping in compiled code: drawing a tick, finding its packets, counting them.

All arrays belong to the simulation; the compiled code reads and writes them in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hogwild.engines.rules import by_receiver
from hogwild.graph import Graph
from hogwild.kernels.native import address, library

_INT, _AT = ctypes.c_int64, ctypes.c_void_p


def _fields(kinds: Mapping[Any, str]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for kind, names in kinds.items() for name in names.split())


# The structures of source/simulator.h, in their order.


class _Clock(ctypes.Structure):
    _fields_ = _fields({
        _INT: "nodes edges stagger delay", _AT: "begin node_keys edge_keys next view",
    })  # fmt: skip


class _Post(ctypes.Structure):
    _fields_ = _fields({
        _INT: "nodes edges versions depth numbers",
        _AT: "src reverse out_degree node edge content latest current h updates packets sent last "
        "gap packet_ages content_ages oldest_ages",
    })  # fmt: skip


class Clock:
    """Draws the ticks of a schedule without impairments. Compiled ticks need the addresses ``at``:
    of the clock, and of room for the nodes and edges of a tick.

    Args:
        graph: The graph.
        stagger: S.
        delay: D.
        node_keys: Keys of the nodes' random stream, [N].
        edge_keys: Keys of the edges' random stream, [E].
        next: The next turn of every node, [N]; changed in place.
        view: The time of the packet that each edge's receiver holds, [E]; copied.
    """

    def __init__(
        self, graph: Graph, stagger: int, delay: int, node_keys: Tensor, edge_keys: Tensor,
        next: Tensor, view: Tensor,
    ) -> None:  # fmt: skip
        native = library()
        assert native is not None, "a compiled library"
        self._draw, n, e = native.draw, graph.num_nodes, graph.num_edges
        begin, self._order = by_receiver(graph)
        # What is drawn for edges lies in the order in which it is read.
        self._view, edge_keys = view[self._order], edge_keys[self._order]
        self._alive = (begin, node_keys, edge_keys, next, self._view)
        self._clock = _Clock(n, e, stagger, delay, *(address(x) for x in self._alive))
        # One more than there are nodes: the last one that was looked at is written, too.
        self._room = [torch.empty(size, dtype=torch.long) for size in (n + 1, n + 1, e)]
        self.at = (ctypes.addressof(self._clock), *(address(x) for x in self._room))

    def tick(self, time: int) -> tuple[Tensor, Tensor, Tensor]:
        """The nodes whose turn it is [A], where each one's edges begin among the edges into these
        nodes [A + 1], and the times of the packets that the nodes hold on these edges now."""
        at, *room = self.at
        count = self._draw(at, time, *room)
        nodes, first, view = self._room
        return nodes[:count].clone(), first[: count + 1].clone(), view[: int(first[count])].clone()

    @property
    def view(self) -> Tensor:
        """The time of the packet that each edge's receiver holds, [E]."""
        return torch.empty_like(self._view).index_copy_(0, self._order, self._view)


class Post:
    """Where the packets of a simulation lie, and what it counts.

    Args:
        graph: The graph.
        depth: Age of the oldest packet.
        numbers: Numbers in a packet of one replica.
        arrays: The arrays of the simulation by their names in ``source/simulator.h``.
    """

    def __init__(
        self, graph: Graph, depth: int, numbers: int, arrays: Mapping[str, Tensor]
    ) -> None:
        n, e = graph.num_nodes, graph.num_edges
        _, order = by_receiver(graph)
        self.oldest = torch.tensor([-1, -1])  # no age has been counted
        self.ages, self.room = [torch.zeros(0, dtype=torch.long) for _ in range(2)], 0
        given = {**arrays, "oldest_ages": self.oldest, "src": graph.src[order],
                 "reverse": graph.reverse[order]}  # fmt: skip
        assert all(x.is_contiguous() for x in given.values())
        versions = arrays["content"].numel() // max(n, 1)
        self._alive = given
        self._post = _Post(
            nodes=n, edges=e, versions=versions, depth=depth, numbers=numbers,
            **{name: address(x) for name, x in given.items()},
        )  # fmt: skip
        self.at = ctypes.addressof(self._post)

    def make_room(self, time: int) -> None:
        """Make room to count ages up to ``time``."""
        if self.room <= time:
            self.room = max(2 * time, 1024)
            for kind, name in enumerate(("packet_ages", "content_ages")):
                old = self.ages[kind]
                self.ages[kind] = torch.zeros(self.room, dtype=torch.long)
                self.ages[kind][: old.numel()] = old
                setattr(self._post, name, address(self.ages[kind]))

    def counts(self, kind: int) -> Tensor:
        """How often packets (0), or their content (1), had each age."""
        return self.ages[kind][: int(self.oldest[kind]) + 1]
