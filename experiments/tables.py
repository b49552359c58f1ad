"""Tables 1, 3, 4 and 5: models trained and tested synchronously, one cell per (task, model)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from torch_geometric.data import Batch

from experiments import markdown, paper
from experiments.experiment import Cell, Experiment
from experiments.protocols import protocol
from experiments.record import Record, Training
from hogwild.training import Result

ORDER = ("gcn", "gat", "gsdgnn", "ignn", "energy-node", "energy-edge", "energy-attention")
"""Order of the paper's rows: models that train fast come first."""


class Synchronous(Experiment):
    """Rows × columns of trained models.

    Args:
        name: Name of a table of the paper that has one number for each.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.paper = paper.TABLES[name]
        self.title = self.paper.title

    def cells(self) -> dict[str, Cell]:
        models = [m for m in (*ORDER, *paper.SOFT) if m in self.paper.models]
        return {
            f"{column}/{model}": lambda work, c=column, m=model: measured(work.trained(c, m))  # type: ignore[misc]
            for column in self.paper.columns
            for model in models
        }

    def brief(self, record: Record) -> str:
        return f"{self.number(record)}, {_count(record)}"

    def number(self, record: Record) -> str:
        column = paper.COLUMNS[record["config"]["task"]]
        return f"{_ours(record, column)}{column.unit}"

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {
            "replicas": lambda record: str(len(record["values"])),
            "median": lambda record: _median(record, paper.COLUMNS[record["config"]["task"]]),
            "parameters": lambda record: f"{record['parameters']:,}",
        }

    def table(self, records: Mapping[str, Record]) -> str:
        columns = {c: paper.COLUMNS[c] for c in self.paper.columns}
        rows = []
        for model in self.paper.models:
            row = [paper.LABELS[model]]
            for name, column in columns.items():
                ours = self.ours(records.get(f"{name}/{model}"), column)
                printed = self.paper.printed(model, name)
                bold = "**" if (model, name) in self.paper.bold else ""
                row.append(f"{ours} / {bold}{printed}{bold}")
            rows.append(row)
        for quoted in self.paper.quoted:
            numbers = [f"— / {quoted.cells[c].show(k.digits)}" for c, k in columns.items()]
            rows.append([f"{quoted.model} * ({quoted.source})", *numbers])
        heads = [c.heading + (", %" if c.unit else "") for c in columns.values()]
        out = "Ours / the paper's.\n\n" + markdown.table(["model", *heads], rows)
        notes = []
        if any(self._fewer(record) for record in records.values()):
            notes.append(self.few)
        if self.paper.quoted:
            notes.append("\\* from the work cited; many more parameters.")
        if any(record["quick"] for record in records.values()):
            notes.append("QUICK runs: small tasks, few epochs; not to be compared.")
        out += "".join(f"\n{note}\n" for note in notes)
        if any(record["quick"] for record in records.values()):
            return out
        return out + "\n" + "".join(f"- {line}\n" for line in self.verdicts(records))

    def ours(self, record: Record | None, column: paper.Column) -> str:
        """Our number of a cell, marked where it has fewer replicas than it should have."""
        if record is None:
            return markdown.NOT_RUN
        return _ours(record, column) + (" †" if self._fewer(record) else "")

    def verdicts(self, records: Mapping[str, Record]) -> list[str]:
        """For every column: whether the best energy GNN reaches the paper's best number."""
        out = []
        for name in self.paper.columns:
            column = paper.COLUMNS[name]
            model, best = self.paper.best(name)
            ours = {}
            for m in (m for m in self.paper.rows if m.startswith("energy")):
                record = records.get(f"{name}/{m}")
                number = None if record is None else markdown.summarise(record["values"])
                if number is not None:
                    ours[m] = number
            if not ours:
                out.append(f"{column.heading}: no energy GNN was run.")
                continue
            sign = -1.0 if column.higher_is_better else 1.0
            chosen = min(ours, key=lambda m: sign * ours[m].mean)
            mean = ours[chosen].mean * column.scale
            verb = "beats" if column.better(mean, best.mean) else "misses"
            if len(records[f"{name}/{chosen}"]["values"]) == 1:
                verb = "has only one replica, too few to compare with"
            out.append(
                f"{column.heading}: {paper.LABELS[chosen]} with "
                f"{markdown.show(ours[chosen], column)}{column.unit} **{verb}** the paper's best, "
                f"{best.show(column.digits)}{column.unit} ({paper.LABELS[model]})."
            )
        return out

    def _fewer(self, record: Record) -> bool:
        """Whether a cell has fewer replicas than in the paper, or fewer than its protocol asks for
        where the paper does not give a number."""
        wanted = self.paper.replicas or protocol(record["config"]["task"]).replicas
        return len(record["values"]) < wanted

    @property
    def few(self) -> str:
        """The meaning of the mark."""
        if self.paper.replicas is None:
            return "† fewer trainings than the protocol asks for; the paper does not say how many."
        return f"† fewer than the paper's {self.paper.replicas} trainings."

    def details(self, records: Mapping[str, Record]) -> str:
        rows = []
        for name in self.cells():
            task, _, model = name.partition("/")
            column, record = paper.COLUMNS[task], records.get(name)
            printed = self.paper.printed(model, task)
            if record is None:
                rows.append([name, markdown.NOT_RUN, printed])
                continue
            rows.append(
                [
                    name,
                    _ours(record, column),
                    printed,
                    _median(record, column),
                    str(len(record["values"])),
                    str(len(record["failed"])),
                    str(len(idle(record))),
                    *markdown.origin(record),
                ]
            )
        head = ("cell", "ours", "the paper's", "our median", "replicas", "failed",
                "no better than a constant")  # fmt: skip
        return markdown.table([*head, *markdown.ORIGIN], rows)


