r"""A layered model's computation graph under asynchrony, from a recorded schedule.

Synchronously, the value of node i after layer ℓ + 1 is computed from the values after layer ℓ of i
itself and of its neighbours. Asynchronously a node is at layer ℓ when it has made ℓ updates. Of
neighbour j it hears the value that j had sent by the time :math:`\tau^i_j`, the value after layer

.. math:: m = |\{t \in T^j : t < \tau^i_j\}|,

whatever ℓ is. Where m ≠ ℓ an arrow of the intended graph is missing, and an unintended arrow takes
its place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.trace import Trace, fingerprint
from hogwild.errors import ConfigError, TraceError
from hogwild.executors.simulate import simulate
from hogwild.graph import Graph
from hogwild.models.layered import LayeredGNN
from hogwild.plots.style import GREY, INK, RED, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Arrow(NamedTuple):
    """``source``'s value after ``layer`` layers goes into ``target``'s value after ``after``."""

    source: int
    layer: int
    target: int
    after: int


@dataclass(frozen=True)
class ComputationGraph:
    """The intended arrows and those of a run, with those of a node's own values. Parallel edges
    have an arrow each."""

    num_nodes: int
    depth: int
    intended: list[Arrow]
    read: list[Arrow]

    @classmethod
    def of(cls, trace: Trace, graph: Graph, depth: int) -> ComputationGraph:
        """From the schedule of one run of a model with ``depth`` layers and
        ``rule="overwriting"``."""
        if trace.graph != fingerprint(graph):
            raise TraceError(
                "the trace belongs to another graph (its fingerprint differs); expected a trace of "
                "a single run on this graph"
            )
        sources, targets = graph.src.tolist(), graph.dst.tolist()
        everyone = range(graph.num_nodes)
        links = [*zip(sources, targets, strict=True), *((i, i) for i in everyone)]
        links = [(j, i) for n, (j, i) in enumerate(links) if j != i or n >= len(sources)]
        intended = [Arrow(j, m, i, m + 1) for m in range(depth) for j, i in links]
        read: list[Arrow] = []
        layers = [0] * graph.num_nodes
        at: list[list[int]] = []  # at[t]: everyone's layer in packets of time t
        for tick in trace.ticks:
            if tick.reset is not None and tick.reset.numel():
                raise ConfigError(
                    "a node that crashes cold computes its layers twice, which a computation graph "
                    "does not show; expected a schedule without Crashes(rejoin='cold')"
                )
            at += [list(layers) for _ in range(tick.time + 1 - len(at))]
            for edge, time in zip(tick.edges.tolist(), tick.view.tolist(), strict=True):
                j, i = sources[edge], targets[edge]
                if i != j:
                    read.append(Arrow(j, at[time][j], i, layers[i] + 1))
            for i in tick.nodes.tolist():
                read.append(Arrow(i, layers[i], i, layers[i] + 1))
                layers[i] += 1
        if layers != [depth] * graph.num_nodes:
            raise TraceError(
                f"nodes made {min(layers)} to {max(layers)} updates in this trace; expected "
                f"{depth} of each, one a layer"
            )
        return cls(graph.num_nodes, depth, intended, read)

    @property
    def kept(self) -> list[Arrow]:
        """Intended arrows that are in the run."""
        return list((Counter(self.intended) & Counter(self.read)).elements())

    @property
    def removed(self) -> list[Arrow]:
        """Intended arrows that are missing in the run."""
        return list((Counter(self.intended) - Counter(self.read)).elements())

    @property
    def unintended(self) -> list[Arrow]:
        """Arrows of the run that are not intended."""
        return list((Counter(self.read) - Counter(self.intended)).elements())


def observe(
    model: LayeredGNN, data: Data, **options: Any
) -> tuple[ComputationGraph, Tensor | None]:
    """Simulate one run: its computation graph, and every node's value after each layer, [N, L + 1],
    where embeddings have a single channel. The options are those of :func:`hogwild.simulate`."""
    if not isinstance(model, LayeredGNN):
        raise ConfigError(
            f"{type(model).__name__} has no computation graph that a schedule could change; "
            f"expected a LayeredGNN such as GCN or GAT"
        )
    options = {"progress": False} | options
    run = simulate(
        model, data, rule="overwriting", history=1, keep_embeddings=True, record=True, **options
    )
    assert run.trace is not None
    assert run.embeddings is not None
    assert data.edge_index is not None
    graph = Graph.of(data.edge_index, data.x.size(-2))
    found = ComputationGraph.of(run.trace, graph, model.conv.num_layers)
    if model.replicas is not None or model.conv.hidden_channels != 1:
        return found, None
    over_time = run.embeddings[:, 0, :, 0]  # [T, N]
    columns = [[float(value)] for value in over_time[0]]  # no node updates at tick 0
    for tick in run.trace.ticks:
        for i in tick.nodes.tolist():
            columns[i].append(float(over_time[tick.time, i]))
    return found, torch.tensor(columns, dtype=torch.float64)


# -- drawing ---------------------------------------------------------------------------------------

_KINDS: dict[str, dict[str, Any]] = {
    "removed": {"color": GREY, "linestyle": (0, (3, 2)), "linewidth": 0.8, "zorder": 1},
    "kept": {"color": INK, "linestyle": "solid", "linewidth": 0.8, "zorder": 2},
    "unintended": {"color": RED, "linestyle": "solid", "linewidth": 1.1, "zorder": 3},
}
RADIUS = 8.0
"""Radius of a node, in points."""


def draw(ax: Axes, arrows: ComputationGraph, values: Tensor | None) -> None:
    """The arrows of a computation graph by kind, layers from left to right."""
    n, depth = arrows.num_nodes, arrows.depth
    arrow = need("matplotlib.patches").FancyArrowPatch
    for kind, look in _KINDS.items():
        for source, layer, target, after in getattr(arrows, kind):
            bend = 0.0 if layer < after else 0.35  # straight if it goes forwards
            ax.add_patch(arrow(
                (layer, -source), (after, -target), arrowstyle="-|>", mutation_scale=6,
                shrinkA=RADIUS, shrinkB=RADIUS, connectionstyle=f"arc3,rad={bend}", **look,
            ))  # fmt: skip
    for i in range(n):
        for layer in range(depth + 1):
            # Two digits, and two places, fit into a node; adding zero turns −0 into 0.
            text = "" if values is None else f"{round(float(values[i, layer]), 2) + 0.0:.2g}"
            node(ax, layer, -i, text)
    frame(ax, (-0.45, depth + 0.45), n)
    ax.set_xticks(range(depth + 1), [f"layer {m}" if m else "input" for m in range(depth + 1)])


def frame(ax: Axes, xlim: tuple[float, float], n: int) -> None:
    """Limits for n rows of nodes, and no box around them."""
    ax.set_xlim(*xlim)
    ax.set_ylim(-n + 0.45, 0.55)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def node(ax: Axes, x: float, y: float, text: str, fill: str = "white") -> None:
    """A node with its value."""
    ax.plot(
        [x], [y], "o", markersize=2 * RADIUS, markerfacecolor=fill, markeredgecolor=INK,
        markeredgewidth=0.8, zorder=4,
    )  # fmt: skip
    ax.text(x, y, text, ha="center", va="center_baseline", fontsize=7, zorder=5)


def legend(ax: Axes) -> None:
    """The meaning of the lines, below the axes."""
    lines = need("matplotlib.lines")
    handles = [
        lines.Line2D([], [], label=kind, **{k: v for k, v in look.items() if k != "zorder"})
        for kind, look in sorted(_KINDS.items())
    ]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3,
              handlelength=2.2, columnspacing=1.2)  # fmt: skip
