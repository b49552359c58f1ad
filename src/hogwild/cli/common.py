"""What several verbs share: their outcome, values from flags, a trained model from its folder."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch_geometric.data import Data

from hogwild.errors import ConfigError, HogwildError, among
from hogwild.models.check import Model
from hogwild.training import Result, load
from hogwild.training.ensemble import Members
from hogwild.training.task import blamed


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


def value(text: str) -> Any:
    """A flag's value as TOML reads it (3, 0.1, true, "a", [1, 2]), a list also as (1, 2) or 1,2;
    else the text itself."""
    if text.lower() == "none":
        return None
    bare = text.strip()
    bare = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    for written in (text, f"[{bare}]" if "," in bare else text):
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return text


@contextmanager
def of_file(task: str | None) -> Iterator[None]:
    """What goes wrong in the code of a task FILE.py:NAME is said in one line, with its place."""
    try:
        yield
    except (HogwildError, OSError):
        raise
    except Exception as error:
        path = (task or "").rpartition(":")[0]
        why = blamed(error, path) if path else None
        if why is None:
            raise
        raise ConfigError(f"task={task!r}: {why}") from error


def loaded(given: argparse.Namespace) -> Result:
    """The finished run the flags ask for."""
    with of_file(given.task):
        return load(given.folder, given.task)


def pairs(given: list[str] | None, flag: str) -> dict[str, Any]:
    """``KEY=VALUE`` after ``flag``, any number of times."""
    out: dict[str, Any] = {}
    for text in given or []:
        key, equals, rest = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {text!r}; expected KEY=VALUE")
        out[key] = value(rest)
    return out


def folder_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder of a finished run, and what of it is wanted."""
    parser.add_argument("folder", help="folder of a finished training run")
    parser.add_argument("--task", help="the task again, where the run's is FILE.py:NAME")


def asynchrony_arguments(parser: argparse.ArgumentParser) -> None:
    """A trained model on some graphs, and the bounds of asynchrony."""
    folder_arguments(parser)
    parser.add_argument("--replica", type=int, help="which one; default: the best on validation")
    parser.add_argument("--graphs", type=int, default=2, help="how many test graphs; default: 2")
    parser.add_argument("--stagger", type=int, default=5, help="S: ticks between updates")
    parser.add_argument("--delay", type=int, default=2, help="D: largest age of a view in ticks")


@dataclass(frozen=True)
class Chosen:
    """A trained model and graphs to run it on."""

    result: Result
    model: Model
    graphs: list[Data]


def chosen(given: argparse.Namespace) -> Chosen:
    """The replica and the graphs the flags ask for, from its test graphs."""
    result = loaded(given)
    r = result.best if given.replica is None else given.replica
    model = result.replica(r).cpu()
    members = Members.of(result.config, result.task, result.replicas, torch.device("cpu"))
    if given.graphs < 1:
        raise ConfigError(f"--graphs {given.graphs}; expected a positive number")
    ids = members.test[r].nonzero()[:, 0].tolist()[: given.graphs]
    return Chosen(result, model, [result.graph(i) for i in ids])
