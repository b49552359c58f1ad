"""What training needs to know of a task, and how one is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset

from hogwild import tasks
from hogwild.errors import ConfigError
from hogwild.tasks.base import Split
from hogwild.training.own import OwnTask


@runtime_checkable
class Task(Protocol):
    """Graphs, how they are split, and what a prediction is worth.

    ``out`` is [R, N, c], or [R, G, c] on graph level; ``mask`` [R, G] says which graphs count for
    each replica; ``loss`` and ``metric`` return the mean over what counts, [R].
    """

    name: str
    in_channels: int
    out_channels: int
    edge_dim: int | None
    pool: str | None
    metric_name: str
    higher_is_better: bool
    graphs: list[Data]

    def splits(self, folds: int | None = None, seed: int = 0) -> Sequence[Split]:
        """One for each fold, or the only one. With another argument ``validation: bool = False``,
        whether to hold graphs out that are otherwise trained on, the option of that name is
        understood."""

    def loss(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor: ...

    def metric(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor: ...


def resolve(task: Any, options: Mapping[str, Any], **own: Any) -> Task:
    """A task by name, by ``FILE.py:NAME`` (a class or function there), from graphs, or itself.

    Args:
        task: Any of these.
        options: Of a task by name.
        own: Of a task from graphs: see :class:`OwnTask`.
    """
    if isinstance(task, str):
        if own:
            raise ConfigError(
                f"{', '.join(own)} given with the task {task!r}, which has its own; expected them "
                f"with a list of graphs only"
            )
        if not task:
            raise ConfigError("no task was given; expected its name, as in hogwild train chains")
        if ".py:" in task:
            return _from_file(task, options)
        return tasks.get(task, **options)
    if options:
        raise ConfigError(
            f"task_options={dict(options)!r} were given with a task that is already built"
        )
    if isinstance(task, Sequence | Dataset):
        return OwnTask(task, **own)
    if own:
        raise ConfigError(
            f"{', '.join(own)} given with a task that has its own; expected them with a list of "
            f"graphs only"
        )
    if not isinstance(task, Task):
        raise ConfigError(
            f"task is a {type(task).__name__}; expected a name, a list or dataset of graphs, or an "
            f"object with the attributes of hogwild.training.Task"
        )
    return task


def _from_file(text: str, options: Mapping[str, Any]) -> Task:
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"task={text!r}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = vars(module).get(name)
    if not callable(make):
        raise ConfigError(f"task={text!r}: {path} defines no class or function {name!r}")
    try:
        out: Task = make(**options)
    except TypeError as error:
        raise ConfigError(f"task={text!r} with options {dict(options)!r}: {error}") from error
    return out
