"""Stars: some nodes with the edges into them."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.ops import Array, namespace


@dataclass(frozen=True, eq=False)
class Star:
    """Some nodes with the edges into them.

    A rule computes with the nodes' own values [..., A] and an *inbox* [..., E'], which holds for
    each edge what the receiver last heard from the sender. A simulation uses the star of many or
    all nodes; a robot uses the star of its own node.

    Attributes:
        size: A, the number of nodes.
        slot: The receiver of each edge, as an index into the A nodes, [E'].
        nodes: Indices of the nodes in the whole graph, [A]; ``None``: all, in order.
        edges: Indices of the edges in the whole graph, [E']; ``None``: all, in order.
        senders: A label of each edge's sender, [E']; ``None`` if there are no parallel edges and no
            self-loops.
        labels: The nodes' own labels, [A]; only with ``senders``.
        ends: Indices of the receivers, then of the senders of all edges, [2E']; only in the star of
            all nodes.
    """

    size: int
    slot: Array
    nodes: Array | None = None
    edges: Array | None = None
    senders: Array | None = None
    labels: Array | None = None
    ends: Array | None = None

    @property
    def degree(self) -> int:
        """E', the number of edges."""
        return int(self.slot.shape[0])

    @property
    def loops(self) -> Array | None:
        """Which edges are self-loops, [E']; ``None`` if there are none."""
        if self.senders is None or self.labels is None:
            return None
        return self.senders == self.labels[self.slot]

    def at_nodes(self, x: Array) -> Array:
        """Values of the whole graph at these nodes: [..., N] -> [..., A]."""
        return x if self.nodes is None else x[..., self.nodes]

    def at_edges(self, x: Array) -> Array:
        """Values of the whole graph at these edges: [..., E] -> [..., E']."""
        return x if self.edges is None else x[..., self.edges]

    def put(self, x: Array, value: Array) -> Array:
        """``x`` [..., N] with the values [..., A] at these nodes; may change ``x`` in place."""
        return value if self.nodes is None else namespace(x).put(x, self.nodes, value)

    def put_edges(self, x: Array, value: Array) -> Array:
        """``x`` [..., E] with the values [..., E'] at these edges; may change ``x`` in place."""
        return value if self.edges is None else namespace(x).put(x, self.edges, value)

    def collect(self, x: Array) -> Array:
        """Sum over the edges into each node: [..., E'] -> [..., A]."""
        return namespace(x).collect(x, self.slot, self.size)

    def spread(self, x: Array) -> Array:
        """The receiver's value on every edge: [..., A] -> [..., E']."""
        return namespace(x).gather(x, self.slot)

    def both_ends(self, h: Array, inbox: Array | None) -> Array:
        """Values at the receiver and the sender of every edge: [R, k, A] and [R, k, E'] ->
        [R, k, 2, E']. Without an inbox the sender's current value is used."""
        xp = namespace(h)
        if inbox is not None:
            return xp.stack([self.spread(h), inbox], axis=2)
        pairs = xp.gather(h, self.ends)
        return xp.reshape(pairs, (*pairs.shape[:2], 2, self.degree))

    def current(self, h: Array) -> Array:
        """The sender's current value on every edge: [R, k, N] -> [R, k, E]."""
        assert self.ends is not None, "only the star of all nodes knows its senders"
        return namespace(h).gather(h, self.ends[self.degree :])

    def own_view(self, h: Array, inbox: Array) -> Array:
        """The inbox in which self-loops hold the node's current value: [R, k, A] and [R, k, E'] ->
        [R, k, E']."""
        loops = self.loops
        return inbox if loops is None else namespace(h).where(loops, self.spread(h), inbox)

    def with_senders(self, senders: Array | None = None, reverse: Array | None = None) -> Star:
        """These nodes, then the sender of each of their edges as a node of its own: the edges into
        these nodes [E'], then each of these edges the other way [E'].

        Args:
            senders: The sender of each edge of the whole graph, [E]; ``None`` for a node alone,
                whose arrays have the order of the new star.
            reverse: The edge the other way of each edge of the whole graph, [E]; likewise.
        """
        xp = namespace(self.slot)
        slot = xp.concat([self.slot, self.size + xp.range(self.degree, self.slot)])
        size = self.size + self.degree
        if senders is None or reverse is None:
            return Star(size, slot)
        nodes = xp.range(self.size, self.slot) if self.nodes is None else self.nodes
        edges = xp.range(self.degree, self.slot) if self.edges is None else self.edges
        return Star(
            size, slot, xp.concat([nodes, senders[edges]]), xp.concat([edges, reverse[edges]])
        )

    def part(self, some: Array) -> tuple[Star, Array]:
        """The star of some of these nodes (a mask [A]), and a mask of its edges [E']."""
        xp = namespace(some)
        keep = some[self.slot]
        slot = (xp.cumsum(some, 0) - 1)[self.slot[keep]]
        nodes = xp.true_at(some) if self.nodes is None else self.nodes[some]
        edges = xp.true_at(keep) if self.edges is None else self.edges[keep]
        senders = None if self.senders is None else self.senders[keep]
        labels = None if self.labels is None else self.labels[some]
        return Star(int(nodes.shape[0]), slot, nodes, edges, senders, labels), keep
