"""What models cost: time of a training epoch and of inference.

A cell is a task with all models of its table, at the paper's sizes, with the batch size of the
task's protocol. Models take turns, so that other work on the machine affects all of them. A *ratio*
divides a model's time by the time of the GCN measured beside it; the table shows the median over
the repetitions. Models have one replica: the best one of their table if the work folder holds all
models of the task, and fresh parameters otherwise, with which solves are quicker. A few batches are
trained on, and the epoch's time is their time multiplied by the number of times they fit into an
epoch. Inference is of one batch, from a cold start.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch_geometric.data import Batch

from experiments import figures, markdown, paper
from experiments.experiment import Cell, Experiment, Work
from experiments.record import Record
from experiments.tables import ORDER
from hogwild.tasks.base import Split, Task
from hogwild.training.batches import predict_levels
from hogwild.training.checkpoint import Log
from hogwild.training.loop import Loop
from hogwild.training.registry import Members, device_of, initial
from hogwild.training.task import resolve

ROUNDS, QUICK_ROUNDS = 9, 3
BATCHES = 2
"""Number of batches of an epoch that are trained on."""


class Cost(Experiment):
    """Time beside that of a GCN."""

    name = "cost"
    title = "what models cost"
    columns = (*paper.SYNTHETIC, *paper.BENCHMARKS)
    models = ORDER

    def cells(self) -> dict[str, Cell]:
        return {column: partial(self.measured, column=column) for column in self.columns}

    def brief(self, record: Record) -> str:
        return f"an epoch of energy-edge takes {_epoch(record, 'energy-edge')} times a GCN's"

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {model: partial(_epoch, model=model) for model in self.models}

    def measured(self, work: Work, column: str) -> Record:
        """One task with every model."""
        names = [m for m in self.models if m in rows(column)]
        trained = all((work.training(column, m) / "result.json").exists() for m in names)
        config = work.config(column, "gcn")
        task = resolve(config.task, config.task_options)  # one task for all models
        assert isinstance(task, Task)
        loops: dict[str, Loop] = {}
        found: Record = {}
        for name in names:
            loops[name], share = begin(work, task, column, name, trained)
            found[name] = {"epoch": [], "inference": []}
        for turn in range(1 + (QUICK_ROUNDS if work.quick else ROUNDS)):
            for name, loop in loops.items():
                epoch = clock(loop.improve, work.device) * share
                answer = clock(partial(infer, loop), work.device)
                if turn:  # the first repetition is not counted
                    found[name]["epoch"].append(epoch)
                    found[name]["inference"].append(answer)
        return {
            "models": found,
            "trained": trained,
            "share": share,
            "graphs": batch(loops["gcn"]).num_graphs,
            "config": loops["gcn"].config.as_dict(),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        tasks = [paper.COLUMNS[c].heading for c in self.columns]
        times = []
        for model in self.models:
            row = [figures.LABELS[model]]
            for column in self.columns:
                record = records.get(column)
                if record is None:
                    row.append(markdown.NOT_RUN)
                else:
                    row.append(_times(record, model) if model in record["models"] else "—")
            times.append(row)
        out = "GCN: seconds of an epoch / milliseconds of inference on a batch. Others: times a "
        out += "GCN's in the same round, median.\n\n"
        out += markdown.table(["model", *tasks], times)
        fresh = [paper.COLUMNS[c].heading for c, r in records.items() if not r["trained"]]
        if fresh:
            out += f"\nFresh parameters, with which solves are quicker: {', '.join(fresh)}.\n"
        places = sorted({markdown.origin(r)[1] for r in records.values()})
        if places:
            out += f"\nMeasured on: {'; '.join(places)}.\n"
        return out + (figures.QUICK if any(r["quick"] for r in records.values()) else "")

    def details(self, records: Mapping[str, Record]) -> str:
        return figures.origins(self, records)


def rows(column: str) -> Mapping[str, Mapping[str, paper.Number]]:
    """The models of the column's table of synchronous results."""
    return next(t.rows for t in paper.TABLES.values() if column in t.columns)


def begin(work: Work, task: Task, column: str, model: str, trained: bool) -> tuple[Loop, float]:
    """A training loop on a few batches of the training graphs of the first fold, and how often
    these batches fit into an epoch. It starts from the parameters of the best replica, if models
    are trained. All models have the same batches, also models with options of their own."""
    protocol, batch_size = work.config(column, model), work.config(column, "gcn").batch_size
    count = work.replicas or 1
    config = replace(protocol, replicas=count, folds=None, validation=False, batch_size=batch_size)
    held = {"validation": True} if protocol.validation else {}
    ids = task.splits(protocol.folds, protocol.data_seed, **held)[0].train.tolist()
    size = len(ids) if config.batch_size is None else min(BATCHES * config.batch_size, len(ids))
    some, everything = copy.copy(task), torch.arange(size)
    some.graphs = [task.graphs[i] for i in ids[:size]]
    some.fixed = Split(everything, everything, everything)
    members = Members.of(config, some, count, device_of(config))
    network = initial(config, some, members.seeds)
    if trained:
        result = work.finished(protocol, work.training(column, model), replicas=False)
        state = {k: v[result.best].cpu() for k, v in result.ensemble.state_dict().items()}
        network.load_state_dict({k: torch.stack([v] * count) for k, v in state.items()})
    return Loop(config, some, network, members, None, Log(None)), len(ids) / size


def batch(loop: Loop) -> Batch:
    """One batch of the protocol's batch size."""
    count = len(loop.batches.graphs)
    ids = torch.arange(min(loop.config.batch_size or count, count))
    return loop.batches.take(ids, keep=True).data


@torch.no_grad()
def infer(loop: Loop) -> None:
    """Predict for one batch, from a cold start."""
    loop.model.eval()
    predict_levels(loop.model, batch(loop))


def clock(work: Callable[[], object], device: str) -> float:
    """Seconds of wall-clock time."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def ratios(record: Record, model: str, what: str) -> list[float]:
    """Times divided by those of a GCN, repetition by repetition."""
    ours, base = record["models"][model][what], record["models"]["gcn"][what]
    return [a / b for a, b in zip(ours, base, strict=True)]


def _epoch(record: Record, model: str) -> str:
    """The time of a training epoch divided by that of a GCN."""
    return f"{statistics.median(ratios(record, model, 'epoch')):.1f}"


def _times(record: Record, model: str) -> str:
    known = record["models"][model]
    if model == "gcn":
        epoch, answer = (statistics.median(known[what]) for what in ("epoch", "inference"))
        return f"{epoch:.2g} s / {1e3 * answer:.2g} ms"
    epoch, answer = (statistics.median(ratios(record, model, w)) for w in ("epoch", "inference"))
    return f"{epoch:.2g}× / {answer:.2g}×"
