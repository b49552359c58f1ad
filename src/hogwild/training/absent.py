"""The task of a run that was trained on a user's own graphs, where the graphs are not given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hogwild.errors import ConfigError
from hogwild.tasks.base import Task

SHAPE = ("in_channels", "out_channels", "edge_dim", "pool")
"""What a model has to know about its task."""


class Absent(Task):
    """A task whose graphs are elsewhere: it says what a model has to know, and raises where
    somebody needs the graphs.

    Args:
        folder: The folder of the run.
        source: Where the task came from; empty for graphs.
        found: The ``result.json`` of the run.
    """

    def __init__(self, folder: Path, source: str, found: Mapping[str, Any]) -> None:
        self.missing = (
            f"{folder} was trained on {source or 'a task without a name'}, which load() does not "
            f"run by itself; give the same task again (task=...)"
        )
        if "shape" not in found:  # a run of an earlier version, which kept no shape
            raise ConfigError(self.missing)
        self.name = found["task"]
        self.metric_name = found["metric"]
        self.higher_is_better = found["higher_is_better"]
        for name in SHAPE:
            setattr(self, name, found["shape"][name])

    def __getattr__(self, name: str) -> Any:  # of what was never set
        if name == "graphs":
            raise ConfigError(self.missing)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
