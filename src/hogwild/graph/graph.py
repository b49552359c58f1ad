r"""A batch of graphs as the solvers see it: the edges, and which node belongs to which graph.

As in PyG, ``edge_index`` [2, E] has the *sender* j in row 0 and the *receiver* i in row 1;
:math:`\mathcal N(i)` are the senders of the edges into i. The gradient of the local energy
:math:`e^i` with respect to :math:`h_j` travels *against* the edge, from i to j. An asynchronous run
needs a reverse link for the gradient: see :meth:`Graph.require_reverse_links`.

The :class:`Graph` owns everything that is derived from the connectivity (block patterns,
elimination orders): a property that is :class:`~hogwild.graph.cached.derived`, or the value of a
function that is :func:`~hogwild.graph.cached.cached`. :meth:`Graph.of` returns the same object for
the same unchanged tensors, so that a training loop pays for the analysis once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from hogwild.errors import AsynchronyError, DeviceError, DTypeError, GraphError
from hogwild.graph.cached import Recent, derived
from hogwild.ops import distinct, gather, scatter
from hogwild_node.star import Star

BOTH_WAYS = (
    "A node's embedding enters the energies of its neighbours, from which the node must hear, too, "
    "so an energy GNN on a directed graph can be solved synchronously only"
)


@dataclass(frozen=True, eq=False)
class Pattern:
    r"""Where the Hessian of a sum of one-hop energies has off-diagonal blocks.

    :math:`e^i` couples i with every neighbour, which gives one block for each edge. It also couples
    every pair of neighbours, which gives one block for each *wedge*: two edges into the same node.
    A pair that names one node twice (a self-loop, a multi-edge) belongs to the diagonal.
    """

    left: Tensor  # [W] edge of each wedge
    right: Tensor  # [W] the other edge into the same node
    rows: Tensor  # [M] node of each off-diagonal block: receivers of edges, then wedge ends
    cols: Tensor  # [M] the other node; M ≤ E + W
    keep: Tensor | None  # positions in [E + W] of the M blocks; None: all
    loops: Tensor | None  # positions in [E + W] whose two nodes coincide; None: none
    loop_nodes: Tensor | None

    @classmethod
    def of(cls, graph: Graph) -> Pattern:
        order = torch.argsort(graph.dst, stable=True)
        ends = graph.in_degree.cumsum(0)[graph.dst[order]]
        here = torch.arange(graph.num_edges, device=order.device)
        count = ends - here - 1  # edges into the same node that come later
        first = torch.repeat_interleave(here, count)
        offset = torch.repeat_interleave(count.cumsum(0) - count, count)
        second = first + 1 + torch.arange(first.numel(), device=order.device) - offset
        left, right = order[first], order[second]
        rows = torch.cat([graph.dst, graph.src[left]])
        cols = torch.cat([graph.src, graph.src[right]])
        same = rows == cols
        if not bool(same.any()):
            return cls(left, right, rows, cols, None, None, None)
        keep, loops = (~same).nonzero()[:, 0], same.nonzero()[:, 0]
        return cls(left, right, rows[keep], cols[keep], keep, loops, rows[loops])

    def folded(self, diagonal: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks [R, k, k, N] of nodes and [R, k, k, M] of different nodes, from blocks
        [R, k, k, E + W] of all pairs: a pair that names one node twice adds B + Bᵀ to the diagonal
        block of the node."""
        if self.loops is None or self.loop_nodes is None:
            return diagonal, off
        loops = off[..., self.loops]
        twice = scatter(loops + loops.transpose(1, 2), self.loop_nodes, diagonal.size(-1))
        return diagonal + twice, off[..., self.keep]


