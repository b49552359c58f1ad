"""What several verbs share: their outcome, a trained model from its folder, pictures.

Nothing here imports torch before a verb runs: help must be fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.cli.options import Option, Options, argument
from hogwild.errors import ConfigError
from hogwild.files import require_writable

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from hogwild.models.base import Model
    from hogwild.training import Result

MODEL, NODES, WRONG, TIMING, RUNS, FILES = (
    "model and graphs", "nodes", "impairments", "timing", "runs", "files",
)  # fmt: skip
"""Headings of the help."""
FEW, MANY, ROOM = 2, 50, 3000
"""How many test graphs are run by default: graphs whose nodes have answers, graphs with one answer
each, and nodes of the latter together, which bound the time."""
PLACE = "FILE.py:NAME"
TRAINING = [
    argument("folder", "folder of a finished training run"),
    Option(
        "task", "str | None", None, f"the task, where the run was trained on {PLACE}", MODEL,
        metavar=PLACE,
    ),
]  # fmt: skip
"""A finished training run."""
TRAINED = [
    *TRAINING,
    Option(
        "replica", "int | None", None, "which replica; by default, the best one on validation",
        MODEL,
    ),
]  # fmt: skip
"""One replica of a finished training run."""


def file_of(name: str, help: str) -> Option:
    """An option that takes the name of a file."""
    return Option(name, "str | None", None, help, FILES, metavar="FILE")


@dataclass(frozen=True)
class Outcome:
    """The result of a verb, for people and for machines."""

    text: str  # for people
    data: dict[str, Any] = field(default_factory=dict)  # for machines, as JSON knows it
    converged: bool = True  # otherwise the exit code is 3
    resolved: dict[str, Any] = field(default_factory=dict)  # options that the verb had to find out


@dataclass(frozen=True)
class Chosen:
    """A trained model, and the options that chose it."""

    result: Result
    replica: int
    model: Model
    options: Options

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.result.config.model

    def graphs(self) -> list[Data]:
        """The test graphs of the replica."""
        return [self.result.graph(i) for i in self.result.tested(self.replica)]

    def some(self) -> list[Data]:
        """The first test graphs of the replica, --graphs of them. By default :data:`FEW`, or if
        graphs have one answer each, :data:`MANY` or as many as have :data:`ROOM` nodes together:
        an error of two answers says nothing."""
        count = self.options.graphs
        if count is not None and count < 1:
            raise ConfigError(f"--graphs {count}; expected a positive number")
        numbers = self.result.tested(self.replica)
        if count is not None or self.result.task.pool is None:
            return [self.result.graph(i) for i in numbers[: FEW if count is None else count]]
        found: list[Data] = []
        room = ROOM
        for i in numbers[:MANY]:
            graph = self.result.graph(i)
            room -= int(graph.num_nodes or 0)
            if room < 0 and len(found) >= FEW:
                break
            found.append(graph)
        return found

    def outcome(self, seen: Any, data: dict[str, Any], good: bool = True, **look: Any) -> Outcome:
        """What was seen, a result of the library that prints and plots itself; it is drawn, with
        ``look``, where the options ask for a picture. ``good``: all runs arrived."""
        given, in_flags = vars(self.options), self.options.in_flags
        files = {"schedule": given.get("record"), "picture": given.get("plot")}
        if files["picture"] is not None:
            seen.plot(files["picture"], **look)
        text = [in_flags(seen), *(f"{what}: {path}" for what, path in files.items() if path)]
        data = {k: in_flags(v) if isinstance(v, str) else v for k, v in data.items()}
        return Outcome("\n".join(text), data, good, {"replica": self.replica})


def loaded(options: Options) -> Result:
    """The run from its folder."""
    from hogwild.training import load

    return load(options.folder, options.task)


def chosen(options: Options) -> Chosen:
    """The chosen replica on the CPU. Files that could not be written are refused first."""
    for name in ("plot", "record"):
        check_file(name, getattr(options, name, None))
    result, r = loaded(options), options.replica
    r = result.best if r is None else r
    return Chosen(result, r, result.replica(r).cpu(), options)


def check_file(name: str, path: str | None) -> None:
    """Raise, before anything runs, where the file of the flag --NAME could not be written at the
    end, or a picture (``"plot"``) not be drawn."""
    if path is None:
        return
    flag = f"--{name} {path}"
    if name == "plot":
        if find_spec("matplotlib") is None:
            raise ConfigError(
                f"{flag} needs matplotlib, which is missing; install it with: "
                f"pip install 'hogwild-gnn[plots]'"
            )
        from hogwild.plots.style import check_format

        check_format(Path(path), flag)
    require_writable(path, flag)
