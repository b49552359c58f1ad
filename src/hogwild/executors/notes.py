"""What a running swarm writes into its folder, and shows on standard error.

Others can watch the swarm: its folder has the graph once, and the agents' last status lines several
times a second. A reader changes nothing. The notes of single agents become a schedule that the
simulator replays: every agent notes its updates: the time, the number of its turn, and for each
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hogwild.asynchrony.schedule import Tick
from hogwild.asynchrony.trace import Trace, fingerprint
from hogwild.executors.swarmed import Swarm
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model

PERIOD = 1.0
"""Seconds between two lines where the table cannot be drawn over."""
HEAD = (
    f"{'agent':>8}  {'answer':<24} {'staleness':>10} {'packets/s':>10} {'residual':>9} {'calm':>8}"
)


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
