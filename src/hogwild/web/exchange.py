"""Between the connection of a viewer and the thread that works for them: commands go in, the newest
of everything comes out. Whoever is slow misses some, and nothing piles up."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hogwild.web.protocol import Command

WAITING = 64
"""Commands that may wait at most; those about the same thing count once."""
NOTICES = 8
"""Notices that wait for the viewer at most."""


@dataclass
class Screen:
    """The newest of everything that a viewer has not been sent: what the connection reads."""

    scene: dict[str, Any] | None = None
    snapshot: bytes | None = None
    notices: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=NOTICES))


class Exchange(ABC):
    """What a viewer is connected to: takes their commands, and has what they get.

    Args:
        wake: Called, from the thread, whenever there is something new to send.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake, self.closed = wake, False
        self.commands: dict[tuple[Any, ...], Command] = {}
        self._lock, self._screen = threading.Condition(), Screen()

    # -- from the connection -----------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begin."""

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

    def told(self, patience: float = 0.0) -> list[Command]:
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
