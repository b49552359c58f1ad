"""What a page and the server say to each other, and what waits between the two.

The page sends JSON objects, :data:`COMMANDS`. The server sends JSON objects (``is`` says what:
``hello``, ``scene``, ``notice``) and binary snapshots. Everything that comes from a page is checked
here: whoever can reach the server can send anything. An :class:`Exchange` stands between the
connection of a viewer and the thread that works for them.

A snapshot is little-endian: a head of six uint32 (:data:`MAGIC`, number of the scene, tick, n,
number of sides, flags), then for each side

=====================  ============================================================================
float32 [8]            error, task error, residual, updates, packets and bytes of a node, ticks
                       since all nodes last began, 0
uint32                 number of packets P
float32 [n]            answers; NaN: the node is dead
uint8 [n]              staleness: age in ticks of the oldest packet that a node holds, at most 255
uint8 [n]              0: computes, 1: done, 2: dead
uint8 [0 to 3]         zeros, up to a multiple of four
[P] uint16 ×2, uint8   packets: sender, receiver; ticks between hearing it and the snapshot, its age
×4                     in ticks, whether it was lost, 0
=====================  ============================================================================
"""

from __future__ import annotations

import json
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild.errors import HogwildError, Rule
from hogwild.rules import RULES
from hogwild.web.pretrained import MODELS
from hogwild.web.side import MOST_DELAY, Packets, Seen
from hogwild.web.worlds import LEAST, MOST, TASKS

MAGIC = 0x31474F48
LONGEST = 1000
"""Characters of a command at most."""
MOST_STAGGER, MOST_LOSS, MOST_SPEED = 20, 0.95, 120
GIVEN = "given"
"""The name of the task and of the model that the command line gave."""
WAITING = 64
"""Commands that may wait at most; those about the same thing count once."""
NOTICES = 8
"""Notices that wait for the viewer at most."""


class ProtocolError(HogwildError):
    """A command that cannot be one; the text says why."""


def whole(least: int, most: int) -> Rule:
    """An integer from ``least`` to ``most``."""
    expected = f"an integer from {least} to {most}"
    return Rule(lambda v: type(v) is int and least <= v <= most, expected)


def real(least: float, most: float) -> Rule:
    """A number from ``least`` to ``most``; no number is NaN."""
    expected = f"a number from {least:g} to {most:g}"
    return Rule(lambda v: type(v) in (int, float) and least <= v <= most, expected)


def one_of(*names: str) -> Rule:
    """One of some names."""
    return Rule(lambda v: isinstance(v, str) and v in names, f"one of {', '.join(names)}")


TRUTH = Rule(lambda v: isinstance(v, bool), "true or false")
NODE = whole(0, MOST - 1)
COMMANDS: dict[str, dict[str, Rule]] = {
    "world": {
        "task": one_of(*TASKS, GIVEN),
        "nodes": whole(LEAST, MOST),
        "seed": whole(0, 2**31 - 1),
    },
    "side": {
        "side": whole(0, 1),
        "model": one_of(*MODELS, GIVEN),
        "rule": one_of("auto", *RULES),
    },
    "timing": {
        "stagger": whole(1, MOST_STAGGER),
        "delay": whole(0, MOST_DELAY),
        "loss": real(0.0, MOST_LOSS),
    },
    "speed": {"ticks": whole(1, MOST_SPEED)},
    "pause": {"paused": TRUTH},
    "node": {"node": NODE, "alive": TRUTH},
    "move": {"node": NODE, "x": real(0.0, 1.0), "y": real(0.0, 1.0)},
    "readings": {},
    "again": {},
}
"""What a page may send: ``{"do": name, …}`` with exactly these fields."""


@dataclass(frozen=True)
class Command:
    """A command that was checked."""

    name: str
    values: dict[str, Any]

    @property
    def subject(self) -> tuple[Any, ...]:
        """What the command is about: of two waiting commands about the same, the last counts."""
        about = [self.values[key] for key in ("side", "node") if key in self.values]
        return (self.name, *about)


