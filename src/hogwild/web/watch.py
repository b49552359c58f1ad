"""Agents that run elsewhere, which a page only watches.

Agents of ``hogwild swarm``, and those that were started by hand, are asked for their status at
their addresses (:mod:`hogwild.web.polling`).
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.web.polling import Poller, Status, places
from hogwild.web.protocol import Command, Exchange, rounded, snapshot
from hogwild.web.side import Seen
from hogwild.web.worlds import MOST, layout

SELDOM = 10.0
"""How many times longer than it took to lay a graph out the next time waits: agents may name other
neighbours in every line."""
SILENCE = 3.0
"""Seconds without news after which an agent, or a swarm, counts as silent."""
EVERY = 0.1
"""Seconds between two looks."""
PER_SECOND = 10
"""Ticks of the page in a second of the agents."""
UNIT = 0.01
"""Staleness is shown in hundredths of a second."""


@dataclass(frozen=True)
class Ground:
    """The graph of the agents, as far as it is known.

    Attributes:
        names: What the agents are called, [n].
        edges: [E, 2].
        position: Where to draw them, [n, 2].
    """

    names: list[str]
    edges: np.ndarray
    position: np.ndarray

    @classmethod
    def of(cls, names: list[str], edges: np.ndarray) -> Ground:
        """Agents at the places that the layout of their graph gives them."""
        return cls(names, edges, layout(edges.T, len(names)))


@dataclass(frozen=True)
class Sight:
    """One look at the agents.

    Attributes:
        ground: Their graph.
        time: Seconds since the first look.
        agents: Those who speak, by row.
        how: ``"runs"``, ``"silent"``, or ``"waiting"``: nobody has answered yet.
    """

    ground: Ground
    time: float
    agents: dict[int, Status] = field(default_factory=dict)
    how: str = "runs"

    @property
    def banner(self) -> str:
        """How the agents are, as a sentence."""
        n, speak = len(self.ground.names), len(self.agents)
        if self.how == "waiting":
            return f"Nobody answers at {', '.join(self.ground.names[:5])} yet. The page asks on."
        if self.how == "silent":
            return f"A swarm of {n} processes. It says nothing any more."
        text = f"A swarm of {n} real processes, one for each node. This page only watches."
        return text + (f" {n - speak} of them cannot be heard." if speak < n else "")


def watch(what: str | Path, certificates: str | None = None) -> Agents:
    """The agents that listen at addresses.

    Raises:
        ConfigError: These are no addresses.
    """
    addresses = places(str(what))
    if addresses is None:
        raise ConfigError(f"{what} is no address; expected addresses of agents: HOST:PORT,…")
    return Agents(Poller(addresses, None if certificates is None else Path(certificates)))


class Agents:
    """Agents by their status lines.

    Args:
        source: Whose ``lines()`` are the last status of every agent, each with its age.
    """

    def __init__(self, source: Poller) -> None:
        self.source, self.begun = source, time.monotonic()
        self._lock, self._again = threading.Lock(), 0.0  # when the graph may be laid out again
        self.neighbours: dict[str, frozenset[str]] = {}
        # An agent that has not answered is called by its address.
        self.ground = Ground.of(source.addresses, np.zeros((0, 2), np.int64))

    def close(self) -> None:
        """Poll no longer."""
        self.source.close()

    def look(self) -> Sight:
        """The last line of every agent; those who have been silent for a while are left out."""
        speak: dict[str, Status] = {}
        with self._lock:  # every viewer has a thread of their own
            known = dict(self.neighbours)
            for each, age in self.source.lines():
                if each.name in known or len(known) < MOST:
                    known[each.name] = each.neighbours
                if age <= SILENCE:
                    speak[each.name] = each
            if known != self.neighbours and time.monotonic() >= self._again:
                begun = time.monotonic()
                self.neighbours, self.ground = known, _ground(known)
                self._again = time.monotonic() + SELDOM * (time.monotonic() - begun)
            ground = self.ground
        row = {name: i for i, name in enumerate(ground.names)}
        agents = {row[name]: status for name, status in speak.items() if name in row}
        how = "runs" if speak else "silent" if known else "waiting"
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
    return Ground.of(names, np.array(sorted(pairs), np.int64).reshape(-1, 2))


_PARTS = re.compile(r"(\d{1,15})")


def _natural(name: str) -> list[Any]:
    """Agent 10 comes after agent 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _PARTS.split(name)]


