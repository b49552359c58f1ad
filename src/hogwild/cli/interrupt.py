"""Ctrl-C and SIGTERM during training: the running epoch is finished, and a checkpoint written.

A signal may come at any point of an optimiser step; only between epochs is there a state from which
training goes on in the same bits. A second signal does not wait.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.training import Loop

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAIT = b"\nhogwild: finishing this epoch; once more to leave at once\n"


class Interruptible:
    """Inside its ``with`` block signals wait until the epoch ends. It is also the callback of
    :func:`hogwild.train`, which then saves and raises :class:`KeyboardInterrupt`.

    Args:
        folder: Where the run is kept; ``None``: it is not kept, and signals act as usual.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.epoch = 0  # number of epochs done
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptible:
        # Python lets only the main thread set handlers.
        if self.folder is not None and threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked or self.epoch == 0:  # before the first epoch ends there is nothing to lose
            raise KeyboardInterrupt(
                f"interrupted; the same command with --resume goes on from the last checkpoint in "
                f"{self.folder}, if there is one yet"
            )
        self.asked = True
        os.write(2, WAIT)  # print may not be called from within itself

    def __call__(self, loop: Loop) -> None:
        self.epoch = loop.epoch
        if self.asked:
            loop.save()
            raise KeyboardInterrupt(
                f"interrupted after {loop.epoch} epochs, which are kept in {self.folder}: the same "
                f"command with --resume goes on from there"
            )
