"""What real agents did, as a schedule that the simulator replays.

Every agent notes its updates: the time, the number of its turn, and for each neighbour the turn in
which the packet was made that it held. One update is one tick; ticks are in the order of time, by
the machine's own clock.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import torch

from hogwild.asynchrony.schedule import Tick
from hogwild.asynchrony.trace import Trace, fingerprint
from hogwild.graph.inputs import Inputs


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
