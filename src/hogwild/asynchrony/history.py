"""What every node has sent over the last few ticks, so that late packets can be delivered late.

A node sends when it updates. Its packets are kept in a ring of versions, and a second ring says
which version was current at each of the last ``depth + 1`` ticks. A packet of time τ is looked up
through both. Memory is linear in edges × depth, only new packets are copied, and a packet lies in
one piece, so that reading it is one access.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.asynchrony.schedule import places
from hogwild.graph import Graph, Star
from hogwild.kernels.native import large_pages
from hogwild_node.rules.base import Kept


class Outbox:
    """The packets of all nodes: a part for everybody [R, k, N] and a letter for each neighbour
    [R, m, E]. The letter from i to j is filed under the edge j → i, along which *i hears j*; j
    reads it through the reverse edge. The packets ``node`` and ``edge`` are of time 0.

    Args:
        depth: Age of the oldest packet that may still be asked for.
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
        self.slots = depth + 2
        n = graph.num_nodes
        self.replicas = node.size(0)
        self.node = self._versions(node)  # [slots · N, R · k]
        self.edge = None if edge is None else self._versions(edge)
        self.content = torch.full((self.slots * n,), time, dtype=torch.long, device=node.device)
        # Where each node's latest packet lies (slot · N + node), and where it lay at each tick.
        self.latest = torch.arange(n, device=node.device)
        self.current = self.latest.repeat(depth + 1)
        self.time = time

    def follow(self, before: Outbox, kept: Kept) -> None:
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
            version = torch.div(_versions(theirs, old)[:, there], old, rounding_mode="floor")
            _versions(mine, n)[:, here] = version * n + here

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
        n, size, nodes = self.graph.num_nodes, self.node.size(0), places(at)[0]
        where = self.latest[nodes] + n
        where = torch.where(where >= size, where - size, where)
        self.latest[nodes] = where
        self.node.index_copy_(0, where, _rows(node))
        self.content[where] = content
        if self.edge is not None and edge is not None:
            self.edge.index_copy_(0, self._letters(where, at), _rows(edge))

    def _letters(self, where: Tensor, at: Star) -> Tensor:
        """Where the letters of these packets lie."""
        nodes, edges = places(at)
        version = torch.div(where - nodes, self.graph.num_nodes, rounding_mode="floor")
        return version[at.slot] * self.graph.num_edges + edges

    def fetch(self, edges: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Packets of these ``time`` s along these edges: the senders' part for everybody
        [R, k, E'], their letters [R, m, E'], and the time of the oldest embedding inside [E']."""
        graph, m = self.graph, self.depth + 1
        n, src = graph.num_nodes, graph.src[edges]
        row = time + (self.time % m - self.time)  # in -depth … depth, the ring's row or m more
        row = torch.where(row < 0, row + m, row)
        where = self.current[row * n + src]
        mail: Tensor | None = None
        if self.edge is not None:
            version = torch.div(where, n, rounding_mode="floor")
            mail = self._read(self.edge, version * graph.num_edges + graph.reverse[edges])
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
