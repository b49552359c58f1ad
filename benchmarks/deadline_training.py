"""Training for a deadline: ways to do it, side by side.

Every way trains the edge-wise energy GNN on a task and is judged on test graphs under random
schedules, S = 5 and D = 2, by messages and by gradient steps: the error at the solution, after 1, 3
and 10 light cones, the light cones until the error is within 5 % of that at the solution, and the
CPU time of an epoch. The ways:

* ``plain``: no deadline; ``beta``: no deadline, and a larger β;
* ``synchronous``: the loss of what nodes reach after synchronous updates, the default of
  ``deadline=``; ``synchronous-zero``: the same without a learned start; ``synchronous-third`` and
  ``synchronous-twice``: fewer and more updates; ``synchronous-weight-3``: a larger weight;
  ``synchronous-beta``: a larger β; ``synchronous-wide`` and ``plain-wide``: wider embeddings;
* ``schedule-gradient`` and ``schedule-messages``: the loss of what nodes reach after asynchronous
  updates, with gradients through the last ticks;
* ``stiffness``: a penalty on the updates that the energy is predicted to need.

Run ``python benchmarks/deadline_training.py --task robots --ways plain synchronous`` in the root of
the repository. Every way writes a record to ``benchmarks/results/deadline_training``; ``--table``
prints the records of all tasks.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch

import hogwild
from hogwild.files import write_atomically
from hogwild.tasks import Task

CONES = (1, 3, 10)
RULES = ("messages", "gradient")
RATE: dict[str, Any] = {"lr": 0.01, "decay": (0.8, 20)}
TASKS: dict[str, dict[str, Any]] = {
    "robots": {
        "options": {"num_graphs": 200},
        "train": {"batch_size": 40, "model_options": {"hidden_channels": 4}, **RATE},
        "updates": 27,
        "epochs": 200,
    },
    "sums": {
        "options": {"num_graphs": 200, "sizes": 20, "graphs": "rgg"},
        "train": {"batch_size": 45, **RATE},
        "updates": 27,
        "epochs": 200,
    },
    "mutag": {
        "train": {"batch_size": 45, "lr": 0.01, "replicas": 5, "folds": 5, "validation": True},
        "updates": 36,
        "epochs": 60,
    },
    "counting": {"updates": 150, "epochs": 300},
    "chains": {"options": {"length": 20}, "updates": 60, "epochs": 300},
}
"""For every task: its options, those of the training, the deadline in updates, and epochs."""


def ways(updates: int) -> dict[str, dict[str, Any]]:
    """What every way adds to the options of a training."""

    def aimed(start: str = "learned", **options: Any) -> dict[str, Any]:
        names = ("beta", "hidden_channels")
        model = {name: options.pop(name) for name in names if name in options}
        model["start"] = start
        return {"deadline": updates, "deadline_options": options, "model_options": model}

    return {
        "plain": {},
        "beta": {"model_options": {"beta": 0.3}},
        "synchronous": aimed(),
        "synchronous-zero": aimed("zero"),
        "synchronous-third": aimed(unroll=updates // 3),
        "synchronous-twice": aimed(unroll=2 * updates),
        "synchronous-weight-3": aimed(weight=3.0),
        "synchronous-beta": aimed(beta=0.3),
        "synchronous-wide": aimed(hidden_channels=8),
        "plain-wide": {"model_options": {"hidden_channels": 8}},
        "schedule-gradient": aimed(method="schedule", rule="gradient", tail=30),
        "schedule-messages": aimed(method="schedule", rule="messages", tail=3),
        "stiffness": aimed(method="stiffness", weight=0.1),
        "stiffness-little": aimed(method="stiffness", weight=0.01),
    }


def judged(task: Task, model: Any, graphs: list[Any], runs: int) -> dict[str, Any]:
    """The error of a model at every deadline, by rule."""
    data = Batch.from_data_list(graphs)
    found: dict[str, Any] = {}
    for rule in RULES:
        run = hogwild.simulate(
            model, data, rule=rule, runs=runs, ticks=12_000, tol=1e-5, metric=task.metric_name
        )
        deadlines = run.deadlines
        near = deadlines.within()
        found[rule] = {
            "solution": float(deadlines.synchronous.mean()),
            "cone": deadlines.cone.mean,
            "at": {str(c): deadlines.at(cones=c)["error"] for c in CONES},
            "within": None if near is None else deadlines.cones(near.ticks),
        }
    return found


def averaged(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over replicas."""

    def mean(values: list[Any]) -> float | None:
        return None if None in values else sum(values) / len(values)

    out: dict[str, Any] = {}
    for rule in RULES:
        each = [found[rule] for found in several]
        out[rule] = {key: mean([e[key] for e in each]) for key in ("solution", "cone", "within")}
        out[rule]["at"] = {str(c): mean([e["at"][str(c)] for e in each]) for c in CONES}
    return out


