"""Error by deadline: what nodes' answers are worth against what they have cost so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.deadlines import COSTS, Deadlines
from hogwild.plots.style import CYCLE, DASHES, GREY, INK, figure, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks in the order of the cycle, for grey printers."""


def deadlines(
    seen: Deadlines | Mapping[str, Deadlines],
    path: str | Path | None = None,
    *,
    x: Sequence[str] = ("updates", "bytes"),
    title: str = "",
) -> Figure:
    """The task's error (without a target: the deviation) against costs, one panel a cost. Lines are
    means over schedules and bands reach to the worst one; dotted lines are the synchronous errors.
    Where updates or ticks are on the axis, the grey band is the light cone, from its shortest to
    its longest over runs and graphs.

    Args:
        seen: ``run.deadlines`` of a run, or several by name.
        path: Where to save the picture.
        x: Costs: ``"ticks"``, ``"updates"``, ``"packets"``, ``"bytes"``.
        title: A heading.
    """
    several = seen if isinstance(seen, Mapping) else {seen.settings.rule: seen}
    if not several:
        raise ConfigError("deadlines({}) was given no run; expected at least one")
    wrong = [name for name in x if name not in COSTS]
    if wrong or not x:
        raise ConfigError(f"x={tuple(x)!r}; expected some of {', '.join(COSTS)}")
    metrics = {None if one.metric is None else one.metric.name for one in several.values()}
    if len(metrics) > 1:
        raise ConfigError(f"the runs were scored by {metrics}; expected one metric for all")
    with figure(3.1 * len(x), 2.9 + 0.15 * bool(title), path) as fig:
        panels(fig, list(fig.subplots(1, len(x), squeeze=False)[0]), several, x)
        if title:
            fig.suptitle(title, fontsize=9)
    return fig


def panels(
    fig: FigureBase,
    axes: Sequence[Axes],
    several: Mapping[str, Deadlines],
    x: Sequence[str] = ("updates", "bytes"),
) -> None:
    """Draw :func:`deadlines` on these axes of a figure."""
    for ax, cost in zip(axes, x, strict=True):
        panel(ax, several, cost)
        ax.sharey(axes[0]) if ax is not axes[0] else None
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))
    axes[0].set_ylabel(_label(next(iter(several.values()))))


def panel(ax: Axes, several: Mapping[str, Deadlines], cost: str) -> None:
    """Draw the errors of several runs against one cost on these axes."""
    first = next(iter(several.values()))
    least = np.inf
    for number, (name, one) in enumerate(several.items()):
        rows = [row for row in one.rows() if row[cost] > 0]
        if not rows:
            continue
        at = np.array([row[cost] for row in rows])
        look: dict[str, Any] = {
            "color": CYCLE[number % len(CYCLE)], "linestyle": DASHES[number % len(DASHES)],
        }  # fmt: skip
        kind = "deviation" if one.metric is None else "error"
        values = np.array([row[kind] for row in rows])
        worst = values if one.metric is None else np.array([row["worst"] for row in rows])
        ax.plot(at, values, marker=MARKS[number % len(MARKS)], markersize=3,
                markevery=max(1, len(rows) // 8), label=name, zorder=3, **look)  # fmt: skip
        ax.fill_between(at, values, worst, color=look["color"], alpha=0.15, linewidth=0)
        if one.synchronous is not None:
            ax.axhline(float(one.synchronous.mean()), color=look["color"], linewidth=0.8,
                       linestyle=(0, (1, 1.5)), zorder=1)  # fmt: skip
        least = min(least, at.min())
    if cost in ("updates", "ticks") and first.cone.crossed:
        reach = getattr(first.cone, cost)
        low, high = float(reach.min()), float(reach.max())
        if high > 0:
            ax.axvspan(max(low, 1e-9), high * (1.0 if high > low else 1.02), color=GREY, alpha=0.45,
                       linewidth=0, label="light cone", zorder=0)  # fmt: skip
    if first.synchronous is not None:
        ax.plot([], [], color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)), label="in step")
    ax.set_xscale("log")
    if np.isfinite(least):
        ax.set_xlim(left=least)
    _ticks(ax)
    if first.metric is None:
        ax.set_yscale("log")
    elif first.metric.percent:
        ax.yaxis.set_major_formatter(need("matplotlib.ticker").PercentFormatter(1.0))
    ax.set_xlabel(COSTS[cost])
    ax.grid(axis="y", linewidth=0.3, color=INK, alpha=0.3)


def _ticks(ax: Axes) -> None:
    """Marks on a logarithmic axis whose labels do not touch: powers of ten, or plain numbers where
    there would be too few of them."""
    ticker, (low, high) = need("matplotlib.ticker"), ax.get_xlim()
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    if high < 300 * low:
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
        ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))


def _label(one: Deadlines) -> str:
    if one.metric is None:
        return "relative deviation from\nthe synchronous embeddings"
    return f"{one.metric.name} of what nodes answer"
