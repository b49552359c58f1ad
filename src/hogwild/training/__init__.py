"""Training: one loop for all models, tasks and numbers of replicas."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.config import Config
from hogwild.errors import ConfigError
from hogwild.metrics import Score
from hogwild.models.gnn import ConvGNN
from hogwild.models.wrapped import check_model
from hogwild.tasks.base import Task
from hogwild.training import checkpoint
from hogwild.training.checkpoint import Log, Stop
from hogwild.training.loop import Loop
from hogwild.training.own import OwnTask
from hogwild.training.registry import MODELS, Members, device_of, initial, spelled_out
from hogwild.training.result import Result, load, measure
from hogwild.training.task import resolve

__all__ = ["MODELS", "Config", "Loop", "OwnTask", "Result", "Stop", "Task", "load", "train"]


def train(
    task: Any = None,
    model: str | nn.Module | None = None,
    *,
    config: Config | None = None,
    loss: Score | None = None,
    metric: Score | None = None,
    higher_is_better: bool | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    callback: Callable[[Loop], None] | None = None,
    **options: Any,
) -> Result:
    """Train a model on a task.

    ::

        hogwild.train("chains", model="energy-edge", epochs=500, replicas=10).summary()
        hogwild.train(graphs, model="gcn", loss=torch.nn.functional.cross_entropy)

    Args:
        task: A task's name, a task, or your own graphs (a list of PyG ``Data``, a dataset, or one
            ``Data``, with or without masks of nodes; see :class:`~hogwild.training.OwnTask`).
        model: A model's name, or a model of this library, which is then trained in place and in its
            own dtype.
        config: All options at once, in place of ``options``.
        loss: For your own graphs: a function of (predictions, targets).
        metric: For your own graphs: a function of the same arguments.
        higher_is_better: Whether higher values of ``metric`` are better; by default lower ones are.
        folder: The folder for configuration, history, checkpoints and results; ``None``: they are
            not saved.
        resume: Resume the run in that folder, or start it if there is none.
        progress: Show a progress bar; by default in a terminal or a notebook.
        callback: Called as ``callback(loop)`` after every epoch.
        options: Everything in :class:`~hogwild.training.Config`, such as ``recipe="paper"``,
            ``epochs``, ``lr``, ``replicas``, ``folds``, ``seed``.
    """
    if config is None:
        names = {"task": task} if isinstance(task, str) else {}
        names |= {"model": model} if isinstance(model, str) else {}
        config = Config.of(**options, **names)
    elif options or isinstance(model, str) or isinstance(task, str):
        raise ConfigError(
            "config= was given along with options; expected one of them: "
            "dataclasses.replace(config, epochs=100) changes a configuration"
        )
    named = not isinstance(model, nn.Module)
    if named:
        config = spelled_out(config)  # an unknown name raises before data are made
    own: dict[str, Any] = {"loss": loss, "metric": metric, "higher_is_better": higher_is_better}
    own = {k: v for k, v in own.items() if v is not None}
    resolved = resolve(config.task if task is None else task, config.task_options, **own)
    device = device_of(config)
    given = check_model(model) if isinstance(model, nn.Module) else None
    if given is not None:
        config = _of_built(config, given, resolved)
    config = config.completed(getattr(resolved, "defaults", {}))
    members = Members.of(config, resolved, config.replicas, device)
    network: Any = initial(config, resolved, members.seeds) if given is None else given
    if resolved.edge_dim is not None and network.edge_dim is None:
        _without_edges(network, config, resolved)
    failures = {part: part.on_failure for part in network.modules() if hasattr(part, "on_failure")}
    where = None if folder is None else Path(folder)
    state = None if where is None else where / "state"
    with checkpoint.claimed(where):
        going_on = where is not None and checkpoint.check_folder(where, config, resume)
        if config.standardize and (given is None or not network.features.fitted):
            network.features.fit(resolved.graphs, members.train.cpu())
        log = Log(None if where is None else where / "metrics.jsonl")
        loop = Loop(config, resolved, network, members, state, log, callback)
        if going_on:
            loop.resume()
        if loop.epoch > config.epochs:
            raise ConfigError(
                f"{where} holds a run of {loop.epoch} epochs already, and epochs={config.epochs} "
                f"was asked for; expected at least as many, or a new folder"
            )
        if where is not None:  # after all checks: a refused run leaves nothing behind
            checkpoint.write_config(where, config)
        log.rewind(loop.epoch)
        try:
            loop.run(progress)
            metrics = measure(loop)
        finally:
            if not named:  # the user's model gets its own settings back
                for part, on_failure in failures.items():
                    part.on_failure = on_failure
        best = loop.best_epoch.cpu()
        result = Result(
            network, resolved, log.lines, metrics, loop.stops, best, config, where, named
        )
        result.save()
    return result


def _without_edges(network: ConvGNN, config: Config, task: Task) -> None:
    """Let a model that reads no edge features ignore those of the graphs, in training and in use;
    warn about it if the graphs are the user's."""
    network.features.ignores_edges = True
    if isinstance(task, OwnTask):
        reading = ", ".join(name for name, found in MODELS.items() if found.edges)
        warnings.warn(
            f"the graphs have edge_attr, which {config.model} does not read: it is left out, in "
            f"training and whenever the trained model is used; models that read it: {reading}",
            stacklevel=3,
        )


def _of_built(config: Config, network: ConvGNN, task: Task) -> Config:
    """The configuration with the name, replicas and dtype of a model that is already built; raises
    on options that the model contradicts."""
    network.features.begin(task.in_channels)
    width = network.in_channels
    if width != task.in_channels:
        raise ConfigError(
            f"model reads {width} features a node (in_channels) and the nodes of {task.name} have "
            f"{task.in_channels}; expected "
            f"{type(network).__name__}({task.in_channels}, {task.out_channels}, ...)"
        )
    replicas = network.replicas or 1
    given = None if config.replicas in (1, replicas) else config.replicas
    for name, value in {"model_options": config.model_options, "replicas": given}.items():
        if value:
            raise ConfigError(
                f"{name}={value!r} was given with a model that is already built (replicas: "
                f"{replicas}); expected it in the model's constructor"
            )
    dtype = str(next(network.parameters()).dtype).removeprefix("torch.")
    if config.dtype not in (None, dtype):
        raise ConfigError(
            f"dtype={config.dtype!r} was asked for with a model whose parameters are {dtype}; "
            f"expected model.to(torch.{config.dtype}), or dtype={dtype!r}"
        )
    return replace(config, model=type(network).__name__, replicas=replicas, dtype=dtype)