def measured(name: str, way: str, epochs: int | None, graphs: int, runs: int) -> dict[str, Any]:
    """Train one way on one task, and judge it."""
    about = TASKS[name]
    task = hogwild.tasks.get(name, **about.get("options", {}))
    more = ways(about["updates"])[way]
    train = dict(about.get("train", {}))
    model = {**train.pop("model_options", {}), **more.get("model_options", {})}
    options = {**train, **more, "model_options": model}
    epochs = epochs or about["epochs"]
    began, cpu = time.perf_counter(), time.process_time()
    result = hogwild.train(task, model="energy-edge", epochs=epochs, **options)
    seconds = (time.process_time() - cpu) / epochs
    several = []
    for r in range(result.replicas):
        test = [result.graph(i, torch.float64) for i in result.tested(r)[:graphs]]
        several.append(judged(task, result.replica(r), test, runs))
    return {
        "task": name, "way": way, "epochs": epochs, "cpu_seconds_an_epoch": seconds,
        "seconds": time.perf_counter() - began, "metric": task.metric_name,
        "options": more, "rules": averaged(several),
    }  # fmt: skip


def row(record: dict[str, Any], plain: float | None) -> str:
    """A line of the table."""
    rules, cells = record["rules"], [f"{record['task']} ({record['metric']})", record["way"]]
    cells.append(f"{rules['messages']['solution']:.3f}")
    for rule in RULES:
        cells.append(" / ".join(f"{rules[rule]['at'][str(c)]:.3f}" for c in CONES))
        near = rules[rule].get("within", "not measured")
        cells.append("never" if near is None else near if isinstance(near, str) else f"{near:.1f}")
    cost = record["cpu_seconds_an_epoch"]
    cells.append("1" if plain is None else f"{cost / plain:.1f}")
    return "| " + " | ".join(cells) + " |"


def table(folder: Path) -> str:
    """All records in a table for Markdown."""
    heads = ["task", "way", "in step"]
    for rule in RULES:
        heads += [f"{rule}: {' / '.join(map(str, CONES))} light cones", "within 5 %"]
    lines = ["| " + " | ".join([*heads, "epoch"]) + " |", "|" + " --- |" * (len(heads) + 1)]
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    plain = {r["task"]: r["cpu_seconds_an_epoch"] for r in records if r["way"] == "plain"}
    order = list(ways(1))
    records.sort(key=lambda r: (list(TASKS).index(r["task"]), order.index(r["way"])))
    lines += [row(record, plain.get(record["task"])) for record in records]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="robots")
    parser.add_argument(
        "--ways", nargs="*", choices=list(ways(1)), default=["plain", "synchronous"]
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--graphs", type=int, default=40, help="most test graphs")
    parser.add_argument("--runs", type=int, default=3, help="schedules")
    parser.add_argument("--table", action="store_true", help="print the records, and do no more")
    here = Path(__file__).parent / "results" / "deadline_training"
    parser.add_argument("--results", type=Path, default=here)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for way in () if args.table else args.ways:
        record = measured(args.task, way, args.epochs, args.graphs, args.runs)
        args.results.mkdir(parents=True, exist_ok=True)
        path = args.results / f"{args.task}-{way}.json"
        write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
        print(row(record, None), flush=True)
    if args.table:
        print(table(args.results))


if __name__ == "__main__":
    main()
