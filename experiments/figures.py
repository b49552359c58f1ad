"""What the figures beyond the paper share: one cell for each (task, model), a picture of the cells
that have a record, one line style for each model, and trained models on test graphs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from experiments import markdown, paper
from experiments.experiment import Cell, Experiment, Results, Work
from experiments.record import Record, Training
from hogwild.models.base import Kind
from hogwild.plots.style import CYCLE, GREY, INK
from hogwild.training import Result

REPLICAS, QUICK_REPLICAS = 5, 2
"""Number of replicas that a figure uses: the best on validation graphs (on training graphs, where
none are held out)."""
NEAR = 1e-3
"""Relative distance from the synchronous embeddings at which a run has arrived."""
LABELS = paper.LABELS | {
    "energy-edge": "energy, edge-wise",
    "energy-node": "energy, node-wise",
    "energy-attention": "energy + attention",
}
"""Names that are short enough for a legend."""
LOOKS: dict[str, dict[str, Any]] = {
    "energy-edge": {"color": CYCLE[0], "linestyle": "solid", "marker": "o"},
    "energy-node": {"color": CYCLE[5], "linestyle": (0, (4, 1.5)), "marker": "s"},
    "energy-attention": {"color": CYCLE[4], "linestyle": (0, (1, 1)), "marker": "D"},
    "gsdgnn": {"color": CYCLE[2], "linestyle": (0, (4, 1, 1, 1)), "marker": "^"},
    "ignn": {"color": CYCLE[3], "linestyle": (0, (6, 2)), "marker": "v"},
    "gcn": {"color": INK, "linestyle": (0, (2, 1)), "marker": "x"},
    "gat": {"color": GREY, "linestyle": "solid", "marker": "+"},
}
"""Colour, dashes and marker of every model, the same in all figures."""
RULES: dict[Kind, tuple[str, ...]] = {
    Kind.OPTIMISATION: ("gradient", "messages"),
    Kind.FIXED_POINT: ("fixed point",),
    Kind.EXPLICIT: (),
}
"""The rules of each kind of model."""


class Figure(Experiment):
    """A picture of trained models, and its numbers.

    Attributes:
        columns: Tasks.
        models: Models of Table 1.
    """

    columns: tuple[str, ...]
    models: tuple[str, ...]

    @abstractmethod
    def measure(self, work: Work, column: str, model: str) -> Record:
        """Measure one cell."""

    @abstractmethod
    def picture(self, records: Mapping[str, Record], path: Path) -> None:
        """Draw the cells that have a record."""

    def cells(self) -> dict[str, Cell]:
        return {
            f"{column}/{model}": partial(self.measure, column=column, model=model)
            for column in self.columns
            for model in self.models
        }

    def listed(
        self, records: Mapping[str, Record], lines: Callable[[Record], Iterable[list[str]]]
    ) -> list[list[str]]:
        """The rows of a table: task and model of every cell, and each of its record's lines."""
        rows = []
        for column, model in product(self.columns, self.models):
            record = records.get(f"{column}/{model}")
            found = [[markdown.NOT_RUN]] if record is None else lines(record)
            rows += [[paper.COLUMNS[column].heading, LABELS[model], *line] for line in found]
        return rows

    def details(self, records: Mapping[str, Record]) -> str:
        return origins(self, records)

    def draw(self, results: Results, suffix: str) -> Path | None:
        records = results.read(self, suffix)
        if not records:
            return None
        path = results.folder / self.name / f"{self.name}{suffix}.png"
        self.picture(records, path)
        return path


def origins(experiment: Experiment, records: Mapping[str, Record]) -> str:
    """One line for every cell: how its record was made."""
    rows = [
        [name, *(markdown.origin(records[name]) if name in records else [markdown.NOT_RUN])]
        for name in experiment.cells()
    ]
    return markdown.table(["cell", *markdown.ORIGIN], rows)


def about(result: Result, began: float) -> Record:
    """The entries of every record about its models, and the seconds since ``began``."""
    assert result.folder is not None
    return {
        "config": result.config.as_dict(),
        "trained": Training.about(result.folder),
        "seconds": time.perf_counter() - began,
    }


def chosen(work: Work, result: Result) -> list[int]:
    """The replicas that a figure uses, the best one first."""
    return result.ranking[: QUICK_REPLICAS if work.quick else REPLICAS]


def largest(result: Result, replica: int, count: int) -> list[Data]:
    """The largest test graphs of a replica, as its model reads them."""
    members = result.members
    ids = members.test[replica].nonzero()[:, 0].tolist()
    ids.sort(key=lambda i: -int(result.task.graphs[i].num_nodes or 0))
    return [result.graph(i, torch.float64) for i in ids[:count]]


def option(rule: str) -> str:
    """The rule as an option of a simulation; layers have the paper's."""
    return {"fixed point": "fixed-point", "layers": "overwriting"}.get(rule, rule)


def band(values: Tensor) -> Record:
    """Median, 10th and 90th percentile over the last dimension, without NaN; [T, n]."""
    share = torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype)
    low, middle, high = values.nanquantile(share, -1).tolist()
    return {"low": low, "median": middle, "high": high}


def draw_band(ax: Any, x: Sequence[float], curve: Record, scale: float = 1.0, **look: Any) -> None:
    """The median as a line, the percentiles as a band around it."""
    low, middle, high = (
        [float("nan") if v is None else scale * v for v in curve[key]]
        for key in ("low", "median", "high")
    )
    ax.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if isinstance(look.get("markevery"), list):
        look["markevery"] = [m for m in look["markevery"] if m < len(middle)]
    ax.plot(x, middle, markersize=3, **look)


def legend(fig: Any, axes: Iterable[Any], columns: int = 4) -> None:
    """Draw one legend for all axes, below them; empty axes say so."""
    handles: dict[str, Any] = {}
    for ax in axes:
        found = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        handles |= {label: handle for label, handle in found.items() if label not in handles}
        if not found:
            middle = {"transform": ax.transAxes, "ha": "center", "va": "center", "color": "0.5"}
            ax.text(0.5, 0.5, markdown.NOT_RUN, **middle)
            sides = ("left", "bottom", "labelleft", "labelbottom")
            ax.tick_params(which="both", **dict.fromkeys(sides, False))
    if handles:
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns,
                   handlelength=3.0)  # fmt: skip


QUICK = "\nQUICK runs: few models, briefly trained; not to be compared.\n"


def shown(values: Sequence[float | None], form: str = ".4g") -> str:
    """Median and range of the values, and the number of missing values."""
    some = sorted(v for v in values if v is not None)
    if not some:
        return "never"
    middle = some[len(some) // 2] if len(some) % 2 else sum(some[len(some) // 2 - 1 :][:2]) / 2
    text = f"{middle:{form}}"
    if f"{some[0]:{form}}" != f"{some[-1]:{form}}":
        text += f" ({some[0]:{form}} to {some[-1]:{form}})"
    missing = len(values) - len(some)
    return text + (f", {missing} of {len(values)} never" if missing else "")
