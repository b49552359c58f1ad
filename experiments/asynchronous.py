r"""Tables 2 and 6: asynchronous runs of trained models.

As in the paper, one trained model of each kind runs on ten of its test graphs (on all, if it has
fewer) under five random schedules with S = 5 and D = 2. The model is the replica that is best on
validation graphs, or on training graphs where none are held out. A cell is the performance lost,

.. math:: \pm\bigl(\operatorname{metric}_\text{synchronous} - \operatorname{metric}_q\bigr),
          \qquad q = 1, \dots, 5,

which is positive where asynchrony is worse. The paper does not print the losses of implicit models.
Here they are printed, with the largest distance from the synchronous embeddings (relative to their
largest entry).

Implicit models run until they are within 10⁻⁹ of the synchronous answer (energy GNNs: 10⁻⁶), or for
a fixed number of ticks. Optimisation-based models exchange quadratic messages. Where messages do
not arrive, the paper's gradient steps are tried, too, and the closer result is shown. (Records made
before commit efbb0aa tried gradient steps first on graphs with cycles.)

Further baselines stand beside them: GCN and GAT trained under schedules (``gcn-scheduled``), GCN
and GAT that wait for the right layer, and send every value until it is acknowledged
(``gcn-resending``), or that cache their neighbours' values of all layers (``gcn-caching``), and
maxima (``max``). The table also has the updates, packets and bytes of a node until its run ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from experiments import markdown, paper, scheduled
from experiments.experiment import Cell, Experiment, Work
from experiments.maximum import MaxGNN
from experiments.record import Record, Training
from hogwild.analysis.robustness import Robustness, robustness
from hogwild.models import EnergyGNN, SoftEnergyGNN
from hogwild.models.base import Kind, Model
from hogwild.models.gnn import ConvGNN
from hogwild.models.wrapped import check_model
from hogwild.problems.base import Objective
from hogwild.training import Result
from hogwild.training.registry import MODELS, Entry, single

STAGGER, DELAY, SCHEDULES, SAMPLES = 5, 2, 5, 10
"""The paper's settings."""
TICKS, QUICK_TICKS = 300_000, 3_000
"""The largest number of ticks."""
MESSAGES = 5_000
"""The largest number of updates per node by messages. Each costs ten times a gradient step."""
GRADIENT_FIRST = 1_000.0
"""The largest condition number of soft energies for which gradient steps are tried first."""
TOL, FINE = 1e-6, 1e-9
"""Relative distance from the synchronous embeddings at which a run has arrived. The first is for
energy GNNs, whose synchronous solves are not much more exact. The second is for other models, whose
signals fade below 1e-6 along a chain and still reach the readout."""
HOW = {
    "scheduled": "trained under schedules",
    "resending": "that waits and resends",
    "caching": "that caches layers",
}
"""The further baselines of GCN and GAT."""
RULES = {"resending": "resending", "caching": "caching"}
"""The rules of the baselines that are trained synchronously."""
MODELS["max"] = Entry(MaxGNN, edges=True, exact=True)  # trained by name, like the others
BASELINES = (*(f"{model}-{how}" for how in HOW for model in ("gcn", "gat")), "max")
LABELS = paper.LABELS | {
    f"{model}-{how}": f"{model.upper()}{',' if how == 'scheduled' else ''} {what}"
    for how, what in HOW.items()
    for model in ("gcn", "gat")
}


