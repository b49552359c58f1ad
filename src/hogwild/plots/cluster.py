"""Pictures of runs on parts: the residual of every part, and the parts on a map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.plots.style import CYCLE, DASHES, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 200_000
"""Most nodes of a map without edges; of larger graphs a random sample is drawn."""
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
    values: Any,
    path: str | Path | None = None,
    *,
    title: str = "",
    edge_index: Any = None,
    width: float = 6.0,
    label: str = "",
    cmap: str = "viridis",
    limits: tuple[float, float] | None = None,
    window: tuple[float, float, float, float] | None = None,
) -> Figure:
    """A graph on a map: coloured by part (integers) or by a value (numbers).

    With edges, an edge has the colour of its ends; edges between two parts are black. The nodes of
    a large graph are then left out. Without edges, nodes are drawn.

    Args:
        pos: Positions, [N, 2].
        values: The part or the value of every node, [N].
        path: Where to save the picture.
        title: The title.
        edge_index: Edges to draw, [2, E].
        width: Width of the picture in inches.
        label: What the values are.
        cmap: Colours of values, by the name that matplotlib has for them.
        limits: Values at the ends of the colours.
        window: The part of the map to draw: left, right, bottom, top.
    """
    pos, values = np.asarray(pos, dtype=float), np.asarray(values)
    if pos.ndim != 2 or pos.shape[1] < 2 or len(pos) != len(values):
        raise ConfigError(
            f"pos has shape {pos.shape} and values {values.shape}; expected [nodes, 2] and [nodes]"
        )
    pos = pos[:, :2]
    low, high = pos.min(0), pos.max(0)
    left, right, bottom, top = window or (low[0], high[0], low[1], high[1])
    height = width * (top - bottom + 1e-12) / (right - left + 1e-12)
    with figure(width, float(np.clip(height, 0.3 * width, 1.5 * width)) + 0.5, path) as fig:
        ax = fig.subplots()
        drawn = None
        if edge_index is not None:
            drawn = _edges(ax, pos, values, np.asarray(edge_index), cmap, limits)
        if edge_index is None or len(pos) <= FEW:
            found = _nodes(ax, pos, values, cmap, limits)
            drawn = drawn if found is None else found
        if drawn is not None:
            fig.colorbar(drawn, ax=ax, shrink=0.6, pad=0.01, label=label)
        margin = 0.01 * max(right - left, top - bottom, 1e-12)
        ax.set_xlim(left - margin, right + margin)
        ax.set_ylim(bottom - margin, top + margin)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(title)
    return fig


def _nodes(ax: Any, pos: Any, values: Any, cmap: str, limits: Any) -> Any:
    some = np.arange(len(pos))
    if len(pos) > MANY:
        some = np.random.default_rng(0).choice(len(pos), MANY, replace=False)
    dots: dict[str, Any] = {
        "s": float(np.clip(2e4 / len(some), 0.1, 30.0)), "linewidths": 0, "zorder": 2,
        "rasterized": True,
    }  # fmt: skip
    at = pos[some].T
    if values.dtype.kind in "iu":
        ax.scatter(*at, c=[CYCLE[p % len(CYCLE)] for p in values[some].tolist()], **dots)
        return None
    low, high = limits or (values.min(), values.max())
    return ax.scatter(*at, c=values[some], cmap=cmap, vmin=low, vmax=high, **dots)


def _edges(ax: Any, pos: Any, values: Any, ends: Any, cmap: str, limits: Any) -> Any:
    from matplotlib.collections import LineCollection

    one, two = ends[:, ends[0] < ends[1]] if len(ends) == 2 else ends.T
    wide = np.abs(pos[one, 0] - pos[two, 0]) > 0.5 * np.ptp(pos[:, 0])  # around the earth
    one, two = one[~wide], two[~wide]
    lines = np.stack([pos[one], pos[two]], 1)  # [E, 2, 2]
    look: dict[str, Any] = {
        "linewidths": float(np.clip(3e5 / max(len(one), 1), 0.35, 1.2)), "zorder": 1,
        "capstyle": "round", "rasterized": True,
    }  # fmt: skip
    if values.dtype.kind in "iu":
        cut = values[one] != values[two]
        for p in np.unique(values).tolist():
            colour = CYCLE[p % len(CYCLE)]
            mine = ~cut & (values[one] == p)
            ax.add_collection(LineCollection(lines[mine], colors=colour, **look))
        look |= {"linewidths": 2.5 * look["linewidths"], "zorder": 3}
        ax.add_collection(LineCollection(lines[cut], colors="black", **look))
        return None
    mean = 0.5 * (values[one] + values[two])
    order = np.argsort(mean, kind="stable")  # high values on top
    drawn: Any = LineCollection(list(lines[order]), array=mean[order], cmap=cmap, **look)
    drawn.set_clim(*(limits or (mean.min(), mean.max())))
    ax.add_collection(drawn)
    return drawn
