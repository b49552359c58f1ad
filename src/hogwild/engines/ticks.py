"""The simulator's bookkeeping: drawing a tick, keeping and finding its packets, counting them.

A node sends when it updates, and late packets can be delivered late (:class:`Outbox`). All arrays
belong to the simulation; compiled code reads and writes them in place (:class:`Clock`,
:class:`Ticks`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.kernels.native import address, large_pages, library
from hogwild_node.rules.base import Survivors

if TYPE_CHECKING:
    from hogwild.engines.rules import RuleKernel

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
        self._order, begin = graph.by_receiver
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


class Ticks:
    """Whole ticks in compiled code: where the packets of a simulation lie, and what it counts.

    Args:
        kernel: The updates.
        graph: The graph.
        depth: Age of the oldest packet.
        numbers: Numbers in a packet of one replica.
        arrays: The arrays of the simulation by their names in ``source/simulator.h``.
    """

    def __init__(
        self, kernel: RuleKernel, graph: Graph, depth: int, numbers: int,
        arrays: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        n, order = graph.num_nodes, graph.by_receiver[0]
        self.kernel, self.graph = kernel, graph
        self.oldest = torch.tensor([-1, -1])  # no age has been counted
        self.ages, self.room = [torch.zeros(0, dtype=torch.long) for _ in range(2)], 0
        given = {**arrays, "oldest_ages": self.oldest, "src": graph.src[order],
                 "reverse": graph.reverse[order]}  # fmt: skip
        assert all(x.is_contiguous() for x in given.values())
        versions = arrays["content"].numel() // max(n, 1)
        self._alive = given
        self._post = _Post(
            nodes=n, edges=graph.num_edges, versions=versions, depth=depth, numbers=numbers,
            **{name: address(x) for name, x in given.items()},
        )  # fmt: skip
        self._at = ctypes.addressof(self._post)

    def turn(self, nodes: Tensor, first: Tensor | None, view: Tensor, time: int) -> None:
        """Update these nodes [A], whose edges begin at ``first`` [A + 1] among the edges into them,
        where they hold packets of the times ``view``."""
        self._make_room(time)
        first = first_edges(self.graph, nodes) if first is None else first
        self.kernel.turn(nodes, first, view, time, self._at)

    def tick(self, clock: Clock, time: int) -> None:
        """Draw a tick, and update its nodes, in one call."""
        self._make_room(time)
        self.kernel.tick(clock.at, time, self._at)

    def _make_room(self, time: int) -> None:
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


def first_edges(graph: Graph, nodes: Tensor) -> Tensor:
    """Where each node's edges begin among the edges into these nodes, [A + 1]."""
    first = torch.zeros(nodes.numel() + 1, dtype=torch.long)
    torch.cumsum(graph.in_degree[nodes], 0, out=first[1:])
    return first