def parse(text: str | bytes) -> Command:
    """The command in a message.

    Raises:
        ProtocolError: It is none; the text says what was expected.
    """
    if isinstance(text, bytes):
        raise ProtocolError("a binary message; expected JSON in a text message")
    if len(text) > LONGEST:
        raise ProtocolError(f"a message of {len(text)} characters; expected {LONGEST} at most")
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message that is not JSON; expected a JSON object") from error
    if not isinstance(found, dict):
        raise ProtocolError(f"a JSON {type(found).__name__}; expected an object")
    name = found.pop("do", None)
    if not isinstance(name, str) or name not in COMMANDS:
        raise ProtocolError(f'"do" is no command; expected one of {", ".join(COMMANDS)}')
    fields = COMMANDS[name]
    if found.keys() != fields.keys():
        expected = ", ".join(fields) or "no field"
        raise ProtocolError(f"{name}: wrong fields; expected {expected} beside do")
    for key, allowed in fields.items():
        if not allowed.fine(found[key]):
            raise ProtocolError(f"{name}: {key} is out of range; expected {allowed.expected}")
    return Command(name, found)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def snapshot(scene: int, tick: int, sides: Sequence[tuple[Seen, int, Sequence[Packets]]]) -> bytes:
    """A snapshot: for each side what is seen, the ticks since all nodes began, and the packets."""
    n = len(sides[0][0].answer)
    parts = [np.array([MAGIC, scene, tick, n, len(sides), 0], "<u4").tobytes()]
    for seen, since, packets in sides:
        numbers = (seen.error, seen.task_error, seen.residual, seen.updates, seen.packets)
        with np.errstate(over="ignore"):
            parts.append(np.array([*numbers, seen.bytes, since, 0], "<f4").tobytes())
        count = sum(len(each.sender) for each in packets)
        parts.append(np.array([count], "<u4").tobytes())
        parts.append(seen.answer.astype("<f4").tobytes())
        dead = np.isnan(seen.answer)
        stale = np.where(dead, 0, np.nan_to_num(seen.staleness)).clip(0, 255).astype(np.uint8)
        state = np.where(dead, 2, np.nan_to_num(seen.done) > 0).astype(np.uint8)
        parts += [stale.tobytes(), state.tobytes(), bytes(-2 * n % 4)]
        parts += [_packed(each, tick) for each in packets]
    return b"".join(parts)


def _packed(packets: Packets, tick: int) -> bytes:
    out = np.zeros(
        len(packets.sender),
        np.dtype([("ends", "<u2", 2), ("back", "u1"), ("age", "u1"), ("lost", "u1"), ("z", "u1")]),
    )
    out["ends"] = np.stack([packets.sender, packets.receiver], 1)
    out["back"] = min(max(tick - packets.time, 0), 255)
    out["age"], out["lost"] = packets.age, packets.lost
    return out.tobytes()


def rounded(values: np.ndarray, digits: int = 6) -> list[float | None]:
    """Numbers for JSON, which knows no NaN."""
    return [round(float(v), digits) if math.isfinite(v) else None for v in values]


# -- between the connection and the thread ---------------------------------------------------------


@dataclass
class Screen:
    """The newest of everything that a viewer has not been sent: what the connection reads."""

    scene: dict[str, Any] | None = None
    snapshot: bytes | None = None
    notices: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=NOTICES))


class Exchange(ABC):
    """What a viewer is connected to: commands go in, the newest of everything comes out. A slow
    viewer misses some, and nothing piles up.

    Args:
        wake: Called, from the thread, whenever there is something new to send.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake, self.closed = wake, False
        self.commands: dict[tuple[Any, ...], Command] = {}
        self._lock, self._screen = threading.Condition(), Screen()
        self._thread = threading.Thread(target=self.run, name="hogwild-viewer", daemon=True)

    # -- from the connection -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, command: Command) -> None:
        """Have a command carried out; a later one about the same thing replaces an earlier one."""
        with self._lock:
            self.commands.pop(command.subject, None)
            if len(self.commands) >= WAITING:
                self.say("Too many commands at once: some were dropped.")
                return
            self.commands[command.subject] = command
            self._lock.notify()

    def refuse(self, why: str) -> None:
        """Tell the viewer that a message was refused."""
        self.say(f"The server refused {why}.", "error")

    def take(self) -> Screen:
        """Everything new since the last call."""
        with self._lock:
            out, self._screen = self._screen, Screen()
        return out

    def close(self) -> None:
        """The viewer has gone."""
        with self._lock:
            self.closed = True
            self._lock.notify()

    # -- from the thread ---------------------------------------------------------------------------

    @abstractmethod
    def run(self) -> None:
        """What the thread does."""

    def waiting(self, patience: float = 0.0) -> list[Command]:
        """The commands that wait, oldest first; waits up to ``patience`` seconds for one."""
        with self._lock:
            if not self.commands and not self.closed and patience > 0.0:
                self._lock.wait(patience)
            out, self.commands = list(self.commands.values()), {}
        return out

    def say(self, text: str, kind: str = "note") -> None:
        """Tell the viewer something."""
        with self._lock:
            self._screen.notices.append({"is": "notice", "kind": kind, "text": text})
        self.wake()

    def show(self, *, scene: dict[str, Any] | None = None, snapshot: bytes | None = None) -> None:
        """A new scene, or a new snapshot, in place of those that were not sent yet."""
        with self._lock:
            self._screen.scene = self._screen.scene if scene is None else scene
            self._screen.snapshot = self._screen.snapshot if snapshot is None else snapshot
        self.wake()
