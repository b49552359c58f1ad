r"""The simulator: Algorithm 1 of the paper, vectorised over all nodes whose turn it is.

Time is a number of ticks. At tick t the nodes with :math:`t \in T^i` fetch the packets their
schedule grants them (a neighbour's state at time :math:`\tau^i_j(t)`), apply the model's rule to
them, and send. Several runs are disjoint copies of the graph in one computation; run r depends on
(seed, r) alone.

A node sends one packet an update, as in Algorithm 1. Gradients are recomputed *after* the step,
from the views held before it, so even with S = 1, D = 0 it is not plain gradient descent where
packets hold gradients; it has the same limit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hogwild.asynchrony.impairment import Impairment, check_impairments
from hogwild.asynchrony.schedule import Drawn, Schedule, Tick, Timetable, bounds, check_bounds
from hogwild.engines import updates_for
from hogwild.engines.base import Updates
from hogwild.engines.ticks import Outbox, Ticks
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.graph import Graph, Star
from hogwild.rules import AnyProblem, check_radius, rule_for, sends_letters
from hogwild.rules.base import check_step
from hogwild.rules.levels import StackRule
from hogwild_node.rules.base import Rule, Survivors, carry

NUMBER = 4
"""Bytes of a number on the wire: a float32."""


@dataclass(frozen=True)
class Settings:
    """How nodes run, and for how long. The fields are the arguments of :func:`hogwild.simulate`.

    Every value is checked when the object is made.
    """

    stagger: int = 5
    delay: int = 2
    seed: int = 0
    runs: int = 1
    rule: str = "auto"
    step: str | float = "auto"
    impairments: tuple[Impairment, ...] = ()
    ticks: int = 20_000
    tol: float | None = 1e-6
    history: int | Collection[int] | None = None
    keep_embeddings: bool = False
    radius: int | None = None

    def __post_init__(self) -> None:
        stagger, delay = check_bounds(self.stagger, self.delay)
        check_step(self.step)
        if self.tol is not None and not self.tol > 0:
            raise ConfigError(f"tol={self.tol!r}; expected a positive number, or None")
        if self.radius is not None:
            require_integer("radius", self.radius, 0)
            check_radius(self.rule, self.radius)
        impaired, history = check_impairments(self.impairments), self.history
        if isinstance(history, Collection):
            history = frozenset(require_integer("history", tick, 0) for tick in history)
        elif history is not None:
            history = require_positive("history", history)
        checked = {
            "stagger": stagger,
            "delay": delay,
            "seed": require_integer("seed", self.seed),
            "runs": require_positive("runs", self.runs),
            "ticks": require_positive("ticks", self.ticks),
            "impairments": impaired,
            "history": history,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The bounds (S, D) that hold with all impairments; ``None``: no bound is known to hold."""
        return bounds(self.stagger, self.delay, self.impairments)

    @property
    def error(self) -> float:
        """δ, the largest error of a number in a packet."""
        return sum(impairment.error for impairment in self.impairments)

    @property
    def calm(self) -> int:
        """The tick from which on no node loses its memory."""
        return max((impairment.calm for impairment in self.impairments), default=0)

    @property
    def may_lose_forever(self) -> bool:
        """Whether some packets may never come through."""
        return self.bounds is None and not all(impairment.recurs for impairment in self.impairments)

    def content_age(self, bounds: tuple[int, int], letters: bool = True) -> int:
        """D', the largest age of an embedding that a node uses, under these bounds (S, D):
        :math:`2D + S` inside the gradients in letters, D where packets hold embeddings only."""
        return 2 * bounds[1] + bounds[0] if letters else bounds[1]

    def rule_on(self, problem: AnyProblem, bounds: tuple[int, int] | None) -> Rule:
        """The rule of nodes on this problem, under these bounds; ``None``: there are none."""
        age = None
        if bounds is not None:
            age = self.content_age(bounds, sends_letters(problem, self.rule, self.step))
        return rule_for(problem, self.rule, self.step, age, radius=self.radius)

    def schedule(self, graph: Graph, **options: Any) -> Schedule:
        """The schedule of all runs, on a graph that holds them all; ``options`` are further ones
        of :class:`Schedule`."""
        return Schedule(
            graph, runs=self.runs, stagger=self.stagger, delay=self.delay, seed=self.seed,
            impairments=self.impairments, **options,
        )  # fmt: skip


