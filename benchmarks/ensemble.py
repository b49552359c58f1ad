r"""Fifty replicas trained together against one after another, with equal numbers of epochs.

For each task and model, ``hogwild.train`` trains the ensemble of ``--replicas`` seeds and folds for
``--epochs`` epochs, with the batches of ``python -m experiments``. It also trains ``--singles``
models by themselves (seeds 0, 1, …). Both begin at the first epoch, so that both contain solves
from a cold start. The first epoch, which also analyses the graphs, is not counted. Validation,
logging and checkpoints are left out. Tasks with mini-batches have two of them: more would repeat
them. The ratio is

.. math:: \text{replicas} \cdot t_\text{alone} \,/\, t_\text{together},

where t is the median time of an epoch. Above 1, training together is faster. An ensemble waits for
its slowest solve, and a single model does not; the ratio includes this. Peak memory is that of the
allocator on a GPU and that of the process on a CPU (including all earlier cells: use one process
per cell to compare).

The batches are those of ``experiments``, a package in the root of the repository. Run
``PYTHONPATH=. python benchmarks/ensemble.py`` there.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from training_step import THREADS, environment, limit_threads, table, write

import hogwild
from experiments.protocols import PROTOCOLS
from hogwild.training import MODELS, Loop

TASKS = ("chains", "counting", "sums", "coordinates", "terrain")
ROWS = ("gcn", "gat", "gsdgnn", "ignn", "energy-node", "energy-edge", "energy-attention")


@dataclass
class Cell:
    """One task and model."""

    task: str
    model: str
    replicas: int
    epochs: int
    together_ms: float
    alone_ms: list[float]  # of each single model
    peak_mib: float

    @property
    def ratio(self) -> float:
        """How many times faster the ensemble is."""
        return self.replicas * statistics.median(self.alone_ms) / self.together_ms


def epoch_ms(task: str, model: str, replicas: int, seed: int, epochs: int, device: str) -> float:
    """Median milliseconds of an epoch after the first."""
    stamps: list[float] = []

    def stamp(loop: Loop) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())

    options = {**PROTOCOLS[task].always, **PROTOCOLS[task].default}
    options |= {"epochs": epochs, "seed": seed, "replicas": replicas, "device": device}
    if "batch_size" in options:
        options["task_options"] = {"num_graphs": 2 * options["batch_size"]}
    options |= {"validate_every": 10**9, "reshuffle": False}
    hogwild.train(task, model, callback=stamp, **options)
    return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(stamps))


def peak_mib(device: str) -> float:
    """Peak memory since the last cell (GPU) or since the start (CPU)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(task: str, model: str, replicas: int, singles: int, epochs: int, device: str) -> Cell:
    """Train both ways, the single models first."""
    alone = [epoch_ms(task, model, 1, seed, epochs, device) for seed in range(singles)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    together = epoch_ms(task, model, replicas, 0, epochs, device)
    return Cell(task, model, replicas, epochs, together, alone, peak_mib(device))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, help=THREADS)
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    parser.add_argument("--models", default=",".join(ROWS), help="default: %(default)s")
    parser.add_argument("--replicas", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--singles", type=int, default=3, help="models alone; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for ensemble.json and .md")
    given = parser.parse_args()
    if min(given.replicas, given.singles) < 1 or given.epochs < 2:
        parser.error("expected --replicas and --singles of at least 1, and --epochs of at least 2")
    for model in given.models.split(","):
        if model not in MODELS:
            parser.error(f"unknown model {model!r}; expected some of {', '.join(MODELS)}")
    for task in given.tasks.split(","):
        if task not in PROTOCOLS:
            parser.error(f"unknown task {task!r}; expected some of {', '.join(PROTOCOLS)}")
    limit_threads(given.threads)
    cells = []
    for task in given.tasks.split(","):
        for model in given.models.split(","):
            sizes = (given.replicas, given.singles, given.epochs)
            cells.append(measure(task, model, *sizes, given.device))
            cell = cells[-1]
            print(f"   {task} {model}: {cell.ratio:.1f}×, {cell.peak_mib:,.0f} MiB", flush=True)
            place, kept = environment(given.device), [asdict(c) for c in cells]
            record = {"environment": place, "cells": kept}
            write(given.output, "ensemble", record, markdown(kept, place))
    print(markdown(kept, place))


def markdown(cells: list[dict], environment: dict) -> str:
    """The table."""
    place = ", ".join(f"{k} {v}" for k, v in environment.items())
    rows = []
    for c in cells:
        alone = statistics.median(c["alone_ms"])
        rows.append(
            (
                c["task"],
                c["model"],
                str(c["replicas"]),
                f"{alone:,.1f}",
                f"{c['together_ms']:,.1f}",
                f"{c['replicas'] * alone / c['together_ms']:.1f}×",
                f"{c['peak_mib']:,.0f}",
            )
        )
    head = ("task", "model", "replicas", "alone, ms", "together, ms", "faster by", "peak MiB")
    return f"An epoch of an ensemble ({place}).\n\n" + table(head, rows)


if __name__ == "__main__":
    main()