class Asynchronous(Experiment):
    """Performance lost by asynchrony, rows × columns.

    Args:
        name: Name of a table of the paper.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.paper = paper.TABLES[name]
        self.title = self.paper.title

    @property
    def models(self) -> tuple[str, ...]:
        """Rows: the paper's models, soft energies, then the further baselines."""
        return (*self.paper.models, *BASELINES)

    def cells(self) -> dict[str, Cell]:
        return {
            f"{column}/{model}": partial(measured, column=column, model=model)
            for column in self.paper.columns
            for model in self.models
        }

    def brief(self, record: Record) -> str:
        return _ours(record, paper.COLUMNS[record["config"]["task"]])

    def number(self, record: Record) -> str:
        column = paper.COLUMNS[record["config"]["task"]]
        return _mean(record, column, column.unit)

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {"left": _left, "updates": lambda record: f"{record['updates']:,.0f}"}

    def table(self, records: Mapping[str, Record]) -> str:
        columns = {c: paper.COLUMNS[c] for c in self.paper.columns}
        rows = []
        for model in self.models:
            row = [LABELS[model]]
            for name, column in columns.items():
                record = records.get(f"{name}/{model}")
                ours = markdown.NOT_RUN if record is None else _ours(record, column)
                row.append(f"{ours} / {self.paper.printed(model, name)}")
            rows.append(row)
        heads = ["model", *(c.heading + (", %" if c.unit else "") for c in columns.values())]
        out = (
            "Performance lost: ours / the paper's; in brackets the largest relative distance from "
            "the synchronous embeddings.\n\n" + markdown.table(heads, rows)
        )
        out += (
            "\nWhat is left, of every model on test graphs of its own replica: synchronous → "
            "asynchronous, ours.\n\n"
        )
        out += markdown.table(heads, [self._left(model, records) for model in self.models])
        if any(not _converged(record) for record in records.values()):
            out += "\n‡ not all runs of this implicit model arrived.\n"
        if any(record["quick"] for record in records.values()):
            out += "\nQUICK runs: models hardly trained; not to be compared.\n"
        return out + "\n" + "".join(f"- {line}\n" for line in self.verdicts(records))

    def _left(self, model: str, records: Mapping[str, Record]) -> list[str]:
        """A row with the remaining performance."""
        row = [LABELS[model]]
        for name in self.paper.columns:
            record = records.get(f"{name}/{model}")
            row.append(markdown.NOT_RUN if record is None else _left(record))
        return row

    def verdicts(self, records: Mapping[str, Record]) -> list[str]:
        """What the table shows, in one line for each kind of model."""
        kinds = {
            "implicit models": [m for m in self.models if m in paper.IMPLICIT],
            "soft energies": list(paper.SOFT),
            "GCN and GAT as trained": ["gcn", "gat"],
            "GCN and GAT trained under schedules": ["gcn-scheduled", "gat-scheduled"],
            "GCN and GAT that wait and resend": ["gcn-resending", "gat-resending"],
            "GCN and GAT that cache": ["gcn-caching", "gat-caching"],
            "maxima": ["max"],
        }
        out = []
        for what, models in kinds.items():
            some = [r for n, r in records.items() if n.partition("/")[2] in models]
            if not some:
                out.append(f"{what}: not run.")
                continue
            out.append(_verdict(what, some))
            arrived = [r for r in some if _converged(r)]
            if arrived and len(arrived) < len(some):
                out.append(_verdict(f"{what} that arrived in every run", arrived))
        return out

    def details(self, records: Mapping[str, Record]) -> str:
        rows = []
        head = ("cell", "synchronous", "asynchronous", "lost", "the paper's", "graphs", "schedules",
                "distance", "converged", "rule", "updates a node", "packets a node",
                "bytes a node")  # fmt: skip
        for name in self.cells():
            task, _, model = name.partition("/")
            column, record = paper.COLUMNS[task], records.get(name)
            printed = self.paper.printed(model, task)
            if record is None:
                rows.append([name, markdown.NOT_RUN, "", "", printed])
                continue
            rows.append(
                [
                    name,
                    markdown.show(markdown.summarise([record["synchronous"]]), column),
                    markdown.show(markdown.summarise(record["asynchronous"]), column),
                    _mean(record, column),
                    printed,
                    str(len(record["samples"])),
                    str(len(record["values"])),
                    f"{_distance(record):.1e}",
                    f"{record['converged']:.0%}",
                    _rules(record),
                    f"{record['updates']:.0f}",
                    *(f"{record[k]:,.0f}" if k in record else "—" for k in ("packets", "bytes")),
                    *markdown.origin(record),
                ]
            )
        return markdown.table([*head, *markdown.ORIGIN], rows)


# -- a cell ----------------------------------------------------------------------------------------


def measured(work: Work, *, column: str, model: str) -> Record:
    """One trained model under a few schedules."""
    base, _, how = model.partition("-") if model in BASELINES else (model, "", "")
    if how == "scheduled":
        result = scheduled.trained(work, column, base)
    else:
        result = work.trained(column, base)
    assert result.folder is not None
    began, replica = time.perf_counter(), result.best
    network: Model = exact(result, replica).to(work.device)
    ids = sample(result, replica)
    graphs = [result.graph(i, torch.float64).to(work.device) for i in ids]
    ticks = QUICK_TICKS if work.quick else TICKS
    attempts = run(network, graphs, result, ticks, RULES.get(how, "overwriting"))
    rule, seen = min(attempts, key=lambda a: _largest(a[1]))
    assert seen.decrease is not None
    assert seen.synchronous is not None
    assert seen.asynchronous is not None
    return {
        "metric": result.task.metric_name,
        "higher_is_better": result.task.higher_is_better,
        "kind": str(seen.kind),
        "values": seen.decrease.tolist(),
        "synchronous": float(seen.synchronous),
        "asynchronous": seen.asynchronous.tolist(),
        "deviation": _largest(seen),
        "distance": float(seen.distance.max()),
        "converged": seen.converged,
        "rule": rule,
        "ticks": seen.run.ticks,
        "updates": seen.price.updates,
        "packets": seen.price.packets,
        "bytes": seen.price.bytes,
        "attempts": {name: _largest(tried) for name, tried in attempts},
        "stagger": STAGGER,
        "delay": DELAY,
        "replica": replica,
        "samples": ids,
        "config": result.config.as_dict(),
        "trained": Training.about(result.folder),
        "seconds": time.perf_counter() - began,
    }


