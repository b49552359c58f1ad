"""The session of one viewer: a stage in a thread of its own, which keeps the viewer's pace.

The thread applies commands, ticks, and leaves the newest scene and the newest snapshot where the
connection finds them (:mod:`hogwild.web.exchange`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from hogwild.asynchrony.trace import Trace
from hogwild.errors import HogwildError
from hogwild.web.exchange import Exchange
from hogwild.web.given import Given
from hogwild.web.protocol import Command, snapshot
from hogwild.web.side import Packets
from hogwild.web.stage import Stage

RATE = 30.0
"""Snapshots a second at most."""


class Session(Exchange):
    """What one viewer sees and does.

    Args:
        given: A model and a graph from the command line.
        replay: A recorded schedule of this graph.
        wake: Called, from the thread, whenever there is something new to send.
    """

    def __init__(
        self,
        given: Given | None = None,
        replay: Trace | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(wake)
        self.stage = Stage(given, replay)
        self._thread = threading.Thread(target=self._run, name="hogwild-session", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        with torch.no_grad():
            try:
                todo = self._prepare()
                self.stage.begin()
                self._loop(todo)
            except Exception as error:  # a session ends in words, never in silence
                self.say(f"This session has ended by an error: {error}", "error")
                raise
            finally:
                self.closed = True
                self.wake()

    def _prepare(self) -> list[Command]:
        """Begin with what the page asks for first, rather than with something else before it;
        returns what is left to do then."""
        todo = self.told(patience=0.25)
        if todo:
            time.sleep(0.02)
            todo += self.told()  # the rest of it
        left = []
        for command in todo:
            try:
                if not self.stage.prepare(command):
                    left.append(command)
            except HogwildError as error:
                self.say(str(error), "error")
        return left

    def _loop(self, todo: list[Command]) -> None:
        stage = self.stage
        due = shown = time.monotonic()
        heard: list[list[Packets]] = [[] for _ in stage.sides]
        new = True  # whether there is anything that was not shown
        while not self.closed:
            idle = stage.still and not new
            todo += self.told(patience=0.5 if idle and not todo else 0.0)
            for command in todo:
                self._obey(command)
            if todo:
                heard, new = [[] for _ in stage.sides], True
            elif idle:
                due = time.monotonic()
                continue
            now = time.monotonic()
            if not stage.still:
                if now < due and not todo:
                    time.sleep(min(due - now, 0.05))
                    continue
                if now >= due:
                    stage.tick(heard)
                    new = True
                    due = max(due + 1.0 / stage.timing.speed, now - 0.2)  # no catching up for long
            if stage.stale:
                self.show(scene=stage.scene())
            if new and (todo or stage.still or time.monotonic() - shown >= 1.0 / RATE):
                self.show(snapshot=snapshot(stage.version, stage.time, stage.looks(heard)))
                heard = [[] for _ in stage.sides]
                shown, new = time.monotonic(), False
            todo = []

    def _obey(self, command: Command) -> None:
        try:
            self.stage.obey(command)
        except HogwildError as error:
            self.say(str(error), "error")
            self.stage.stale = True
