r"""The price of staleness: what S (rare updates) and D (old packets) cost an energy GNN and a GCN.

The best replica of each model runs on up to ten of its test graphs, under five schedules for every
(S, D). For the energy GNN the figure shows the updates of a node until a graph's embeddings are
within 10⁻³ of the synchronous ones, by gradient steps and by messages. Every setting has the same
number of updates (:math:`T (S + 1) / 2` ticks). For all models the figure shows the task's error at
the end. Where even synchronous nodes (S = 1, D = 0) do not arrive, no other setting is tried.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from experiments import figures, markdown, paper
from experiments.asynchronous import SCHEDULES, exact, sample
from experiments.experiment import Work
from experiments.figures import NEAR, Figure
from experiments.record import Record
from hogwild.analysis.robustness import robustness
from hogwild.models.base import Kind
from hogwild.plots.style import CYCLE, DASHES, figure

STAGGERS, DELAYS = (1, 2, 5, 10), (0, 2, 5, 10, 20)
QUICK_STAGGERS, QUICK_DELAYS = (1, 5), (0, 2, 10)
UPDATES, QUICK_UPDATES = 20_000, 1_000
MARKERS = "os^Dv"
PANELS = (("energy-edge", "gradient"), ("energy-edge", "messages"), ("gcn", "layers"))


class Staleness(Figure):
    """Updates needed, and error, against S and D."""

    name = "staleness"
    title = "the price of staleness"
    columns = ("chains", "counting")
    models = ("energy-edge", "gcn")

    def brief(self, record: Record) -> str:
        return ", ".join(
            f"{rule}: {sum(s['reached'] == 1 for s in settings)} of {len(settings)} settings there"
            for rule, settings in record["rules"].items()
        )

    def aspects(self) -> Mapping[str, Callable[[Record], str]]:
        return {rule: partial(_range, rule=rule) for _, rule in PANELS if rule != "layers"}

    def measure(self, work: Work, column: str, model: str) -> Record:
        result = work.trained(column, model)
        began, replica = time.perf_counter(), result.best
        network = exact(result, replica).to(work.device)
        graphs = [result.graph(i, torch.float64).to(work.device) for i in sample(result, replica)]
        batch = Batch.from_data_list(graphs)
        updates = QUICK_UPDATES if work.quick else UPDATES
        grid = (QUICK_STAGGERS, QUICK_DELAYS) if work.quick else (STAGGERS, DELAYS)

        def metric(prediction: Tensor, target: Tensor) -> Tensor:
            return result.task.metric(prediction, batch)

        found: Record = {}
        for rule in figures.RULES[network.kind] or ("layers",):
            settings: list[Record] = []
            for stagger, delay in product(*grid):
                seen = robustness(
                    network, graphs, runs=SCHEDULES, stagger=stagger, delay=delay, tol=NEAR,
                    ticks=updates * (stagger + 1) // 2, history=1, metric=metric,
                    higher_is_better=result.task.higher_is_better, rule=figures.option(rule),
                )  # fmt: skip
                assert seen.asynchronous is not None
                settings.append(
                    {
                        "stagger": stagger,
                        "delay": delay,
                        "updates": needed(seen.run.updates, seen.run.reached, batch.batch),
                        "reached": seen.converged,
                        "distance": float(seen.run.deviation.max()),
                        "error": seen.asynchronous.tolist(),
                    }
                )
                if network.kind is not Kind.EXPLICIT and settings[0]["reached"] < 1:
                    break
            found[rule] = settings
        return {
            "metric": result.task.metric_name,
            "rules": found,
            "budget": updates,
            "replica": replica,
            **figures.about(result, began),
        }

    def table(self, records: Mapping[str, Record]) -> str:
        corners = [(1, 0), (5, 2), (1, 10), (10, 2), (10, 20)]
        rows = []
        for column, (model, rule) in product(self.columns, PANELS):
            record = records.get(f"{column}/{model}")
            name = figures.LABELS[model] + ("" if rule == "layers" else f", {rule}")
            row = [paper.COLUMNS[column].heading, name]
            if record is None:
                rows.append([*row, *[markdown.NOT_RUN] * len(corners)])
                continue
            at = {(s["stagger"], s["delay"]): s for s in record["rules"][rule]}
            rows.append([*row, *(_cell(at.get(c), model, column) for c in corners)])
        head = ["task", "model", *(f"S = {s}, D = {d}" for s, d in corners)]
        limit = max((r["budget"] for r in records.values()), default=UPDATES)
        out = "Energy GNN: updates a node to 1e-3, median over schedules and graphs; in brackets, "
        out += f"if not all, the share of runs that got there within {limit:,}. GCN: error in %."
        out += "\n\n" + markdown.table(head, rows)
        return out + (figures.QUICK if any(r["quick"] for r in records.values()) else "")

    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        with figure(7.6, 4.4, path) as fig:
            axes = fig.subplots(len(self.columns), len(PANELS), squeeze=False)
            for (line, column), (place, (model, rule)) in product(
                enumerate(self.columns), enumerate(PANELS)
            ):
                ax, shown = axes[line, place], paper.COLUMNS[column]
                what = figures.LABELS[model] if rule == "layers" else f"energy, {rule}"
                ax.set_title(f"{shown.heading}: {what}")
                ax.set_xlabel("delay D, ticks")
                ax.set_ylabel(f"error,{shown.unit}" if model == "gcn" else "updates a node to 1e-3")
                record = records.get(f"{column}/{model}")
                if record is not None:
                    _lines(ax, record["rules"][rule], shown.scale if model == "gcn" else None)
            figures.legend(fig, axes.flat, 5)


def _range(record: Record, rule: str) -> str:
    """The fewest and the most updates of any setting, median over schedules and graphs."""
    settings = record["rules"][rule]
    if any(s["reached"] < 1 for s in settings):
        return "not all there"
    middle = [statistics.median(s["updates"]) for s in settings]
    return f"{min(middle):,.0f} to {max(middle):,.0f}"


def needed(updates: Tensor, reached: Tensor, batch: Tensor) -> list[float | None]:
    """Mean updates of a graph's nodes [Q, N] when it arrived, one for each run and graph."""
    count = reached.size(1)
    nodes = torch.bincount(batch, minlength=count)
    total = torch.zeros(len(updates), count, dtype=torch.float64, device=updates.device)
    mean = total.index_add_(1, batch, updates.double()) / nodes
    return [None if t < 0 else m for m, t in
            zip(mean.flatten().tolist(), reached.flatten().tolist(), strict=True)]  # fmt: skip


