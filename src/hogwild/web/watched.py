"""Agents that run elsewhere, which a page only watches.

Two kinds of folders can be watched. ``hogwild swarm --keep`` writes its notes into one
(:mod:`hogwild.executors.notes`). Agents that were started by hand print a line of JSON every few
moments (``hogwild-agent --status``); a folder that holds these lines, one file ``NAME.jsonl`` for
each agent, is watched just as well. Files are read, and nothing is ever written or sent.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.notes import GRAPH, WORDS
from hogwild.web.given import fitted, layout
from hogwild.web.worlds import MOST

LONGEST = 64_000
"""Bytes at the end of a file that are looked at, and bytes of a line at most."""
LARGEST = 1e30
"""Numbers in status lines are smaller: a page draws them in single precision."""
SILENCE = 3.0
"""Seconds without news after which an agent, or a swarm, counts as silent."""


@dataclass(frozen=True)
class Words:
    """What one agent last said."""

    answer: float
    staleness: float
    settled: bool
    spent: tuple[float, ...]
    """Updates, packets, bytes."""
    residual: float

    @classmethod
    def of(cls, said: Any) -> Words:
        """From a status line.

        Raises:
            ValueError: It is none.
        """
        try:
            answer = float(said["prediction"][0])
            spent = [float(said[name]) for name in ("updates", "packets", "bytes")]
            stale, residual = (float(said.get(name) or 0.0) for name in ("staleness", "residual"))
            found = cls(answer, stale, said["state"] == "settled", tuple(spent), residual)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"no status line of an agent ({error})") from error
        if not all(abs(value) < LARGEST for value in (answer, stale, residual, *spent)):
            raise ValueError("a status line with numbers that are not finite, or too large")
        return found


@dataclass(frozen=True)
class Ground:
    """The graph of the agents, as far as it is known.

    Attributes:
        names: What the agents are called, [n].
        edges: [E, 2].
        exact: The answers in step, [n]; NaN: nobody has told.
        position: Where to draw them, [n, 2].
    """

    names: list[str]
    edges: np.ndarray
    exact: np.ndarray
    position: np.ndarray


@dataclass(frozen=True)
class Sight:
    """One look at the agents.

    Attributes:
        ground: Their graph.
        time: Seconds since the first look, or since the swarm began.
        agents: Who speaks, by row.
        error: Relative distance from the answer in step; NaN: unknown.
        events: What has happened, each with its time.
        how: ``"runs"``, ``"silent"`` or ``"ended"``.
    """

    ground: Ground
    time: float
    agents: dict[int, Words] = field(default_factory=dict)
    error: float = math.nan
    events: list[tuple[float, str]] = field(default_factory=list)
    how: str = "runs"


class Watched(Protocol):
    """Agents that can be looked at."""

    def look(self) -> Sight:
        """How they are now."""


def watched(folder: Path) -> Watched:
    """What a folder holds.

    Raises:
        ConfigError: Neither the notes of a swarm nor status lines.
    """
    if (folder / GRAPH).exists():
        return Swarm(folder)
    if folder.is_dir() and any(folder.glob("*.jsonl")):
        return Agents(folder)
    what = "holds nothing to watch" if folder.is_dir() else "is no folder"
    raise ConfigError(
        f"{folder} {what}; expected {GRAPH} in it (hogwild swarm RUN --keep {folder}), or status "
        f"lines in *.jsonl (hogwild-agent … --status 0.2 > {folder}/NAME.jsonl)"
    )


class Swarm:
    """A swarm by the notes in its folder.

    Raises:
        ConfigError: The notes cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            found = json.loads((folder / GRAPH).read_text("utf-8"))
            n = int(found["nodes"])
            edges = np.array(found["edges"], np.int64).reshape(-1, 2)
            said = np.array(found["prediction"], float).reshape(n, -1)
            pos = found["pos"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder} holds no readable {GRAPH} ({error}); expected the folder of a running "
                f"swarm: hogwild swarm RUN --keep {folder}"
            ) from error
        if not 1 <= n <= MOST or (edges.size and edges.max() >= n):
            raise ConfigError(f"{folder / GRAPH} has {n} nodes; expected 1 to {MOST}")
        placed = layout(edges.T, n) if pos is None else fitted(np.array(pos, float)[:, :2])
        self.ground = Ground([str(i) for i in range(n)], edges, said[:, 0], placed)
        self.last, self.heard = -1.0, time.monotonic()

    def words(self) -> dict[str, Any] | None:
        """What the swarm last said; ``None``: nothing that can be read."""
        try:
            found = json.loads((self.folder / WORDS).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "time" in found else None

    def look(self) -> Sight:
        """The notes of now."""
        words, now = self.words(), time.monotonic()
        if words is None:
            how = "silent" if now - self.heard > SILENCE else "runs"
            return Sight(self.ground, max(self.last, 0.0), how=how)
        if words["time"] != self.last:
            self.last, self.heard = words["time"], now
        quiet = "silent" if now - self.heard > SILENCE else "runs"
        error = words.get("error")
        n = len(self.ground.names)
        return Sight(
            self.ground,
            float(self.last),
            {int(i): Words.of(word) for i, word in words["agents"].items() if 0 <= int(i) < n},
            math.nan if error is None else float(error),
            [(float(t), str(what)) for t, what in words.get("events", [])],
            "ended" if words.get("ended") else quiet,
        )


class Agents:
    """Agents by the status lines in a folder, one file for each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun = folder, time.monotonic()
        self.neighbours: dict[str, frozenset[str]] = {}
        self.lines: dict[Path, tuple[tuple[int, int], dict[str, Any] | None]] = {}
        self.ground = Ground([], np.zeros((0, 2), np.int64), np.zeros(0), np.zeros((0, 2)))

    def look(self) -> Sight:
        """The last line of every file; who has said nothing for a while is not among them."""
        said: dict[str, Words] = {}
        known = dict(self.neighbours)
        for path in sorted(self.folder.glob("*.jsonl"))[:MOST]:
            line, age = self._last(path)
            if line is None:
                continue
            try:
                words, name = Words.of(line), str(line["id"])[:40]
                near = frozenset(str(other)[:40] for other in line.get("neighbours", []))
            except (ValueError, KeyError, TypeError):
                continue
            known[name] = near
            if age <= SILENCE:
                said[name] = words
        if known != self.neighbours:
            self.neighbours, self.ground = known, _ground(known)
        row = {name: i for i, name in enumerate(self.ground.names)}
        agents = {row[name]: words for name, words in said.items() if name in row}
        how = "runs" if said else "silent"
        return Sight(self.ground, time.monotonic() - self.begun, agents, how=how)

    def _last(self, path: Path) -> tuple[dict[str, Any] | None, float]:
        """The last line of a file, which is read only if it has changed, and the line's age."""
        try:
            about = path.stat()
        except OSError:
            return None, 0.0
        stamp = about.st_mtime_ns, about.st_size
        if path not in self.lines or self.lines[path][0] != stamp:
            self.lines[path] = stamp, last_line(path)
        return self.lines[path][1], time.time() - about.st_mtime


def _ground(neighbours: dict[str, frozenset[str]]) -> Ground:
    """The graph of agents that say who their neighbours are."""
    every = set(neighbours).union(*neighbours.values())
    names = sorted(every, key=_natural)[:MOST]
    row = {name: i for i, name in enumerate(names)}
    pairs = {
        (row[a], row[b])
        for name, near in neighbours.items()
        for other in near
        if name in row and other in row
        for a, b in ((name, other), (other, name))
    }
    edges = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return Ground(names, edges, np.full(len(names), np.nan), layout(edges.T, len(names)))


def _natural(name: str) -> list[Any]:
    """Agent 10 comes after agent 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _PARTS.split(name)]


_PARTS = re.compile(r"(\d{1,15})")


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line in a file that is a JSON object; ``None``: there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LONGEST))
            lines = file.read(LONGEST).split(b"\n")
    except OSError:
        return None
    for raw in reversed(lines[:-1]):  # what follows the last newline is not whole
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None
