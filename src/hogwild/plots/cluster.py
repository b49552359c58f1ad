"""Pictures of runs on parts: the residual of every part, and the parts on a map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.plots.style import CYCLE, DASHES, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 6.0
"""Width of a map in inches."""
FEW = 3_000
"""Most nodes that are drawn on top of their edges."""


def convergence(run: Any, path: str | Path | None = None) -> Figure:
    """The residual of every part over time, from what :func:`hogwild.cluster.infer` returned."""
    trace = run.trace
    times = np.array(trace.times)
    residual = np.array(trace.residual)  # [T, P]
    if not len(times):
        raise ConfigError("the run has no trace; expected one with several updates")
    residual = np.where(residual > 0, residual, np.nan)
    with figure(4.2, 2.8, path) as fig:
        ax = fig.subplots()
        for p in range(residual.shape[1]):
            look: dict[str, Any] = {
                "color": CYCLE[p % len(CYCLE)],
                "linestyle": DASHES[p % len(DASHES)],
            }
            rate = run.updates[p] / max(times[-1], 1e-9)
            label = f"part {p}: {rate:.3g} updates/s"
            ax.plot(times, residual[:, p], linewidth=0.9, label=label, **look)
        ax.set_yscale("log")
        ax.set_xlabel("seconds")
        ax.set_ylabel("largest entry of the residual")
        ax.grid(axis="y", linewidth=0.3)
        if residual.shape[1] <= 8:
            ax.legend(fontsize=6.5)
    return fig


def graph_map(
    pos: Any,
    parts: Any,
    path: str | Path | None = None,
    *,
    title: str = "",
    edge_index: Any,
) -> Figure:
    """The parts of a graph on a map: an edge has the colour of its part, and edges between two
    parts are black. The nodes of a large graph are left out.

    Args:
        pos: Positions, [N, 2].
        parts: The part of every node, [N].
        path: Where to save the picture.
        title: The title.
        edge_index: Edges to draw, [2, E].
    """
    pos, parts = np.asarray(pos, dtype=float), np.asarray(parts)
    if pos.ndim != 2 or pos.shape[1] < 2 or len(pos) != len(parts):
        raise ConfigError(
            f"pos has shape {pos.shape} and parts {parts.shape}; expected [nodes, 2] and [nodes]"
        )
    pos = pos[:, :2]
    wide, high = np.ptp(pos, axis=0) + 1e-12
    with figure(WIDTH, WIDTH * float(np.clip(high / wide, 0.3, 1.5)) + 0.5, path) as fig:
        ax = fig.subplots()
        _edges(ax, pos, parts, np.asarray(edge_index))
        if len(pos) <= FEW:
            colours = [CYCLE[p % len(CYCLE)] for p in parts.tolist()]
            size = float(np.clip(2e4 / len(pos), 0.1, 30.0))
            ax.scatter(
                pos[:, 0], pos[:, 1], s=size, c=colours, linewidths=0, zorder=2, rasterized=True
            )
        ax.margins(0.01)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(title)
    return fig


def _edges(ax: Any, pos: Any, parts: Any, ends: Any) -> None:
    from matplotlib.collections import LineCollection

    one, two = ends[:, ends[0] < ends[1]]
    wide = np.abs(pos[one, 0] - pos[two, 0]) > 0.5 * np.ptp(pos[:, 0])  # around the earth
    one, two = one[~wide], two[~wide]
    lines = np.stack([pos[one], pos[two]], 1)  # [E, 2, 2]
    width = float(np.clip(3e5 / max(len(one), 1), 0.35, 1.2))
    look: dict[str, Any] = {"capstyle": "round", "rasterized": True}
    cut = parts[one] != parts[two]
    for p in np.unique(parts).tolist():
        mine, colour = lines[~cut & (parts[one] == p)], CYCLE[p % len(CYCLE)]
        ax.add_collection(LineCollection(mine, colors=colour, linewidths=width, zorder=1, **look))
    look |= {"linewidths": 2.5 * width, "zorder": 3}
    ax.add_collection(LineCollection(lines[cut], colors="black", **look))
