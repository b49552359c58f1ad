"""The mechanism of every table and figure.

An *experiment* is a set of named *cells*. Each cell is computed by itself and kept as one record, a
JSON file that is written atomically when the cell is done. With ``resume``, cells that have a
record are skipped, and a cell that was killed while training continues from its last checkpoint.
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
from hogwild.files import plain, write_atomically
from hogwild.training import Config, Loop, Result, load, train
from hogwild.training.registry import device_of, spelled_out

FREE = ("device", "checkpoint_every")
"""Options that do not change the trained parameters."""
SUFFIXES = {recipe: "" if recipe == "default" else f".{recipe}" for recipe in RECIPES}
"""Suffixes of files and folders, by recipe."""


@dataclass(frozen=True)
class Work:
    """How cells are computed.

    Attributes:
        folder: Folder of trained models and of checkpoints of unfinished training.
        device: Device of training.
        recipe: ``"default"`` or ``"paper"``.
        quick: Whether to train fewer and smaller models.
        replicas: Number of replicas; ``None``: the protocol's.
        resume: Whether to continue unfinished training.
        progress: Whether to show progress bars.
        protocols: How columns are trained.
        trial: The name of a trial, which tries other options than the protocol's, or ``None``.
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
        """Suffix of files and folders that belong to the recipe."""
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
        """A trained model of Tables 1, 3, 4 and 5 from its folder. A missing or unfinished model is
        trained first."""
        return self.fit(self.config(column, model), self.training(column, model))

    def fit(
        self, config: Config, folder: Path, callback: Callable[[Loop], None] = lambda loop: None
    ) -> Result:
        """A trained model from its folder. A missing or unfinished model is trained first.

        Args:
            config: How the model is trained.
            folder: Folder of the model.
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
            config: How the model must have been trained.
            folder: Folder of the model.
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
        """The folder of a training."""
        return self.folder / "training" / column / f"{model}{self.suffix}"

    def allow(self, folder: Path) -> None:
        """Refuse to continue unfinished training without ``resume``."""
        if (folder / "config.json").exists() and not self.resume:
            raise ConfigError(
                f"{folder} holds an unfinished training run; expected --resume to go on with it, "
                f"or another --work folder"
            )

    def command(self, experiment: str, cell: str) -> str:
        """The command that computes this cell."""
        return shlex.join(
            ["python", "-m", "experiments", experiment, "--only", cell, *self.words()]
        )

    def words(self) -> list[str]:
        """The options of the command line that say how cells are computed."""
        words = ["--quick"] if self.quick else []
        words += ["--recipe", self.recipe] if self.recipe != "default" else []
        words += ["--replicas", str(self.replicas)] if self.replicas is not None else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--trial", self.trial] if self.trial is not None else []
        for key, value in self.changes.items():
            words += ["--set", f"{key}={_written(value)}"]
        return words


def _written(value: Any) -> str:
    """A value as the command line reads it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_written(v)}" for key, v in value.items()) + "}"
    return json.dumps(value)


def _differ(a: Config, b: Config) -> list[str]:
    """Options in which two configurations differ, compared as JSON."""
    x, y = (json.loads(json.dumps(c.as_dict(), default=str)) for c in (a, b))
    return sorted(k for k in x if k not in FREE and x[k] != y[k])


Cell = Callable[[Work], Record]
"""Computes one cell."""


class Experiment(ABC):
    """A table or a figure.

    Attributes:
        name: Name on the command line.
        title: Title for readers.
    """

    name: str
    title: str

    @abstractmethod
    def cells(self) -> dict[str, Cell]:
        """Every cell by its name, in the order of computation."""

    @abstractmethod
    def table(self, records: Mapping[str, Record]) -> str:
        """Markdown of the cells with a record (by name) and of the cells without one."""

    @abstractmethod
    def details(self, records: Mapping[str, Record]) -> str:
        """Markdown with one line for every cell: how its record was made."""

    def brief(self, record: Record) -> str:
        """One cell in a few words, for a progress line."""
        return ""

    def number(self, record: Record) -> str:
        """The one number of a cell, with its unit, for a sentence."""
        return self.brief(record)

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        """Further values of a cell for sentences, by name."""
        return {}

    def draw(self, results: Results, suffix: str) -> Path | None:
        """Draw the picture of a figure beside its results; ``None``: there is no picture."""
        return None

    def select(self, only: Iterable[str]) -> dict[str, Cell]:
        """The cells that match one of the patterns; all cells without patterns."""
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
        """The file of a cell."""
        return self.folder / experiment / f"{cell}{suffix}.json"

    def read(self, experiment: Experiment, suffix: str = "") -> dict[str, Record]:
        """The records of an experiment."""
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
        """Write the record of a cell, completely or not at all."""
        path = self.path(experiment, cell, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(record), indent=1, ensure_ascii=False, default=str) + "\n"
        write_atomically(path, text.encode())
        return path


@dataclass
class Summary:
    """What was done with each selected cell of an experiment, by name.

    Attributes:
        done: Cells that were computed now.
        kept: Cells that had a record before.
        skipped: Cells whose data are not available, with the reason.
        failed: Cells in which a solve failed, with the reason.
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
    """Compute the selected cells that have no record yet.

    Args:
        experiment: The experiment.
        work: How cells are computed.
        results: Folder of the records.
        only: Patterns of cell names, as in a shell; none: all cells.
        say: Called with one line for every cell.

    Raises:
        ConfigError: Some cells have a record and ``work.resume`` is not set.
        DataError: No cell could be computed, because data are missing.
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
    absent: dict[str, str] = {}  # by column: missing data are looked for once
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
            **found,  # a model that was trained before has its own line
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
