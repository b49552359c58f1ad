"""Train the models of the page: ``python -m experiments.page`` (minutes, one core).

Or those whose names ("rumour-gcn") follow. Every model is trained with all nodes in step. The best
of three on the validation worlds is kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hogwild.metrics import CROSS_ENTROPY, ERROR, MSE, RMSE
from hogwild.tasks.base import Task, published
from hogwild.training import train
from hogwild.training.checkpoint import save
from hogwild.training.registry import spelled_out
from hogwild.web.pretrained import FOLDER, MODELS
from hogwild.web.worlds import TASKS, World

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


class WorldTask(Task):
    """The worlds of one task, to train on.

    Args:
        name: One of :data:`TASKS`.
        sizes: Smallest and largest number of nodes.
        graphs: Number of worlds; an eighth of them are for validation and an eighth for testing.
        seed: World g is a function of (``seed``, g) alone.
    """

    def __init__(
        self, name: str, sizes: tuple[int, int] = (12, 40), graphs: int = 64, *, seed: int = 0
    ) -> None:
        random = np.random.default_rng(seed)
        self.name = name
        self.in_channels, self.out_channels = (2, 1) if name == "rumour" else (1, 1)
        classes = TASKS[name].classes
        self.minimised, self.reported = (CROSS_ENTROPY, ERROR) if classes else (MSE, RMSE)
        self.metric_name = self.reported.name
        self.higher_is_better = self.reported.higher_is_better
        self.graphs = []
        for g in range(graphs):
            world = World.make(name, int(random.integers(sizes[0], sizes[1] + 1)), 1000 + g)
            pair = [world, world.again()] if classes else [world]  # both answers
            self.graphs += [each.data() for each in pair]
        each = len(self.graphs) // graphs
        held = max(1, graphs // 8)
        self.fixed = published([each * (graphs - 2 * held), each * held, each * held])


def make(chosen: Sequence[str] = ()) -> None:
    """Train all models, or those whose names are given."""
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
