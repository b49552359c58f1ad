"""Pictures of tracked runs: error, lag and score over time, with the changes marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hogwild.executors.track_result import Track
from hogwild.plots.style import GREY, INK, figure, look

if TYPE_CHECKING:
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
    scores = [one.score for one in tracks.values() if one.score is not None]
    scored = len(scores) == len(tracks)
    heights = [3.0, 1.4, 2.0] if scored else [3.0, 1.4]
    with figure(6.0, 0.35 + 0.75 * sum(heights), path) as fig:
        axes = fig.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        for number, (name, one) in enumerate(tracks.items()):
            line = look(number)
            size = float(one.answers.square().nanmean().sqrt())
            error = np.nanquantile(one.error.flatten(1).numpy() / size, (0.25, 0.5, 0.75), axis=1)
            low, middle, high = np.maximum(error, FLOOR)
            axes[0].fill_between(one.times, low, high, color=line["color"], alpha=0.18, linewidth=0)
            axes[0].plot(one.times, middle, label=name, **line)
            axes[1].plot(one.times, one.lag.double().mean(1), **line)
            if scored:
                assert one.score is not None
                assert one.exact_score is not None
                axes[2].plot(one.times, one.score.double().mean(1), **line)
                edges = [*one.scenario.times, one.scenario.length]
                axes[2].stairs(one.exact_score, edges, baseline=None, color=line["color"],
                               linewidth=0.7, alpha=0.6, linestyle=(0, (1, 1)))  # fmt: skip
        for ax in axes:
            if len(first.changes) > CROWDED:
                ax.plot(first.changes, np.zeros(len(first.changes)), "|", color=INK, markersize=3,
                        transform=ax.get_xaxis_transform(), clip_on=False,
                        linewidth=0.4)  # fmt: skip
            else:
                for tick in first.changes:
                    ax.axvline(tick, color=GREY, linewidth=0.5, zorder=0)
            ax.grid(axis="y")
        axes[0].set_yscale("log")
        axes[0].set_ylabel("error of a node,\nrelative to embeddings")
        axes[1].set_ylabel("lag (ticks)")
        axes[1].set_ylim(bottom=0)
        if scored:
            # Limits that show what comes after the beginning, at which nodes know nothing.
            later = torch.cat([score[len(first.times) // 10 :].flatten() for score in scores])
            least, most = float(later.min()), float(later.max())
            pad = 0.15 * (most - least) + 1e-12
            axes[2].set_ylim(least - pad, most + pad)
            axes[2].set_ylabel(first.score_name)
        axes[-1].set_xlabel("ticks; vertical lines: the graph or its features change")
        axes[-1].set_xlim(0, first.scenario.length)
        if any(tracks):
            fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        else:
            axes[0].set_title(f"{first.scenario.name}, rule {first.rule}")
    return fig
