"""What several verbs share: their outcome, their options, a trained model from its folder.

Nothing here imports torch before a verb runs: help must be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.cli.impair import HELP, impairments
from hogwild.cli.options import Verb, argument, option
from hogwild.errors import ConfigError, HogwildError
from hogwild.files import require_writable

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from hogwild.models.base import Model
    from hogwild.training import Result

RULES = (
    "messages", "gradient", "fixed-point", "balls", "caching", "overwriting", "waiting",
    "resending",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""
METRICS = (
    "accuracy", "error", "mse", "rmse", "mae", "relative error", "micro-F1", "AP",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""
BY = "measure of performance; by default, accuracy for classes and rmse for numbers"
MODEL, NODES, WRONG, TIMING, RUNS, FILES = (
    "model and graphs", "nodes", "impairments", "timing", "runs", "files",
)  # fmt: skip
"""Headings of the help."""


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
        """The replica that was asked for, on the CPU."""
        check_picture(getattr(self, "plot", None))
        for name in ("record", "animate", "rerun"):
            path = getattr(self, name, None)
            if path is not None:
                require_writable(path, f"--{name} {path}")
        result = self.load()
        r = result.best if self.replica is None else self.replica
        return Chosen(result, r, result.replica(r).cpu())


FEW, MANY, ROOM = 2, 50, 3000
"""How many test graphs are run by default: graphs whose nodes have answers, graphs with one answer
each, and nodes of the latter together, which bound the time."""


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


@dataclass(frozen=True, kw_only=True)
class Ruled(Trained):
    """A trained model, its rule, and its impairments."""

    rule: str = option(
        "auto",
        "what a node does at its turn: auto (messages for energies, caching for layers), "
        f"{', '.join(RULES)}",
        group=NODES,
    )
    step: str | float = option(
        "auto",
        "size of gradient steps: auto, momentum, certified, or a number; with --rule auto all but "
        "auto select gradient steps",
        group=NODES,
    )
    radius: int | None = option(
        None,
        "with --rule balls: hops within which a node solves for others, too; by default, the whole "
        "graph where it is small",
        group=NODES,
    )
    exchange: str = option(
        "packet",
        "what neighbours exchange: one packet an update (Algorithm 1), or exact: first embeddings, "
        "then gradients (the paper's equation)",
        group=NODES,
        choices=("packet", "exact"),
    )
    impair: tuple[str, ...] = option((), HELP, group=WRONG, metavar="NAME[=VALUE]")

    def passed(self, *functions: Callable[..., Any]) -> dict[str, Any]:
        """Every option that is a parameter of one of these functions, by its name."""
        given = self.as_dict()
        given["impairments"] = impairments(self.impair)
        given["progress"] = not (self.json or given.get("quiet"))
        names = {name for function in functions for name in signature(function).parameters}
        return {name: value for name, value in given.items() if name in names}

    def outcome(
        self, found: Chosen, seen: Any, data: dict[str, Any], good: bool = True, **look: Any
    ) -> Outcome:
        """What was seen, a result of the library that prints and plots itself; it is drawn, with
        ``look``, where the options ask for a picture. ``good``: all runs arrived."""
        files = {"schedule": getattr(self, "record", None), "picture": getattr(self, "plot", None)}
        if files["picture"] is not None:
            seen.plot(files["picture"], **look)
        text = [str(seen), *(f"{what}: {path}" for what, path in files.items() if path)]
        data = {"model": found.name, **data}
        return Outcome("\n".join(text), data, good, {"replica": found.replica})


@dataclass(frozen=True, kw_only=True)
class Asynchrony(Ruled):
    """A trained model on some of its graphs, its rule, and its impairments."""

    graphs: int | None = option(
        None,
        f"how many of the replica's test graphs; by default {FEW}, or where a graph has one answer "
        f"{MANY} (fewer, if they have more than {ROOM:,} nodes)",
        group=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class Timing(Verb):
    """The bounds of one schedule."""

    stagger: int = option(
        5, "S: most ticks between two turns of a node; 1: all together", group=TIMING
    )
    delay: int = option(
        2,
        "D: largest age of a packet in ticks, 0: no delay. Ages are random, and their mean is at "
        "most (S + 1) / 2 for any D; --impair latency=10 gives all packets one age",
        group=TIMING,
    )


@dataclass(frozen=True, kw_only=True)
class Setting(Timing, Asynchrony):
    """One setting of asynchrony."""


@dataclass(frozen=True, kw_only=True)
class Schedules(Verb):
    """How many runs, for how long."""

    runs: int = option(5, "independent schedules", group=RUNS)
    seed: int = option(0, "the schedules are a function of this number", group=RUNS)
    ticks: int = option(20_000, "ticks at most", group=RUNS)
    tol: float | None = option(
        1e-6,
        "relative distance from the synchronous answer at which a run ends; none: it goes on for "
        "all ticks",
        group=RUNS,
    )
    quiet: bool = option(False, "no progress bar")


@dataclass(frozen=True, kw_only=True)
class Compared(Verb):
    """Other rules beside."""

    compare: tuple[str, ...] = option(
        (), f"other rules to run beside: all, or some of {', '.join(RULES)}", group=NODES,
        metavar="RULE,…",
    )  # fmt: skip

    @property
    def others(self) -> str | tuple[str, ...]:
        """The rules, as :func:`hogwild.robustness` takes them."""
        return "all" if self.compare == ("all",) else self.compare


@dataclass(frozen=True, kw_only=True)
class Clocked(Verb):
    """How long a tick takes."""

    tick: float | None = option(
        None, "length of a tick in seconds: tables and --json then have seconds, too", group=TIMING
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traced(Verb):
    """A schedule in a file."""

    record: str | None = option(
        None, "write the schedule to this file", group=FILES, metavar="FILE"
    )
    replay: str | None = option(
        None,
        "follow the schedule in this file, on the same graphs and with as many --runs; "
        "--stagger, --delay and --seed are then not used",
        group=FILES,
        metavar="FILE",
    )


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


def check_picture(path: str | None) -> None:
    """Raise, before anything runs, where a picture could not be drawn at the end."""
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise ConfigError(
            f"--plot {path} needs matplotlib, which is missing; install it with: "
            f"pip install 'hogwild-gnn[plots]'"
        )
    from hogwild.plots.style import check_format

    check_format(Path(path), f"--plot {path}")
    require_writable(path, f"--plot {path}")