def measured(result: Result) -> Record:
    """The record of a trained ensemble: the test metric of *every* replica."""
    found = result.as_dict()
    assert result.folder is not None
    return {
        "metric": found["metric"],
        "higher_is_better": found["higher_is_better"],
        "values": found["metrics"]["test"],
        "train": found["metrics"]["train"],
        "validation": found["metrics"]["val"],
        "constant": constants(result),
        "best_epoch": found["best_epoch"],
        "best_replica": found["best_replica"],
        "failed": result.failed,
        "stops": found["stops"],
        "parameters": sum(p.numel() for p in result.ensemble.parameters()) // result.replicas,
        "config": result.config.as_dict(),
        **Training.about(result.folder),
    }


def constants(result: Result) -> list[float | None]:
    """Test metric of the best constant prediction, for every replica's fold."""
    task = result.task
    if not hasattr(task, "constant"):  # a task that does not derive from Task
        return [None] * result.replicas
    members = result.members
    folds: dict[int, float | None] = {}
    for fold, train, test in zip(members.folds, members.train, members.test, strict=True):
        if fold not in folds and not bool(test.any()):
            folds[fold] = None
        elif fold not in folds:
            parts = (
                Batch.from_data_list([task.graphs[i] for i in part.nonzero()[:, 0].tolist()])
                for part in (train, test)
            )
            folds[fold] = task.constant(*parts)
    return [folds[fold] for fold in members.folds]


def idle(record: Record) -> list[int]:
    """Replicas that are no better than the constant prediction: they have learned nothing."""
    sign = -1.0 if record["higher_is_better"] else 1.0
    pairs = zip(record["values"], record["constant"], strict=True)
    return [
        r
        for r, (value, constant) in enumerate(pairs)
        if constant is not None and (value is None or sign * value >= sign * constant)
    ]


def _ours(record: Record, column: paper.Column) -> str:
    return markdown.show(markdown.summarise(record["values"]), column)


def _median(record: Record, column: paper.Column) -> str:
    """The median, which a single diverged replica does not move."""
    values = [v for v in record["values"] if v is not None]
    return f"{statistics.median(values) * column.scale:.{column.digits}f}" if values else "no value"


def _count(record: Record) -> str:
    n, failed = len(record["values"]), len(record["failed"])
    return f"{n} replica{'s' if n > 1 else ''}" + (f", {failed} failed" if failed else "")
