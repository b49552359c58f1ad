"""The trained models that come with the package: small, in safetensors, one folder for each task
and model.

``python -m hogwild.web.pretrained`` trains them (minutes, one core), or those whose names
("rumour-gcn") follow. Every model is trained with all nodes in step. The best of three on the
validation worlds is kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hogwild.errors import require_one_of
from hogwild.models.gnn import ConvGNN
from hogwild.training.checkpoint import load, save
from hogwild.training.registry import entry, spelled_out
from hogwild.web.worlds import TASKS, WorldTask

FOLDER = Path(__file__).parent / "trained"


@dataclass(frozen=True)
class Kind:
    """A model of the page: its title, its name in :data:`hogwild.training.registry.MODELS`, and a
    sentence about it."""

    title: str
    name: str
    about: str


MODELS: dict[str, Kind] = {
    "energy": Kind("Energy GNN", "energy-edge", "its answer is the minimum of one convex energy"),
    "soft": Kind("Soft energy GNN", "soft", "the same, in packets of as many numbers as channels"),
    "gsdgnn": Kind("GSDGNN", "gsdgnn", "its answer is the minimum of one quadratic energy"),
    "ignn": Kind("IGNN", "ignn", "its answer is the fixed point of a contraction"),
    "gcn": Kind("GCN", "gcn", "its answer is the last of five layers"),
    "gat": Kind("GAT", "gat", "its answer is the last of five layers, with attention"),
}
SOFT: dict[str, Any] = {
    "epochs": 200, "lr": 0.02, "model_options": {"hidden_channels": 8, "aggr": "mean"},
}  # fmt: skip
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    # More convex energies than the paper's (0.04): the same answers in fewer ticks.
    ("rumour", "energy"): {
        "epochs": 70, "lr": 0.007, "weight_decay": 0.1, "model_options": {"beta": 1.0},
    },
    ("field", "energy"): {"epochs": 200, "lr": 0.01, "model_options": {"beta": 1.0}},
    ("average", "energy"): {"epochs": 250, "lr": 0.01, "model_options": {"beta": 0.1}},
    **{(task, "soft"): SOFT for task in TASKS},
}  # fmt: skip
DEFAULT: dict[str, Any] = {"epochs": 200, "lr": 0.02}


def trained(task: str, model: str) -> ConvGNN:
    """The trained model of a task, in float64, ready to be run."""
    require_one_of(tuple(MODELS), model=model)
    folder = FOLDER / f"{task}-{model}"
    extra = load(folder).extra
    found: ConvGNN = entry(extra["model"]).type(extra["in_channels"], **extra["options"]).double()
    load(folder, found)
    return found.eval()


def measured(task: str, model: str) -> float:
    """The model's error on test graphs, all nodes in step: the share of wrong nodes, or the root
    of the mean squared error."""
    return float(load(FOLDER / f"{task}-{model}").extra["error"])


def make(chosen: Sequence[str] = ()) -> None:
    """Train all models, or those whose names are given."""
    from hogwild.training import train

    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    for task, model in ((task, model) for task in TASKS for model in MODELS):
        name, made, kind = f"{task}-{model}", WorldTask(task), MODELS[model].name
        if chosen and name not in chosen:
            continue
        begun, options = time.perf_counter(), OPTIONS.get((task, model), DEFAULT)
        found = train(made, model=kind, replicas=3, seed=0, **options)
        error = float(found.metrics["test"][found.best])
        extra = {
            "model": kind, "in_channels": made.in_channels, "task": task, "error": error,
            "options": {**spelled_out(found.config).model_options, "out_channels": 1},
            "metric": made.metric_name, **options,
        }  # fmt: skip
        save(FOLDER / name, found.model, extra)
        print(f"{name}: {made.metric_name} {error:.4f}, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    make(sys.argv[1:])
