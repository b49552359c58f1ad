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
"""Most nodes of a map; of larger graphs a random sample is drawn."""


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
) -> Figure:
    """Nodes at their positions: coloured by part (integers) or by a value (numbers).

    Args:
        pos: Positions, [N, 2].
        values: The part or the value of every node, [N].
        path: Where to save the picture.
        title: The title.
        edge_index: Edges to draw, [2, E].
        width: Width of the picture in inches.
    """
    pos, values = np.asarray(pos), np.asarray(values)
    if pos.ndim != 2 or pos.shape[1] < 2 or len(pos) != len(values):
        raise ConfigError(
            f"pos has shape {pos.shape} and values {values.shape}; expected [nodes, 2] and [nodes]"
        )
    size = np.ptp(pos, axis=0)[:2] + 1e-12
    height = float(np.clip(width * size[1] / size[0], 0.3 * width, 1.5 * width))
    some = np.arange(len(pos))
    if len(pos) > MANY:
        some = np.random.default_rng(0).choice(len(pos), MANY, replace=False)
    parts = values.dtype.kind in "iu"
    with figure(width, height + 0.3, path) as fig:
        ax = fig.subplots()
        if edge_index is not None:
            from matplotlib.collections import LineCollection

            ends = np.asarray(edge_index)
            lines = pos[ends.T][:, :, :2]
            ax.add_collection(LineCollection(lines, colors="#B0B0B0", linewidths=0.3, zorder=0))
        mark = float(np.clip(2e4 / len(some), 0.1, 30.0))
        dots: dict[str, Any] = {"s": mark, "linewidths": 0}
        if parts:
            dots["c"] = [CYCLE[p % len(CYCLE)] for p in values[some].tolist()]
            ax.scatter(pos[some, 0], pos[some, 1], **dots)
        else:
            drawn = ax.scatter(pos[some, 0], pos[some, 1], c=values[some], cmap="viridis", **dots)
            fig.colorbar(drawn, ax=ax, shrink=0.7)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(title)
    return fig