class Attached(Exchange):
    """One viewer of agents. Commands are refused: a viewer only watches."""

    def __init__(self, agents: Agents, wake: Callable[[], None] = lambda: None) -> None:
        super().__init__(wake)
        self.agents, self.version = agents, 0
        self.ground: Ground | None = None
        self.limits, self.text = (-0.5, 0.5), ""
        self.fits = False  # whether the limits are those of answers
        self._stop = threading.Event()

    def close(self) -> None:
        """End."""
        self._stop.set()
        super().close()

    def put(self, command: Command) -> None:
        """Refuse."""
        self.refuse(f"{command.name}: this page only watches a swarm")

    def run(self) -> None:
        """Look at the agents again and again."""
        last = -1.0
        while not self._stop.wait(EVERY):
            sight = self.agents.look()
            if sight.ground.names:
                self._tell(sight)
            if sight.time != last and (sight.agents or sight.how != "runs"):
                last = sight.time
                self.show(snapshot=self._snapshot(sight))

    def _tell(self, sight: Sight) -> None:
        """A new scene, if there is anything new to say."""
        text, limits = sight.banner, self._spread(sight)
        if text == self.text and sight.ground is self.ground and limits == self.limits:
            return
        self.text, self.ground, self.limits = text, sight.ground, limits
        self.version += 1
        ground, n = sight.ground, len(sight.ground.names)
        self.show(scene={
            "is": "scene", "version": self.version, "mode": "attached", "banner": text,
            "task": {
                "name": "swarm", "title": "Swarm", "answer": "first output of the model",
                "question": "Real processes talk over a real network, each at its own pace.",
                "low": limits[0], "high": limits[1], "classes": False,
            },
            "nodes": n, "names": ground.names, "known": False,
            "seed": 0, "told": None, "movable": False,
            "position": rounded(ground.position.ravel(), 4),
            "edges": ground.edges[ground.edges[:, 0] < ground.edges[:, 1]].ravel().tolist(),
            "dead": [], "timing": None, "paused": False, "per_second": PER_SECOND,
            "unit": UNIT, "full": 50,
            "sides": [{
                "model": "swarm", "title": "The swarm", "about": "", "rule": "", "rules": [],
                "ends": False, "in_step": None, "exact": rounded(np.full(n, np.nan)),
            }],
        })  # fmt: skip

    def _spread(self, sight: Sight) -> tuple[float, float]:
        """The answers at both ends of the colours: the least and the largest so far, with room for
        others."""
        values = [status.answer for status in sight.agents.values()]
        if not values or (
            self.fits and self.limits[0] <= min(values) <= max(values) <= self.limits[1]
        ):
            return self.limits
        if self.fits:
            values += self.limits
        self.fits, room = True, 0.1 * (max(values) - min(values))
        return min(values) - (room or 0.5), max(values) + (room or 0.5)

    def _snapshot(self, sight: Sight) -> bytes:
        n = len(sight.ground.names)
        answer, stale, done = (np.full(n, np.nan, np.float32) for _ in range(3))
        nothing = 0.0 if sight.agents else math.nan  # nobody speaks: what was spent is not known
        spent, residual = np.full(3, nothing), nothing
        for i, each in sight.agents.items():
            answer[i], stale[i], done[i] = each.answer, each.staleness / UNIT, each.settled
            spent += each.spent
            residual = max(residual, each.residual)
        updates, packets, size = (spent / max(len(sight.agents), 1)).tolist()
        seen = Seen(math.nan, math.nan, residual, updates, packets, size, answer, stale, done)
        return snapshot(self.version, round(PER_SECOND * sight.time), [(seen, 0, [])])