def run(
    model: Model, graphs: list[Data], result: Result, ticks: int, rule: str = "overwriting"
) -> list[tuple[str, Robustness]]:
    """Runs under the rules that were tried, until one arrived. Explicit and fixed-point models have
    one rule; for explicit models it is the given one, by default the paper's."""
    task, batch = result.task, Batch.from_data_list(graphs)

    def metric(prediction: Tensor, target: Tensor) -> Tensor:
        return task.metric(prediction, batch)

    options: dict[str, Any] = {
        "runs": SCHEDULES, "stagger": STAGGER, "delay": DELAY, "metric": metric,
        "tol": TOL if isinstance(model, EnergyGNN | SoftEnergyGNN) else FINE,
        "higher_is_better": task.higher_is_better, "ticks": ticks,
    }  # fmt: skip
    if model.kind is not Kind.OPTIMISATION:
        rule = rule if model.kind is Kind.EXPLICIT else "fixed-point"
        return [(rule, robustness(model, graphs, rule=rule, **options))]
    out: list[tuple[str, Robustness]] = []
    problem = model.problem(batch)
    condition = problem.condition if isinstance(problem, Objective) else None
    quick = condition is not None and condition <= GRADIENT_FIRST
    for rule in ("gradient", "messages") if quick else ("messages", "gradient"):
        options["ticks"] = limit(rule, ticks, STAGGER)
        out.append((rule, robustness(model, graphs, rule=rule, **options)))
        if out[-1][1].converged == 1.0:
            break
    return out


def limit(rule: str, ticks: int, stagger: int) -> int:
    """Ticks after which a rule is given up; a node has a turn every (S + 1) / 2 ticks."""
    return min(ticks, MESSAGES * (stagger + 1) // 2) if rule == "messages" else ticks


def exact(result: Result, replica: int) -> ConvGNN:
    """A replica with the default recipe's exact solves in double precision, whatever the training
    used: asynchronous runs end at the minimiser, not at an unconverged iterate."""
    config = replace(result.config, recipe="default", dtype="float64")
    return check_model(single(config, result.task, result.ensemble, replica).cpu().eval())


def sample(result: Result, replica: int) -> list[int]:
    """Indices of ten of the replica's test graphs, drawn at random; of all if there are fewer."""
    members = result.members
    ids = members.test[replica].nonzero()[:, 0]
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    return sorted(ids[order[:SAMPLES]].tolist())


# -- how it is shown -------------------------------------------------------------------------------


def _small(value: float, digits: int) -> str:
    """A number rounded as in the paper, or with more digits where rounding would hide it."""
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.0e}"


def _mean(record: Record, column: paper.Column, unit: str = "") -> str:
    number = markdown.summarise(record["values"])
    if number is None:
        return "no value"
    parts = [p * column.scale for p in (number.mean, number.deviation) if p is not None]
    shown = " ± ".join(_small(p, column.digits) for p in parts)
    lacking = sum(value is None for value in record["values"])
    remark = f", {lacking} of {len(record['values'])} diverged" if lacking else ""
    return f"{shown}{unit}{remark}"


def _left(record: Record) -> str:
    """The synchronous and the asynchronous metric."""
    column = paper.COLUMNS[record["config"]["task"]]
    before = markdown.show(markdown.summarise([record["synchronous"]]), column)
    return f"{before} → {markdown.show(markdown.summarise(record['asynchronous']), column)}"


def _rules(record: Record) -> str:
    """The rule that came closest, and the final distances of the rules that did not arrive."""
    others = {k: v for k, v in record.get("attempts", {}).items() if k != record["rule"]}
    ends = (f" ({k}: {'no number' if v is None else f'{v:.0e}'})" for k, v in others.items())
    return record["rule"] + "".join(ends)


def _verdict(what: str, records: list[Record]) -> str:
    """The largest loss of models of a kind, and their largest distance from the synchronous
    embeddings."""
    worst = max(records, key=_lost)
    column = paper.COLUMNS[worst["config"]["task"]]
    return (
        f"{what} ({len(records)} cell{'s' if len(records) > 1 else ''}) lose at most "
        f"{_mean(worst, column, column.unit)} ({worst['cell']}); their embeddings end at most "
        f"{max(map(_distance, records)):.1e} from the synchronous ones."
    )


def _converged(record: Record) -> bool:
    """Whether the runs arrived; explicit models need not."""
    return record["kind"] == str(Kind.EXPLICIT) or record["converged"] == 1.0


def _ours(record: Record, column: paper.Column) -> str:
    mark = "" if _converged(record) else " ‡"
    return f"{_mean(record, column)} ({_distance(record):.0e}){mark}"


def _largest(seen: Robustness) -> float:
    """Largest relative distance from the synchronous embeddings; infinite where not a number."""
    return float(seen.run.deviation.nan_to_num(nan=torch.inf).max())


def _distance(record: Record) -> float:
    """The same from a record, because JSON has no infinity."""
    found = record["deviation"]
    return float("inf") if found is None else float(found)


def _lost(record: Record) -> float:
    """Mean loss, in the units of the metric; infinite where a schedule ended in NaN."""
    if None in record["values"]:
        return float("inf")
    number = markdown.summarise(record["values"])
    assert number is not None
    return number.mean
