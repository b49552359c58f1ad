"""Charts of predictions under many schedules, and heat maps of sweeps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hogwild.analysis.sweep import VALUES, Sweep
from hogwild.errors import ConfigError
from hogwild.plots.courses import panels
from hogwild.plots.style import BLUE, DASHED, INK, figure, need, per_cent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hogwild.analysis.robustness import Robustness

BINS = 41
"""A histogram has about so many bins."""
LITTLE = 0.01
"""The colour scale of a sweep covers at least this share: smaller differences should not show."""

# -- predictions -----------------------------------------------------------------------------------


def output_histogram(
    results: Robustness | Sequence[Robustness],
    item: int = 0,
    output: int = 0,
    *,
    titles: Sequence[str] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """A histogram of one node's (or graph's) output over schedules, with the synchronous output.

    Args:
        results: What :func:`hogwild.robustness` returned, for one model or for several side by
            side, with many runs.
        item: The node (or graph).
        output: Which of its outputs.
        titles: A title for each result; the models' names by default.
        path: Where to save the picture.
    """
    many = results if isinstance(results, Sequence) else [results]
    with figure(2.6 * len(many), 2.2, path) as fig:
        axes = fig.subplots(1, len(many), squeeze=False)[0]
        histograms(list(axes), many, item, output, titles)
    return fig


def histograms(
    axes: Sequence[Axes],
    results: Sequence[Robustness],
    item: int,
    output: int,
    titles: Sequence[str] | None = None,
) -> None:
    """Draw :func:`output_histogram` on these axes. Where all outputs agree, the axis reaches half
    of the largest output to either side."""
    for number, (ax, result) in enumerate(zip(axes, results, strict=True)):
        if result.prediction.dim() > 2:
            raise ConfigError("the model has replicas; expected a result of a single model")
        outputs = result.run.predictions[:, item, output].double().cpu().numpy()
        before = float(result.prediction[item, output])
        size = float(result.prediction.abs().max()) or 1.0
        apart = (outputs - before) / size
        low, high = -0.5, 0.5
        if np.ptp(np.append(apart, 0.0)) > 1e-3:
            low, high = min(float(apart.min()), 0.0), max(float(apart.max()), 0.0)
        edges = _edges(before, low * size, high * size, outputs)
        counts, _ = np.histogram(outputs, edges)
        ax.bar(edges[:-1], counts / len(outputs), np.diff(edges), align="edge", color=BLUE)
        ax.axvline(before, label="synchronous", **DASHED)
        ax.set_title(result.model if titles is None else titles[number])
        ax.set_xlim(edges[0], edges[-1])
        ax.set_xlabel(f"output of node {item}" if result.spread.numel() > 1 else "output")
        ax.locator_params(axis="y", nbins=5, steps=[1, 2, 5, 10])
        ax.yaxis.set_major_formatter(per_cent)
        ax.set_ylabel("schedules")
    axes[0].legend(loc="best")


def _edges(centre: float, low: float, high: float, values: np.ndarray) -> np.ndarray:
    """Edges of bins from low to high (offsets from the centre), with a bin around the centre; for
    whole numbers the width of a bin is a whole number."""
    width = (high - low) / BINS
    if np.allclose(np.append(values, centre), np.rint(np.append(values, centre))):
        width = max(math.ceil(width), 1)
    first, last = math.floor(low / width) - 1, math.ceil(high / width) + 1
    return centre + width * (np.arange(first, last + 2) - 0.5)


def comparison(result: Robustness, path: str | Path | None = None) -> Figure:
    """The metric under every schedule beside the synchronous one (with a target), and asynchronous
    against synchronous predictions: they agree on the diagonal. Below, the error by deadline."""
    scored = result.metric is not None
    with figure(5.6, 5.8, path) as fig:
        above, below = fig.subfigures(2, 1, squeeze=False)[:, 0]
        axes = above.subplots(1, 1 + scored, squeeze=False, width_ratios=[1, 1.6][1 - scored :])[0]
        if scored:
            _performance(axes[0], result)
        _diagonal(axes[-1], result)
        panels(below, list(below.subplots(1, 2)), result.compared)
        made = result.settings
        impaired = "".join(f", {impairment!r}" for impairment in made.impairments)
        head = f"{result.model} ({result.kind}), S = {made.stagger}, D = {made.delay}{impaired}"
        fig.suptitle(textwrap.fill(head, 80))
    return fig


def _performance(ax: Axes, result: Robustness) -> None:
    assert result.metric is not None
    assert result.synchronous is not None
    assert result.asynchronous is not None
    after = result.asynchronous.reshape(len(result.asynchronous), -1)
    for number, before in enumerate(result.synchronous.reshape(-1).tolist()):
        label = "synchronous" if number == 0 else None
        ax.axhline(before, label=label, clip_on=False, **DASHED)
    dots = ax.plot(after.numpy(), "o", color=BLUE, markersize=4, clip_on=False)
    dots[0].set_label("schedules")
    if result.metric.percent:
        ax.yaxis.set_major_formatter(per_cent)
    ax.locator_params(axis="x", integer=True)
    middle = float(result.synchronous.mean())
    both = torch.cat([after.flatten(), result.synchronous.reshape(-1)])
    reach = float(both.sub(middle).abs().max())
    reach = max(1.3 * reach, 0.05 * abs(middle)) or 1.0  # differences by rounding stay small
    if math.isfinite(reach):
        low, high = middle - reach, middle + reach
        if min(middle, float(after.min())) >= 0.0:  # an error, a share: never negative
            low = max(low, 0.0)
        ax.set_ylim(low, min(high, 1.0) if result.metric.percent else high)
    ax.set_xlabel("schedule")
    ax.set_ylabel(result.metric.name)
    ax.legend(loc="best")


def _diagonal(ax: Axes, result: Robustness) -> None:
    after = result.run.predictions.cpu()
    before = result.prediction.cpu().expand_as(after).flatten().numpy()
    low, high = float(before.min()), float(before.max())
    ax.plot([low, high], [low, high], label="agreement", **DASHED)
    ax.plot(before, after.flatten().numpy(), "o", color=BLUE, markersize=2.5, alpha=0.5,
            markeredgewidth=0, rasterized=True)  # fmt: skip
    ax.set_xlabel("synchronous predictions")
    ax.set_ylabel("asynchronous predictions")
    ax.legend(loc="best")


# -- heat maps -------------------------------------------------------------------------------------


def heatmap(sweep: Sweep, value: str | None = None, path: str | Path | None = None) -> Figure:
    """A table over S and D for every rate of loss, in colours of one scale. ``value`` is as in
    :meth:`Sweep.grid <hogwild.analysis.sweep.Sweep.grid>`.

    The scale covers at least a hundredth (of the largest prediction, of all items, or of the
    synchronous performance) and at least a hundred times the tolerance, so that numbers as small as
    rounding look like zero.
    """
    value, head = sweep.check_value(value), sweep.first
    metric = head.metric if value == "decrease" else None
    percent, span = value == "converged", 1.0
    little = max(LITTLE, 100 * head.run.tol)
    if metric is not None and not metric.percent:
        assert head.synchronous is not None
        largest = little * float(head.prediction.abs().max())
        span = little * max(float(head.synchronous.abs().mean()), largest)
    elif metric is not None or value in ("spread", "distance"):
        percent, span = metric is not None, little
    tables, rows, columns = sweep.grid(value).numpy(), sweep.staggers, sweep.delays
    finite = tables[np.isfinite(tables)]
    low, high = (min(finite.min(), 0.0), finite.max()) if finite.size else (0.0, 1.0)
    high = max(high, span) if max(high, span) > low else low + 1.0
    signed = low < -0.05 * high
    if signed:  # white is zero
        low, high = -max(high, -low), max(high, -low)
    colours = need("matplotlib").colormaps["PuOr_r" if signed else "cividis"]
    width, height = 0.9 + 0.55 * len(columns), 1.2 + 0.42 * len(rows)
    with figure(max(len(tables) * width + 0.9, 3.4), height, path) as fig:
        axes = fig.subplots(1, len(tables), squeeze=False, sharey=True)[0]
        for ax, table, loss in zip(axes, tables, sweep.losses, strict=True):
            image = ax.imshow(table, vmin=low, vmax=high, cmap=colours, aspect="auto")
            ax.set_xticks(range(len(columns)), map(str, columns))
            ax.set_yticks(range(len(rows)), map(str, rows))
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
            for (i, j), number in np.ndenumerate(table):
                light = np.dot(colours((number - low) / (high - low))[:3], (0.3, 0.6, 0.1)) > 0.5
                ax.text(j, i, _short(number, percent), ha="center", va="center", fontsize=7,
                        color=INK if light or not np.isfinite(number) else "white")  # fmt: skip
            ax.set_xlabel("delay D" if sweep.lag == "D" else sweep.lag)
            if any(sweep.losses):
                ax.set_title(f"{loss:.0%} of packets lost")
        axes[0].set_ylabel("stagger S")
        label = VALUES[value] + ("" if metric is None else f" ({metric.name})")
        # Longer lines would leave the picture.
        lines = textwrap.fill(label, max(int((height - 0.9) / 0.075), 12))
        bar = fig.colorbar(image, ax=list(axes), label=lines)
        bar.outline.set(visible=False)
        if percent:
            bar.ax.yaxis.set_major_formatter(per_cent)
        fig.suptitle(sweep.heading)
    return fig


def _short(value: float, percent: bool) -> str:
    if not np.isfinite(value):
        return "–"
    if percent:
        return f"{100 * value:.1f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) >= 1e-12 else "0"
