r"""The paper's first figure, from simulated runs.

(a) a linear graph with binary features; (b) a 3-layer GNN on it, in step: all weights are one, so
that a node's next value is the sum of its own and its neighbours',
:math:`h_i \leftarrow h_i + \sum_{j \in \mathcal N(i)} h_j`; (c) the same GNN under one random
schedule, with the arrows that are missing and those that should not be there; (d) the output of the
middle node over many schedules: of that GNN, of a 3-layer GCN, and of an energy GNN, whose output
does not depend on the schedule.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

from hogwild.analysis.robustness import Robustness, robustness
from hogwild.models import GCN, EnergyGNN, LayeredGNN
from hogwild.models.base import Kind
from hogwild.models.check import Model
from hogwild.plots import computation
from hogwild.plots.charts import histograms
from hogwild.plots.style import INK, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BITS = (0, 1, 1, 0, 1)
LAYERS = 3
MIDDLE = len(BITS) // 2
"""The node whose output panel (d) shows."""


def linear_graph(bits: tuple[int, ...] = BITS) -> Data:
    """An undirected path with a bit at every node."""
    left = torch.arange(len(bits) - 1)
    edges = torch.stack([torch.cat([left, left + 1]), torch.cat([left + 1, left])])
    return Data(x=torch.tensor(bits, dtype=torch.float64).unsqueeze(1), edge_index=edges)


def unit_gnn(layers: int = LAYERS) -> LayeredGNN:
    """The GNN of panel (b): no parameters, sums, and the last sum is the output."""
    convs = [SimpleConv(aggr="sum", combine_root="sum") for _ in range(layers)]
    model = LayeredGNN(convs, 1, 1, hidden_channels=1, act=None, encoder=False, readout=())
    with torch.no_grad():
        model.readout.node.weight[0].fill_(1.0)
        model.readout.node.bias[0].zero_()
    return model.double()


def models(seed: int = 0) -> dict[str, Model]:
    """The models of panel (d): the GNN of (b), a GCN and an energy GNN with random weights."""
    with torch.random.fork_rng(devices=[]):
        gnn = unit_gnn()
        torch.manual_seed(seed)
        return {
            "gnn": gnn,
            "gcn": GCN(1, 1, num_layers=LAYERS).double(),
            "energy": EnergyGNN(1, 1).double(),
        }


def under_schedules(model: Model, runs: int, seed: int = 0) -> Robustness:
    """A model of panel (d) under random schedules; energies take the paper's gradient steps."""
    rule = "gradient" if model.kind is Kind.OPTIMISATION else "auto"
    return robustness(model, linear_graph(), runs=runs, seed=seed, rule=rule)


def figure1(path: str | Path | None = None, *, seed: int = 0, runs: int = 500) -> Figure:
    """Draw the paper's Figure 1, panels (a) to (d).

    Args:
        path: Where to save the picture.
        seed: What schedules and random weights are a function of.
        runs: Number of schedules in panel (d).
    """
    data, shown = linear_graph(), models(seed)
    gnn = shown["gnn"]
    assert isinstance(gnn, LayeredGNN)
    results = [under_schedules(model, runs, seed) for model in shown.values()]
    with figure(7.2, 4.6, path) as fig:
        parts: Any = fig.subfigures(2, 1, height_ratios=[1.55, 1])
        above, below = parts
        a, b, c = above.subplots(1, 3, width_ratios=[0.42, 1, 1])
        _graph(a)
        for ax, arrows in (
            (b, computation.observe(gnn, data, stagger=1, delay=0)),
            (c, computation.observe(gnn, data, stagger=5, delay=2, seed=seed)),
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
