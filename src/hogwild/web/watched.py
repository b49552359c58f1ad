"""Agents that run elsewhere, which a page only watches.

Two kinds of folders can be watched. ``hogwild swarm --keep`` writes its notes into one
(:mod:`hogwild.executors.swarm_result`). Agents that were started by hand print a line of JSON every
few moments (``hogwild-agent --status``); a folder that holds these lines, one file ``NAME.jsonl``
for each agent, is watched just as well. Agents whose addresses are known are asked for such lines
(:mod:`hogwild.web.asked`).
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.swarm_result import GRAPH, WORDS
from hogwild.web.asked import Asked, places
from hogwild.web.given import fitted, layout
from hogwild.web.said import Said, Words
from hogwild.web.worlds import MOST

LONGEST = 64_000
"""Bytes at the end of a file that are looked at, and bytes of a line at most."""
SELDOM = 10.0
"""How many times longer than it took to lay a graph out the next time waits: agents may name other
neighbours in every line."""
SILENCE = 3.0
"""Seconds without news after which an agent, or a swarm, counts as silent."""


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
        how: ``"runs"``, ``"silent"``, ``"ended"``, or ``"waiting"``: nobody has answered yet.
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

    def close(self) -> None:
        """Watch no longer."""


def watched(what: str | Path, certificates: str | None = None) -> Watched:
    """What a folder holds, or who is at addresses.

    Raises:
        ConfigError: Neither the notes of a swarm, nor status lines, nor addresses.
    """
    folder, addresses = Path(what), places(str(what))
    if certificates is not None and addresses is None:
        raise ConfigError(
            f"certificates were given with {what}; expected them with addresses of agents, "
            f"HOST:PORT, since a folder needs none"
        )
    if (folder / GRAPH).exists():
        return Swarm(folder)
    if folder.is_dir() and any(folder.glob("*.jsonl")):
        return Agents(Folder(folder))
    if addresses is not None and not folder.exists():
        return Agents(Asked(addresses, None if certificates is None else Path(certificates)))
    found = "holds nothing to watch" if folder.is_dir() else "is no folder"
    raise ConfigError(
        f"{folder} {found}; expected {GRAPH} in it (hogwild swarm RUN --keep {folder}), status "
        f"lines in *.jsonl (hogwild-agent … --status 0.2 > {folder}/NAME.jsonl), or addresses of "
        f"agents: HOST:PORT,…"
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

    def close(self) -> None:
        """Nothing is held."""

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


class Lines(Protocol):
    """Where status lines come from."""

    @property
    def addresses(self) -> list[str]:
        """Where agents are asked; empty: nobody is asked."""

    def lines(self) -> list[tuple[Said, float]]:
        """What every agent last said, and the seconds since."""

    def close(self) -> None:
        """Nothing more will be read."""


class Folder:
    """Status lines in a folder, one file for each agent."""

    addresses: ClassVar[list[str]] = []

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[Path, tuple[tuple[int, int], Said | None]] = {}

    def close(self) -> None:
        """Nothing is held."""

    def lines(self) -> list[tuple[Said, float]]:
        """The last line of every file, and its age."""
        found = map(self._last, sorted(self.folder.glob("*.jsonl"))[:MOST])
        return [(said, age) for said, age in found if said is not None]

    def _last(self, path: Path) -> tuple[Said | None, float]:
        """The last line of a file, which is read only if it has changed, and the line's age."""
        try:
            about = path.stat()
        except OSError:
            return None, 0.0
        stamp = about.st_mtime_ns, about.st_size
        if path not in self.kept or self.kept[path][0] != stamp:
            try:
                self.kept[path] = stamp, Said.of(last_line(path))
            except ValueError:
                self.kept[path] = stamp, None
        return self.kept[path][1], time.time() - about.st_mtime


class Agents:
    """Agents by their status lines."""

    def __init__(self, source: Lines) -> None:
        self.source, self.begun = source, time.monotonic()
        self._lock, self._again = threading.Lock(), 0.0  # when the graph may be laid out again
        self.neighbours: dict[str, frozenset[str]] = {}
        n = len(source.addresses)  # who has not answered is called by their address
        none = np.zeros((0, 2), np.int64)
        self.ground = Ground(source.addresses, none, np.full(n, np.nan), layout(none.T, n))

    def close(self) -> None:
        """Ask nobody any more."""
        self.source.close()

    def look(self) -> Sight:
        """The last line of every agent; who has said nothing for a while is not among them."""
        said: dict[str, Words] = {}
        with self._lock:  # every viewer has a thread of their own
            known = dict(self.neighbours)
            for each, age in self.source.lines():
                if each.name in known or len(known) < MOST:
                    known[each.name] = each.neighbours
                if age <= SILENCE:
                    said[each.name] = each.words
            if known != self.neighbours and time.monotonic() >= self._again:
                begun = time.monotonic()
                self.neighbours, self.ground = known, _ground(known)
                self._again = time.monotonic() + SELDOM * (time.monotonic() - begun)
            ground = self.ground
        row = {name: i for i, name in enumerate(ground.names)}
        agents = {row[name]: words for name, words in said.items() if name in row}
        how = "runs" if said else "silent" if known or not self.source.addresses else "waiting"
        return Sight(ground, time.monotonic() - self.begun, agents, how=how)


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
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _PARTS.split(name)]


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
