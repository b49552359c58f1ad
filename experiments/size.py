"""Models trained on small graphs and tested on large ones: error against the number of nodes, on
graphs up to ten times as large as the largest training graph, and of other families.

Every replica of Table 1 is evaluated (in double precision, with exact solves). Counting and sums
are trained on chains only. The features of counting do not distinguish degrees from two on, so that
nodes of a tree or a grid look like nodes of a chain. The reference is the best constant prediction,
learned on the training sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch

from experiments import figures, markdown, paper
from experiments.asynchronous import exact
from experiments.experiment import Work
from experiments.figures import Figure
from experiments.record import Record
from experiments.tables import ORDER
from hogwild.models.gnn import ConvGNN
from hogwild.plots.style import INK, figure
from hogwild.tasks import Chains, Counting, Sums
from hogwild.tasks.base import Task
from hogwild.training.batches import predict_levels
from hogwild.training.registry import set_on_failure

FACTORS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Sizes as multiples of the largest training size."""
COPIES = 10
"""Number of graphs of each size, where graphs are random."""
FAMILIES = {
    "chains": ("chain",),
    "counting": ("chain", "tree", "grid"),
    "sums": ("chain", "tree", "grid"),
}


class Size(Figure):
    """Error against size, of every model of Table 1."""

    name = "size"
    title = "train small, test large"
    columns = tuple(FAMILIES)
    models = ORDER

    def brief(self, record: Record) -> str:
        column = paper.COLUMNS[record["config"]["task"]]
        shown = [_middle(values, column) for values in record["values"]["chain"]]
        return f"{' '.join(shown)}{column.unit} on {record['sizes']['chain']} nodes"

    def measure(self, work: Work, column: str, model: str) -> Record:
        result = work.trained(column, model)
        began = time.perf_counter()
        assert isinstance(result.task, Task)
        base = max(int(g.num_nodes or 0) for g in result.task.graphs)
        seen = Batch.from_data_list(result.task.graphs)
        networks = [exact(result, r).to(work.device) for r in range(result.replicas)]
        sizes = sorted({math.ceil(factor * base) for factor in FACTORS})
        out: Record = {"values": {}, "constant": {}, "unsolved": {}}
        for family in FAMILIES[column]:
            tasks = [larger(column, family, n, result.task.in_channels) for n in sizes]
            tried = [[errs(network, task) for network in networks] for task in tasks]
            out["values"][family] = [[value for value, _ in some] for some in tried]
            out["unsolved"][family] = [sum(not good for _, good in some) for some in tried]
            out["constant"][family] = [
                result.task.constant(seen, Batch.from_data_list(task.graphs)) for task in tasks
            ]
        return {
            "metric": result.task.metric_name,
            "base": base,
            "sizes": {family: sizes for family in FAMILIES[column]},
            **out,
            **figures.about(result, began),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        out = (
            "Median error in per cent over all replicas, at multiples of the largest size trained "
        )
        out += "on. In brackets: how many replicas' solves failed, where some did.\n"
        for column, families in FAMILIES.items():
            head = ["model", *(f"{f}, {x:g}×" for f in families for x in (1.0, 2.0, 10.0))]
            rows = []
            for model in self.models:
                record = records.get(f"{column}/{model}")
                if record is None:
                    rows.append([figures.LABELS[model], *[markdown.NOT_RUN] * (len(head) - 1)])
                    continue
                row = [figures.LABELS[model]]
                for family in families:
                    for factor in (1.0, 2.0, 10.0):
                        at = record["sizes"][family].index(math.ceil(factor * record["base"]))
                        failed = record["unsolved"][family][at]
                        text = _middle(record["values"][family][at], paper.COLUMNS[column])
                        row.append(text + (f" ({failed})" if failed else ""))
                rows.append(row)
            out += f"\n{paper.COLUMNS[column].heading}:\n\n{markdown.table(head, rows)}"
        return out + (figures.QUICK if any(r["quick"] for r in records.values()) else "")

    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        panels = [(column, family) for column, some in FAMILIES.items() for family in some]
        with figure(8.4, 4.6, path) as fig:
            axes = fig.subplots(2, 4, sharey=True)
            # Chains have one panel in the first row; the other tasks have half a row each.
            for ax, (column, family) in zip([axes[0, 0], *axes[:, 1:].flat], panels, strict=True):
                self._panel(ax, records, column, family)
            axes[1, 0].set_visible(False)
            for ax in (axes[0, 0], axes[1, 1]):
                ax.set_ylabel("error, %")
                ax.tick_params(labelleft=True)
            figures.legend(fig, axes.flat)

    def _panel(self, ax: Any, records: Mapping[str, Record], column: str, family: str) -> None:
        scale = paper.COLUMNS[column].scale
        for model in self.models:
            record = records.get(f"{column}/{model}")
            if record is None:
                continue
            values = torch.tensor(
                [[torch.nan if v is None else v for v in some] for some in record["values"][family]]
            )
            look = figures.LOOKS[model] | {"label": figures.LABELS[model]}
            figures.draw_band(ax, record["sizes"][family], figures.band(values), scale, **look)
            ax.axvline(record["base"], color=INK, linewidth=0.4, label="largest trained on")
            constant = [scale * v for v in record["constant"][family]]
            ax.plot(record["sizes"][family], constant, color=INK, linewidth=0.6,
                    linestyle=(0, (1, 2)), label="a constant")  # fmt: skip
        ax.set_xscale("log")
        ax.set_yscale("symlog", linthresh=1.0)
        ax.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
        ax.set_ylim(0, 2000)
        ax.set_title(f"{paper.COLUMNS[column].heading}: {family}s")
        ax.set_xlabel("nodes")


def larger(column: str, family: str, n: int, in_channels: int) -> Task:
    """The task on graphs of n nodes of a family; none of them was trained on, except by chance."""
    if column == "chains":
        return Chains(length=n)
    if column == "counting":
        copies = COPIES if family == "tree" else 1
        return Counting([n] * copies, graphs=family, max_degree=in_channels - 1, seed=1)
    return Sums(COPIES, n, graphs=family, seed=1)


@torch.no_grad()
def errs(model: ConvGNN, task: Task) -> tuple[float, bool]:
    """A model's metric on a task, and whether all of its solves succeeded."""
    set_on_failure(model, "ignore")
    device = next(model.parameters()).device
    batch = Batch.from_data_list(task.graphs).to(device)
    batch = batch.apply(lambda t: t.double() if t.is_floating_point() else t)
    out, found, _ = predict_levels(model, batch)
    return float(task.metric(out[0], batch)), bool(found.converged.all())


def _middle(values: list[float | None], column: paper.Column) -> str:
    """The median in the column's unit; failures count as the worst value."""
    known = torch.tensor([math.inf if v is None else v for v in values], dtype=torch.float64)
    return f"{float(known.quantile(0.5)) * column.scale:.{column.digits}f}"
