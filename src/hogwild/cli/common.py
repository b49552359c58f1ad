"""What several verbs share: their outcome, their flags, a trained model from its folder.

Nothing here imports torch before a verb runs: help must come at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from hogwild.cli.impair import impairment_arguments, impairments
from hogwild.cli.values import value
from hogwild.errors import ConfigError, HogwildError, among

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from hogwild.models.check import Model
    from hogwild.training import Result

RULES = (
    "gradient", "messages", "fixed-point", "overwriting", "waiting", "resending", "caching",
)  # fmt: skip
"""For the help, which must not wait for torch; a test compares them with what there is."""


@dataclass(frozen=True)
class Outcome:
    """What a verb has to say, to people and to machines."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    converged: bool = True


class Parser(argparse.ArgumentParser):
    """argparse, which for an unknown verb or flag names the closest one that exists."""

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if action.choices is not None and "invalid choice: '" in message:
                given = message.split("invalid choice: '")[1].split("'")[0]
                if given not in action.choices:
                    message = f"unknown verb {given!r}; {among(action.choices, given)}"
                    break
        super().error(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            here: argparse.ArgumentParser = self
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction):
                    here = action.choices[given.verb]
            flags = [flag for a in here._actions for flag in a.option_strings]
            here.error(f"unknown argument {rest[0]!r}; {among(flags, rest[0])}")
        return given


@contextmanager
def of_file(task: str | None) -> Iterator[None]:
    """What goes wrong in the code of a task FILE.py:NAME is said in one line, with its place."""
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


def loaded(given: argparse.Namespace) -> Result:
    """The finished run the flags ask for."""
    from hogwild.training import load

    with of_file(given.task):
        return load(given.folder, given.task)


def folder_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder of a finished run, and what of it is wanted."""
    parser.add_argument("folder", help="folder of a finished training run")
    parser.add_argument("--task", help="the task again, where the run's is FILE.py:NAME")


def asynchrony_arguments(parser: argparse.ArgumentParser) -> None:
    """A trained model on some graphs, what its nodes do, and what goes wrong."""
    folder_arguments(parser)
    parser.add_argument("--replica", type=int, help="which one; default: the best on validation")
    parser.add_argument("--graphs", type=int, default=2, help="how many test graphs; default: 2")
    parser.add_argument(
        "--stagger", type=int, default=5, help="S: most ticks between updates; default: 5"
    )
    parser.add_argument(
        "--delay", type=int, default=2, help="D: largest age of a view in ticks; default: 2"
    )
    parser.add_argument(
        "--rule", default="auto",
        help="what a node does: auto (default: messages for energies, the paper's overwriting for "
        f"layers), {', '.join(RULES)}",
    )  # fmt: skip
    parser.add_argument(
        "--step", type=value, default="auto", metavar="X",
        help="of gradient steps: auto (default), certified, or a number; with --rule auto a step "
        "asks for gradient steps",
    )  # fmt: skip
    impairment_arguments(parser)


def schedule_arguments(parser: argparse.ArgumentParser) -> None:
    """How many runs, for how long."""
    parser.add_argument("--runs", type=int, default=5, help="independent schedules; default: 5")
    parser.add_argument("--seed", type=int, default=0, help="of the schedules; default: 0")
    parser.add_argument("--ticks", type=int, default=20_000, help="at most; default: 20000")
    parser.add_argument(
        "--tol", type=float, default=1e-6,
        help="relative distance from the synchronous answer at which a run ends; default: 1e-6",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def asynchrony(given: argparse.Namespace) -> dict[str, Any]:
    """The flags as keywords of :func:`hogwild.simulate` and :func:`hogwild.robustness`."""
    return {
        "stagger": given.stagger,
        "delay": given.delay,
        "seed": given.seed,
        "runs": given.runs,
        "rule": given.rule,
        "step": given.step,
        "impairments": impairments(given),
        "ticks": given.ticks,
        "tol": given.tol,
        "progress": not given.quiet and not given.json,
    }


@dataclass(frozen=True)
class Chosen:
    """A trained model and graphs to run it on."""

    result: Result
    model: Model
    graphs: list[Data]


def chosen(given: argparse.Namespace) -> Chosen:
    """The replica and the graphs the flags ask for, from its test graphs."""
    import torch

    from hogwild.training.ensemble import Members

    result = loaded(given)
    r = result.best if given.replica is None else given.replica
    model = result.replica(r).cpu()
    members = Members.of(result.config, result.task, result.replicas, torch.device("cpu"))
    if given.graphs < 1:
        raise ConfigError(f"--graphs {given.graphs}; expected a positive number")
    ids = members.test[r].nonzero()[:, 0].tolist()[: given.graphs]
    return Chosen(result, model, [result.graph(i) for i in ids])
