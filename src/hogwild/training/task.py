"""How a task is found, and checks of what a task says.

:class:`Absent` is the task of a run that was trained on a user's own graphs, where the graphs are
not given.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset
from torch_geometric.data.data import BaseData

from hogwild import tasks
from hogwild.config import BY_TYPE
from hogwild.errors import ConfigError, InputError, Rule, among
from hogwild.graph.inputs import require_tensors
from hogwild.models.readout import POOLS
from hogwild.tasks.base import Task
from hogwild.training.own import OwnTask


def one_mean_each(task: Task, name: str, values: Tensor, replicas: int) -> Tensor:
    """What the task's loss or metric returned, if it is one mean for each replica, [R]."""
    if not isinstance(values, Tensor) or values.shape != (replicas,):
        shape = getattr(values, "shape", None)
        what = f"is {values!r}" if shape is None else f"has shape {list(shape)}"
        raise InputError(
            f"the {name} of {task.name!r} {what} with {replicas} replicas; expected [{replicas}], "
            f"a tensor with one mean for each"
        )
    return values


def of_nodes(task: Task, out: Tensor, data: Batch) -> bool:
    """Whether predictions [R, …, c] are for nodes rather than for graphs; with as many nodes as
    graphs both are the same."""
    if out.size(-2) not in (data.num_graphs, data.num_nodes):
        raise InputError(
            f"predictions for {task.name!r} have shape {list(out.shape)}; expected a row for each "
            f"of {data.num_graphs} graphs or {data.num_nodes} nodes"
        )
    return int(out.size(-2)) != data.num_graphs


GRAPHS = (Sequence, Dataset, BaseData)
"""Types that hold a user's own graphs."""


NEEDED: dict[str, Rule] = {
    "name": BY_TYPE["str"],
    **dict.fromkeys(("in_channels", "out_channels"), BY_TYPE["int"]),
    "edge_dim": Rule(lambda v: v is None or BY_TYPE["int"].fine(v), "a number, or None"),
    "pool": Rule(lambda v: v in (None, *POOLS), f"None (nodes) or one of {', '.join(POOLS)}"),
    "metric_name": BY_TYPE["str"],
    "higher_is_better": BY_TYPE["bool"],
    "graphs": Rule(
        lambda v: isinstance(v, Sequence) and bool(v) and all(isinstance(g, Data) for g in v),
        "a non-empty list of torch_geometric.data.Data",
    ),
    **dict.fromkeys(("splits", "loss", "metric"), Rule(callable, "a method")),
}
"""The attributes of a task: what each must be, in code and in words."""
CALLS = {
    "splits": ("folds", "seed"),
    "loss": ("out", "data", "mask"),
    "metric": ("out", "data", "mask"),
}
"""How training calls a task's methods."""


def resolve(task: Any, options: Mapping[str, Any], **own: Any) -> Task:
    """A task by name, by ``FILE.py:NAME`` (a class or function there), from graphs, or itself. A
    task by name takes ``options``, and a task from graphs takes ``own``: see :class:`OwnTask`."""
    if own and (isinstance(task, str) or not isinstance(task, GRAPHS)):
        what = f"the task {task!r}" if isinstance(task, str) else "a task"
        raise ConfigError(
            f"{', '.join(own)} given with {what}, which has its own; expected them with a list of "
            f"graphs only"
        )
    if isinstance(task, str):
        if not task:
            raise ConfigError("no task was given; expected its name, as in hogwild train chains")
        if ".py:" in task:
            return _from_file(task, options)
        return tasks.get(task, **options)
    if options:
        raise ConfigError(
            f"task_options={dict(options)!r} were given with a task that is already built"
        )
    if isinstance(task, GRAPHS):
        return OwnTask(task, **own)
    if not any(hasattr(task, name) for name in NEEDED):
        raise ConfigError(
            f"task is a {type(task).__name__}; expected a name, a list or dataset of graphs, or an "
            f"object with the attributes of hogwild.training.Task"
        )
    return check_task(task, f"the task, a {type(task).__name__},")


def check_task(task: Any, what: str) -> Task:
    """The task, if it has everything that training needs; errors call it ``what``."""
    lacks = [name for name in NEEDED if not hasattr(task, name)]
    if lacks:
        raise ConfigError(
            f"{what} lacks {', '.join(lacks)}; expected the attributes of hogwild.training.Task: "
            f"{', '.join(NEEDED)}"
        )
    for name, (fine, expected) in NEEDED.items():
        value = getattr(task, name)
        if not fine(value):
            shown = repr(value) if len(repr(value)) < 40 else f"a {type(value).__name__}"
            raise ConfigError(f"{what} has {name} = {shown}; expected {expected}")
    for name, call in CALLS.items():
        try:
            signature(getattr(task, name)).bind(*call)
        except TypeError as error:
            raise ConfigError(
                f"{what}: {name}() cannot be called as {name}({', '.join(call)}) ({error})"
            ) from None
    for i, g in enumerate(task.graphs):
        require_tensors(g, f"{what}: graph {i}", ConfigError)
        x = g.x
        if x.dim() != 2 or x.size(1) != task.in_channels:
            raise ConfigError(
                f"{what}: graph {i} has x of shape {list(x.shape)}; expected [nodes, "
                f"{task.in_channels}], as in_channels says"
            )
        if task.edge_dim is not None and g.get("edge_attr") is None:
            raise ConfigError(
                f"{what}: graph {i} has no edge_attr; expected it {task.edge_dim} wide, as "
                f"edge_dim says, or edge_dim = None"
            )
    out: Task = task
    return out


def made(text: str, options: Mapping[str, Any], what: str = "task") -> Any:
    """What the class or function ``FILE.py:NAME`` makes; errors call it ``what``."""
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"{what}={text!r}: there is no file {path}")
    found = runpy.run_path(path)
    make = found.get(name)
    if not callable(make):
        own = [k for k, v in found.items() if getattr(v, "__module__", "") == "<run_path>"]
        known = f"; {among(own, name)}" if own else ""
        raise ConfigError(f"{what}={text!r}: {path} defines no class or function {name!r}{known}")
    try:
        signature(make).bind(**options)
    except TypeError as error:
        raise ConfigError(f"{what}={text!r}: options {dict(options)!r}: {error}") from None
    return make(**options)


def _from_file(text: str, options: Mapping[str, Any]) -> Task:
    out = made(text, options)
    if isinstance(out, GRAPHS):
        return OwnTask(out)
    return check_task(out, f"task={text!r}")


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
        self.name = found["task"]
        self.metric_name = found["metric"]
        self.higher_is_better = found["higher_is_better"]
        for name in SHAPE:
            setattr(self, name, found["shape"][name])

    def __getattr__(self, name: str) -> Any:  # of what was never set
        if name == "graphs":
            raise ConfigError(self.missing)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
