"""Recorded schedules, which can be replayed bit for bit.

A trace holds integers only (which nodes updated when, and which packet they held on each edge), and
a fingerprint of the graph it belongs to. It replays on any executor, with any model.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.schedule import Tick, Timetable
from hogwild.errors import TraceError
from hogwild.files import write_atomically
from hogwild.graph import Graph, Star

FORMAT = 1
COLUMNS = ("nodes", "edges", "slot", "view", "fetched", "lost", "reset")


def fingerprint(graph: Graph) -> str:
    """A hash of the graph's edges, in order."""
    edges = torch.stack([graph.src, graph.dst]).cpu().numpy().astype("<i8")
    head = f"{graph.num_nodes},{graph.num_edges}".encode()
    return hashlib.sha256(head + edges.tobytes()).hexdigest()


@dataclass
class Trace:
    """The ticks of a run, in order; ``about`` says what drew them."""

    graph: str  # fingerprint
    depth: int
    holds: bool
    about: dict[str, Any] = field(default_factory=dict)
    ticks: list[Tick] = field(default_factory=list)

    @classmethod
    def of(cls, timetable: Timetable, about: dict[str, Any]) -> Trace:
        """An empty trace for what this timetable will draw."""
        return cls(fingerprint(timetable.graph), timetable.depth, timetable.holds, about)

    def save(self, path: str | Path) -> Path:
        """Write to ``path`` (npz); the file is complete or not there at all."""
        arrays: dict[str, Any] = {"time": np.array([tick.time for tick in self.ticks], np.int64)}
        for name in COLUMNS:
            parts = [_row(tick)[name].cpu().numpy() for tick in self.ticks]
            whole = np.concatenate([np.zeros(0, bool), *parts])
            arrays[name] = whole if whole.dtype == bool else whole.astype(np.int32)
            arrays[name + "_count"] = np.array([part.size for part in parts], np.int32)
        head = {name: getattr(self, name) for name in ("graph", "depth", "holds", "about")}
        text = json.dumps({"format": FORMAT, **head})
        arrays["head"] = np.frombuffer(text.encode(), np.uint8)
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        return write_atomically(path, packed.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace; anything that is not a whole one is refused."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            head = json.loads(bytes(arrays["head"]))
            if head["format"] != FORMAT:
                raise TraceError(
                    f"{path} has trace format {head['format']}; expected {FORMAT}: it was written "
                    f"by another version of hogwild"
                )
            trace = cls(head["graph"], head["depth"], head["holds"], head["about"])
            trace.ticks = _ticks(arrays)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise TraceError(
                f"{path} is not a readable trace ({error}); expected a file written by "
                f"hogwild.simulate(..., record=...)"
            ) from error
        return trace


def _row(tick: Tick) -> dict[str, Tensor]:
    """A tick as the tensors of :data:`COLUMNS`."""
    none = torch.zeros_like(tick.view, dtype=torch.bool)
    fetched, lost, reset = tick.fetched, tick.lost, tick.reset
    return {
        "nodes": tick.nodes, "edges": tick.edges, "slot": tick.at.slot, "view": tick.view,
        "fetched": ~none if fetched is None else fetched, "lost": none if lost is None else lost,
        "reset": tick.nodes[:0] if reset is None else reset,
    }  # fmt: skip


def _tick(time: int, row: dict[str, Tensor]) -> Tick:
    """The tick of these tensors."""
    at = Star(row["nodes"].numel(), row["slot"], row["nodes"], row["edges"])
    fetched, lost, reset = row["fetched"], row["lost"], row["reset"]
    return Tick(
        time, at, row["view"], None if bool(fetched.all()) else fetched,
        lost if bool(lost.any()) else None, reset if reset.numel() else None,
    )  # fmt: skip


def _ticks(arrays: dict[str, np.ndarray]) -> list[Tick]:
    columns: dict[str, tuple[Tensor, ...]] = {}
    for name in COLUMNS:
        values, counts = torch.from_numpy(arrays[name]), arrays[name + "_count"].tolist()
        if sum(counts) != values.numel():
            raise ValueError(f"{name} holds {values.numel()} entries, expected {sum(counts)}")
        values = values if values.dtype == torch.bool else values.long()
        columns[name] = values.split(counts)
    rows = ({name: columns[name][t] for name in COLUMNS} for t in range(len(arrays["time"])))
    return [_tick(time, row) for time, row in zip(arrays["time"].tolist(), rows, strict=True)]


class Replay(Timetable):
    """A trace as a timetable, on the graph it was recorded on."""

    def __init__(self, trace: Trace, graph: Graph) -> None:
        if trace.graph != fingerprint(graph):
            raise TraceError(
                "the trace belongs to another graph (its fingerprint differs); expected the graph "
                "it was recorded on, with the same nodes, the same edges in the same order, and "
                "the same number of runs"
            )
        self.trace, self.graph = trace, graph
        self.depth, self.holds = trace.depth, trace.holds
        self.at = {tick.time: tick for tick in trace.ticks}
        self.length = 1 + max(self.at, default=-1)

    def tick(self, time: int) -> Tick:
        if time not in self.at:
            raise TraceError(
                f"the trace ends at tick {self.length - 1} and tick {time} was asked for; expected "
                f"ticks={self.length} at most"
            )
        found, device = self.at[time], self.graph.src.device
        if device.type == "cpu":
            return found
        return _tick(time, {name: x.to(device) for name, x in _row(found).items()})

    def retire(self, nodes: Tensor) -> None:
        pass  # the recorded run has retired them already
