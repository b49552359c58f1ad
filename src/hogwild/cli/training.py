"""``hogwild train`` and ``evaluate``; Ctrl-C and SIGTERM during training.

A signal may come at any point of an optimiser step; only between epochs is there a state from which
training goes on in the same bits. So the running epoch is finished, and a checkpoint written. A
second signal does not wait.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import MISSING, fields, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import hogwild
from hogwild.cli.common import TRAINING, Outcome, loaded, of_file
from hogwild.cli.options import Option, Options, argument, verb
from hogwild.config import Config
from hogwild.errors import ConfigError

if TYPE_CHECKING:
    from hogwild.training import Loop

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WAIT = b"\nhogwild: finishing this epoch; once more to leave at once\n"
SETTINGS = [
    Option(
        f.name, "Any" if f.default_factory is MISSING else "dict", f.default,
        f.metadata["help"], f.metadata["group"], needless=True,
    )
    for f in fields(Config)
    if f.name != "task"
]  # fmt: skip
"""The options of a training run, which the configuration checks."""


@verb(
    argument("task", "name of the task, or FILE.py:NAME", None),
    Option("config", "str | None", None, "options in a TOML file", metavar="FILE"),
    Option(
        "folder", "str | None", None, "where everything that the run leaves behind goes",
        metavar="FOLDER",
    ),
    Option("resume", "bool", False, "go on with the run in --folder"),
    Option("quiet", "bool", False, "no progress bar"),
    *SETTINGS,
)  # fmt: skip
def train(options: Options) -> Outcome:
    """Train a model on a task.

    Options come from flags, then from --config, then from the recipe. With --folder the run leaves
    its configuration, history, checkpoints, results and curves there, and --resume goes on with one
    that was stopped, in the same bits. Ctrl-C stops it after the running epoch, with a checkpoint.
    hogwild info lists the tasks and the models. Exit code 3: no replica could be trained.

    Examples:
      hogwild train robots --model soft --epochs 60 --lr 0.02
      hogwild train counting --model energy-attention --replicas 50 --folder runs/counting
      hogwild train chains --model energy-edge --recipe paper --task-option length=20
      hogwild train --config runs/mine.toml --lr 0.001
      hogwild train my_tasks.py:Triangles --model gcn --folder runs/triangles --resume
    """
    if options.task is not None and options.task.endswith(".toml"):
        raise ConfigError(
            f"{options.task!r} was given as the task; expected a task's name, and a file of "
            f"options behind --config: hogwild train --config {options.task}"
        )
    filed = {} if options.config is None else Config.read(options.config)
    given = {s.name: getattr(options, s.name) for s in SETTINGS if hasattr(options, s.name)}
    given |= {} if options.task is None else {"task": options.task}
    tables = {  # the flags add to a table in the file; what is no table there is refused
        name: {**filed[name], **value} if isinstance(filed[name], dict) else filed[name]
        for name, value in given.items()
        if isinstance(value, dict) and name in filed
    }
    config = Config.of(**{**filed, **given, **tables})
    with of_file(config.task), Interruptible(options.folder) as interruptible:
        result = hogwild.train(
            config=config,
            folder=options.folder,
            resume=options.resume,
            progress=not options.quiet and not options.json and sys.stderr.isatty(),
            callback=interruptible,
        )
    data = {**result.as_dict(), "folder": options.folder}
    good = len(result.failed) < result.replicas
    return Outcome(result.summary(), data, good, result.config.as_dict())


@verb(*TRAINING)
def evaluate(options: Options) -> Outcome:
    """Measure a trained model anew: every replica on its training, validation and test graphs.

    The numbers come from the parameters in the folder and not from what training wrote down, so
    that a folder from elsewhere can be checked.

    Examples:
      hogwild evaluate runs/chains
      hogwild evaluate runs/triangles --task my_tasks.py:Triangles --json
    """
    result = loaded(options)
    with of_file(options.task):
        result = replace(result, metrics=result.evaluate())
    return Outcome(result.summary(), result.as_dict())


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
