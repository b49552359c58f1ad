"""What is done to a swarm of agents, and what it did.

The notes of single agents become a schedule that the simulator replays: every agent notes its
updates: the time, the number of its turn, and for each neighbour the turn in which the packet was
made that it held. One update is one tick; ticks are in the order of time, by the machine's own
clock.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hogwild.asynchrony.schedule import Tick
from hogwild.asynchrony.trace import Trace, fingerprint
from hogwild.errors import ConfigError, require_integer
from hogwild.graph.inputs import Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Faults:
    """What is done to a swarm.

    Attributes:
        loss: Probability that a packet is lost.
        delay: Seconds that a packet is held up, the least and the most.
        kill: Share of agents that are killed.
        kill_at: Seconds after the start at which they are killed.
        revive_at: Seconds after the start at which they come back; ``None``: never.
        freeze: Share of agents that are stopped.
        freeze_at: Seconds after the start at which they are stopped.
        thaw_at: Seconds after the start at which they go on.
        partition: Whether the links between two halves of the swarm are cut for a while.
        partition_at: Seconds after the start at which they are cut.
        heal_at: Seconds after the start at which they work again.
        seed: What is drawn is a function of this number.
    """

    loss: float = 0.0
    delay: tuple[float, float] = (0.0, 0.0)
    kill: float = 0.0
    kill_at: float = 5.0
    revive_at: float | None = None
    freeze: float = 0.0
    freeze_at: float = 5.0
    thaw_at: float = 8.0
    partition: bool = False
    partition_at: float = 5.0
    heal_at: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "kill", "freeze"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(
                    f"{name}={getattr(self, name)}; expected a share from 0 to below 1"
                )
        pairs = (
            ("kill_at", "revive_at"), ("freeze_at", "thaw_at"), ("partition_at", "heal_at")
        )  # fmt: skip
        for first, then in pairs:
            begin, end = getattr(self, first), getattr(self, then)
            if not 0.0 <= begin < (math.inf if end is None else end):
                raise ConfigError(
                    f"{first}={begin} and {then}={end}; expected seconds from 0 on, the second "
                    f"later than the first"
                )
        require_integer("seed", self.seed, 0, ": what is drawn is a function of it")


@dataclass
class Swarm:
    """What a swarm did.

    Attributes:
        times: Seconds since the first update, [T].
        error: Largest distance from the synchronous answer of the graph at that time, relative to
            its largest entry, [T].
        settled: Share of the living agents that said they were settled, [T].
        work: Mean number of updates of an agent, [T].
        sent: Mean number of bytes that an agent sent, [T].
        still: Seconds since an agent was last unsettled itself, as the observer sees all agents,
            [T]. Agents themselves only know their calm.
        deviation: The last error.
        updates: Mean number of updates of an agent. A settled agent makes none.
        turns: Mean number of turns of an agent.
        packets: Mean number of packets that an agent sent.
        bytes: Mean number of bytes in them.
        seconds: How long the swarm ran.
        alive: The agents that lived at the end.
        events: What was done to the swarm: (time, what).
        memory: Mean proportional memory of an agent in MB; ``None``: unknown.
        false_alarms: Samples in which an agent said that it was settled and the bound that it gave
            was below the true error.
        missed: Samples in which an agent had dropped a neighbour that lived and could be heard: it
            was starved of processor time for longer than the lease. Bounds are not judged then.
        rate: Turns a second that agents were asked for.
        trace: The schedule, which :func:`hogwild.simulate` replays; ``None`` if agents were killed
            or links were cut, because the simulator's graph does not change.
    """

    times: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    still: list[float] = field(default_factory=list)
    deviation: float = 1.0
    updates: float = 0.0
    turns: float = 0.0
    packets: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    alive: list[int] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    memory: float | None = None
    false_alarms: int = 0
    missed: int = 0
    rate: float = 0.0
    trace: Trace | None = None

    def reached(self, tolerance: float, of: str = "times") -> float | None:
        """When the error was within a tolerance for good, in seconds; ``of="work"``: in mean
        updates of an agent, ``of="sent"``: in bytes. ``None``: never."""
        return _for_good(getattr(self, of), [e <= tolerance for e in self.error])

    @property
    def settled_at(self) -> float | None:
        """When all agents had said for good that they were settled, in seconds; ``None``: never."""
        return _for_good(self.times, [share >= 1.0 for share in self.settled])

    @property
    def still_at(self) -> float | None:
        """When the last agent that was unsettled settled, in seconds; ``None``: unknown."""
        return self.times[-1] - self.still[-1] if self.still else None

    def plot(self, path: str | Path | None = None) -> Figure:
        """The error over time, with what was done to the swarm."""
        from hogwild.plots.style import BLUE, INK, figure

        with figure(5.5, 2.8, path) as drawn:
            ax = drawn.subplots()
            ax.semilogy(self.times, np.maximum(self.error, 1e-16), color=BLUE)
            before, row = -np.inf, 0
            for when, what in self.events:
                # A label that would touch the one before it goes one row higher.
                row = 1 - row if when - before < 0.15 * self.times[-1] else 0
                ax.axvline(when, color=INK, linewidth=0.8, linestyle=":")
                ax.text(
                    when, 1.0 + 0.08 * row, what, transform=ax.get_xaxis_transform(),
                    ha="center", va="bottom",
                )  # fmt: skip
                before = when
            ax.set_xlabel("seconds since the first update")
            ax.set_ylabel("largest relative error")
            ax.set_title(f"{len(self.alive)} agents alive at the end, one process each", pad=26)
        return drawn

    def __str__(self) -> str:
        within = {f"{t:.0e}": self.reached(t) for t in (1e-2, 1e-3, 1e-6)}
        told = ", ".join(f"{t} after {s:.1f} s" for t, s in within.items() if s is not None)
        memory = "" if self.memory is None else f", {self.memory:.0f} MB of memory each"
        done = self.turns / max(self.seconds, 1e-9)
        slow = ""
        if done < 0.5 * self.rate or self.missed:
            slow = (
                f"\nthe agents took {done:.1f} turns a second of {self.rate:.1f} asked for, and "
                f"had dropped\nliving neighbours in {self.missed} of {len(self.times)} samples: "
                f"this machine is too slow for so many agents;\nask for fewer turns (rate) or "
                f"allow longer silence (lease)"
            )
        return (
            f"{len(self.alive)} agents alive after {self.seconds:.1f} s; error "
            f"{self.deviation:.1e} ({told or 'not within 1e-2'})\n"
            f"price of an agent: {self.updates:.0f} updates, {self.packets:.0f} packets, "
            f"{self.bytes / 1000:.1f} kB{memory}\n"
            f"settled at the end: {100 * (self.settled[-1] if self.settled else 0):.0f} %; said so "
            f"with a wrong bound: {self.false_alarms} times{slow}"
        )


def _for_good(values: Sequence[float], holds: Sequence[bool]) -> float | None:
    """The value of the first sample from which on a condition holds; ``None``: there is none."""
    first = max((i + 1 for i, fine in enumerate(holds) if not fine), default=0)
    return values[first] if first < len(values) else None


def trace_of(folder: Path, inputs: Inputs) -> Trace:
    """The schedule of the agents whose notes lie in a folder (``agent0.trace`` and so on)."""
    lines = [
        json.loads(line)
        for i in range(inputs.num_nodes)
        for line in (folder / f"agent{i}.trace").read_text().splitlines()
        if line.endswith("}}")  # a process that was killed may have left half a line
    ]
    lines.sort(key=lambda line: (line["time"], line["id"]))
    turns: dict[str, tuple[list[int], list[int]]] = {}  # turns with an update, and their ticks
    graph = inputs.graph()
    senders = graph.src.tolist()
    ticks, depth, gap = [], 0, 1
    for t, line in enumerate(lines):
        at = graph.star(torch.tensor([int(line["id"])]))
        assert at.edges is not None
        views = [_view(turns, str(senders[e]), line["heard"]) for e in at.edges.tolist()]
        ticks.append(Tick(t, at, torch.tensor(views, dtype=torch.long)))
        depth = max([depth, *(t - view for view in views)])
        made, when = turns.setdefault(line["id"], ([], []))
        gap = max(gap, t - (when[-1] if when else 0))
        made.append(line["turn"])
        when.append(t)
    about: dict[str, Any] = {
        "drawn by": "a swarm of processes", "stagger": gap, "delay": depth, "runs": 1,
        "bounds": [gap, depth], "impairments": [],
    }  # fmt: skip
    return Trace(fingerprint(graph), depth, False, about, ticks)


def _view(turns: dict[str, tuple[list[int], list[int]]], sender: str, heard: dict[str, int]) -> int:
    """The first tick at which the sender's state was what the packet held; 0: its beginning."""
    made, when = turns.get(sender, ([], []))
    place = bisect_right(made, heard[sender])
    return when[place - 1] + 1 if place else 0
