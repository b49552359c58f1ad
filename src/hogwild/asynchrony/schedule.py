r"""Algorithm 1's schedule: when each node updates, and how old its view of each neighbour is.

Node i updates at the times :math:`T^i`, at most S ticks apart, the gap drawn from
:math:`\{1, …, S\}`. When it does, its view of a neighbour j moves to

.. math:: \tau^i_j \leftarrow t - \delta, \qquad
          \delta \sim \mathrm{Uniform}\{0, …, \min(t - \tau^i_j, D)\},

so that views never go back in time and are at most D ticks old. D is a bound, and a weak one: the
age at a turn is at most uniform between 0 and the age at the turn before plus the gap, so that its
mean a satisfies :math:`a \le (a + (S + 1) / 2) / 2`, hence :math:`a \le (S + 1) / 2` for every D.
:class:`~hogwild.asynchrony.Latency` gives all packets the same age. This is partial asynchronism
(Bertsekas & Tsitsiklis) with the bound :math:`B = \max(S, D + 1)`:

(a) every node updates at least once in any B ticks;
(b) :math:`t - B < \tau^i_j(t) \le t`;
(c) :math:`\tau^i_i(t) = t`.

A schedule is integers only: it knows the graph and nothing of the model, so the same one drives any
model on any executor, and recording it (:mod:`hogwild.asynchrony.trace`) records the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hogwild.asynchrony.impairment import Impairment, Moment, Streams
from hogwild.engines.ticks import Clock
from hogwild.errors import require_integer
from hogwild.graph import Graph, Star
from hogwild.kernels.native import library
from hogwild_node.rules.base import Survivors, carry


def places(at: Star) -> tuple[Tensor, Tensor]:
    """The numbers of a star's nodes [A] and edges [E'] in the whole graph."""
    assert at.nodes is not None
    assert at.edges is not None
    return at.nodes, at.edges


@dataclass
class Tick:
    """One moment: which nodes update, and what each of them hears."""

    time: int
    at: Star  # the nodes that update now, with the edges into them
    view: Tensor  # [E'] time τ of the packet each edge's receiver now holds
    fetched: Tensor | None = None  # [E'] whether it is a newly fetched one; None: all are
    lost: Tensor | None = None  # [E'] whether a packet was lost on the way now; None: none
    reset: Tensor | None = None  # nodes that come back from a crash without their memory

    @property
    def nodes(self) -> Tensor:
        """The nodes that update now, [A]."""
        return places(self.at)[0]

    @property
    def edges(self) -> Tensor:
        """The edges into them, [E']."""
        return places(self.at)[1]


class Drawn(Tick):
    """A tick of a schedule without impairments. Compiled updates need its nodes and views only:
    the star is made when somebody asks for it."""

    def __init__(self, time: int, graph: Graph, nodes: Tensor, first: Tensor, view: Tensor) -> None:
        self.time, self.view, self.graph, self.whose = time, view, graph, nodes
        self.first = first  # [A + 1] where each node's edges begin

    @cached_property
    def at(self) -> Star:  # type: ignore[override]
        return self.graph.star(self.whose)

    @property
    def nodes(self) -> Tensor:
        return self.whose


class Timetable(ABC):
    """A source of ticks: a schedule that draws them, or a trace that replays them."""

    graph: Graph
    depth: int
    """Age of the oldest packet a tick may fetch: how much history an executor must keep."""
    holds: bool
    """Whether a view may stay as it is, so that the inbox must be kept."""
    begin: int = 0
    """The first tick."""

    @abstractmethod
    def tick(self, time: int) -> Tick: ...

    @abstractmethod
    def retire(self, nodes: Tensor) -> None:
        """These nodes have finished and need no further ticks."""


@dataclass(frozen=True)
class Names:
    """Numbers that stay with nodes [n] and edges [e] of one copy of a graph through all changes of
    the graph: random numbers are drawn by them."""

    nodes: Tensor
    edges: Tensor


class Schedule(Timetable):
    """Algorithm 1 on ``runs`` disjoint copies of a graph, run by run; the schedule of run r depends
    on (seed, r) only. The other arguments are those of :func:`hogwild.simulate`.

    Args:
        begin: The tick at which the schedule begins.
        names: Numbers of the nodes and edges; by default they are numbered in order.
        holds: Keep the inbox, even if every node always gets a new packet.
        silent: Edges on which nothing comes through, a mask [E]: their senders are gone, and the
            receivers do not know it yet.
        depth: Keep packets of this age at least, for a later schedule with longer delays.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        runs: int = 1,
        stagger: int = 5,
        delay: int = 2,
        seed: int = 0,
        impairments: Sequence[Impairment] = (),
        begin: int = 0,
        names: Names | None = None,
        holds: bool = False,
        silent: Tensor | None = None,
        depth: int = 0,
    ) -> None:
        stagger, delay = check_bounds(stagger, delay)
        self.graph, self.stagger, self.delay = graph, stagger, delay
        self.impairments = tuple(impairments)
        # D as delays leave it: packets that are overtaken are no older than that.
        delayed = bounds(stagger, delay, [i for i in self.impairments if i.stage == 2])
        self.reach = delay if delayed is None else delayed[1]
        self.depth = max(depth, delay, self.reach)
        self.holds = holds or any(i.overrides("loses") for i in self.impairments)
        device = graph.src.device
        numbers = (None, None) if names is None else (names.nodes, names.edges)
        self.nodes = Streams.of(seed, runs, graph.num_nodes // runs, device, numbers[0])
        self.edges = Streams.of(seed, runs, graph.num_edges // runs, device, numbers[1])
        # What each impairment remembers of nodes and of edges.
        self.of_nodes: list[dict[str, Tensor]] = [{} for _ in self.impairments]
        self.of_edges: list[dict[str, Tensor]] = [{} for _ in self.impairments]
        self.silent, self.begin = silent, begin
        self._clock: Clock | None = None
        self.view = torch.full((graph.num_edges,), begin, dtype=torch.long, device=device)
        self.born = self.view.clone()  # no packet is older than its link
        # First updates are drawn from 1 … S as well.
        everyone = torch.arange(graph.num_nodes, device=device)
        self.next = begin + self._interval(everyone, begin)
        self._compile()

    def _compile(self) -> None:
        """Ask for compiled draws, once; ``None``: ticks are drawn by torch."""
        self._clock = None
        plain = self.silent is None and not self.impairments
        if plain and library() is not None and self._view.device.type == "cpu":
            keys = self.nodes.key("schedule"), self.edges.key("delay")
            self._clock = Clock(self.graph, self.stagger, self.delay, *keys, self.next, self._view)

    @property
    def clock(self) -> Clock | None:
        """Compiled draws; ``None``: there are none."""
        return self._clock

    @property
    def view(self) -> Tensor:
        """The time of the packet that each edge's receiver holds, [E]."""
        return self._view if self._clock is None else self._clock.view

    @view.setter
    def view(self, view: Tensor) -> None:
        self._view = view
        if self._clock is not None:
            self._compile()

    def follow(self, before: Schedule, kept: Survivors) -> None:
        """Go on where a schedule of an earlier graph ended, with the nodes and edges that stayed:
        they keep their next turns, their views, and what impairments remember of them."""
        (here, there), (edges, old) = kept.nodes, kept.edges
        self.next[here] = before.next[there]
        view = self.view
        view[edges], self.born[edges] = before.view[old], before.born[old]
        self.view = view
        for mine, theirs, pairs, streams in (
            (self.of_nodes, before.of_nodes, kept.nodes, self.nodes),
            (self.of_edges, before.of_edges, kept.edges, self.edges),
        ):
            for memory, remembered in zip(mine, theirs, strict=True):
                for name, values in remembered.items():  # newcomers are remembered by zeros
                    memory[name] = carry(torch.zeros_like(streams.subjects), values, pairs)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The bounds (S, D) that hold with all impairments; ``None``: no bound is known to hold."""
        return bounds(self.stagger, self.delay, self.impairments)

    def _hooks(
        self, index: Tensor, streams: Streams, time: int
    ) -> Iterator[tuple[Impairment, Moment]]:
        memories = self.of_nodes if streams is self.nodes else self.of_edges
        for impairment, memory in zip(self.impairments, memories, strict=True):
            yield impairment, Moment(time, index, streams, memory)

    def _interval(self, nodes: Tensor, time: int) -> Tensor:
        gap = 1 + self.nodes.integers("schedule", self.stagger - 1, time, nodes)
        for impairment, at in self._hooks(nodes, self.nodes, time):
            gap = impairment.interval(at, gap)
        return gap

    def _running(self, nodes: Tensor, time: int) -> tuple[Tensor, Tensor | None]:
        """Which of the nodes whose turn it is are up, and which of those begin anew."""
        reset: Tensor | None = None
        for impairment, moment in self._hooks(nodes, self.nodes, time):
            moment.index = nodes
            up = impairment.up(moment)
            if up is not None:  # a node that is down misses its turn and tries again
                self.next[nodes[~up]] = time + self._interval(nodes[~up], time)
                moment.index = nodes = nodes[up]
            back = impairment.forgets(moment)
            if back is not None:
                reset = nodes[back] if reset is None else torch.cat([reset, nodes[back]]).unique()
        if reset is not None:
            reset = reset[torch.isin(reset, nodes)]
        return nodes, reset

    def tick(self, time: int) -> Tick:
        if self._clock is not None:
            return Drawn(time, self.graph, *self._clock.tick(time))
        nodes, reset = self._running((self.next == time).nonzero()[:, 0], time)
        at = self.graph.star(nodes)
        edges = places(at)[1]
        before = self.view[edges]
        limit = time - before  # packets older than this were heard before
        age = self.edges.integers("delay", limit.clamp_max(self.delay), time, edges)
        lost: Tensor | None = None
        for impairment, moment in self._hooks(edges, self.edges, time):
            age = impairment.age(moment, age, limit, self.reach)
            lost = _either(lost, impairment.loses(moment))
        view = torch.maximum(time - age, self.born[edges])
        kept = lost if self.silent is None else _either(lost, self.silent[edges])
        fetched = None if kept is None else ~kept
        if kept is not None:
            view = torch.where(kept, before, view)
        self.view[edges] = view
        self.next[nodes] = time + self._interval(nodes, time)
        return Tick(time, at, view, fetched, lost, reset)

    def retire(self, nodes: Tensor) -> None:
        self.next[nodes] = -1


def bounds(stagger: int, delay: int, impairments: Collection[Impairment]) -> tuple[int, int] | None:
    """The bounds (S, D) that hold with these impairments; ``None``: no bound is known to hold.

    The pace of nodes comes first, then their outages, which depend on the pace, then delays, then
    losses, whose outages are counted in updates. Two kinds of loss together have no bound here:
    each could begin where the other ends.
    """
    if sum(i.stage == 3 for i in impairments) > 1:
        return None
    found: tuple[int, int] | None = (stagger, delay)
    for impairment in sorted(impairments, key=lambda i: i.stage):
        found = None if found is None else impairment.bound(*found)
    return found


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Union of two masks, ``None`` being the empty one."""
    if a is None or b is None:
        return b if a is None else a
    return a | b


def check_bounds(stagger: int, delay: int) -> tuple[int, int]:
    """S ≥ 1 and D ≥ 0, if they are integers."""
    why = ": the largest number of ticks between two turns of a node (1: synchronous)"
    s = require_integer("stagger", stagger, 1, why)
    why = ": the largest age of a packet in ticks (0: no delay)"
    return s, require_integer("delay", delay, 0, why)
