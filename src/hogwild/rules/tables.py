r"""What nodes know of each other in the rule ``"balls"``, and how they tell it.

A packet from i to j has a number n, which grows whenever i has news. It says that it holds all news
since number b, and up to which number its sender has all news of j. News are

* profiles that i has learned, or new editions of them: the identity, the features, the number of
  edges into the node, and these edges (senders' identities and edge features), as far as j may need
  them;
* embeddings that i has heard since: identity, version and k numbers (only where there is a rim).

The number b is the last that j has confirmed, so a lost packet costs nothing but time: the next one
holds its news, too. j confirms n if it has confirmed b. A node that has lost its memory confirms
nothing, and hears everything again; also its own last version, from which it counts on. Two kinds
of news are left out. What came from j, j knows. What came from a neighbour u of j, j hears from u:
i knows the edges of u, and u sends until j confirms. (News come to u from somebody else, and so on
back to the node that they are about, which tells all its neighbours. So somebody tells j.)

The simulator's packets [R, ·, N] hold the number, the edition of the profile and the version of the
embedding for every slot (0: unknown), and the embeddings. Letters [R, ·, E] hold what is confirmed,
b, and for every slot whether the profile and whether the embedding is in the packet.

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
from hogwild.graph import Graph, Star, kept

HEAD = 3
"""Numbers at the head of a packet: its own, b, and what it confirms; where there are rims, also the
version of its sender's embedding."""
MARK = 2
"""Numbers of an embedding's entry beside the embedding: whose it is, and its version."""

_MEMORY = {
    "edition", "learned", "origin", "version", "behind", "value", "changed", "source", "number",
    "size", "got", "confirmed", "base", "flags",
}  # fmt: skip


