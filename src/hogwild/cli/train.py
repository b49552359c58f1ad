"""Train a model on a task.

Options come from flags, then from --config, then from the recipe. With --folder the run leaves its
configuration, history, checkpoints, results and curves there, and --resume goes on with one that
was stopped, in the same bits. Ctrl-C stops it after the running epoch, with a checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from hogwild.cli.common import Outcome, of_file
from hogwild.cli.interrupt import Interruptible
from hogwild.cli.values import pairs, value
from hogwild.errors import ConfigError
from hogwild.training import Config
from hogwild.training import train as fit

EXAMPLES = """\
  hogwild train chains --model energy-edge --epochs 500
  hogwild train counting --model energy-attention --replicas 50 --folder runs/counting
  hogwild train chains --recipe paper --task-option length=20 --model-option hidden_channels=4
  hogwild train --config runs/mine.toml --lr 0.001
  hogwild train my_tasks.py:Triangles --model gcn --folder runs/triangles --resume"""
TABLES = ("task_options", "model_options", "solver_options")


def arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of :class:`~hogwild.training.Config`."""
    parser.add_argument("task", nargs="?", help="name of the task, or FILE.py:NAME")
    parser.add_argument("--config", metavar="FILE", help="options in a TOML file")
    parser.add_argument("--folder", help="where everything the run leaves behind goes")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --folder")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="logs for TensorBoard")
    for f in fields(Config):
        flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
        if f.name == "task":
            continue
        if f.name in TABLES:
            parser.add_argument(
                flag.removesuffix("s"), dest=f.name, action="append", metavar="K=V", help=text
            )
        else:
            note = "" if f.default is None else f"; default: {f.default}"
            parser.add_argument(  # absent unless given: none is a value, too
                flag, type=value, metavar="X", help=text + note, default=argparse.SUPPRESS
            )


def run(given: argparse.Namespace) -> Outcome:
    """Train."""
    if given.task is not None and given.task.endswith(".toml"):
        raise ConfigError(
            f"{given.task!r} was given as the task; expected a task's name, and a file of options "
            f"behind --config: hogwild train --config {given.task}"
        )
    options: dict[str, Any] = {} if given.config is None else Config.read(given.config)
    if given.task is not None:
        options["task"] = given.task
    for f in fields(Config):
        if f.name in TABLES:
            flag = "--" + f.name.replace("_", "-").removesuffix("s")
            flagged, filed = pairs(getattr(given, f.name), flag), options.get(f.name, {})
            if flagged or f.name not in options:  # else as it is: what is no table is refused
                options[f.name] = {**filed, **flagged} if isinstance(filed, dict) else filed
        elif f.name in given and f.name != "task":
            options[f.name] = getattr(given, f.name)
    config = Config.of(**options)
    with of_file(config.task), Interruptible(given.folder) as interruptible:
        result = fit(
            config=config,
            folder=given.folder,
            resume=given.resume,
            progress=not given.quiet and not given.json and sys.stderr.isatty(),
            tensorboard=given.tensorboard,
            callback=interruptible,
        )
    data = result.as_dict()
    data["folder"] = given.folder
    return Outcome(result.summary(), data, len(result.failed) < result.replicas)
