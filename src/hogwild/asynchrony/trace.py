"""Recorded schedules: what a run's randomness was, so that it can be replayed bit for bit.

A trace holds integers only (who updated when, and which packet it held on each edge), together with
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

    def append(self, tick: Tick) -> None:
        self.ticks.append(tick)

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write to ``path`` (npz); the file is complete or not there at all."""
        columns: dict[str, list[Tensor]] = {
            name: [] for name in ("nodes", "edges", "slot", "view", "fetched", "lost", "reset")
        }
        for tick in self.ticks:
            at = tick.at
            assert at.nodes is not None
            assert at.edges is not None
            none = torch.zeros_like(tick.view, dtype=torch.bool)
            columns["nodes"].append(at.nodes)
            columns["edges"].append(at.edges)
            columns["slot"].append(at.slot)
            columns["view"].append(tick.view)
            columns["fetched"].append(~none if tick.fetched is None else tick.fetched)
            columns["lost"].append(none if tick.lost is None else tick.lost)
            columns["reset"].append(at.nodes[:0] if tick.reset is None else tick.reset)
        arrays: dict[str, np.ndarray] = {}
        for name, parts in columns.items():
            whole = torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.int64)
            arrays[name] = whole if whole.dtype == bool else whole.astype(np.int32)
            arrays[name + "_count"] = np.array([p.numel() for p in parts], np.int32)
        head = {
            "format": FORMAT,
            "graph": self.graph,
            "depth": self.depth,
            "holds": self.holds,
            "about": self.about,
        }
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        arrays["time"] = np.array([tick.time for tick in self.ticks], np.int64)
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


def _ticks(arrays: dict[str, np.ndarray]) -> list[Tick]:
    def parts(name: str) -> tuple[Tensor, ...]:
        counts = arrays[name + "_count"].tolist()
        values = torch.from_numpy(arrays[name])
        values = values if values.dtype == torch.bool else values.long()
        if sum(counts) != values.numel():
            raise ValueError(f"{name} holds {values.numel()} entries, expected {sum(counts)}")
        return values.split(counts)

    names = ("nodes", "edges", "slot", "view", "fetched", "lost", "reset")
    rows = zip(arrays["time"].tolist(), *(parts(name) for name in names), strict=True)
    return [
        Tick(
            time,
            Star(nodes.numel(), slot, nodes, edges),
            view,
            None if bool(fetched.all()) else fetched,
            lost if bool(lost.any()) else None,
            reset if reset.numel() else None,
        )
        for time, nodes, edges, slot, view, fetched, lost, reset in rows
    ]


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
        return _to(found, device)

    def retire(self, nodes: Tensor) -> None:
        pass  # the recorded run has retired them already


def _to(tick: Tick, device: torch.device) -> Tick:
    def move(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device)

    at = Star(tick.at.size, tick.at.slot.to(device), move(tick.at.nodes), move(tick.at.edges))
    return Tick(
        tick.time, at, tick.view.to(device), move(tick.fetched), move(tick.lost), move(tick.reset)
    )


@dataclass
class Assumptions:
    """Whether a trace is partially asynchronous with bound B, and what was seen."""

    bound: int
    longest_gap: int  # (a) ticks between two updates of a node
    oldest_view: int  # (b) age of a view when it was used
    updates: bool  # (a) holds
    staleness: bool  # (b) holds
    own_state: bool  # (c) holds

    @property
    def hold(self) -> bool:
        return self.updates and self.staleness and self.own_state


def check_trace(trace: Trace, graph: Graph, bound: int) -> Assumptions:
    """Check (a), (b) and (c) on a trace, independently of whoever drew it.

    Plain Python over the recorded integers: every node's update times, every view's age. (c), that
    a node knows its own state, needs no view: those on self-loops are not counted, and what is
    checked is that nobody hears the future.
    """
    last = {node: 0 for node in range(graph.num_nodes)}
    source, target = graph.src.tolist(), graph.dst.tolist()
    gap = age = 0
    own = True
    end = max((tick.time for tick in trace.ticks), default=0)
    for tick in trace.ticks:
        nodes, edges = tick.at.nodes, tick.at.edges
        assert nodes is not None
        assert edges is not None
        for node in nodes.tolist():
            gap = max(gap, tick.time - last[node])
            last[node] = tick.time
        for edge, view in zip(edges.tolist(), tick.view.tolist(), strict=True):
            own &= view <= tick.time
            if source[edge] != target[edge]:
                age = max(age, tick.time - view)
    gap = max([gap, *(end - time for time in last.values())])
    return Assumptions(bound, gap, age, gap <= bound, age < bound, own)
