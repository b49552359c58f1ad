"""Courses: of a run over time, of its error by deadline, of parts of a graph, of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.deadlines import COSTS, Deadlines
from hogwild.executors.run import Run
from hogwild.plots.style import GREY, INK, figure, look, need, per_cent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

MANY = 20
"""With more curves than this, a band is drawn instead."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks in the order of the cycle, for grey printers."""
DOTTED: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (1, 1.5))}
"""The look of synchronous errors."""
DEVIATION = "relative deviation from\nthe synchronous embeddings"


def overview(run: Run, path: str | Path | None = None) -> Figure:
    """The error by deadline against updates and against bytes, with the light cone, and the
    deviation over time: one curve for each schedule and graph, or their range and median if there
    are many."""
    with figure(9.6, 2.9, path) as fig:
        *axes, ax = fig.subplots(1, 3)
        panels(fig, axes, {run.rule: run.deadlines})
        ticks, values = run.deadlines.ticks[1:].tolist(), run.deadlines.deviation[1:]
        if run.history is not None:
            ticks, values = run.history_ticks, run.history
        seen = values.flatten(1).cpu().numpy()
        seen = np.where(seen > np.finfo(float).tiny, seen, np.nan)  # zero has no logarithm
        if seen.shape[1] <= MANY:
            ax.plot(ticks, seen, linewidth=0.8, alpha=0.75, **look(0))
        else:
            low, high = np.nanmin(seen, 1), np.nanmax(seen, 1)
            ax.fill_between(ticks, low, high, color=look(0)["color"], alpha=0.25, linewidth=0)
            ax.plot(ticks, np.nanmedian(seen, 1), **look(0))
        ax.set_yscale("log")
        ax.set_ylabel(DEVIATION)
        ax.set_xlabel("ticks")
        ax.set_xlim(left=0)
        ax.locator_params(axis="x", integer=True)
        ax.grid(axis="y")
    return fig


# -- error by deadline -----------------------------------------------------------------------------


def deadlines(
    seen: Deadlines | Mapping[str, Deadlines],
    path: str | Path | None = None,
    *,
    x: Sequence[str] = ("updates", "bytes"),
    title: str = "",
) -> Figure:
    """What nodes' answers are worth against what they have cost: the task's error (without a
    target: the deviation), one panel a cost. Lines are means over schedules and bands reach to the
    worst one; dotted lines are the synchronous errors. Where updates or ticks are on the axis, the
    grey band is the light cone, from its shortest to its longest over runs and graphs.

    Args:
        seen: ``run.deadlines`` of a run, or several by name.
        path: Where to save the picture.
        x: Costs: ``"ticks"``, ``"updates"``, ``"packets"``, ``"bytes"``.
        title: A heading.
    """
    several = seen if isinstance(seen, Mapping) else {seen.settings.rule: seen}
    if not several:
        raise ConfigError("deadlines({}) was given no run; expected at least one")
    if not x or not {*x} <= {*COSTS}:
        raise ConfigError(f"x={tuple(x)!r}; expected some of {', '.join(COSTS)}")
    metrics = {None if one.metric is None else one.metric.name for one in several.values()}
    if len(metrics) > 1:
        raise ConfigError(f"the runs were scored by {metrics}; expected one metric for all")
    with figure(3.1 * len(x), 2.9 + 0.15 * bool(title), path) as fig:
        panels(fig, list(fig.subplots(1, len(x), squeeze=False)[0]), several, x)
        fig.suptitle(title)
    return fig


def panels(
    fig: FigureBase,
    axes: Sequence[Axes],
    several: Mapping[str, Deadlines],
    x: Sequence[str] = ("updates", "bytes"),
) -> None:
    """Draw :func:`deadlines` on these axes of a figure."""
    for ax, cost in zip(axes, x, strict=True):
        _panel(ax, several, cost)
        ax.sharey(axes[0]) if ax is not axes[0] else None
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=8)
    metric = next(iter(several.values())).metric
    axes[0].set_ylabel(DEVIATION if metric is None else f"{metric.name} of what nodes answer")


