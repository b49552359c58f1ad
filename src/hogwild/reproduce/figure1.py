"""Figure 1: what asynchrony does to a layered GNN, with the numbers of panel (d).

The picture is :func:`hogwild.plots.figure1`; a cell is the output of the middle node of one of its
models under every schedule. There is no training in it, so that recipes do not differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hogwild.plots.paper import MIDDLE, figure1, models, under_schedules
from hogwild.reproduce import figures, markdown
from hogwild.reproduce.experiment import Cell, Experiment, Results, Work
from hogwild.reproduce.record import Record

SEED, SCHEDULES, QUICK = 0, 500, 50
LABELS = {"gnn": "GNN of (b): sums", "gcn": "GCN, 3 layers", "energy": "energy GNN"}


class Figure1(Experiment):
    """The paper's first figure."""

    name = "fig1"
    title = "Figure 1: a GNN in step and out of step"

    def cells(self) -> dict[str, Cell]:
        return {name: partial(measured, model=name) for name in LABELS}

    def brief(self, record: Record) -> str:
        values = record["values"]
        return f"{record['synchronous']:.4g} in step, {min(values):.4g} to {max(values):.4g} not"

    def table(self, records: Mapping[str, Record]) -> str:
        rows = []
        for name, label in LABELS.items():
            if name not in records:
                rows.append([label, markdown.NOT_RUN])
                continue
            record = records[name]
            values = record["values"]
            right = sum(abs(v - record["synchronous"]) <= 1e-5 for v in values)
            rows.append(
                [
                    label,
                    f"{record['synchronous']:.4g}",
                    f"{min(values):.4g} to {max(values):.4g}",
                    f"{statistics.stdev(values):.1e}",
                    f"{right} of {len(values)}",
                    f"{record['deviation']:.1e}",
                ]
            )
        head = ("model", "in step", "out of step", "deviation over schedules", "right to 1e-5",
                "largest distance of embeddings")  # fmt: skip
        return "Output of the middle node.\n\n" + markdown.table(head, rows)

    def details(self, records: Mapping[str, Record]) -> str:
        return figures.origins(self, records)

    def draw(self, results: Results, suffix: str) -> Path | None:
        records = results.read(self, suffix)
        if len(records) < len(LABELS):
            return None
        path = results.folder / self.name / f"{self.name}{suffix}.png"
        figure1(path, seed=SEED, runs=min(len(r["values"]) for r in records.values()))
        return path


def measured(work: Work, *, model: str) -> Record:
    """One model's outputs."""
    runs = QUICK if work.quick else SCHEDULES
    seen = under_schedules(models(SEED)[model], runs, SEED)
    return {
        "values": seen.run.predictions[:, MIDDLE, 0].tolist(),
        "synchronous": float(seen.prediction[MIDDLE, 0]),
        "deviation": float(seen.run.deviation.max()),
        "converged": seen.converged,
        "stagger": seen.stagger,
        "delay": seen.delay,
    }