class Outbox:
    """The packets of all nodes over the last ticks: a part for everybody [R, k, N] and a letter for
    each neighbour [R, m, E]. The letter from i to j is filed under the edge j → i, along which *i
    hears j*; j reads it through the reverse edge.

    Packets are kept in a ring of versions, and a second ring says which version was current at each
    of the last ``depth + 1`` ticks. A packet of time τ is looked up through both. Memory is linear
    in edges × depth, only new packets are copied, and a packet lies in one piece, so that reading
    it is one access.

    Args:
        depth: Age of the oldest packet that may still be asked for.
        node: The first packets, to everybody.
        edge: The first letters; ``None``: nobody sends any.
        time: Time of the first packets.
    """

    def __init__(
        self,
        graph: Graph,
        depth: int,
        node: Tensor,
        edge: Tensor | None,
        time: int = 0,
    ) -> None:
        self.graph, self.depth = graph, depth
        self.slots, n = depth + 2, graph.num_nodes
        self.replicas = node.size(0)
        self.node = self._versions(node)  # [slots · N, R · k]
        self.edge = None if edge is None else self._versions(edge)
        self.content = torch.full((self.slots * n,), time, dtype=torch.long, device=node.device)
        # Where each node's latest packet lies (slot · N + node), and where it lay at each tick.
        self.latest = torch.arange(n, device=node.device)
        self.current = self.latest.repeat(depth + 1)
        self.time = time

    def follow(self, before: Outbox, kept: Survivors) -> None:
        """Take over what the nodes that stayed have sent, to everybody and along the edges that
        stayed. On a new edge lies the first letter, whichever version is asked for."""
        (here, there), n, old = kept.nodes, self.graph.num_nodes, before.graph.num_nodes
        for mine, theirs in ((self.node, before.node), (self.content, before.content)):
            _versions(mine, n)[:, here] = _versions(theirs, old)[:, there]
        if self.edge is not None and before.edge is not None and kept.edges[0].numel():
            edges, was = self.graph.num_edges, before.graph.num_edges
            letters = _versions(before.edge, was)[:, kept.edges[1]]
            _versions(self.edge, edges)[:, kept.edges[0]] = letters
        for mine, theirs in ((self.latest, before.latest), (self.current, before.current)):
            _versions(mine, n)[:, here] = _versions(theirs, old)[:, there] // old * n + here

    def _versions(self, packets: Tensor) -> Tensor:
        """Packets [R, w, n] in every slot, [slots · n, R · w]."""
        rows = _rows(packets)
        room = large_pages((self.slots, *rows.shape), rows.dtype, rows.device)
        room.copy_(rows)
        return room.flatten(0, 1)

    def open(self, time: int) -> None:
        """A tick begins: what is current now is what packets of this time say."""
        self.time, n = time, self.graph.num_nodes
        begin = time % (self.depth + 1) * n
        self.current[begin : begin + n] = self.latest

    def publish(self, at: Star, node: Tensor, edge: Tensor | None, content: Tensor) -> None:
        """New packets of the nodes in ``at``: to everybody [R, k, A], and to each sender of an edge
        into them [R, m, E'], from the next tick on.

        Args:
            content: Time of the oldest embedding that went into them, [A].
        """
        where, size = self.latest[at.nodes] + self.graph.num_nodes, self.node.size(0)
        where = torch.where(where >= size, where - size, where)  # faster than a remainder
        self.latest[at.nodes] = where
        self.node.index_copy_(0, where, _rows(node))
        self.content[where] = content
        if self.edge is not None and edge is not None:
            self.edge.index_copy_(0, self._letters(where, at), _rows(edge))

    def _letters(self, where: Tensor, at: Star) -> Tensor:
        """Where the letters of these packets lie."""
        assert at.edges is not None
        version = where // self.graph.num_nodes
        return version[at.slot] * self.graph.num_edges + at.edges

    def fetch(self, edges: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Packets of these ``time`` s along these edges: the senders' part for everybody
        [R, k, E'], their letters [R, m, E'], and the time of the oldest embedding inside [E']."""
        graph, n, m = self.graph, self.graph.num_nodes, self.depth + 1
        row = time + (self.time % m - self.time)  # in -depth … depth, the ring's row or m more
        row = torch.where(row < 0, row + m, row)
        where = self.current[row * n + graph.src[edges]]
        mail: Tensor | None = None
        if self.edge is not None:
            mail = self._read(self.edge, where // n * graph.num_edges + graph.reverse[edges])
        return self._read(self.node, where), mail, self.content[where]

    def _read(self, rows: Tensor, where: Tensor) -> Tensor:
        """[R, w, n] from the rows [·, R · w]."""
        found = rows.index_select(0, where).T.contiguous()
        return found.view(self.replicas, rows.size(1) // self.replicas, where.numel())

    def last(self, at: Star) -> tuple[Tensor, Tensor | None]:
        """The packets these nodes sent last: to everybody [R, k, A], letters [R, m, E']."""
        where = self.latest[at.nodes]
        letters = None if self.edge is None else self._read(self.edge, self._letters(where, at))
        return self._read(self.node, where), letters


def _versions(x: Tensor, count: int) -> Tensor:
    """Rows for ``count`` nodes or edges in several versions, version by version."""
    return x.view(-1, count, *x.shape[1:])


def _rows(x: Tensor) -> Tensor:
    """[R, w, n] as rows [n, R · w]."""
    return x.flatten(0, 1).T.contiguous()
