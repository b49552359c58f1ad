"""``hogwild train`` and ``evaluate``."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields, replace

import hogwild
from hogwild.cli.common import TRAINING, Outcome, loaded
from hogwild.cli.options import Option, Options, argument, verb
from hogwild.config import Config
from hogwild.errors import ConfigError

SETTINGS = [
    Option(
        f.name, "Any" if f.default_factory is MISSING else "dict", f.default,
        f.metadata["help"], f.metadata["group"], if_given=True,
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
    its configuration, history, checkpoints, results and curves there, and --resume goes on from the
    last checkpoint of one that was stopped, in the same bits. hogwild info lists the tasks and the
    models. Exit code 3: no replica could be trained.

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
    try:
        result = hogwild.train(
            config=config,
            folder=options.folder,
            resume=options.resume,
            progress=not options.quiet and not options.json and sys.stderr.isatty(),
        )
    except KeyboardInterrupt:
        again = f"; --resume goes on from the last checkpoint in {options.folder}, if there is one"
        raise KeyboardInterrupt(f"interrupted{again if options.folder else ''}") from None
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
    result = replace(result, metrics=result.evaluate())
    return Outcome(result.summary(), result.as_dict())
