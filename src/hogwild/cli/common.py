"""What several verbs share: their outcome, a trained model from its folder, pictures.

Nothing here imports torch before a verb runs: help must be fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.cli.options import Verb, argument, option
from hogwild.errors import ConfigError, HogwildError
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


def picture(help: str) -> Any:
    """The option --plot."""
    return option(None, help, group=FILES, metavar="FILE")


@dataclass(frozen=True)
class Outcome:
    """The result of a verb, for people and for machines."""

    text: str  # for people
    data: dict[str, Any] = field(default_factory=dict)  # for machines, as JSON knows it
    converged: bool = True  # otherwise the exit code is 3
    resolved: dict[str, Any] = field(default_factory=dict)  # options that the verb had to find out


@dataclass(frozen=True, kw_only=True)
class Finished(Verb):
    """A finished training run."""

    folder: str = argument("folder of a finished training run")
    task: str | None = option(
        None,
        "the task, where the run was trained on FILE.py:NAME",
        group=MODEL,
        metavar="FILE.py:NAME",
    )

    def load(self) -> Result:
        """The run from its folder."""
        from hogwild.training import load

        with of_file(self.task):
            return load(self.folder, self.task)


@dataclass(frozen=True, kw_only=True)
class Trained(Finished):
    """One replica of a finished training run."""

    replica: int | None = option(
        None, "which replica; by default, the best one on validation", group=MODEL
    )

    def chosen(self) -> Chosen:
        """The chosen replica on the CPU. Files that could not be written are refused first."""
        for name in ("plot", "record", "animate"):
            check_file(name, getattr(self, name, None))
        result = self.load()
        r = result.best if self.replica is None else self.replica
        return Chosen(result, r, result.replica(r).cpu())

    def outcome(
        self, found: Chosen, seen: Any, data: dict[str, Any], good: bool = True, **look: Any
    ) -> Outcome:
        """What was seen, a result of the library that prints and plots itself; it is drawn, with
        ``look``, where the options ask for a picture. ``good``: all runs arrived."""
        files = {"schedule": getattr(self, "record", None), "picture": getattr(self, "plot", None)}
        if files["picture"] is not None:
            seen.plot(files["picture"], **look)
        text = [str(seen), *(f"{what}: {path}" for what, path in files.items() if path)]
        return Outcome("\n".join(text), data, good, {"replica": found.replica})


@dataclass(frozen=True)
class Chosen:
    """A trained model."""

    result: Result
    replica: int
    model: Model

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.result.config.model

    def graphs(self) -> list[Data]:
        """The test graphs of the replica."""
        return [self.result.graph(i) for i in self.result.tested(self.replica)]

    def some(self, count: int | None) -> list[Data]:
        """The first ``count`` test graphs of the replica. By default :data:`FEW`, or if graphs have
        one answer each, :data:`MANY` or as many as have :data:`ROOM` nodes together: an error of
        two answers says nothing."""
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


@contextmanager
def of_file(task: str | None) -> Iterator[None]:
    """Report an error in the code of a task FILE.py:NAME in one line, with its place."""
    try:
        yield
    except (HogwildError, OSError):
        raise
    except Exception as error:
        from hogwild.training.task import blamed

        path = (task or "").rpartition(":")[0]
        why = blamed(error, path) if path else None
        if why is None:
            raise
        raise ConfigError(f"task={task!r}: {why}") from error


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
