"""Tasks: graphs, a loss, a metric and a protocol each, by name."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from hogwild.errors import ConfigError
from hogwild.tasks.base import Split, Task
from hogwild.tasks.chains import Chains
from hogwild.tasks.coordinates import Coordinates
from hogwild.tasks.counting import Counting
from hogwild.tasks.peptides import PeptidesFunc, PeptidesStruct
from hogwild.tasks.ppi import PPI
from hogwild.tasks.sums import Sums
from hogwild.tasks.terrain import Terrain
from hogwild.tasks.tu import Mutag, Proteins

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Chains,
        Counting,
        Sums,
        Coordinates,
        Terrain,
        Mutag,
        Proteins,
        PPI,
        PeptidesFunc,
        PeptidesStruct,
    )
}
"""Every task by its name: the paper's five synthetic ones, then its benchmark sets."""


def get(name: str, **options: Any) -> Task:
    """The task of this name, built with these options (those of its class)."""
    _known("task", name, TASKS)
    task = TASKS[name]
    for option in options:
        _known(f"option of task {name!r}:", option, inspect.signature(task).parameters)
    return task(**options)


def _known(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        close = get_close_matches(str(given), known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"unknown {what} {given!r}; {hint}expected one of {', '.join(known)}")


__all__ = [
    "PPI",
    "TASKS",
    "Chains",
    "Coordinates",
    "Counting",
    "Mutag",
    "PeptidesFunc",
    "PeptidesStruct",
    "Proteins",
    "Split",
    "Sums",
    "Task",
    "Terrain",
    "get",
]
