r"""Figure 1: what asynchrony does to a layered GNN, as a picture and as numbers.

(a) is a linear graph with binary features. (b) is a 3-layer GNN on this graph, synchronous. All
weights are one, so that a node's next value is the sum of its own value and its neighbours' values,
:math:`h_i \leftarrow h_i + \sum_{j \in \mathcal N(i)} h_j`. (c) is the same GNN under one random
schedule, with the arrows that are missing and those that should not be there. (d) is the output of
the middle node over many schedules: of this GNN, of a 3-layer GCN, and of an energy GNN, whose
output does not depend on the schedule.

A cell is the output of the middle node of one of the three models under every schedule. The models
are not trained, so that recipes do not differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

from experiments import computation, figures, markdown
from experiments.experiment import Cell, Experiment, Results, Work
from experiments.record import Record
from hogwild.analysis.robustness import Robustness, robustness
from hogwild.models import GCN, EnergyGNN, LayeredGNN
from hogwild.models.base import Kind, Model
from hogwild.plots.charts import histograms
from hogwild.plots.style import INK, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEED = 0
"""Seed of the schedules and of the random weights."""
SCHEDULES, QUICK = 500, 50
LABELS = {"gnn": "GNN of (b): sums", "gcn": "GCN, 3 layers", "energy": "energy GNN"}
BITS = (0, 1, 1, 0, 1)
LAYERS = 3
MIDDLE = len(BITS) // 2
"""The node whose output panel (d) shows."""


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
        picture(path, runs=min(len(record["values"]) for record in records.values()))
        return path


def measured(work: Work, *, model: str) -> Record:
    """One model's outputs."""
    runs = QUICK if work.quick else SCHEDULES
    seen = under_schedules(model, runs)
    return {
        "values": seen.run.predictions[:, MIDDLE, 0].tolist(),
        "synchronous": float(seen.prediction[MIDDLE, 0]),
        "deviation": float(seen.run.deviation.max()),
        "converged": seen.converged,
        "stagger": seen.settings.stagger,
        "delay": seen.settings.delay,
    }


# -- the models and the picture --------------------------------------------------------------------


def linear_graph() -> Data:
    """Panel (a): an undirected path with a bit at every node."""
    left = torch.arange(len(BITS) - 1)
    edges = torch.stack([torch.cat([left, left + 1]), torch.cat([left + 1, left])])
    return Data(x=torch.tensor(BITS, dtype=torch.float64).unsqueeze(1), edge_index=edges)


def unit_gnn() -> LayeredGNN:
    """The GNN of panel (b): no parameters, sums, and the last sum is the output."""
    convs = [SimpleConv(aggr="sum", combine_root="sum") for _ in range(LAYERS)]
    model = LayeredGNN(
        convs, 1, out_channels=1, hidden_channels=1, act=None, encoder=False, readout=()
    )
    with torch.no_grad():
        model.readout.node.weight[0].fill_(1.0)
        model.readout.node.bias[0].zero_()
    return model.double()


def models() -> dict[str, Model]:
    """The models of panel (d): the GNN of (b), a GCN and an energy GNN with random weights."""
    with torch.random.fork_rng(devices=[]):
        gnn = unit_gnn()
        torch.manual_seed(SEED)
        return {
            "gnn": gnn,
            "gcn": GCN(1, out_channels=1, num_layers=LAYERS).double(),
            "energy": EnergyGNN(1, out_channels=1).double(),
        }


@cache
def under_schedules(name: str, runs: int) -> Robustness:
    """A model of panel (d) under random schedules; energies take the paper's gradient steps. The
    record and the picture show the same runs, which are computed once."""
    model = models()[name]
    rule = "gradient" if model.kind is Kind.OPTIMISATION else "overwriting"
    return robustness(model, linear_graph(), runs=runs, seed=SEED, rule=rule)


def picture(path: Path, runs: int) -> Figure:
    """Draw panels (a) to (d).

    Args:
        path: Where to save the picture.
        runs: Number of schedules in panel (d).
    """
    data, gnn = linear_graph(), models()["gnn"]
    assert isinstance(gnn, LayeredGNN)
    results = [under_schedules(name, runs) for name in LABELS]
    with figure(7.2, 4.6, path) as fig:
        parts: Any = fig.subfigures(2, 1, height_ratios=[1.55, 1])
        above, below = parts
        a, b, c = above.subplots(1, 3, width_ratios=[0.42, 1, 1])
        _graph(a)
        for ax, arrows in (
            (b, computation.observe(gnn, data, stagger=1, delay=0)),
            (c, computation.observe(gnn, data, stagger=5, delay=2, seed=SEED)),
        ):
            computation.draw(ax, *arrows)
            ax.set_yticks([])
        a.set_title("(a) graph")
        b.set_title("(b) synchronous")
        c.set_title("(c) asynchronous")
        computation.legend(c)
        titles = ["(d) GNN of (b)", f"GCN, {LAYERS} layers", "energy GNN"]
        histograms(list(below.subplots(1, 3)), results, MIDDLE, 0, titles)
    return fig


def _graph(ax: Axes) -> None:
    """Panel (a)."""
    n = len(BITS)
    ax.plot([0, 0], [0, 1 - n], color=INK, linewidth=1.2, zorder=1)
    for i, bit in enumerate(BITS):
        computation.node(ax, 0, -i, str(bit), fill="white")
    computation.frame(ax, (-0.25, 0.75), n)
    ax.set_xticks([])
    ax.set_yticks([-i for i in range(n)], [f"node {i}" for i in range(n)])
