r"""What models cost: time of a training epoch and of inference, parameters, and floats sent.

A cell is a task with all models of its table, at the paper's sizes, with the batch size of the
task's protocol. Models take turns, so that other work on the machine affects all of them. A *ratio*
divides a model's time by the time of the GCN measured beside it; the table shows the median over
the repetitions. Models have one replica: the best one of their table if the work folder holds all
models of the task, and fresh parameters otherwise, with which solves are quicker. A few batches are
trained on, and the epoch's time is their time multiplied by the number of times they fit into an
epoch. Inference is of one batch, from a cold start.

Floats *sent* in one update by a node with the mean degree :math:`\bar d`: its embedding (once, to
all neighbours) and a letter to each neighbour, :math:`|h| + \bar d\, |\text{letter}|`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Batch

from experiments import figures, markdown, paper
from experiments.experiment import Cell, Work
from experiments.figures import Figure
from experiments.record import Record
from experiments.tables import ORDER
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Kind
from hogwild.models.wrapped import check_model
from hogwild.plots.style import INK, figure
from hogwild.rules import rule_for
from hogwild.tasks.base import Split, Task
from hogwild.training.batches import predict
from hogwild.training.log import Log
from hogwild.training.loop import Loop
from hogwild.training.registry import Members, device_of, initial
from hogwild.training.task import resolve

ROUNDS, QUICK_ROUNDS = 9, 3
BATCHES = 2
"""Number of batches of an epoch that are trained on."""
PACKETS: dict[Kind, dict[str, tuple[str, str | float]]] = {
    Kind.OPTIMISATION: {
        "gradient": ("gradient", 1.0),
        "gradient, auto": ("gradient", "auto"),
        "messages": ("messages", "auto"),
    },
    Kind.FIXED_POINT: {"embedding": ("fixed-point", "auto")},
    Kind.EXPLICIT: {"embedding": ("overwriting", "auto")},
}
"""Rule and step of each kind of packet: Algorithm 1's, with curvatures, with messages."""


class Cost(Figure):
    """Time, parameters and floats sent, beside those of a GCN."""

    name = "cost"
    title = "what models cost"
    columns = (*paper.SYNTHETIC, *paper.BENCHMARKS)
    models = ORDER

    def cells(self) -> dict[str, Cell]:
        return {column: partial(self.measure, column=column) for column in self.columns}

    def brief(self, record: Record) -> str:
        return f"an epoch of energy-edge takes {_epoch(record, 'energy-edge')} times a GCN's"

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {model: partial(_epoch, model=model) for model in self.models}

    def measure(self, work: Work, column: str, model: str = "") -> Record:
        """Measure one task with every model; ``model`` is not used."""
        names = [m for m in self.models if m in rows(column)]
        trained = all((work.training(column, m) / "result.json").exists() for m in names)
        config = work.config(column, "gcn")
        task = resolve(config.task, config.task_options)  # one task for all models
        assert isinstance(task, Task)
        loops: dict[str, Loop] = {}
        found: Record = {}
        for name in names:
            loops[name], share = begin(work, task, column, name, trained)
            parameters = sum(p.numel() for p in loops[name].model.parameters())
            found[name] = {
                "epoch": [],
                "inference": [],
                "parameters": parameters // loops[name].replicas,
                "floats": sent(loops[name]),
            }
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
        times, sizes = [], []
        for model in self.models:
            row, size = [figures.LABELS[model]], [figures.LABELS[model]]
            for column in self.columns:
                record = records.get(column)
                known = None if record is None else record["models"].get(model)
                if record is None or known is None:
                    why = markdown.NOT_RUN if record is None else "—"
                    row.append(why)
                    size.append(why)
                    continue
                row.append(_times(record, model))
                floats = " / ".join(f"{value:.0f}" for value in known["floats"].values())
                size.append(f"{known['parameters']}: {floats}")
            times.append(row)
            sizes.append(size)
        out = "GCN: seconds of an epoch / milliseconds of inference on a batch. Others: times a "
        out += "GCN's in the same round, median.\n\n"
        out += markdown.table(["model", *tasks], times)
        fresh = [paper.COLUMNS[c].heading for c, r in records.items() if not r["trained"]]
        if fresh:
            out += f"\nFresh parameters, with which solves are quicker: {', '.join(fresh)}.\n"
        places = sorted({markdown.origin(r)[1] for r in records.values()})
        if places:
            out += f"\nMeasured on: {'; '.join(places)}.\n"
        out += (
            "\nParameters: floats a node sends in an update (optimisation-based models: Algorithm "
        )
        out += '1\'s packet / with curvatures, for `step="auto"` / messages).\n\n'
        out += markdown.table(["model", *tasks], sizes)
        return out + (figures.QUICK if any(r["quick"] for r in records.values()) else "")

    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        columns = [c for c in self.columns if c in records]
        with figure(max(2.2 + 0.55 * len(columns), 6.0), 4.6, path) as fig:
            axes = fig.subplots(2, 1, sharex=True)
            shown = {"epoch": "a training epoch", "inference": "inference"}
            for ax, (what, label) in zip(axes, shown.items(), strict=True):
                for number, model in enumerate(m for m in self.models if m != "gcn"):
                    at = [c for c in columns if model in records[c]["models"]]
                    values = [sorted(ratios(records[c], model, what)) for c in at]
                    middle = [statistics.median(v) for v in values]
                    x = [columns.index(c) + 0.11 * (number - 2.5) for c in at]
                    look = figures.LOOKS[model] | {"linestyle": "none"}
                    ax.vlines(x, [v[0] for v in values], [v[-1] for v in values],
                              color=look["color"], linewidth=0.8)  # fmt: skip
                    ax.plot(x, middle, markersize=4, label=figures.LABELS[model], **look)
                ax.axhline(1.0, color=INK, linewidth=0.6, label="GCN")
                ax.set_yscale("log")
                ax.set_ylabel(f"time of {label},\n× GCN's")
            headings = [paper.COLUMNS[c].heading.partition(" (")[0] for c in columns]
            axes[-1].set_xticks(range(len(columns)), headings, rotation=30, ha="right")
            figures.legend(fig, axes, 3)


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
    count = len(loop.shelf.graphs)
    ids = torch.arange(min(loop.config.batch_size or count, count))
    return loop.shelf.take(ids, keep=True).data


@torch.no_grad()
def infer(loop: Loop) -> None:
    """Predict for one batch, from a cold start."""
    loop.model.eval()
    predict(loop.model, batch(loop))


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


@torch.no_grad()
def sent(loop: Loop) -> dict[str, float]:
    """Floats that a node of mean degree sends in an update, for every kind of packet."""
    model, data = check_model(loop.model), batch(loop).clone()
    if loop.model.edge_dim is None:
        data.edge_attr = None
    problem = model.problem(Inputs.of(data)).detach()
    graph, out = problem.graph, {}
    for name, (rule, step) in PACKETS[model.kind].items():
        made, h = rule_for(problem, rule, step), problem.start()
        letters = made.begin(h, graph.everyone.current(h))
        each = 0 if letters is None else letters.size(1)
        public = made.broadcast(h, graph.everyone).size(1)
        out[name] = public + each * graph.num_edges / graph.num_nodes
    return out


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
