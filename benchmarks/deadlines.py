"""Error against time and traffic: energies, fixed points and layers at the same deadlines.

For each task (the paper's five, MUTAG, and the 12 robots) the models are trained by the protocols
of ``experiments`` (``--size``: ``full`` is the paper's size with three replicas; ``quick`` has
smaller tasks and fewer epochs). All replicas are seeds on one fold, the first, so
that all models of a task have the same held-out graphs. The best replica runs on them under the
same random schedules, S = 5 and D = 2, robots with 30 % of all packets lost, the others with none:

* the edge-wise energy GNN by messages, by gradient steps, and by solves of balls (of the whole
  graph, and of radius 3);
* GCN and GAT by the paper's rule (overwriting), trained in step and trained under schedules;
  resending (waiting, with retransmission); caching all layers;
* IGNN by its fixed-point rule and by solves of balls.

The record of a task holds, for each of them, the error by deadline (``Run.deadlines``: ticks,
updates, packets and bytes of a node, error), the light cone, the error in step, what it costs to
be within 5 % of it, and the error after 1, 3 and 10 light cones. ``benchmarks/deadlines_page.py``
draws the figures and writes the tables.

Run ``PYTHONPATH=. python benchmarks/deadlines.py --output benchmarks/results/deadlines --work
FOLDER`` in the root of the repository. ``--train`` stops after training, and a later call with the
same folder goes on from there. ``--device cuda`` trains on a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from harness import environment, limit_threads, parser
from torch import Tensor
from torch_geometric.data import Batch

from experiments import scheduled
from experiments.asynchronous import exact
from experiments.experiment import Work
from experiments.protocols import PROTOCOLS, Protocol
from hogwild import simulate
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.executors.run import Run
from hogwild.files import write_atomically
from hogwild.tasks import Task
from hogwild.training import Result

STAGGER, DELAY = 5, 2
LOSSES = {"robots": 0.3}
CONES = (1, 3, 10)
TASKS = ("robots", "mutag", "chains", "counting", "sums", "coordinates", "terrain")
ROBOTS = Protocol(
    "robots",
    replicas=10,
    default={"epochs": 600, "lr": 0.01, "decay": (0.8, 60)},
    quick={"replicas": 2, "epochs": 200, "decay": (0.8, 20)},
)
RULES: dict[str, tuple[str, ...]] = {
    "energy-edge": ("messages", "gradient", "balls", "balls:3"),
    "gcn": ("overwriting", "resending", "caching"),
    "ignn": ("fixed-point", "balls"),
    "gat": ("overwriting", "resending", "caching"),
    "gcn-scheduled": ("overwriting",),
    "gat-scheduled": ("overwriting",),
}
"""The models in the order of training, and the rules of each; ``balls:3`` has radius 3."""
LONG = ("chains", "counting", "sums")
"""Tasks on long paths, on which balls of radius 3 would need thousands of ticks."""
FULL = 3
"""Replicas at full size."""


def works(
    folder: Path, size: str, task: str, epochs: int | None = None, device: str = "cpu"
) -> Work:
    """How models of a task are trained."""
    changes: dict[str, Any] = {"fold": 0}
    changes |= {"replicas": FULL} if size == "full" else {}
    changes |= {} if epochs is None else {"epochs": epochs}
    return Work(
        folder, device, quick=size == "quick", resume=True,
        protocols={**PROTOCOLS, "robots": ROBOTS}, changes=changes,
    )  # fmt: skip


def trained(work: Work, task: str, model: str) -> Result:
    """A trained model."""
    base, _, how = model.partition("-")
    if how == "scheduled":
        return scheduled.trained(shorter(work, task, base), task, base)
    return work.trained(task, model)


def shorter(work: Work, task: str, model: str) -> Work:
    """A quarter of the epochs, for training under schedules, at any size."""
    if work.quick:
        return work  # scheduled.trained shortens it
    config = work.config(task, model)
    (factor, every), epochs = config.decay, max(1, config.epochs // scheduled.HASTE)
    less = {"epochs": epochs, "decay": (factor, max(1, every // scheduled.HASTE))}
    return replace(work, changes={**work.changes, **less})


def held_out(result: Result, graphs: int) -> list[int]:
    """Numbers of some test graphs, the same for all models of a task."""
    ids = result.members.test[result.best].nonzero()[:, 0]
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    return sorted(ids[order[:graphs]].tolist())


def runs(
    result: Result, task: str, rules: tuple[str, ...], schedules: int, ticks: int, graphs: int
) -> Iterator[Run]:
    """The best replica on some of its test graphs, by each of these rules."""
    model, ids = exact(result, result.best), held_out(result, graphs)
    held = [result.graph(i, torch.float64) for i in ids]
    batch = Batch.from_data_list(held)

    def metric(prediction: Tensor, target: Tensor) -> Tensor:
        return result.task.metric(prediction, batch)

    metric.__name__ = result.task.metric_name
    # A metric of some of the nodes, or of pairs of nodes, is the task's own.
    plain = type(result.task)._rows is Task._rows and "counted" not in batch
    scored: dict[str, Any] = {"metric": result.task.metric_name}
    if not plain:
        higher = result.task.higher_is_better
        scored = {"metric": metric, "higher_is_better": higher, "target": torch.zeros(1)}
    loss = LOSSES.get(task, 0.0)
    for given in rules:
        rule, _, radius = given.partition(":")
        yield simulate(
            model, held, rule=rule, radius=int(radius) if radius else None, runs=schedules,
            stagger=STAGGER, delay=DELAY, ticks=ticks,
            tol=1e-4, impairments=BernoulliLoss(loss) if loss else (), **scored,
        )  # fmt: skip


def constant(result: Result, graphs: int) -> float:
    """The error of the best constant answer on the graphs that the replica runs on."""
    split = result.members.train[result.best].nonzero()[:, 0].tolist()
    train, test = (
        Batch.from_data_list([result.graph(i, torch.float64) for i in ids])
        for ids in (split, held_out(result, graphs))
    )
    return result.task.constant(train, test)


def record_of(run: Run, result: Result, seconds: float) -> dict[str, Any]:
    """The numbers of one model under one rule."""
    seen = run.deadlines
    out = seen.as_dict() | {"metric": result.task.metric_name}
    within = {}
    for share in (0.05, 0.2):
        price = seen.within(share)
        within[f"{share:g}"] = None if price is None else vars(price)
    cones = {str(c): seen.at(cones=c) for c in CONES if seen.cone.crossed}
    return out | {
        "within": within, "at_cones": cones, "converged": float(run.converged.double().mean()),
        "replica": result.best, "replicas": result.config.replicas, "epochs": result.config.epochs,
        "task_options": dict(result.config.task_options), "seconds": seconds,
    }  # fmt: skip


def measure(task: str, arguments: argparse.Namespace) -> None:
    """Train what is missing and write the record of a task, after every model."""
    work = works(arguments.work, arguments.size, task, arguments.epochs, arguments.device)
    path = None if arguments.output is None else arguments.output / f"{task}.json"
    record: dict[str, Any] = {"runs": {}}
    if path is not None and path.exists():
        record = json.loads(path.read_text())
    for model in arguments.models:
        fit = [rule for rule in RULES[model] if task not in LONG or rule != "balls:3"]
        wanted = [rule for rule in fit if f"{model} {rule}" not in record["runs"]]
        if not wanted and not arguments.train:
            continue
        began = time.perf_counter()
        result = trained(work, task, model)
        print(f"{task} {model}: trained ({time.perf_counter() - began:.0f} s)", flush=True)
        if arguments.train:
            continue
        many = (arguments.schedules, arguments.ticks, arguments.graphs)
        began = time.perf_counter()
        for rule, run in zip(wanted, runs(result, task, tuple(wanted), *many), strict=True):
            seconds = time.perf_counter() - began
            record["runs"][f"{model} {rule}"] = record_of(run, result, seconds)
            print(f"{task} {model} {rule} ({seconds:.0f} s): {run.deadlines.sentence()}",
                  flush=True)  # fmt: skip
            began = time.perf_counter()
            record |= {
                "task": task, "stagger": STAGGER, "delay": DELAY, "loss": LOSSES.get(task, 0.0),
                "schedules": arguments.schedules, "graphs": arguments.graphs,
                "ticks": arguments.ticks, "size": arguments.size,
                "higher_is_better": result.task.higher_is_better,
                "percent": result.task.reported.percent,
                "constant": constant(result, arguments.graphs),
                "environment": environment(arguments.device),
            }  # fmt: skip
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())


def main() -> None:
    flags = parser(__doc__, "TASK")
    flags.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    flags.add_argument("--models", nargs="+", default=list(RULES), choices=RULES)
    flags.add_argument("--size", default="quick", choices=("quick", "full"),
                        help="how long models are trained")  # fmt: skip
    flags.add_argument("--train", action="store_true", help="train only")
    flags.add_argument("--schedules", type=int, default=5)
    flags.add_argument("--graphs", type=int, default=20, help="held-out graphs, at most")
    flags.add_argument("--device", default="cpu", help="where models are trained")
    flags.add_argument("--ticks", type=int, default=15_000)
    flags.add_argument("--epochs", type=int, help="epochs of training other than the protocol's")
    flags.add_argument("--work", type=Path, help="folder of trained models, to go on with later")
    arguments = flags.parse_args()
    limit_threads(arguments.threads or 1)
    with TemporaryDirectory() as folder:
        arguments.work = Path(folder) if arguments.work is None else arguments.work
        for task in arguments.tasks:
            measure(task, arguments)


if __name__ == "__main__":
    main()
