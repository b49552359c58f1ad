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

The batches are those of ``experiments``, a package in the root of the repository: run
``PYTHONPATH=. python benchmarks/ensemble.py`` there.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import time

import torch
from harness import Record, limit_threads, parser

import hogwild
from experiments.protocols import PROTOCOLS
from hogwild.training import MODELS, Loop

TASKS = ("chains", "counting", "sums", "coordinates", "terrain")
ROWS = ("gcn", "gat", "gsdgnn", "ignn", "energy-node", "energy-edge", "energy-attention")


HEAD = ("task", "model", "replicas", "alone, ms", "together, ms", "faster by",
        "peak MiB")  # fmt: skip


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


def main() -> None:
    flags = parser(__doc__, "ensemble")
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--tasks", default=",".join(TASKS), help="default: %(default)s")
    flags.add_argument("--models", default=",".join(ROWS), help="default: %(default)s")
    flags.add_argument("--replicas", type=int, default=50, help="default: %(default)s")
    flags.add_argument("--singles", type=int, default=3, help="models alone; default: %(default)s")
    flags.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    given = flags.parse_args()
    if min(given.replicas, given.singles) < 1 or given.epochs < 2:
        flags.error("expected --replicas and --singles of at least 1, and --epochs of at least 2")
    tasks, models, device = given.tasks.split(","), given.models.split(","), given.device
    for names, known in ((models, MODELS), (tasks, PROTOCOLS)):
        if unknown := set(names) - set(known):
            flags.error(f"unknown {sorted(unknown)}; expected some of {', '.join(known)}")
    limit_threads(given.threads)
    record = Record(given.output, "ensemble", "An epoch of an ensemble", HEAD, device)
    for task, model in itertools.product(tasks, models):
        alone = [epoch_ms(task, model, 1, s, given.epochs, device) for s in range(given.singles)]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        together = epoch_ms(task, model, given.replicas, 0, given.epochs, device)
        peak = peak_mib(device)
        one = statistics.median(alone)
        ratio = given.replicas * one / together
        cell = {
            "task": task, "model": model, "replicas": given.replicas, "epochs": given.epochs,
            "together_ms": together, "alone_ms": alone, "peak_mib": peak,
        }  # fmt: skip
        record.add([task, model, str(given.replicas), f"{one:,.1f}", f"{together:,.1f}",
                    f"{ratio:.1f}×", f"{peak:,.0f}"], cell)  # fmt: skip


if __name__ == "__main__":
    main()