def _panel(ax: Axes, several: Mapping[str, Deadlines], cost: str) -> None:
    """The errors of several runs against one cost."""
    first, least = next(iter(several.values())), np.inf
    for number, (name, one) in enumerate(several.items()):
        rows = [row for row in one.rows() if row[cost] > 0]
        if not rows:
            continue
        mean, worst = ("deviation", "deviation") if one.metric is None else ("error", "worst")
        at, values, far = (np.array([row[key] for row in rows]) for key in (cost, mean, worst))
        colour = look(number)["color"]
        ax.plot(at, values, marker=MARKS[number % len(MARKS)], markersize=3, label=name, zorder=3,
                markevery=max(1, len(rows) // 8), **look(number))  # fmt: skip
        ax.fill_between(at, values, far, color=colour, alpha=0.15, linewidth=0)
        if one.synchronous is not None:
            ax.axhline(float(one.synchronous.mean()), color=colour, zorder=1, **DOTTED)
        least = min(least, at.min())
    if cost in ("updates", "ticks") and first.cone.crossed:
        reach = getattr(first.cone, cost)
        low, high = float(reach.min()), float(reach.max())
        if high > 0:
            ax.axvspan(max(low, 1e-9), high * (1.0 if high > low else 1.02), color=GREY, alpha=0.45,
                       linewidth=0, label="light cone", zorder=0)  # fmt: skip
    if first.synchronous is not None:
        ax.plot([], [], color=INK, label="in step", **DOTTED)
    ax.set_xscale("log")
    if np.isfinite(least):
        ax.set_xlim(left=least)
    ticker, (low, high) = need("matplotlib.ticker"), ax.get_xlim()
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    if high < 300 * low:  # there would be too few powers of ten
        ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if first.metric is None:
        ax.set_yscale("log")
    elif first.metric.percent:
        ax.yaxis.set_major_formatter(per_cent)
    ax.set_xlabel(COSTS[cost])
    ax.grid(axis="y", color=INK, alpha=0.3)


# -- parts and trainings ---------------------------------------------------------------------------


def residuals(run: Any, path: str | Path | None = None) -> Figure:
    """The residual of every part over time, from what :func:`hogwild.cluster.infer` returned."""
    times, residual = np.array(run.trace.times), np.array(run.trace.residual)  # [T], [T, P]
    if not len(times):
        raise ConfigError("the run has no trace; expected one with several updates")
    with figure(4.2, 2.8, path) as fig:
        ax = fig.subplots()
        for part, values in enumerate(np.where(residual > 0, residual, np.nan).T):
            rate = run.updates[part] / max(times[-1], 1e-9)
            label = f"part {part}: {rate:.3g} updates/s"
            ax.plot(times, values, label=label, **(look(part) | {"linewidth": 0.9}))
        ax.set_yscale("log")
        ax.set_xlabel("seconds")
        ax.set_ylabel("largest entry of the residual")
        ax.grid(axis="y")
        if residual.shape[1] <= 8:
            ax.legend()
    return fig


def curves(
    history: Sequence[Mapping[str, Any]], metric: str, path: str | Path | None = None
) -> Figure:
    """Training loss and validation metric over the epochs, a curve for each replica. The lines of
    the history have ``epoch``, ``loss`` [R] and ``validation`` [R] each."""
    epochs = [line["epoch"] for line in history]
    with figure(8.0, 3.0, path) as fig:
        labels = {"loss": "training loss", "validation": f"validation {metric}"}
        for ax, (key, label) in zip(fig.subplots(1, 2), labels.items(), strict=True):
            lines = [[float("nan") if v is None else v for v in line[key]] for line in history]
            mark = "." if len(epochs) < 2 else None
            ax.plot(epochs, lines, linewidth=0.8, alpha=0.7, marker=mark)
            ax.set_xlabel("epoch")
            ax.locator_params(axis="x", integer=True, min_n_ticks=1)
            ax.set_ylabel(label)
            if key == "loss" and not any(v <= 0 for line in lines for v in line):
                ax.set_yscale("log")
    return fig
