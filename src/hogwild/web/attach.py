"""One viewer of agents that run elsewhere (:mod:`hogwild.web.watched`)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np

from hogwild.web.exchange import Exchange
from hogwild.web.protocol import Command, snapshot
from hogwild.web.scene import rounded
from hogwild.web.side import Seen
from hogwild.web.watched import Ground, Sight, Watched

EVERY = 0.1
"""Seconds between two looks."""
PER_SECOND = 10
"""Ticks of the page in a second of the agents."""
TINY = 1e-300
"""Answers below this are drawn as zero: a tenth of their power of ten may be no number."""
UNIT = 0.01
"""Staleness is shown in hundredths of a second."""


class Attached(Exchange):
    """One viewer of agents. Commands are refused: a viewer only watches."""

    def __init__(self, watched: Watched, wake: Callable[[], None] = lambda: None) -> None:
        super().__init__(wake)
        self.watched, self.version = watched, 0
        self.ground: Ground | None = None
        self.limits, self.text = (-0.5, 0.5), ""
        self.said: list[float] = []  # least and largest answer so far
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hogwild-attached", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        super().close()

    def put(self, command: Command) -> None:
        """Refuse."""
        self.refuse(f"{command.name}: this page only watches a swarm")

    def _run(self) -> None:
        last = -1.0
        while not self._stop.wait(EVERY):
            try:
                sight = self.watched.look()
            except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
                continue  # notes that are half written, or of another program
            if sight.ground.names:
                self._tell(sight)
            if sight.time != last and (sight.agents or sight.how != "runs"):
                last = sight.time
                self.show(snapshot=self._snapshot(sight))

    def _tell(self, sight: Sight) -> None:
        """A new scene, if there is anything new to say."""
        text, limits = banner(sight), self._spread(sight)
        if text == self.text and sight.ground is self.ground and limits == self.limits:
            return
        self.text, self.ground, self.limits = text, sight.ground, limits
        self.version += 1
        ground, known = sight.ground, bool(np.isfinite(sight.ground.exact).all())
        self.show(scene={
            "is": "scene", "version": self.version, "mode": "attached", "banner": text,
            "task": {
                "name": "swarm", "title": "Swarm", "answer": "first output of the model",
                "question": "Real processes talk over a real network, each at its own pace.",
                "low": limits[0], "high": limits[1], "classes": False,
            },
            "nodes": len(ground.names), "names": ground.names, "known": known,
            "seed": 0, "told": None, "movable": False,
            "position": rounded(ground.position.ravel(), 4),
            "edges": ground.edges[ground.edges[:, 0] < ground.edges[:, 1]].ravel().tolist(),
            "dead": [], "timing": None, "paused": False, "per_second": PER_SECOND,
            "unit": UNIT, "full": 50,
            "sides": [{
                "model": "swarm", "title": "The swarm", "about": "", "rule": "", "rules": [],
                "ends": False, "in_step": None, "exact": rounded(ground.exact),
            }],
        })  # fmt: skip

    def _spread(self, sight: Sight) -> tuple[float, float]:
        """The answers at both ends of the colours: those in step, or the least and the largest that
        was ever said."""
        exact = sight.ground.exact
        if np.isfinite(exact).all():
            values = exact.tolist()
        else:
            values = self.said + [words.answer for words in sight.agents.values()]
            self.said = [min(values), max(values)] if values else []
        if not values:
            return self.limits
        low, high = _round(min(values), math.floor), _round(max(values), math.ceil)
        return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)

    def _snapshot(self, sight: Sight) -> bytes:
        n = len(sight.ground.names)
        answer, stale, done = (np.full(n, np.nan, np.float32) for _ in range(3))
        nothing = 0.0 if sight.agents else math.nan  # nobody speaks: what was spent is not known
        spent, residual = np.full(3, nothing), nothing
        for i, words in sight.agents.items():
            answer[i], stale[i], done[i] = words.answer, words.staleness / UNIT, words.settled
            spent += words.spent
            residual = max(residual, words.residual)
        updates, packets, size = (spent / max(len(sight.agents), 1)).tolist()
        seen = Seen(sight.error, math.nan, residual, updates, packets, size, answer, stale, done)
        return snapshot(self.version, round(PER_SECOND * sight.time), [(seen, 0, [])])


def _round(value: float, to: Callable[[float], int]) -> float:
    """Outward to a tenth of its power of ten, so that colours do not change with every word."""
    if abs(value) < TINY:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return to(value / unit) * unit


def banner(sight: Sight) -> str:
    """How the agents are, in words."""
    n, speak = len(sight.ground.names), len(sight.agents)
    what = f"A swarm of {n} processes"
    done = "; ".join(f"{what} after {t:.0f} s" for t, what in sight.events[-3:])
    if sight.how == "waiting":
        return f"Nobody answers at {', '.join(sight.ground.names[:5])} yet. The page asks on."
    text = {
        "ended": f"{what}. It has ended.",
        "silent": f"{what}. It says nothing any more.",
        "runs": f"A swarm of {n} real processes, one for each node. This page only watches.",
    }[sight.how]
    if sight.how == "runs" and not sight.events and 0 < speak < n:
        text += f" {n - speak} of them cannot be heard."
    return text + (f" {done[0].upper()}{done[1:]}." if done else "")