@dataclass(frozen=True)
class Ages:
    """Ages of what nodes used.

    Attributes:
        counts: How often each age occurred, [largest age + 1].
    """

    counts: Tensor

    @property
    def largest(self) -> int:
        return max(self.counts.numel() - 1, 0)

    @property
    def mean(self) -> float:
        ages = torch.arange(self.counts.numel(), device=self.counts.device)
        return float((ages * self.counts).sum() / self.counts.sum().clamp_min(1))

    def __add__(self, other: Ages) -> Ages:
        few, many = sorted((self.counts, other.counts), key=len)
        out = many.clone()
        out[: few.numel()] += few.to(many.device)
        return Ages(out)


@dataclass
class Tally:
    """What a simulation counts on its way."""

    updates: Tensor  # [N]
    packets: Tensor  # [N] packets sent
    saved: Tensor  # [N] packets an event trigger kept back
    numbers: Tensor  # [N] numbers in the packets sent
    ticks: int = 0


@dataclass(frozen=True)
class After:
    """A simulation that came before a change of the graph, and what stays through the change. Its
    timetable holds packets (``Timetable.holds``): what a node has heard, it keeps."""

    before: Simulation
    kept: Survivors


class Simulation:
    """A rule on a timetable, tick by tick.

    Args:
        rule: What nodes do.
        timetable: Who does it when, and with which packets.
        h: Where all nodes start, [R, k, N].
        impairments: Those that change what is sent; the others are in the timetable.
        after: The simulation that this one continues on another graph; ``None``: a first one.

    Attributes:
        path: How ticks are made: ``compiled (…)``, or ``torch: …`` with the reason.
    """

    def __init__(
        self,
        rule: Rule,
        timetable: Timetable,
        h: Tensor,
        *,
        impairments: Sequence[Impairment] = (),
        after: After | None = None,
    ) -> None:
        graph = timetable.graph
        self.rule, self.timetable, self.graph = rule, timetable, graph
        self.rounding = [i for i in impairments if i.overrides("send")]
        self.triggers = [i for i in impairments if i.overrides("worth_sending")]
        self.time = timetable.begin
        self.start, self.h = h, h.clone()
        if after is not None:
            self.h = carry(self.h, after.before.h, after.kept.nodes)
        first = self.h.clone()  # autograd keeps it, and updates overwrite self.h
        inbox = graph.everyone.current(first)
        if (
            after is not None and rule.broadcast_width == rule.channels
        ):  # packets hold the embeddings
            inbox = carry(inbox, after.before.held[0], after.kept.edges)
        rule.wire = self._wire
        letters = rule.begin(first, inbox)
        if after is not None:
            rule.keep(after.before.rule, after.kept)
        node = self._broadcast(self.h, graph.everyone)
        edge = None if letters is None else self._wire(letters)
        self.outbox = Outbox(graph, timetable.depth, node, edge, self.time)
        if after is not None:
            self.outbox.follow(after.before.outbox, after.kept)
            self.outbox.open(self.time)
        self.held: Any = None
        if timetable.holds:
            edges = torch.arange(graph.num_edges, device=h.device)
            self.held = self.outbox.fetch(edges, torch.full_like(edges, self.time))
        zeros = torch.zeros(graph.num_nodes, dtype=torch.long, device=h.device)
        self.tally = Tally(zeros.clone(), zeros.clone(), zeros.clone(), zeros.clone())
        self._ages = [Ages(zeros[:0]), Ages(zeros[:0])]  # of packets, and of what is inside
        self.last, self.gap = zeros + self.time, zeros.new_zeros(())
        self.active = torch.ones(graph.num_nodes, dtype=torch.bool, device=h.device)
        if after is not None:
            self._follow(after)
        proper = graph.src[graph.src != graph.dst]  # along a self-loop nothing is sent
        self.out_degree = torch.bincount(proper, minlength=graph.num_nodes)
        self._compile()

    def _compile(self) -> None:
        """Ask for compiled updates, once; and for compiled ticks, unless something happens to
        packets that those do not know."""
        plain = not (self.rounding or self.triggers) and self.held is None
        found = updates_for(self.rule, self.graph, self.h, whole=plain)
        self.kernel: Updates | None = None
        self.ticks: Ticks | None = None
        if not isinstance(found, str):
            self.kernel = found
            self.ticks = found.ticks(self.outbox.depth, self._arrays()) if plain else None
            self.path = found.path + ("" if self.ticks else ", packets on torch")
        elif isinstance(self.rule, StackRule):
            self.path = self.rule.compile()
        else:
            self.path = f"torch: {found}"

    def _arrays(self) -> dict[str, Tensor]:
        """The outbox and the tally, for whole ticks."""
        outbox, tally = self.outbox, self.tally
        assert outbox.edge is not None
        return {
            "out_degree": self.out_degree, "node": outbox.node, "edge": outbox.edge,
            "content": outbox.content, "latest": outbox.latest, "current": outbox.current,
            "h": self.h, "updates": tally.updates, "packets": tally.packets,
            "sent": tally.numbers, "last": self.last, "gap": self.gap,
        }  # fmt: skip

    def _follow(self, after: After) -> None:
        """Take over the inbox, turns and ends of the nodes that stay."""
        before, kept = after.before, after.kept
        self.held = tuple(
            mine if mine is None else carry(mine, theirs, kept.edges)
            for mine, theirs in zip(self.held, before.held, strict=True)
        )
        self.last = carry(self.last, before.last, kept.nodes)
        self.active = carry(self.active, before.active, kept.nodes)
        self.gap = before.gap.clone()

    def _wire(self, payload: Tensor) -> Tensor:
        """These numbers as receivers get them."""
        for impairment in self.rounding:
            payload = impairment.send(payload)
        return payload

    def _broadcast(self, h: Tensor, at: Star) -> Tensor:
        """What these nodes send to everybody, as receivers get it."""
        payload = self.rule.broadcast(h, at)
        return payload if self.rule.numbered else self._wire(payload)

    def step(self) -> Tick:
        """One tick."""
        self.outbox.open(self.time)
        tick = self.timetable.tick(self.time)
        if tick.nodes.numel():
            if self.ticks is not None and tick.reset is None:
                first = tick.first if isinstance(tick, Drawn) else None
                self.ticks.turn(tick.nodes, first, tick.view, tick.time)
            else:
                self._update(tick)
        self.time += 1
        self.tally.ticks += 1
        return tick

    def advance(self) -> None:
        """One tick, without saying what happened: in compiled code it is one call."""
        clock = self.timetable.clock if isinstance(self.timetable, Schedule) else None
        if clock is None or self.ticks is None:
            self.step()
            return
        self.outbox.time = self.time
        self.ticks.tick(clock, self.time)
        self.time += 1
        self.tally.ticks += 1

    def _update(self, tick: Tick) -> None:
        at, nodes, edges = tick.at, tick.nodes, tick.edges
        if tick.reset is not None:
            self.h.index_copy_(-1, tick.reset, self.start[..., tick.reset])
            self.rule.forget(tick.reset)
        h = self.h.index_select(-1, nodes)
        inbox, mail, content = self._fetch(tick, edges)
        if tick.reset is not None:  # a node computes anew what it knows of its own energy
            again = torch.isin(nodes, tick.reset)
            part, keep = at.part(again)
            self.rule.refresh(h[..., again], inbox[..., keep], part)
        if tick.lost is not None:
            gone = edges[tick.lost]
            now = torch.full_like(gone, tick.time)
            self.rule.lose(gone, self.outbox.fetch(gone, now)[0])
        h, letters = (self.kernel or self.rule).update(h, inbox, mail, at)
        self.h.index_copy_(-1, nodes, h)
        self._publish(tick, nodes, h, letters)
        acted = nodes if self.rule.waited is None else nodes[~self.rule.waited]
        self.tally.updates[acted] += 1
        self.gap.copy_(torch.maximum(self.gap, (tick.time - self.last[nodes]).amax()))
        self.last[nodes] = tick.time
        self._count_ages(0, tick.time - tick.view)
        if mail is not None:
            self._count_ages(1, tick.time - torch.minimum(tick.view, content))
        done = self.rule.finished(nodes)
        if done is not None:
            self.retire(nodes[done])

    def _count_ages(self, kind: int, ages: Tensor) -> None:
        self._ages[kind] += Ages(torch.bincount(ages))

    def ages(self) -> tuple[Ages, Ages]:
        """Ages of the packets that nodes used, and of the oldest embeddings inside them."""
        packet, content = self._ages
        if self.ticks is not None:
            packet += Ages(self.ticks.counts(0))
            content += Ages(self.ticks.counts(1))
        return packet, content

    def counts(self, runs: int) -> Tensor:
        """Updates, packets, bytes, and nodes solved for, of every node of each run so far,
        [4, Q, N]."""
        tally = self.tally
        solved = tally.updates if self.rule.solved_for is None else self.rule.solved_for
        counts = torch.stack([tally.updates, tally.packets, NUMBER * tally.numbers, solved])
        return counts.unflatten(-1, (runs, -1))

    def retire(self, nodes: Tensor) -> None:
        """These nodes are done."""
        self.active[nodes] = False
        self.timetable.retire(nodes)

    @property
    def finished(self) -> bool:
        """Whether no node is left to update."""
        return not bool(self.active.any())

    def longest_gap(self) -> int:
        """Most ticks that any node went without an update before it was done."""
        waiting = (self.time - 1 - self.last)[self.active]
        return max(int(self.gap), int(waiting.max()) if waiting.numel() else 0)

    def _fetch(self, tick: Tick, edges: Tensor) -> Any:
        """What the nodes hold on these edges: embeddings, letters, and time of the content."""
        if self.held is None:
            return self.outbox.fetch(edges, tick.view)
        new = tick.view >= 0 if tick.fetched is None else tick.fetched
        # A view that stays is no longer asked of the outbox, which may have forgotten it.
        found = self.outbox.fetch(edges, torch.where(new, tick.view, tick.time))
        for held, packets in zip(self.held, found, strict=True):
            if held is not None and packets is not None:
                held.index_copy_(-1, edges, torch.where(new, packets, held[..., edges]))
        return tuple(None if held is None else held[..., edges] for held in self.held)

    def _oldest(self, tick: Tick, nodes: Tensor) -> Tensor:
        """Time of the oldest embedding in these nodes' views now, [A]."""
        out = torch.full_like(nodes, tick.time)
        return out.scatter_reduce(0, tick.at.slot, tick.view, "amin")

    def _publish(self, tick: Tick, nodes: Tensor, h: Tensor, letters: Tensor | None) -> None:
        at, content = tick.at, self._oldest(tick, nodes)
        node = self._broadcast(h, at)
        edge = None if letters is None else self._wire(letters)
        if self.triggers or self.rule.silent is not None:
            sends = torch.ones_like(nodes, dtype=torch.bool)
            for impairment in self.triggers:
                sends &= impairment.worth_sending(self._change(at, node, edge))
            kept = nodes[~sends]
            self.tally.saved[kept] += self.out_degree[kept]
            sends = sends if self.rule.silent is None else sends & ~self.rule.silent
            at, keep = at.part(sends)
            edge = None if edge is None else edge[..., keep]
            nodes, node, content = nodes[sends], node[..., sends], content[sends]
        self.outbox.publish(at, node, edge, content)
        packets = self.out_degree[nodes]  # one to every neighbour
        self.tally.packets[nodes] += packets
        numbers = packets * self.rule.numbers(at)  # a mean over neighbours may be a fraction
        self.tally.numbers[nodes] += numbers.round().to(torch.long)

    def _change(self, at: Star, node: Tensor, edge: Tensor | None) -> Tensor:
        """Largest change of any number in these nodes' packets since they last sent, [A]."""
        before, letters = self.outbox.last(at)
        change = (node - before).abs().amax((0, 1))
        if edge is not None and letters is not None:
            per_edge = (edge - letters).abs().amax((0, 1))
            change = change.scatter_reduce(0, at.slot, per_edge, "amax")
        return change
