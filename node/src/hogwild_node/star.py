"""Some nodes with the edges into them: all that a node's rule may look at."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.ops import Array, namespace


@dataclass(frozen=True, eq=False)
class Star:
    """Some nodes with the edges into them.

    A rule is written over the nodes' own values [..., A] and an *inbox*, one value for each edge
    [..., E']: what the receiver last heard from the sender. The star of all nodes is the
    synchronous case; the star of one node is what a robot computes.

    Attributes:
        size: A, the number of nodes.
        slot: The position among the nodes of each edge's receiver, [E'].
        nodes: The nodes' places in the arrays of the whole graph, [A]; ``None``: all, in order.
        edges: The edges' places there, [E']; ``None``: all, in order.
        senders: A label of each edge's sender, [E']; ``None``: the neighbours of a node all differ,
            and none is the node itself.
        labels: The nodes' own labels, [A]; only with ``senders``.
        ends: Places of the receivers, then of the senders of all edges, [2E']; only where the star
            is that of all nodes.
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
        """Which edges lead from a node to itself, [E']; ``None``: none can."""
        if self.senders is None or self.labels is None:
            return None
        return self.senders == self.labels[self.slot]

    def at_nodes(self, x: Array) -> Array:
        """Per-node values of the whole graph at these nodes: [..., N] -> [..., A]."""
        return x if self.nodes is None else x[..., self.nodes]

    def at_edges(self, x: Array) -> Array:
        """Per-edge values of the whole graph at these edges: [..., E] -> [..., E']."""
        return x if self.edges is None else x[..., self.edges]

    def put(self, x: Array, value: Array) -> Array:
        """``x`` [..., N] with these values [..., A] at these nodes; ``x`` itself may change."""
        return value if self.nodes is None else namespace(x).put(x, self.nodes, value)

    def put_edges(self, x: Array, value: Array) -> Array:
        """``x`` [..., E] with these values [..., E'] at these edges; ``x`` itself may change."""
        return value if self.edges is None else namespace(x).put(x, self.edges, value)

    def collect(self, x: Array) -> Array:
        """Sum over the edges into each node: [..., E'] -> [..., A]."""
        return namespace(x).collect(x, self.slot, self.size)

    def spread(self, x: Array) -> Array:
        """Every edge gets its receiver's value: [..., A] -> [..., E']."""
        return namespace(x).gather(x, self.slot)

    def both_ends(self, h: Array, inbox: Array | None) -> Array:
        """Values at the receiver and the sender of every edge, [R, k, A] and [R, k, E'] to
        [R, k, 2, E']; without an inbox the sender's value is its current one."""
        xp = namespace(h)
        if inbox is not None:
            return xp.stack([self.spread(h), inbox], axis=2)
        pairs = xp.gather(h, self.ends)
        return xp.reshape(pairs, (*pairs.shape[:2], 2, self.degree))

    def current(self, h: Array) -> Array:
        """What every receiver hears where nothing is late: [R, k, N] -> [R, k, E]."""
        assert self.ends is not None, "only the star of all nodes knows its senders"
        return namespace(h).gather(h, self.ends[self.degree :])

    def own_view(self, h: Array, inbox: Array) -> Array:
        """The inbox in which every edge from a node to itself holds the node's own value, [R, k, A]
        and [R, k, E'] -> [R, k, E']: a node's view of itself is never old."""
        loops = self.loops
        return inbox if loops is None else namespace(h).where(loops, self.spread(h), inbox)

    def part(self, some: Array) -> tuple[Star, Array]:
        """The star of some of these nodes (a mask [A]), and which of the edges are its own [E']."""
        xp = namespace(some)
        keep = some[self.slot]
        slot = (xp.cumsum(some, 0) - 1)[self.slot[keep]]
        nodes = xp.true_at(some) if self.nodes is None else self.nodes[some]
        edges = xp.true_at(keep) if self.edges is None else self.edges[keep]
        senders = None if self.senders is None else self.senders[keep]
        labels = None if self.labels is None else self.labels[some]
        return Star(int(nodes.shape[0]), slot, nodes, edges, senders, labels), keep
