"""What a swarm of agents did, and what it writes and shows while it runs.

Others can watch a running swarm: its folder has the graph once, and the agents' last status lines
several times a second. A reader changes nothing. The notes of single agents become a schedule that
the simulator replays: every agent notes its updates: the time, the number of its turn, and for each
neighbour the turn in which the packet was made that it held. One update is one tick; ticks are in
the order of time, by the machine's own clock.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hogwild.asynchrony.schedule import Tick
from hogwild.asynchrony.trace import Trace, fingerprint
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIOD = 1.0
"""Seconds between two lines where the table cannot be drawn over."""
HEAD = (
    f"{'agent':>8}  {'answer':<24} {'staleness':>10} {'packets/s':>10} {'residual':>9} {'calm':>8}"
)


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

    def reached(self, tolerance: float) -> float | None:
        """When the error was within a tolerance for good, in seconds; ``None``: never."""
        return _for_good(self.times, [e <= tolerance for e in self.error])

    def updates_to(self, tolerance: float) -> float | None:
        """Mean updates of an agent until the error was within a tolerance for good."""
        return _for_good(self.work, [e <= tolerance for e in self.error])

    def bytes_to(self, tolerance: float) -> float | None:
        """Mean bytes that an agent sent until the error was within a tolerance for good."""
        return _for_good(self.sent, [e <= tolerance for e in self.error])

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


class Live:
    """A table with one row for each agent, drawn over in a terminal; elsewhere, one line a second.

    The columns: the agent's answer, the age of the oldest news that it rests on, packets that it
    sends a second, its residual, and for how long nobody in its reach was unsettled.
    """

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.drawn = 0
        self.said = -PERIOD
        self.before: dict[int, tuple[float, int, float]] = {}  # (time, packets, packets a second)

    def show(self, out: Swarm, words: Mapping[int, dict[str, Any]]) -> None:
        """Show the last words of the living agents."""
        now, t = time.monotonic(), out.times[-1]
        if not self.terminal and t - self.said < PERIOD:
            return
        self.said = t
        rates = {i: self._rate(i, word, now) for i, word in words.items()}
        lines = [self._summary(out, words, rates)]
        if self.terminal:
            size = shutil.get_terminal_size()
            rows = [self._row(i, word, rates[i]) for i, word in sorted(words.items())]
            room = max(size.lines - 4, 1)
            more = [f"{len(rows) - room:8d} more"] if len(rows) > room else []
            lines = [HEAD, *rows[:room], *more, *lines]
            lines = [f"{line[: size.columns - 1]}\x1b[K" for line in lines]
        up = f"\x1b[{self.drawn}F" if self.drawn else ""
        print(up + "\n".join(lines), file=sys.stderr, flush=True)
        self.drawn = len(lines) if self.terminal else 0

    def _rate(self, i: int, word: Mapping[str, Any], now: float) -> float:
        then, packets, rate = self.before.get(i, (now, word["packets"], 0.0))
        if now - then >= PERIOD or i not in self.before:
            sent = max(word["packets"] - packets, 0)
            rate = sent / (now - then) if now > then else 0.0
            self.before[i] = (now, word["packets"], rate)
        return rate

    @staticmethod
    def _row(i: int, word: Mapping[str, Any], rate: float) -> str:
        answer = " ".join(f"{x:.4g}" for x in word["prediction"][:3])
        answer += " …" if len(word["prediction"]) > 3 else ""
        residual = "-" if word["residual"] is None else f"{word['residual']:.1e}"
        return (
            f"{i:8d}  {answer:<24} {_age(word['staleness']):>10} {rate:10.0f} {residual:>9} "
            f"{word['calm']:6.1f} s  {word['state']}"
        )

    @staticmethod
    def _summary(
        out: Swarm, words: Mapping[int, dict[str, Any]], rates: Mapping[int, float]
    ) -> str:
        n = max(len(words), 1)
        ages = sorted(w["staleness"] for w in words.values() if w["staleness"] is not None)
        residual = max((w["residual"] or 0.0 for w in words.values()), default=0.0)
        calm = min((w["calm"] for w in words.values()), default=0.0)
        return (
            f"{out.times[-1]:7.1f} s  {len(words)} agents  error {out.error[-1]:.1e}  "
            f"residual {residual:.1e}  calm {calm:.1f} s  "
            f"settled {100 * out.settled[-1]:.0f} %  "
            f"staleness {_age(ages[len(ages) // 2] if ages else None)}  "
            f"{sum(rates.values()) / n:.0f} packets/s and {out.work[-1]:.0f} updates each"
        )


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms"


GRAPH, WORDS = "swarm.json", "words.json"
SAID = ("prediction", "residual", "staleness", "state", "updates", "packets", "bytes")
"""What the notes hold of an agent's words."""


@dataclass(frozen=True)
class Notes:
    """Writes the notes of a swarm.

    Attributes:
        folder: Where.
    """

    folder: Path

    def begin(self, model: Model, inputs: Inputs, pos: Any = None) -> None:
        """Note the graph, and what the model says on it in step."""
        out = model.predict(inputs).double()
        _write(self.folder / WORDS, {"time": 0.0, "error": None, "alive": [], "agents": {}})
        _write(
            self.folder / GRAPH,
            {
                "nodes": inputs.num_nodes,
                "edges": inputs.edge_index.T.tolist(),
                "pos": None if pos is None else torch.as_tensor(pos).double().tolist(),
                "prediction": out.reshape(inputs.num_nodes, -1).tolist(),
            },
        )

    def look(self, out: Swarm, words: Mapping[int, dict[str, Any]], ended: bool = False) -> None:
        """Note how the swarm is."""
        agents = {i: {name: word[name] for name in SAID} for i, word in words.items()}
        events = [[t, what] for t, what in out.events]
        said = {
            "time": out.times[-1], "error": out.error[-1], "alive": out.alive, "agents": agents,
            "events": events, "ended": ended,
        }  # fmt: skip
        _write(self.folder / WORDS, said)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is replaced many times a second: a reader never sees half of it. Unlike
    :func:`hogwild.files.write_atomically`, nothing waits for the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content))
    beside.replace(path)


def trace_of(folder: Path, inputs: Inputs) -> Trace:
    """The schedule of the agents whose notes lie in a folder (``agent0.trace`` and so on)."""
    lines = [
        json.loads(line)
        for i in range(inputs.num_nodes)
        for line in _notes(folder / f"agent{i}.trace")
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


def _notes(path: Path) -> list[str]:
    """The whole lines of a file; a process that was killed may have left half a line."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines() if line.endswith("}}")]


def _view(turns: dict[str, tuple[list[int], list[int]]], sender: str, heard: dict[str, int]) -> int:
    """The first tick at which the sender's state was what the packet held; 0: its beginning."""
    made, when = turns.get(sender, ([], []))
    place = bisect_right(made, heard[sender])
    return when[place - 1] + 1 if place else 0
