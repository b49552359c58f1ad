"""The session of one viewer: a stage in a thread of its own, which keeps the viewer's pace.

The thread applies commands, ticks, and leaves the newest scene and the newest snapshot where the
connection finds them (:class:`hogwild.web.protocol.Exchange`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hogwild.errors import HogwildError
from hogwild.web.protocol import Command, Exchange, snapshot
from hogwild.web.side import Packets
from hogwild.web.stage import Stage
from hogwild.web.worlds import UserWorld

RATE = 30.0
"""Snapshots a second at most."""


class Session(Exchange):
    """What one viewer sees and does.

    Args:
        given: A model and a graph from the command line.
        wake: Called, from the thread, whenever there is something new to send.
    """

    def __init__(
        self,
        given: UserWorld | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(wake)
        self.stage = Stage(given)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Begin, and tick until the viewer has gone."""
        with torch.no_grad():
            try:
                self.stage.sleeps = True  # what the page asks for first comes before tick 0
                todo = self.waiting(patience=0.25)
                if todo:
                    time.sleep(0.02)
                    todo += self.waiting()  # the rest of it
                for command in todo:
                    self._obey(command)
                self.stage.sleeps = False
                self.stage.begin(keep=True)
                self._loop()
            except Exception as error:  # a session ends in words, never in silence
                self.say(f"This session has ended by an error: {error}", "error")
                raise
            finally:
                self.closed = True
                self.wake()

    def _loop(self) -> None:
        stage = self.stage
        due = shown = time.monotonic()
        heard: list[list[Packets]] = [[] for _ in stage.sides]
        new = True  # whether there is anything that was not shown
        while not self.closed:
            idle = stage.paused and not new
            todo = self.waiting(patience=0.5 if idle else 0.0)
            for command in todo:
                self._obey(command)
            if todo:
                heard, new = [[] for _ in stage.sides], True
            elif idle:
                due = time.monotonic()
                continue
            now = time.monotonic()
            if not stage.paused:
                if now < due and not todo:
                    time.sleep(min(due - now, 0.05))
                    continue
                if now >= due:
                    stage.tick(heard)
                    new = True
                    next_tick = due + 1.0 / stage.timing["speed"]
                    due = max(next_tick, now - 0.2)  # no catching up for long
            if stage.stale:
                self.show(scene=stage.scene())
            if new and (todo or stage.paused or time.monotonic() - shown >= 1.0 / RATE):
                self.show(snapshot=snapshot(stage.version, stage.time, stage.looks(heard)))
                heard = [[] for _ in stage.sides]
                shown, new = time.monotonic(), False

    def _obey(self, command: Command) -> None:
        try:
            self.stage.obey(command)
        except HogwildError as error:
            self.say(str(error), "error")
            self.stage.stale = True
