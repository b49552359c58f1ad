"""The result of training, in memory and in a folder.

A folder holds ``config.json``, ``metrics.jsonl`` (the history), ``result.json`` (the metrics),
``model/`` (a checkpoint of the best parameters of every replica), ``state/`` (a checkpoint to
resume from) and, if matplotlib is installed, ``curves.png``.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.config import Config
from hogwild.errors import CheckpointError, ConfigError
from hogwild.files import plain, write_atomically
from hogwild.metrics import cost
from hogwild.models.gnn import ConvGNN
from hogwild.plots.courses import curves
from hogwild.tasks.base import Task
from hogwild.training import checkpoint
from hogwild.training.checkpoint import Log, Stop, read_history
from hogwild.training.loop import Loop
from hogwild.training.own import OwnTask
from hogwild.training.registry import (
    MODELS,
    Members,
    at_hand,
    build,
    device_of,
    set_on_failure,
    single,
    spelled_out,
)
from hogwild.training.task import SHAPE, Absent, resolve

PARTS = ("train", "val", "test")


@dataclass
class Result:
    """The result of training R replicas.

    Attributes:
        ensemble: The model with the best parameters of every replica.
        task: The task it was trained on.
        history: A dictionary for every logged epoch.
        metrics: The task's metric on ``"train"``, ``"val"`` and ``"test"`` graphs, [R] each; NaN
            there are none. Where a task of the library holds no validation graphs out, ``"val"``
            equals ``"train"``.
        stops: Why replicas stopped before the last epoch; ``None`` for those that did not.
        best_epoch: The epoch each replica's parameters are from, [R].
        config: The configuration.
        folder: The folder of the run, or ``None``.
        named: Whether the library built the model, by name.
    """

    ensemble: ConvGNN
    task: Task
    history: list[dict[str, Any]]
    metrics: dict[str, Tensor]
    stops: list[Stop | None]
    best_epoch: Tensor
    config: Config
    folder: Path | None = None
    named: bool = True

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.stops)

    @property
    def failed(self) -> list[int]:
        """Replicas that stopped because of an error."""
        return [r for r, stop in enumerate(self.stops) if stop is not None and stop.failed]

    @property
    def ranking(self) -> list[int]:
        """The replicas by their metric on validation graphs (training graphs, where a task has no
        others), the best one first and failed ones last."""
        score = self.metrics["val"]
        if not torch.isfinite(score).any():
            score = self.metrics["train"]
        score = torch.nan_to_num(cost(score, self.task.higher_is_better), nan=torch.inf)
        order: list[int] = score.argsort(stable=True).tolist()
        return sorted(order, key=lambda r: r in self.failed)

    @property
    def best(self) -> int:
        """The best replica: the first of the ranking."""
        return self.ranking[0]

    @cached_property
    def model(self) -> ConvGNN:
        """The best replica as a model without replicas, always the same object; or the model that
        the user gave. It takes the graphs of the task as they are."""
        return self.replica(self.best) if self.named else self.ensemble

    def replica(self, r: int) -> ConvGNN:
        """Replica r as a model without replicas, a new object at every call."""
        if not self.named:
            raise ConfigError("only models by name can be taken apart; index parameters by hand")
        if not 0 <= r < self.replicas:
            most = "0" if self.replicas == 1 else f"one of 0 to {self.replicas - 1}"
            raise ConfigError(f"replica {r}; expected {most}")
        alone = single(self.config, self.task, self.ensemble, r)
        set_on_failure(alone, self.config.on_failure)
        return alone.eval()

    @property
    def members(self) -> Members:
        """The seed and the graphs of each replica, on the CPU."""
        return Members.of(self.config, self.task, self.replicas, torch.device("cpu"))

    def tested(self, r: int) -> list[int]:
        """Numbers of the test graphs of replica r, for :meth:`graph`."""
        return self.members.test[r].nonzero()[:, 0].tolist()

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        found: dict[str, Any] = plain({
            "task": self.task.name,
            "model": self.config.model,
            "metric": self.task.metric_name,
            "higher_is_better": self.task.higher_is_better,
            "shape": {name: getattr(self.task, name) for name in SHAPE},
            "metrics": {k: v.tolist() for k, v in self.metrics.items()},
            "best_epoch": self.best_epoch.tolist(),
            "best_replica": self.best,
            "stops": [None if s is None else asdict(s) for s in self.stops],
        })  # fmt: skip
        return found

    def summary(self) -> str:
        """A few lines of text."""
        count = sum(p.numel() for p in self.ensemble.parameters()) // self.replicas
        lines = [
            f"{self.config.model} on {self.task.name}: {self.replicas} "
            f"replica{'s' if self.replicas > 1 else ''} of {count} parameters"
        ]
        for part in PARTS:
            v = self.metrics[part]
            if part == "val" and torch.equal(v, self.metrics["train"]):
                continue  # no graphs were held out
            v = v[torch.isfinite(v)]
            if v.numel():
                line = f"  {part:5s} {self.task.metric_name} {float(v.mean()):.4g}"
                if v.numel() > 1:
                    line += (
                        f" ± {float(v.std()):.3g} ({float(v.min()):.4g} to {float(v.max()):.4g})"
                    )
                lines.append(line + (self._compared(float(v.mean())) if part == "test" else ""))
        if self.replicas == 1 and int(self.best_epoch[0]) >= 0:
            epochs = max(self.config.epochs if s is None else s.epoch for s in self.stops)
            lines.append(f"  parameters of epoch {int(self.best_epoch[0])} of {epochs}")
        stopped = [(r, stop) for r, stop in enumerate(self.stops) if stop is not None]
        for r, stop in stopped:
            if stop.failed:
                lines.append(f"  replica {r} stopped at epoch {stop.epoch}: {stop.reason}")
        if len(stopped) > len(self.failed):
            early = len(stopped) - len(self.failed)
            lines.append(f"  {early} stopped early: no better on validation")
        if self.folder is not None:
            lines.append(f"  in {self.folder}")
        return "\n".join(lines)

    __str__ = summary

    def _compared(self, value: float) -> str:
        """The test metric beside that of the best constant prediction, in words, on a user's own
        graphs."""
        if not isinstance(self.task, OwnTask):
            return ""
        splits = self.task.splits(self.config.folds, self.config.data_seed)
        found = [self.task.baseline(splits[fold]) for fold in sorted(set(self.members.folds))]
        values = [v for v in found if v is not None and math.isfinite(v)]
        if not values:
            return ""
        best = sum(values) / len(values)
        better = value > best if self.task.higher_is_better else value < best
        no = "" if better and not math.isclose(value, best, rel_tol=1e-6) else "no better than "
        rows = "nodes" if self.task.pool is None else "graphs"
        return f" ({no}the best single answer for all test {rows}: {best:.4g})"

    def graph(self, number: int, dtype: torch.dtype | None = None) -> Data:
        """A graph of the task as the model reads it: in the dtype of training, or in this one;
        without edge features if the model reads none."""
        kind = self.config.precision if dtype is None else dtype
        data: Data = self.task.graphs[number].clone()
        data = data.apply(lambda t: t.to(kind) if t.is_floating_point() else t)
        if self.ensemble.edge_dim is None:
            data.edge_attr = None
        return data

    def evaluate(self) -> dict[str, Tensor]:
        """The metrics, computed again from the parameters."""
        members = Members.of(self.config, self.task, self.replicas, device_of(self.config))
        return measure(Loop(self.config, self.task, self.ensemble, members, None, Log(None)))

    def save(self) -> None:
        """Write the model, the metrics and the curves into the folder."""
        if self.folder is None:
            return
        checkpoint.save(self.folder / "model", self.ensemble, {"config": self.config.as_dict()})
        text = json.dumps(self.as_dict(), indent=1)
        write_atomically(self.folder / "result.json", text.encode())
        if self.history and importlib.util.find_spec("matplotlib") is not None:
            curves(self.history, self.task.metric_name, self.folder / "curves.png")


def measure(loop: Loop) -> dict[str, Tensor]:
    """The metric of every replica on its own training, validation and test graphs, [R] each. Failed
    solves give a warning. From then on the model's ``on_failure`` is the configuration's."""
    both = loop.measure(*(getattr(loop.members, part) for part in PARTS))
    found = {part: metric.cpu() for part, (_, metric) in zip(PARTS, both, strict=True)}
    set_on_failure(loop.model, loop.config.on_failure)
    return found


def load(folder: str | Path, task: Any = None) -> Result:
    """A finished run from its folder, on the CPU.

    Args:
        folder: As given to :func:`hogwild.train`.
        task: The task of the run, if it has no name: the graphs that you trained on, for
            instance. Without it the models and the metrics are there, and the graphs are not.

    Raises:
        CheckpointError: There is no finished run, or a file is damaged.
    """
    folder = Path(folder)
    try:
        config = Config.from_dict(json.loads((folder / "config.json").read_text("utf-8")))
        found: Mapping[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
        metrics = {
            k: torch.tensor([torch.nan if x is None else x for x in v], dtype=torch.float64)
            for k, v in found["metrics"].items()
        }
        stops = [None if s is None else Stop(**s) for s in found["stops"]]
        best_epoch = torch.tensor(found["best_epoch"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = "does not exist"
        if folder.exists():
            why = f"holds no finished run, or is damaged ({type(error).__name__}: {error})"
        raise CheckpointError(
            f"{folder} {why}; expected the folder of a finished run: training with resume=True "
            f"finishes what was begun"
        ) from error
    if task is None:
        named = config.task and ".py:" not in config.task
        task = config.task if named else Absent(folder, config.task, found)
    if config.model not in MODELS:
        raise ConfigError(
            f"{folder} holds the parameters of a {config.model} that was built by hand; build it "
            f"the same way and use "
            f"hogwild.training.checkpoint.load({str(folder / 'model')!r}, model)"
        )
    config = at_hand(spelled_out(config))
    options = config.task_options if isinstance(task, str) else {}
    resolved = task if isinstance(task, Absent) else resolve(task, options)
    ensemble = build(config, resolved, len(stops))
    checkpoint.load(folder / "model", ensemble)
    set_on_failure(ensemble, config.on_failure)
    history = read_history(folder / "metrics.jsonl")
    return Result(ensemble.eval(), resolved, history, metrics, stops, best_epoch, config, folder)