def _lines(ax: Any, settings: list[Record], scale: float | None) -> None:
    """One line for each S, against D: of errors if there is a scale, else of updates."""
    delays = sorted({s["delay"] for s in settings})
    for number, stagger in enumerate(sorted({s["stagger"] for s in settings})):
        some = [s for s in settings if s["stagger"] == stagger]
        values = [s["error" if scale else "updates"] for s in some]
        numbers = torch.tensor(
            [[torch.nan if v is None else v for v in row] for row in values], dtype=torch.float64
        )
        look = {"color": CYCLE[number], "linestyle": DASHES[number % len(DASHES)],
                "marker": MARKERS[number], "label": f"S = {stagger}"}  # fmt: skip
        at = [delays.index(s["delay"]) for s in some]
        figures.draw_band(ax, at, figures.band(numbers), scale or 1.0, **look)
    ax.set_xticks(range(len(delays)), [str(d) for d in delays])
    ax.set_ylim(bottom=0)
    if scale is None and all(u is None for s in settings for u in s["updates"]):
        ax.set_yticks([])
        ax.text(0.5, 0.5, "never, not even in step", ha="center", transform=ax.transAxes)


def _cell(setting: Record | None, model: str, column: str) -> str:
    if setting is None:
        return "not tried"
    if model == "gcn":
        shown = paper.COLUMNS[column]
        return markdown.show(markdown.summarise(setting["error"]), shown)
    some = [u for u in setting["updates"] if u is not None]
    middle = f"{statistics.median(some):.0f}" if some else "never"
    return middle if setting["reached"] == 1 else f"{middle} ({setting['reached']:.0%})"