@dataclass(eq=False)
class Graph:
    """``num_graphs`` disjoint graphs with ``num_nodes`` nodes in all, nodes sorted by graph."""

    src: Tensor  # [E] j, the sender
    dst: Tensor  # [E] i, the receiver
    batch: Tensor  # [N] graph of each node, sorted
    num_nodes: int
    num_graphs: int
    degrees: Tensor | None = field(default=None, repr=False)
    """Only for a part of a larger graph: sums of the weights of the edges into and out of each node
    in the larger graph, [2, N]. ``None``: all edges are here."""
    analyses: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    """Values of functions that are :func:`cached`, by function and arguments."""

    recent: ClassVar[Recent[Graph]] = Recent(256)
    """The last 256 graphs that :meth:`of` made, for the same tensors again."""

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave analyses out: some hold memory of this process."""
        return self.__dict__ | {"analyses": {}}

    # -- construction ---------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        edge_index: Tensor,
        num_nodes: int,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        *,
        degrees: Tensor | None = None,
        validate: bool = True,
    ) -> Graph:
        """The graph of these tensors; the same object again while they are alive and unchanged.

        ``degrees`` are those of :class:`~hogwild.graph.Inputs`, [N, 2].
        """
        tensors, options = (edge_index, batch, degrees), (num_nodes, batch_size, validate)
        found = cls.recent.get(tensors, *options)
        if found is None or not found._is_of(edge_index, batch):
            found = cls._build(edge_index, num_nodes, batch, batch_size, validate)
            if degrees is not None:
                check_degrees(degrees, edge_index, num_nodes)
                found.degrees = degrees.detach().mT.to(torch.float64, copy=True)
            cls.recent.put(found, tensors, *options)
        return found

    def _is_of(self, edge_index: Tensor, batch: Tensor | None) -> bool:
        """Whether these tensors still hold this graph. Torch does not count what is written through
        NumPy or ``.data``, so on a CPU the numbers are compared."""
        if not edge_index.is_cpu:
            return True
        same = torch.equal(edge_index[0], self.src) and torch.equal(edge_index[1], self.dst)
        return same and (batch is None or torch.equal(batch, self.batch))

    @classmethod
    @torch.inference_mode(False)  # what is kept must serve training, too
    def _build(
        cls,
        edge_index: Tensor,
        num_nodes: int,
        batch: Tensor | None,
        batch_size: int | None,
        validate: bool,
    ) -> Graph:
        check_edge_index(edge_index, num_nodes, validate)
        if batch is None:
            if batch_size not in (None, 1):
                raise GraphError(
                    f"batch_size={batch_size} was given without batch; expected batch [N] with the "
                    f"graph of every node (or leave both out for a single graph)"
                )
            batch = torch.zeros(num_nodes, dtype=torch.long, device=edge_index.device)
            return cls(edge_index[0].clone(), edge_index[1].clone(), batch, num_nodes, 1)
        check_batch(batch, edge_index, num_nodes)
        last = int(batch[-1]) + 1 if batch_size is None else batch_size
        if validate:
            check_batch_values(batch, edge_index, last)
        # Copies: the graph must neither change with the caller's tensors nor keep them alive.
        return cls(edge_index[0].clone(), edge_index[1].clone(), batch.clone(), num_nodes, last)

    # -- reductions over the nodes of a graph -----------------------------------------------------

    def sum(self, x: Tensor) -> Tensor:
        """Sum over each graph's nodes: [..., N] -> [..., G]."""
        if self.num_graphs == 1:
            return x.sum(-1, keepdim=True)
        return scatter(x, self.batch, self.num_graphs)

    def max(self, x: Tensor) -> Tensor:
        """Largest over each graph's nodes of a nonnegative x: [..., N] -> [..., G]."""
        if self.num_graphs == 1:
            return x.amax(-1, keepdim=True)
        out = x.new_zeros(*x.shape[:-1], self.num_graphs)
        return out.scatter_reduce(-1, self.batch.expand_as(x), x, "amax")

    def spread(self, x: Tensor) -> Tensor:
        """Each node gets its graph's value: [..., G] -> [..., N] (or a broadcastable [..., 1])."""
        return x if self.num_graphs == 1 else gather(x, self.batch)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Inner product over each graph: [R, k, N] twice -> [R, G]."""
        return self.sum((x * y).sum(-2))

    def wide(self, x: Tensor) -> Tensor:
        """Per-graph numbers as factors of node vectors: [R, G] -> [R, 1, N]."""
        return self.spread(x).unsqueeze(-2)

    def norm(self, x: Tensor) -> Tensor:
        """Largest absolute entry over each graph: [R, k, N] -> [R, G]; NaN stays NaN."""
        return self.max(x.abs().amax(-2))

    # -- connectivity -----------------------------------------------------------------------------

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @derived
    def ends(self) -> Tensor:
        """Receivers, then senders, [2E]: one gather reads both ends of every edge."""
        return torch.cat([self.dst, self.src])

    @derived
    def sizes(self) -> Tensor:
        """Nodes in each graph, [G]."""
        return torch.bincount(self.batch, minlength=self.num_graphs)

    @derived
    def in_degree(self) -> Tensor:
        """Number of edges into each node, [N]."""
        return torch.bincount(self.dst, minlength=self.num_nodes)

    def received(self, weight: Tensor) -> Tensor:
        """Sum of the weights [E] of the edges into each node, [N]. A part of a larger graph has the
        sums of the larger graph."""
        if self.degrees is not None:
            return self.degrees[0].to(weight.dtype)
        return scatter(weight, self.dst, self.num_nodes)

    def sent(self, weight: Tensor) -> Tensor:
        """Sum of the weights [E] of the edges out of each node, [N], as in :meth:`received`."""
        if self.degrees is not None:
            return self.degrees[1].to(weight.dtype)
        return scatter(weight, self.src, self.num_nodes)

    def require_whole(self, what: str) -> None:
        """Raise if this is a part of a larger graph; ``what`` needs the whole graph."""
        if self.degrees is not None:
            raise GraphError(
                f"{what} needs the whole graph, and the inputs are a part of a larger graph "
                f"(degrees was given); expected the whole graph, or another model"
            )

    @derived
    def self_loops(self) -> Tensor | None:
        """Edges from a node to itself, or ``None``."""
        found = (self.src == self.dst).nonzero()[:, 0]
        return found if found.numel() else None

    @derived
    def parallel(self) -> tuple[Tensor, Tensor] | None:
        """For a graph with parallel edges: the number of every edge's (sender, receiver) pair,
        and one edge of every pair. ``None`` where all edges differ."""
        number, pairs, _ = distinct(self.src, self.dst, self.num_nodes)
        if pairs.numel() == self.num_edges:
            return None
        edges = torch.arange(self.num_edges, device=number.device)
        return number, torch.zeros_like(pairs).scatter_(0, number, edges)

    @derived
    def pattern(self) -> Pattern:
        """Off-diagonal blocks of the Hessian of a one-hop energy (see :class:`Pattern`)."""
        return Pattern.of(self)

    @derived
    def num_blocks(self) -> int:
        """Number of pairs of nodes in :attr:`pattern`, E + W, without building the pattern; waits
        for the device once."""
        degree = self.in_degree
        return self.num_edges + int((degree * (degree - 1) // 2).sum())

    @derived
    def reverse(self) -> Tensor:
        """For every edge j → i the edge i → j, [E]; parallel edges pair up in their order."""
        forward = self.src * self.num_nodes + self.dst
        backward = self.dst * self.num_nodes + self.src
        ahead, back = torch.argsort(forward, stable=True), torch.argsort(backward, stable=True)
        if not torch.equal(forward[ahead], backward[back]):
            self.require_reverse_links()
            raise AsynchronyError(
                "some nodes are joined by more edges one way than the other; expected as many "
                "edges i -> j as j -> i, since answers travel against every edge"
            )
        return torch.empty_like(ahead).scatter_(0, ahead, back)

    @derived
    def everyone(self) -> Star:
        """All nodes and all edges: the synchronous case of a node's rule."""
        labels, senders = self._labels
        return Star(self.num_nodes, self.dst, senders=senders, labels=labels, ends=self.ends)

    @derived
    def _labels(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Labels of nodes and of edges' senders, where a node may have itself or one neighbour
        twice for a neighbour."""
        if self.self_loops is None and self.parallel is None:
            return None, None
        return torch.arange(self.num_nodes, device=self.src.device), self.src

    @derived
    def by_receiver(self) -> tuple[Tensor, Tensor]:
        """Edges grouped by receiver [E], and where each receiver's group starts [N + 1]."""
        order = torch.argsort(self.dst, stable=True)
        start = torch.zeros(self.num_nodes + 1, dtype=torch.long, device=order.device)
        start[1:] = self.in_degree.cumsum(0)
        return order, start

    def star(self, nodes: Tensor) -> Star:
        """These nodes with the edges into them, grouped by receiver in the order of ``nodes``."""
        order, start = self.by_receiver
        count = self.in_degree[nodes]
        slot = torch.repeat_interleave(count)
        first = start[nodes] - (count.cumsum(0) - count)
        edges = order[first[slot] + torch.arange(slot.numel(), device=slot.device)]
        return self.star_of(nodes, edges, slot)

    def star_of(self, nodes: Tensor, edges: Tensor, slot: Tensor) -> Star:
        """These nodes with the edges into them, whose receivers are ``nodes[slot]``."""
        labels, senders = self._labels
        if labels is None or senders is None:
            return Star(nodes.numel(), slot, nodes, edges)
        return Star(nodes.numel(), slot, nodes, edges, senders[edges], labels[nodes])

    def missing_reverse_links(self) -> Tensor:
        """Edges j → i without any edge i → j, as [2, M]."""
        forward = self.src * self.num_nodes + self.dst
        backward = self.dst * self.num_nodes + self.src
        missing = ~torch.isin(forward, backward)
        return torch.stack([self.src[missing], self.dst[missing]])

    def require_reverse_links(self, why: str = BOTH_WAYS) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError` unless every edge j → i has an edge i → j.

        Args:
            why: What needs the reverse links, and what does not, in a sentence.
        """
        missing = self.missing_reverse_links()
        if missing.numel():
            j, i = missing[:, 0].tolist()
            raise AsynchronyError(
                f"{missing.size(1)} of {self.num_edges} edges have no reverse link (first: "
                f"{j} -> {i}, so node {i} hears {j} but cannot send to it). {why}; expected an "
                f"undirected communication graph: add the reverse edges "
                f"(torch_geometric.utils.to_undirected)"
            )

    def select(self, graphs: Tensor) -> tuple[Graph, Tensor, Tensor]:
        """The subgraph of these graphs (sorted indices), with its node and edge indices."""
        position = torch.full((self.num_graphs,), -1, device=self.batch.device)
        position[graphs] = torch.arange(graphs.numel(), device=graphs.device)
        nodes = (position[self.batch] >= 0).nonzero()[:, 0]
        edges = (position[self.batch[self.dst]] >= 0).nonzero()[:, 0]
        rename = torch.zeros(self.num_nodes, dtype=torch.long, device=nodes.device)
        rename[nodes] = torch.arange(nodes.numel(), device=nodes.device)
        sub = Graph(
            rename[self.src[edges]],
            rename[self.dst[edges]],
            position[self.batch[nodes]],
            nodes.numel(),
            graphs.numel(),
            None if self.degrees is None else self.degrees[:, nodes],
        )
        return sub, nodes, edges


def check_edge_index(edge_index: Tensor, num_nodes: int, validate: bool) -> None:
    """Raise unless this is an ``edge_index`` [2, E]; with ``validate`` its nodes must exist."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphError(
            f"edge_index has shape {tuple(edge_index.shape)}; expected [2, num_edges] with senders "
            f"in row 0 and receivers in row 1"
        )
    if edge_index.dtype != torch.long:
        raise DTypeError(f"edge_index has dtype {edge_index.dtype}; expected torch.int64")
    if num_nodes == 0:
        raise GraphError(
            "the graph has no nodes (x has zero rows); expected at least one node. Remove empty "
            "graphs before batching."
        )
    if validate and edge_index.numel():
        low, high = (int(v) for v in edge_index.aminmax())
        if low < 0 or high >= num_nodes:
            raise GraphError(
                f"edge_index names nodes {low} to {high}; expected 0 to {num_nodes - 1}, since x "
                f"has {num_nodes} rows"
            )


def check_batch(batch: Tensor, edge_index: Tensor, num_nodes: int) -> None:
    """Raise unless this is a batch vector [N] on the edges' device; reads no values."""
    if batch.dim() != 1 or batch.numel() != num_nodes:
        raise GraphError(
            f"batch has shape {tuple(batch.shape)}; expected [{num_nodes}], one graph number for "
            f"each row of x"
        )
    if batch.dtype != torch.long:
        raise DTypeError(f"batch has dtype {batch.dtype}; expected torch.int64")
    _require_one_device("batch", batch, edge_index)


def check_batch_values(batch: Tensor, edge_index: Tensor, num_graphs: int) -> None:
    """Raise unless the graphs are sorted, in range, not empty, and no edge joins two of them."""
    steps = batch.diff()
    least, most = (int(v) for v in steps.aminmax()) if steps.numel() else (0, 0)
    if least < 0:
        at = int((steps < 0).nonzero()[0, 0])
        raise GraphError(
            f"batch is not sorted: node {at} is in graph {int(batch[at])} and node {at + 1} in "
            f"graph {int(batch[at + 1])}; expected nodes grouped by graph, as "
            f"torch_geometric.data.Batch makes them"
        )
    low, high = int(batch[0]), int(batch[-1])
    if low < 0 or high >= num_graphs:
        raise GraphError(
            f"batch holds graph numbers {low} to {high}; expected 0 to {num_graphs - 1}"
        )
    if most > 1 or low > 0 or high < num_graphs - 1:  # of sorted numbers, some are left out
        empty = (torch.bincount(batch, minlength=num_graphs) == 0).nonzero()[:, 0]
        raise GraphError(
            f"{empty.numel()} of {num_graphs} graphs have no nodes (first: graph {int(empty[0])}); "
            f"remove empty graphs before batching"
        )
    sender, receiver = (batch.index_select(0, ends) for ends in edge_index)
    if not torch.equal(sender, receiver):
        crossing = (sender != receiver).nonzero()[:, 0]
        j, i = edge_index[:, crossing[0]].tolist()
        raise GraphError(
            f"{crossing.numel()} edges join different graphs (first: {j} -> {i}, graphs "
            f"{int(batch[j])} and {int(batch[i])}); expected edges within one graph"
        )


def check_degrees(degrees: Tensor, edge_index: Tensor, num_nodes: int) -> None:
    """Raise unless these are degrees [N, 2] of nodes on the edges' device; reads no values."""
    if tuple(degrees.shape) != (num_nodes, 2) or not degrees.is_floating_point():
        raise GraphError(
            f"degrees is {degrees.dtype} of shape {tuple(degrees.shape)}; expected floating-point "
            f"numbers [{num_nodes}, 2]: the sums of the weights of the edges into and out of every "
            f"node in the whole graph"
        )
    _require_one_device("degrees", degrees, edge_index)


def _require_one_device(name: str, value: Tensor, edge_index: Tensor) -> None:
    if value.device != edge_index.device:
        raise DeviceError(
            f"{name} is on {value.device} and edge_index on {edge_index.device}; move them to one "
            f"device"
        )
