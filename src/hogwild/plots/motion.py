"""Pictures of tracked runs: error, lag and score over time, with the changes marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hogwild.executors.tracked import Track
from hogwild.plots.style import CYCLE, DASHES, GREY, INK, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CROWDED = 60
"""With more changes than this, the changes are ticks at the lower edge and not lines."""
FLOOR = 1e-9
"""Smaller errors are drawn here."""


def tracking(track: Track | Mapping[str, Track], path: str | Path | None = None) -> Figure:
    """Error of the nodes, lag and, where there are targets, score over time.

    Errors are relative to the size of the exact embeddings. The line is the median over nodes and
    runs, and half of the nodes lie in the band. Vertical lines mark changes of the graph or its
    features. The thin dotted line of a score is that of the exact answers.

    Args:
        track: What :func:`hogwild.track` returned, or several by name.
        path: Where to save the picture.
    """
    tracks = track if isinstance(track, Mapping) else {"": track}
    first = next(iter(tracks.values()))
    scored = all(one.score is not None for one in tracks.values())
    heights = [3.0, 1.4, 2.0] if scored else [3.0, 1.4]
    with figure(6.0, 0.35 + 0.75 * sum(heights), path) as fig:
        axes = fig.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        for number, (name, one) in enumerate(tracks.items()):
            colour, dash = CYCLE[number % len(CYCLE)], DASHES[number % len(DASHES)]
            _error(axes[0], one, name, colour, dash)
            lag = one.lag.double().mean(1)
            axes[1].plot(one.times, lag, color=colour, linestyle=dash, linewidth=0.9)
            if scored and one.score is not None:
                score = one.score.double().mean(1)
                axes[2].plot(one.times, score, color=colour, linestyle=dash, linewidth=0.9)
                _exact(axes[2], one, colour)
        for ax in axes:
            mark_changes(ax, first)
            ax.grid(axis="y", linewidth=0.3)
        axes[0].set_yscale("log")
        axes[0].set_ylabel("error of a node,\nrelative to embeddings")
        axes[1].set_ylabel("lag (ticks)")
        axes[1].set_ylim(bottom=0)
        if scored:
            axes[2].set_ylabel(first.score_name)
            _frame_scores(axes[2], tracks)
        axes[-1].set_xlabel("ticks; vertical lines: the graph or its features change")
        axes[-1].set_xlim(0, first.scenario.length)
        if any(tracks):
            fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        else:
            axes[0].set_title(f"{first.scenario.name}, rule {first.rule}")
    return fig


def _error(ax: Axes, one: Track, name: str, colour: str, dash: object) -> None:
    size = float(one.answers.square().nanmean().sqrt())
    error = one.error.flatten(1).numpy() / size
    low, middle, high = (
        np.maximum(np.nanquantile(error, q, axis=1), FLOOR) for q in (0.25, 0.5, 0.75)
    )
    ax.fill_between(one.times, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(one.times, middle, color=colour, linestyle=dash, linewidth=1.0, label=name)


def _exact(ax: Axes, one: Track, colour: str) -> None:
    """The score of the exact answers, as steps."""
    assert one.exact_score is not None
    edges = [*one.scenario.times, one.scenario.length]
    ax.stairs(one.exact_score, edges, baseline=None, color=colour, linewidth=0.7, alpha=0.6,
              linestyle=(0, (1, 1)))  # fmt: skip


def _frame_scores(ax: Axes, tracks: Mapping[str, Track]) -> None:
    """Limits that show what comes after the beginning, at which nodes know nothing."""
    found = [one.score[len(one.times) // 10 :] for one in tracks.values() if one.score is not None]
    least, most = min(float(x.min()) for x in found), max(float(x.max()) for x in found)
    pad = 0.15 * (most - least) + 1e-12
    ax.set_ylim(least - pad, most + pad)


def mark_changes(ax: Axes, one: Track) -> None:
    """Mark the changes of a scenario."""
    if len(one.changes) > CROWDED:
        ax.plot(one.changes, np.zeros(len(one.changes)), "|", color=INK, markersize=3,
                transform=ax.get_xaxis_transform(), clip_on=False, linewidth=0.4)  # fmt: skip
        return
    for tick in one.changes:
        ax.axvline(tick, color=GREY, linewidth=0.5, zorder=0)