class Tables:
    """The tables of all nodes: a column for each node, a row for each slot of its table.

    Args:
        graph: The graph.
        around: Who is in which slot.
        described: Numbers that describe a node and an edge.
        channels: Width k of an embedding.
        bounded: Whether there are rims, so that embeddings are sent, too.
    """

    def __init__(
        self,
        graph: Graph,
        around: Surroundings,
        described: tuple[int, int],
        channels: int,
        bounded: bool,
    ) -> None:
        self.graph, self.around, self.channels, self.bounded = graph, around, channels, bounded
        w, (own, edge) = around.width, described
        self.counters = 1 + (2 if bounded else 1) * w
        self.letter = 2 + (2 if bounded else 1) * w
        self.said = self.counters + (w * channels if bounded else 0)
        self.used = around.node >= 0
        # What i tells of v reaches nodes one hop farther, which need the edges into v only if v is
        # nearer than the end of their tables.
        degree = graph.in_degree[around.node.clamp_min(0)]
        listed = (around.hops + 1 < around.reach).long() * degree * (1 + edge)
        self.profile = torch.where(self.used, 2 + own + listed, 0)  # [W, N] numbers of a profile
        self.passed = around.hops < around.reach  # [W, N] what neighbours may need, too
        self.links = torch.unique(graph.src * graph.num_nodes + graph.dst)  # sorted
        self.edges = torch.arange(graph.num_edges, device=graph.src.device)
        self.teller = (around.heard == 0).long().argmax(0)  # [E] the slot of an edge's sender

    def begin(self, h: Tensor) -> None:
        """Everybody knows itself and nothing else."""
        shape = self.around.node.shape
        device = h.device
        # Of the profile in each slot; 0: unknown. A node whose features change has a new one.
        self.edition = torch.zeros(shape, dtype=torch.long, device=device)
        self.learned = torch.zeros_like(self.edition)  # in which packet
        self.origin = torch.full(shape, -1, device=device)  # edge that brought the profile
        if self.bounded:
            self.version = torch.zeros_like(self.learned)  # 0: no embedding was heard
            self.behind = torch.zeros(h.size(-1), dtype=torch.bool, device=device)
            self.value = h.new_zeros(*h.shape[:2], *shape)  # [R, k, W, N]
            self.changed, self.source = torch.zeros_like(self.learned), self.origin.clone()
        self.number = torch.zeros(h.size(-1), dtype=torch.long, device=device)
        self.size = self.number.to(h.dtype)  # of the last packets, mean over neighbours
        zero = torch.zeros(self.graph.num_edges, dtype=torch.long, device=device)
        self.got, self.confirmed, self.base = zero, zero.clone(), zero.clone()
        self.flags = torch.zeros(self.letter - 2, zero.numel(), dtype=torch.bool, device=device)
        # The first packets, which nobody has to send: neighbours know each other from the start.
        self.edition[0] = 1
        self.flags[0] = True

    def keep(self, before: Tables, changed: Tensor, edition: int) -> None:
        """Take over the tables of before a change of features: the nodes in ``changed`` [N] have a
        new profile of this edition, which is news."""
        for name in vars(before).keys() & _MEMORY:
            setattr(self, name, getattr(before, name).clone())
        self.edition[0, changed] = edition
        self.learned[0, changed], self.origin[0, changed] = self.number[changed] + 1, -1

    @property
    def known(self) -> Tensor:
        """Which slots have a profile, [W, N]."""
        return self.edition > 0

    def forget(self, nodes: Tensor) -> None:
        """These nodes know only themselves again."""
        own = self.edition[0, nodes]
        self.edition[:, nodes] = 0
        self.edition[0, nodes] = own
        self.learned[:, nodes], self.origin[:, nodes], self.number[nodes] = 0, -1, 0
        if self.bounded:
            self.version[:, nodes] = self.changed[:, nodes] = 0
            self.source[:, nodes] = -1
        mine = torch.isin(self.graph.dst, nodes)
        self.got[mine] = self.confirmed[mine] = self.base[mine] = 0

    def full(self, nodes: Tensor) -> Tensor:
        """Which of these nodes know all nodes of their tables, [A]."""
        return (self.known[:, nodes] | ~self.used[:, nodes]).all(0)

    # -- hearing -------------------------------------------------------------------------------

    def hear(self, inbox: Tensor, mail: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        """Take over what is in the packets. Returns which profiles were new, and which embeddings,
        [W, A]."""
        w, edges = self.around.width, at.at_edges(self.edges)
        nodes = torch.arange(at.size, device=edges.device) if at.nodes is None else at.nodes
        nothing = torch.zeros(w, nodes.numel(), dtype=torch.bool, device=edges.device)
        count = inbox[0, : self.counters].round().long()
        letter = mail[0].round().long()
        self._number(nodes, edges, letter[0], at)
        if not edges.numel():
            return nothing, nothing
        joins = self.got[edges] >= letter[1]
        self.got[edges] = torch.where(
            joins, torch.maximum(self.got[edges], count[0]), self.got[edges]
        )
        place = self.around.heard[:, edges]  # [W, E'] the slot at the sender, or W
        tells = self._told(count[1 : 1 + w] * letter[2 : 2 + w], place, 0)
        learns, by = self._newest(tells, self.edition[:, nodes], at)
        slot, node = learns.nonzero(as_tuple=True)
        here = (slot, nodes[node])
        self.edition[here] = tells[slot, by[slot, node]]
        self.learned[here], self.origin[here] = self.number[nodes[node]], edges[by[slot, node]]
        if not self.bounded:
            return learns, nothing
        versions = self._told(count[1 + w :] * letter[2 + w :], place, 0)
        own = self.version[:, nodes]
        hears, by = self._newest(versions, own, at)
        # A node that hears a newer word of itself than it remembers counts on from there.
        self.behind[nodes] |= hears[0]
        self.version[0, nodes] = torch.maximum(
            own[0], own[0].scatter_reduce(0, at.slot, versions[0], "amax")
        )
        hears[0] = False
        slot, node = hears.nonzero(as_tuple=True)
        here, edge = (slot, nodes[node]), by[slot, node]
        values = inbox[:, self.counters :].unflatten(1, (self.channels, w))
        self.value[:, :, slot, nodes[node]] = values[:, :, place[slot, edge], edge]
        self.version[here] = versions[slot, edge]
        self.changed[here], self.source[here] = self.number[nodes[node]], edges[edge]
        # Who says less of itself than is known has lost its memory, and must hear it.
        less = count[1 + w] < self.version[self.teller[edges], nodes[at.slot]]
        here = (self.teller[edges[less]], nodes[at.slot[less]])
        self.changed[here], self.source[here] = self.number[nodes[at.slot[less]]], -1
        return learns, hears

    def _number(self, nodes: Tensor, edges: Tensor, confirmed: Tensor, at: Star) -> None:
        """Number the news that these nodes are about to hear, by what the neighbours confirm.
        A neighbour that confirms less than before has lost its memory; who is confirmed packets
        that it does not remember, has lost its own. Both send everything again."""
        lost = confirmed < self.confirmed[edges]
        self.confirmed[edges] = confirmed
        number = self.number[nodes]
        most = number.scatter_reduce(0, at.slot, confirmed, "amax")
        fresh = (number == 0) | (most > number)
        self.number[nodes] = most + 1
        gone = edges[lost]
        pairs = [(self.known, self.learned, self.origin)]
        if self.bounded:
            pairs.append((self.version > 0, self.changed, self.source))
        for held, since, origin in pairs:
            again = held[:, nodes] & (fresh | torch.isin(origin[:, nodes], gone))
            since[:, nodes] = torch.where(again, most + 1, since[:, nodes])
            origin[:, nodes] = torch.where(again, -1, origin[:, nodes])

    @staticmethod
    def _told(values: Tensor, place: Tensor, otherwise: int) -> Tensor:
        """Values of the senders' slots [W, E'], in the receivers' slots."""
        none = values.new_full((1, values.size(1)), otherwise)
        return torch.cat([values, none]).gather(0, place)

    @staticmethod
    def _newest(told: Tensor, own: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        """Which slots are told something larger than they hold, and an edge that tells it, [W, A]
        each."""
        slots = at.slot.expand_as(told)
        best = own.scatter_reduce(1, slots, told, "amax")
        newer = best > own
        index = torch.arange(told.size(1), device=told.device).expand_as(told)
        wins = torch.where(told == best.gather(1, slots), index, -1)
        return newer, torch.full_like(own, -1).scatter_reduce(1, slots, wins, "amax")

    # -- telling -------------------------------------------------------------------------------

    def speak(self, nodes: Tensor, h: Tensor, speaks: Tensor) -> None:
        """The nodes in ``speaks``, a mask [A], tell their embeddings [R, k, A] from now on, where
        they have moved."""
        first = (self.version[0, nodes] == 0) | self.behind[nodes]
        moved = speaks & ((h != self.value[:, :, 0, nodes]).any(0).any(0) | first)
        some = nodes[moved]
        self.behind[some] = False
        self.value[:, :, 0, some] = h[..., moved]
        self.version[0, some] += 1
        self.changed[0, some] = self.number[some]

    def send(self, nodes: Tensor, at: Star) -> None:
        """Decide what the packets of these nodes hold, and count it."""
        edges, w = at.at_edges(self.edges), self.around.width
        newest = self.learned[:, nodes].amax(0)
        if self.bounded:
            newest = torch.maximum(newest, self.changed[:, nodes].amax(0))
        self.number[nodes] = newest  # without news it stays as it was
        here = nodes[at.slot]
        self.base[edges] = self.confirmed[edges]
        profile = self._news(self.known, self.learned, self.origin, here, edges)
        numbers = HEAD + self.bounded + (profile * self.profile[:, here]).sum(0)
        self.flags[:w, edges] = profile
        if self.bounded:
            entry = self._news(self.version > 0, self.changed, self.source, here, edges)
            numbers = numbers + (MARK + self.channels) * entry.sum(0)
            self.flags[w:, edges] = entry
        proper = (self.graph.src[edges] != here).to(self.size.dtype)
        total = at.collect(proper * numbers.to(self.size.dtype))
        self.size[nodes] = total / at.collect(proper).clamp_min(1.0)

    def _news(
        self, held: Tensor, since: Tensor, origin: Tensor, here: Tensor, edges: Tensor
    ) -> Tensor:
        """What the packets along these edges' reverses hold, [W, E']."""
        graph, around = self.graph, self.around
        receiver = graph.src[edges]
        news = held[:, here] & self.passed[:, here] & (since[:, here] > self.confirmed[edges])
        if origin is self.origin:
            news &= around.node[:, here] != receiver  # who knows itself best
        slot, edge = news.nonzero(as_tuple=True)
        by = origin[slot, here[edge]]
        teller, to = graph.src[by.clamp_min(0)], receiver[edge]
        link = teller * graph.num_nodes + to
        at = torch.searchsorted(self.links, link).clamp_max(self.links.numel() - 1)
        twice = (by >= 0) & ((teller == to) | (self.links[at] == link))
        news[slot, edge] = ~twice
        return news

    def packet(self, h: Tensor, at: Star) -> Tensor:
        """What these nodes send to everybody, [R, said, A]."""
        rows = [at.at_nodes(self.number)[None], at.at_nodes(self.edition)]
        if self.bounded:
            rows.append(at.at_nodes(self.version))
        counts = torch.cat(rows).to(h.dtype)
        counts = counts.expand(h.size(0), *counts.shape)
        if not self.bounded:
            return counts
        return torch.cat([counts, at.at_nodes(self.value).flatten(1, 2)], 1)

    def letters(self, h: Tensor, at: Star) -> Tensor:
        """What these nodes send to each neighbour, [R, letter, E']."""
        heads = torch.stack([at.at_edges(self.got), at.at_edges(self.base)])
        rows = torch.cat([heads, at.at_edges(self.flags).long()]).to(h.dtype)
        return rows.expand(h.size(0), *rows.shape)


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
