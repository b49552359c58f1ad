"""``hogwild train``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hogwild.cli.common import Outcome, of_file
from hogwild.cli.interrupt import Interruptible
from hogwild.cli.options import Verb, argument, each, option
from hogwild.config import Config
from hogwild.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options(Verb):
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

    task: str | None = argument("name of the task, or FILE.py:NAME", default=None)
    config: str | None = option(None, "options in a TOML file", metavar="FILE")
    folder: str | None = option(
        None, "where everything that the run leaves behind goes", metavar="FOLDER"
    )
    resume: bool = option(False, "go on with the run in --folder")
    tensorboard: str | None = option(None, "logs for TensorBoard", metavar="FOLDER")
    quiet: bool = option(False, "no progress bar")
    settings: Mapping[str, Any] = each(Config)

    def resolve(self) -> Config:
        """The configuration from flags, then the file, then the recipe."""
        filed: dict[str, Any] = {} if self.config is None else Config.read(self.config)
        given = self.settings if self.task is None else {**self.settings, "task": self.task}
        tables = {  # the flags add to a table in the file; what is no table there is refused
            name: {**filed[name], **value} if isinstance(filed[name], dict) else filed[name]
            for name, value in given.items()
            if isinstance(value, dict) and name in filed
        }
        return Config.of(**{**filed, **given, **tables})


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.train`."""
    from hogwild.training import train

    if options.task is not None and options.task.endswith(".toml"):
        raise ConfigError(
            f"{options.task!r} was given as the task; expected a task's name, and a file of "
            f"options behind --config: hogwild train --config {options.task}"
        )
    config = options.resolve()
    with of_file(config.task), Interruptible(options.folder) as interruptible:
        result = train(
            config=config,
            folder=options.folder,
            resume=options.resume,
            progress=not options.quiet and not options.json and sys.stderr.isatty(),
            tensorboard=options.tensorboard,
            callback=interruptible,
        )
    data = {**result.as_dict(), "folder": options.folder}
    good = len(result.failed) < result.replicas
    return Outcome(result.summary(), data, good, result.config.as_dict())
