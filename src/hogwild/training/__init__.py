"""Training: one loop for every model, every task, and every number of replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from hogwild import checkpoint
from hogwild.errors import CheckpointError, ConfigError
from hogwild.models.check import check_model
from hogwild.training.config import Config
from hogwild.training.data import Criterion, OwnTask, Task, resolve
from hogwild.training.ensemble import Members, initial
from hogwild.training.log import Log
from hogwild.training.loop import Loop, Stop
from hogwild.training.registry import MODELS, device_of, entry
from hogwild.training.result import Result, load, measure

__all__ = ["MODELS", "Config", "Loop", "OwnTask", "Result", "Stop", "Task", "load", "train"]


def train(
    task: Any = None,
    model: str | nn.Module | None = None,
    *,
    config: Config | None = None,
    loss: Criterion | None = None,
    metric: Criterion | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    tensorboard: str | Path | None = None,
    callback: Callable[[Loop], None] | None = None,
    **options: Any,
) -> Result:
    """Train a model on a task.

    ::

        hogwild.train("chains", model="energy-edge", epochs=500, replicas=10).summary()
        hogwild.train(graphs, model="gcn", loss=torch.nn.functional.cross_entropy)

    Args:
        task: A task's name, a task, or your own graphs (a list of PyG ``Data`` or a dataset; see
            :class:`~hogwild.training.OwnTask`).
        model: A model's name, or a model of this library, which is then trained in place.
        config: All options at once; then nothing else of them is given.
        loss: With graphs: a function of (predictions, targets).
        metric: Likewise; smaller is better.
        folder: Where configuration, history, checkpoints and results go; ``None``: nowhere.
        resume: Go on with the run in that folder, or start it if there is none.
        progress: Show a progress bar.
        tensorboard: A folder for TensorBoard's logs.
        callback: Called as ``callback(loop)`` after every epoch.
        options: Everything in :class:`~hogwild.training.Config`, such as ``recipe="paper"``,
            ``epochs``, ``lr``, ``replicas``, ``folds``, ``seed``.
    """
    if config is None:
        given = {"task": task} if isinstance(task, str) else {}
        given |= {"model": model} if isinstance(model, str) else {}
        config = Config.of(**options, **given)
    elif options or isinstance(model, str) or isinstance(task, str):
        raise ConfigError(
            "config= was given along with options; expected one of them: "
            "dataclasses.replace(config, epochs=100) changes a configuration"
        )
    named = not isinstance(model, nn.Module)
    if named:
        entry(config.model)  # a name that does not exist is refused before any data are made
    own: dict[str, Any] = {"loss": loss, "metric": metric}
    own = {k: v for k, v in own.items() if v is not None}
    resolved = resolve(config.task if task is None else task, config.task_options, **own)
    device = device_of(config)
    if isinstance(model, nn.Module):
        network: Any = check_model(model)
        edges = resolved.edge_dim is not None
        config = replace(config, model=type(model).__name__, replicas=network.replicas or 1)
        members = Members.of(config, resolved, config.replicas, device)
    else:
        edges = entry(config.model).edges
        members = Members.of(config, resolved, config.replicas, device)
        network = initial(config, resolved, members.seeds)
    where = None if folder is None else Path(folder)
    state = None if where is None else where / "state"
    going_on = where is not None and _open(where, config, resume)
    log = Log(None if where is None else where / "metrics.jsonl", tensorboard)
    loop = Loop(config, resolved, network, members, edges, state, log, callback)
    if going_on:
        loop.resume()
    log.rewind(loop.epoch)
    try:
        loop.run(progress)
    finally:
        log.close()
    result = Result(
        network,
        resolved,
        log.lines,
        measure(loop),
        loop.stops,
        loop.best_epoch.cpu(),
        config,
        where,
        named,
    )
    result.save()
    return result


def _open(folder: Path, config: Config, resume: bool) -> bool:
    """Prepare the folder of a run; whether there is a checkpoint in it to go on from."""
    path = folder / "config.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(config.as_dict(), indent=1, default=str)
        checkpoint.write_atomically(path, text.encode())
        return False
    if not resume:
        raise ConfigError(
            f"{folder} already holds a run; expected a new folder, or resume=True to go on with it"
        )
    try:
        before = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    now = json.loads(json.dumps(config.as_dict(), default=str))
    free = {"epochs", "checkpoint_every", "device"}  # may change without changing what was done
    differ = sorted(k for k in now if k not in free and before.get(k) != now[k])
    if differ:
        k = differ[0]
        raise ConfigError(
            f"{folder} holds a run with other options: {k}={before.get(k)!r}, now {now[k]!r}"
            f"{f' (and {len(differ) - 1} more)' if differ[1:] else ''}; expected the same ones, or "
            f"a new folder"
        )
    checkpoint.write_atomically(path, json.dumps(now, indent=1).encode())
    return checkpoint.exists(folder / "state")
