"""Train the models that come with the page: ``python -m hogwild.web.make`` (minutes, one core).

Every model is trained with all nodes in step. The best of three on the validation worlds is kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from hogwild.training import train
from hogwild.training.checkpoint import save
from hogwild.training.registry import spelled_out
from hogwild.web.shelf import FOLDER, MODELS
from hogwild.web.worlds import TASKS, WorldTask

OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    # More convex energies than the paper's (0.04): the same answers in fewer ticks.
    ("rumour", "energy"): {
        "epochs": 70, "lr": 0.007, "weight_decay": 0.1, "model_options": {"beta": 1.0},
    },
    ("field", "energy"): {"epochs": 200, "lr": 0.01, "model_options": {"beta": 1.0}},
    ("average", "energy"): {"epochs": 250, "lr": 0.01, "model_options": {"beta": 0.1}},
} | {
    (task, "soft"): {
        "epochs": 200, "lr": 0.02, "model_options": {"hidden_channels": 8, "aggr": "mean"},
    }
    for task in TASKS
}  # fmt: skip
DEFAULT: dict[str, Any] = {"epochs": 200, "lr": 0.02}


def make(chosen: Sequence[str] = ()) -> None:
    """Train all models, or those whose names ("rumour-gcn") are given."""
    torch.set_num_threads(1)  # on graphs this small, threads only wait for each other
    for task in TASKS:
        made = WorldTask(task)
        for model, kind in MODELS.items():
            name = f"{task}-{model}"
            if chosen and name not in chosen:
                continue
            begun = time.perf_counter()
            options = OPTIONS.get((task, model), DEFAULT)
            found = train(made, model=kind.name, replicas=3, seed=0, **options)
            error = float(found.metrics["test"][found.best])
            kept = {**spelled_out(found.config).model_options, "out_channels": 1}
            extra = {
                "model": kind.name, "options": kept, "in_channels": made.in_channels,
                "task": task, "error": error, "metric": made.metric_name, **options,
            }  # fmt: skip
            save(FOLDER / name, found.model, extra)
            print(f"{name}: {made.metric_name} {error:.4f}, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    make(sys.argv[1:])
