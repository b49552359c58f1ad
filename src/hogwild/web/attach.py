"""Watch a running swarm: read the notes in its folder (:mod:`hogwild.executors.notes`), and change
nothing."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.notes import GRAPH, WORDS
from hogwild.web.given import fitted, layout
from hogwild.web.kept import Screen
from hogwild.web.protocol import Command, snapshot
from hogwild.web.scene import rounded
from hogwild.web.side import Seen
from hogwild.web.worlds import MOST

EVERY = 0.1
"""Seconds between two looks."""
SILENCE = 3.0
"""Seconds without news after which the page says so."""
PER_SECOND = 10
"""Ticks of the page in a second of the swarm."""
UNIT = 0.01
"""Staleness is shown in hundredths of a second."""


class Swarm:
    """A swarm by its folder.

    Raises:
        ConfigError: The folder does not hold the notes of a swarm.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            found = json.loads((folder / GRAPH).read_text("utf-8"))
            self.nodes = int(found["nodes"])
            edges = np.array(found["edges"], np.int64).reshape(-1, 2)
            said = np.array(found["prediction"], float).reshape(self.nodes, -1)
            pos = found["pos"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder} holds no readable {GRAPH} ({error}); expected the folder of a running "
                f"swarm: hogwild swarm RUN --keep {folder}"
            ) from error
        if not 1 <= self.nodes <= MOST or (edges.size and edges.max() >= self.nodes):
            raise ConfigError(f"{folder / GRAPH} has {self.nodes} nodes; expected 1 to {MOST}")
        self.edges, self.exact = edges, said[:, 0]
        placed = None if pos is None else np.array(pos, float)[:, :2]
        self.position = layout(edges.T, self.nodes) if placed is None else fitted(placed)

    def words(self) -> dict[str, Any] | None:
        """What the swarm last said; ``None``: nothing that can be read."""
        try:
            found = json.loads((self.folder / WORDS).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "time" in found else None


class Attached:
    """One viewer of a swarm. Commands are refused: a viewer only watches."""

    def __init__(self, swarm: Swarm, wake: Callable[[], None]) -> None:
        self.swarm, self.wake, self.closed = swarm, wake, False
        self.version, self.said = 0, ""
        self._screen, self._lock = Screen(), threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hogwild-attached", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self.closed = True

    def put(self, command: Command) -> None:
        """Refuse."""
        self.refuse(f"{command.name}: this page only watches a swarm")

    def refuse(self, why: str) -> None:
        """Tell the viewer that a message was refused."""
        with self._lock:
            text = f"The server refused {why}."
            self._screen.notices.append({"is": "notice", "kind": "error", "text": text})
        self.wake()

    def take(self) -> Screen:
        """Everything new since the last call."""
        with self._lock:
            out, self._screen = self._screen, Screen()
        return out

    def _run(self) -> None:
        last: float | None = None
        heard = time.monotonic()
        while not self._stop.wait(EVERY):
            words = self.swarm.words()
            now = time.monotonic()
            fresh = words is not None and words["time"] != last
            if fresh:
                assert words is not None
                last, heard = words["time"], now
            ended = words is not None and bool(words.get("ended"))
            self._say(words, "ended" if ended else "silent" if now - heard > SILENCE else "runs")
            if fresh and words is not None and words.get("agents"):
                packed = self._snapshot(words)
                with self._lock:
                    self._screen.snapshot = packed
                self.wake()

    def _say(self, words: dict[str, Any] | None, how: str) -> None:
        """A new scene, if there is anything new to say."""
        n, events = self.swarm.nodes, [] if words is None else words.get("events", [])
        done = "; ".join(f"{what} after {t:.0f} s" for t, what in events[-3:])
        text = {
            "ended": f"A swarm of {n} processes. It has ended.",
            "silent": f"A swarm of {n} processes. It says nothing any more.",
            "runs": f"A swarm of {n} real processes, one for each node. This page only watches.",
        }[how]
        text += f" {done[0].upper()}{done[1:]}." if done else ""
        if text == self.said:
            return
        self.said, self.version = text, self.version + 1
        swarm = self.swarm
        low, high = float(swarm.exact.min()), float(swarm.exact.max())
        low, high = (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)
        scene = {
            "is": "scene", "version": self.version, "mode": "attached", "banner": text,
            "task": {
                "name": "swarm", "title": "Swarm", "answer": "first output of the model",
                "question": "Real processes talk over a real network, each at its own pace.",
                "low": low, "high": high, "classes": False,
            },
            "nodes": n, "seed": 0, "told": None, "movable": False,
            "position": rounded(swarm.position.ravel(), 4),
            "edges": swarm.edges[swarm.edges[:, 0] < swarm.edges[:, 1]].ravel().tolist(),
            "dead": [], "timing": None, "paused": False, "per_second": PER_SECOND,
            "unit": UNIT, "full": 50,
            "sides": [{
                "model": "swarm", "title": "The swarm", "about": "", "rule": "", "rules": [],
                "ends": False, "in_step": None, "exact": rounded(swarm.exact),
            }],
        }  # fmt: skip
        with self._lock:
            self._screen.scene = scene
        self.wake()

    def _snapshot(self, words: dict[str, Any]) -> bytes:
        n = self.swarm.nodes
        answer, stale, done = (np.full(n, np.nan, np.float32) for _ in range(3))
        spent, residual = np.zeros(3), 0.0
        agents = {int(i): word for i, word in words["agents"].items() if 0 <= int(i) < n}
        for i, word in agents.items():
            answer[i] = word["prediction"][0]
            stale[i] = (word["staleness"] or 0.0) / UNIT
            done[i] = word["state"] == "settled"
            spent += [word["updates"], word["packets"], word["bytes"]]
            residual = max(residual, word["residual"] or 0.0)
        error = words["error"]
        error = math.nan if error is None else float(error)
        spent = spent / max(len(agents), 1)
        updates, packets, size = spent.tolist()
        seen = Seen(error, math.nan, residual, updates, packets, size, answer, stale, done)
        return snapshot(self.version, round(PER_SECOND * words["time"]), [(seen, 0, [])])
