"""Tasks by name: graphs, a loss, a metric and a protocol."""

from __future__ import annotations

import inspect
from typing import Any

from hogwild.errors import ConfigError, among
from hogwild.tasks.base import Split, Task
from hogwild.tasks.benchmarks import PPI, Mutag, PeptidesFunc, PeptidesStruct, Proteins
from hogwild.tasks.coordinates import Coordinates
from hogwild.tasks.moving import MovingSource, MovingSwarm
from hogwild.tasks.synthetic import Chains, Counting, Robots, Sums
from hogwild.tasks.terrain import Terrain

SYNTHETIC = (Chains, Counting, Sums, Coordinates, Terrain)
BENCHMARKS = (Mutag, Proteins, PPI, PeptidesFunc, PeptidesStruct)
MOVING = (MovingSource, MovingSwarm)
TASKS: dict[str, type[Task]] = {
    task.name: task for task in (*SYNTHETIC, *BENCHMARKS, *MOVING, Robots)
}
"""Every task by its name: the paper's five synthetic ones, its benchmark sets, tasks on graphs that
move, then a small task of ours."""


def get(name: str, **options: Any) -> Task:
    """The task of this name, built with these options (those of its class)."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}; {among(TASKS, name)}")
    task = TASKS[name]
    known = inspect.signature(task).parameters
    for option in options:
        if option not in known:
            raise ConfigError(
                f"unknown option {option!r} of the task {name!r}; {among(known, option)}"
            )
    return task(**options)


__all__ = [
    "PPI", "TASKS", "Chains", "Coordinates", "Counting", "MovingSource", "MovingSwarm", "Mutag",
    "PeptidesFunc", "PeptidesStruct", "Proteins", "Robots", "Split", "Sums", "Task", "Terrain",
    "get",
]  # fmt: skip
