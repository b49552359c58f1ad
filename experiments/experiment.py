"""The one mechanism behind every table and figure.

An *experiment* is a set of named *cells*. A cell is computed by itself and kept as one JSON file,
written atomically when it is done; with ``resume`` a run skips the cells that are there, and a cell
that was killed while training goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from experiments.protocols import PROTOCOLS, Protocol, protocol
from experiments.record import Record, Training, provenance, read
from hogwild.config import RECIPES
from hogwild.errors import (
    CheckpointError,
    ConfigError,
    ConvergenceError,
    DataError,
    among,
    require_positive,
)
from hogwild.files import write_atomically
from hogwild.training import Config, Loop, Result, load, train
from hogwild.training.log import plain
from hogwild.training.registry import device_of, spelled_out

FREE = ("device", "checkpoint_every")
"""Options that do not change what was trained."""
SUFFIXES = {recipe: "" if recipe == "default" else f".{recipe}" for recipe in RECIPES}
"""Of files and folders that belong to a recipe, by its name."""


@dataclass(frozen=True)
class Work:
    """What a cell is computed with.

    Attributes:
        folder: Where trained models and checkpoints of unfinished training go.
        device: Of training.
        recipe: ``"default"`` or ``"paper"``.
        quick: Less of everything.
        replicas: Instead of the protocol's; ``None``: the protocol's.
        resume: Whether to go on with unfinished training.
        progress: Show progress bars.
        protocols: How columns are trained.
        trial: The name of a trial, which tries other options than the protocol's; ``None``: none.
        changes: The options that the trial changes.
    """

    folder: Path
    device: str = "cpu"
    recipe: str = "default"
    quick: bool = False
    replicas: int | None = None
    resume: bool = False
    progress: bool = False
    protocols: Mapping[str, Protocol] = field(default_factory=lambda: PROTOCOLS)
    trial: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ConfigError(f"recipe={self.recipe!r}; {among(RECIPES, self.recipe)}")
        if self.replicas is not None:
            require_positive("replicas", self.replicas)
        device_of(Config.of(device=self.device))

    @property
    def suffix(self) -> str:
        """Of files and folders that belong to the recipe."""
        return SUFFIXES[self.recipe]

    def config(self, column: str, model: str) -> Config:
        """How a model is trained on a column."""
        chosen = protocol(column, self.protocols).config(
            model,
            recipe=self.recipe,
            quick=self.quick,
            replicas=self.replicas,
            device=self.device,
        )
        return spelled_out(Config.from_dict({**chosen.as_dict(), **self.changes}))

    def trained(self, column: str, model: str) -> Result:
        """A trained model of Tables 1, 3, 4 and 5: from the folder; trained first, or further, if
        it is not there."""
        return self.fit(self.config(column, model), self.training(column, model))

    def fit(
        self, config: Config, folder: Path, callback: Callable[[Loop], None] = lambda loop: None
    ) -> Result:
        """A trained model from its folder; trained first, or further, if it is not there.

        Args:
            config: How it is trained.
            folder: Where it is kept.
            callback: Called after every epoch that is trained now.
        """
        if (folder / "result.json").exists():
            return self.finished(config, folder)
        self.allow(folder)
        with Training(folder, self.device) as watch:

            def after(loop: Loop) -> None:
                watch(loop)
                callback(loop)

            return train(
                config=config, folder=folder, resume=True, progress=self.progress, callback=after
            )

    def finished(self, config: Config, folder: Path, *, replicas: bool = True) -> Result:
        """A trained model from its folder.

        Args:
            config: How it must have been trained.
            folder: Where it is kept.
            replicas: Whether the number of replicas must be the same, too.
        """
        found = load(folder)
        for key in _differ(found.config, config):
            if replicas or key != "replicas":
                raise ConfigError(
                    f"{folder} holds a model trained with {key}={getattr(found.config, key)!r}, "
                    f"and {getattr(config, key)!r} was asked for; expected the same options, or "
                    f"another --work folder"
                )
        return found

    def training(self, column: str, model: str) -> Path:
        """The folder of a training run."""
        return self.folder / "training" / column / f"{model}{self.suffix}"

    def allow(self, folder: Path) -> None:
        """Refuse to go on with unfinished training unasked."""
        if (folder / "config.json").exists() and not self.resume:
            raise ConfigError(
                f"{folder} holds an unfinished training run; expected --resume to go on with it, "
                f"or another --work folder"
            )

    def command(self, experiment: str, cell: str) -> str:
        """What makes this cell on the command line."""
        words = ["python", "-m", "experiments", experiment, "--only", cell]
        words += ["--quick"] if self.quick else []
        words += ["--recipe", self.recipe] if self.recipe != "default" else []
        words += ["--replicas", str(self.replicas)] if self.replicas is not None else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--trial", self.trial] if self.trial is not None else []
        for key, value in self.changes.items():
            words += ["--set", f"{key}={json.dumps(value)}"]
        return shlex.join(words)


def _differ(a: Config, b: Config) -> list[str]:
    """Options in which two configurations differ, as JSON knows them."""
    x, y = (json.loads(json.dumps(c.as_dict(), default=str)) for c in (a, b))
    return sorted(k for k in x if k not in FREE and x[k] != y[k])


Cell = Callable[[Work], Record]
"""Computes one cell."""


class Experiment(ABC):
    """A table or a figure.

    Attributes:
        name: On the command line.
        title: For people.
    """

    name: str
    title: str

    @abstractmethod
    def cells(self) -> dict[str, Cell]:
        """Every cell by its name, in the order they are computed."""

    @abstractmethod
    def table(self, records: Mapping[str, Record]) -> str:
        """Markdown of the cells that are there (by name) and of those that are not."""

    @abstractmethod
    def details(self, records: Mapping[str, Record]) -> str:
        """Markdown with a line for every cell: how it was made."""

    def brief(self, record: Record) -> str:
        """One cell in a few words, for a progress line."""
        return ""

    def number(self, record: Record) -> str:
        """The one number of a cell, with its unit, for a sentence."""
        return self.brief(record)

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        """By name: what else of a cell a sentence can speak of."""
        return {}

    def draw(self, results: Results, suffix: str) -> Path | None:
        """Draw the picture of a figure beside its results; ``None``: there is none to draw."""
        return None

    def select(self, only: Iterable[str]) -> dict[str, Cell]:
        """The cells that match one of the patterns; all of them without any."""
        cells = self.cells()
        patterns = list(only)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in cells):
                raise ConfigError(
                    f"no cell of {self.name} matches {pattern!r}; {among(cells, pattern)}"
                )
        if not patterns:
            return cells
        return {n: c for n, c in cells.items() if any(fnmatchcase(n, p) for p in patterns)}


@dataclass(frozen=True)
class Results:
    """A folder of records: ``<experiment>/<cell>[.paper].json``."""

    folder: Path

    def __post_init__(self) -> None:
        for path in (self.folder, *self.folder.parents):
            if path.is_file():
                raise ConfigError(f"{path} is a file; expected a folder of results, or none yet")

    def path(self, experiment: str, cell: str, suffix: str = "") -> Path:
        """Where a cell is kept."""
        return self.folder / experiment / f"{cell}{suffix}.json"

    def read(self, experiment: Experiment, suffix: str = "") -> dict[str, Record]:
        """The cells of an experiment that are there."""
        out = {}
        for cell in experiment.cells():
            path = self.path(experiment.name, cell, suffix)
            if path.exists():
                record = read(path, "quick", "command", "seconds", "commit", "hardware")
                if record.get("cell", cell) != cell:
                    raise CheckpointError(
                        f"{path} is the record of {record['cell']!r}, not of {cell!r}; remove it"
                    )
                out[cell] = record
        return out

    def write(self, experiment: str, cell: str, suffix: str, record: Record) -> Path:
        """Keep a cell, all of it or nothing."""
        path = self.path(experiment, cell, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(record), indent=1, ensure_ascii=False, default=str) + "\n"
        write_atomically(path, text.encode())
        return path


@dataclass
class Summary:
    """What a run of an experiment did with each of its selected cells, by name.

    Attributes:
        done: Computed now.
        kept: There before.
        skipped: Not computed, because its data are not there: why.
        failed: Not computed, because a solve failed: why.
    """

    done: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run(
    experiment: Experiment,
    work: Work,
    results: Results,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Compute the selected cells that are not there yet.

    Args:
        experiment: Which one.
        work: With what.
        results: Where records go.
        only: Patterns of cell names, as a shell's; none: all cells.
        say: Told a line for every cell.

    Raises:
        ConfigError: Some are there and ``work.resume`` is not set.
        DataError: Nothing could be computed for want of data.
    """
    cells = experiment.select(only)
    there = [c for c in cells if results.path(experiment.name, c, work.suffix).exists()]
    if there and not work.resume:
        raise ConfigError(
            f"{results.path(experiment.name, there[0], work.suffix)} exists"
            f"{f' (and {len(there) - 1} more)' if there[1:] else ''}; expected --resume to keep "
            f"what is there and compute the rest, or another --results folder"
        )
    kept = results.read(experiment, work.suffix) if there else {}
    out = Summary()
    absent: dict[str, str] = {}  # by column: data that are not there are sought once
    for number, (name, compute) in enumerate(cells.items(), 1):
        head = f"[{number}/{len(cells)}] {experiment.name} {name}"
        column = name.partition("/")[0]
        if name in there:
            out.kept.append(name)
            say(f"{head}: there already, {experiment.brief(kept[name])}")
            continue
        began = time.perf_counter()
        if column in absent:
            out.skipped[name] = absent[column]
            say(f"{head}: SKIPPED, as {column} above")
            continue
        try:
            found = compute(work)
        except DataError as error:
            out.skipped[name] = absent[column] = str(error)
            say(f"{head}: SKIPPED: {error}")
            continue
        except ConvergenceError as error:
            out.failed[name] = str(error)
            say(f"{head}: FAILED: {error}")
            continue
        seconds = time.perf_counter() - began
        record = {
            "experiment": experiment.name,
            "cell": name,
            "recipe": work.recipe,
            "quick": work.quick,
            **({} if work.trial is None else {"trial": work.trial, "changes": dict(work.changes)}),
            "command": work.command(experiment.name, name),
            "seconds": seconds,
            **provenance(work.device),
            **found,  # a model that was trained before says so itself
        }
        results.write(experiment.name, name, work.suffix, record)
        out.done.append(name)
        say(f"{head}: {experiment.brief(record)} ({seconds:.0f} s)")
    if len(out.skipped) == len(cells):
        first = next(iter(out.skipped.values()))
        raise DataError(f"nothing of {experiment.name} could be computed: {first}")
    try:
        picture = experiment.draw(results, work.suffix)
    except ImportError as error:
        say(f"{experiment.name}: no picture: {error}")
    else:
        if picture is not None:
            say(f"{experiment.name}: {picture}")
    return out
