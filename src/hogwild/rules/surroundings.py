"""Who is within so many hops of whom: the tables of the rule ``"balls"``, and their edges.

Every node i has a table with a slot for each node within ``reach`` hops, nearest first; slot 0 is
the node itself. Everything here follows from the graph and is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from hogwild.errors import AsynchronyError
from hogwild.graph import Graph, kept

MOST = 40_000_000
"""Slots of all tables together above which a run is refused: it would not fit into memory."""


@dataclass(frozen=True)
class Surroundings:
    """The tables of all nodes.

    Attributes:
        reach: Hops that a table reaches.
        node: The node in each slot, [W, N]; −1: the slot is empty.
        hops: Its distance in hops, [W, N]; larger than ``reach`` where the slot is empty.
        heard: For every edge j → i and every slot of i the slot of the same node in the table of j,
            [W, E]; W where j has none.
        begin: Where the edges of each ball begin, [N + 1].
        edge: The edges into the nodes within ``reach − 1`` hops of each node, [B].
        src: The slot of the sender of each of them, [B].
        dst: The slot of the receiver, [B].
    """

    reach: int
    node: Tensor
    hops: Tensor
    heard: Tensor
    begin: Tensor
    edge: Tensor
    src: Tensor
    dst: Tensor

    @property
    def width(self) -> int:
        """W, the slots of the largest table."""
        return self.node.size(0)

    @property
    def eccentricity(self) -> Tensor:
        """Hops to the farthest node in each table, [N]."""
        return torch.where(self.node >= 0, self.hops, 0).amax(0)


@kept
def surroundings(graph: Graph, reach: int) -> Surroundings:
    """The tables of a graph in which every edge has a reverse edge."""
    src, dst, n = (graph.src.cpu().numpy(), graph.dst.cpu().numpy(), graph.num_nodes)
    order, start = _by_receiver(dst, n)
    key, hops = _balls(src[order], start, n, reach)
    root, member = key // n, key % n
    # Slots by distance, then by number; `place` finds the slot of a (root, member) key.
    by = np.lexsort((member, hops, root))
    root, member, hops = root[by], member[by], hops[by]
    first = np.searchsorted(root, np.arange(n + 1))
    slot = np.arange(len(root)) - first[root]
    width = int(slot.max(initial=-1)) + 1
    node = np.full((width, n), -1)
    far = np.full((width, n), reach + 1)
    node[slot, root], far[slot, root] = member, hops
    back = np.empty(len(by), dtype=np.int64)
    back[by] = slot  # slots in the order of the sorted keys

    def place(roots: np.ndarray, members: np.ndarray) -> np.ndarray:
        wanted = roots * n + members
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        return np.where((key[at] == wanted) & (members >= 0), back[at], width)

    heard = place(np.broadcast_to(src, (width, len(src))), node[:, dst])
    inner = hops < reach
    balls, edges = _ragged(root[inner], member[inner], order, start)
    begin = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(balls, minlength=n), out=begin[1:])
    ends = [place(balls, x[edges]) for x in (src, dst)]
    arrays = (node, far, heard, begin, edges, *ends)
    device = graph.src.device
    found = [torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in arrays]
    return Surroundings(reach, *found)


def widest_reach(graph: Graph, most: int) -> int | None:
    """The largest number of hops with which no table has more than ``most`` entries, at least one;
    ``None``: tables never have more."""
    src, dst, n = (graph.src.cpu().numpy(), graph.dst.cpu().numpy(), graph.num_nodes)
    order, start = _by_receiver(dst, n)
    count = np.ones(n, dtype=np.int64)
    for reach, new in enumerate(_rings(src[order], start, n)):
        count += np.bincount(new // n, minlength=n)
        if count.max() > most:
            return max(reach, 1)
    return None


def _by_receiver(dst: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The edges by receiver, and where those into each node begin."""
    start = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=n), out=start[1:])
    return np.argsort(dst, kind="stable"), start


def _ragged(
    owner: np.ndarray, node: np.ndarray, order: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each (owner, node) all edges into the node, and their owners."""
    count = start[node + 1] - start[node]
    skip = np.repeat(start[node] - (np.cumsum(count) - count), count)
    return np.repeat(owner, count), order[skip + np.arange(int(count.sum()))]


def _balls(
    senders: np.ndarray, start: np.ndarray, n: int, reach: int
) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of nodes within ``reach`` hops as sorted keys root · n + member, and their hops;
    ``senders`` are those of all edges by receiver."""
    found, total = [np.arange(n) * (n + 1)], n
    for new in islice(_rings(senders, start, n), reach):
        total += len(new)
        if total > MOST:
            raise AsynchronyError(
                f"the tables of rule='balls' would hold more than {MOST:,} entries on these "
                f"{n:,} nodes; expected a smaller radius or fewer nodes, or rule='messages'"
            )
        found.append(new)
    key = np.concatenate(found)
    hops = np.repeat(np.arange(len(found)), [len(ring) for ring in found])
    order = np.argsort(key, kind="stable")
    return key[order], hops[order]


def _rings(senders: np.ndarray, start: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """The pairs of nodes one hop apart, two hops apart, and so on, as sorted keys."""
    before, front = np.empty(0, dtype=np.int64), np.arange(n) * (n + 1)
    while True:
        root, member = np.divmod(front, max(n, 1))
        balls, heard = _ragged(root, member, senders, start)
        # With reverse edges a neighbour of the front is in it, behind it, or new.
        new = np.setdiff1d(np.unique(balls * n + heard), front, assume_unique=True)
        new = np.setdiff1d(new, before, assume_unique=True)
        if not len(new):
            return
        yield new
        before, front = front, new
