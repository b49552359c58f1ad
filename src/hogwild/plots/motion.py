"""Pictures of tracked runs: error, lag and score over time, with the changes marked; and a picture
that moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hogwild.errors import ConfigError
from hogwild.executors.track_result import Track
from hogwild.plots.style import BLUE, GREY, INK, RED, figure, look, need

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
            mark_changes(ax, first)
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


def mark_changes(ax: Axes, one: Track) -> None:
    """Mark the changes of a scenario."""
    if len(one.changes) > CROWDED:
        ax.plot(one.changes, np.zeros(len(one.changes)), "|", color=INK, markersize=3,
                transform=ax.get_xaxis_transform(), clip_on=False, linewidth=0.4)  # fmt: skip
        return
    for tick in one.changes:
        ax.axvline(tick, color=GREY, linewidth=0.5, zorder=0)


def animate(
    track: Track, path: str | Path, *, frames: int = 120, fps: int = 12, run: int = 0
) -> Path:
    """Write a tracked run as a GIF: the nodes where they are, coloured by their error, and the
    error over time.

    Args:
        track: What :func:`hogwild.track` returned; its scenario has positions (``data.pos``).
        path: Where to write; it ends in .gif.
        frames: Most pictures; moments in between are left out.
        fps: Pictures a second.
        run: Which of the runs.
    """
    where, scenario = Path(path), track.scenario
    if where.suffix.lower() != ".gif":
        raise ConfigError(f"path={str(path)!r} does not end in .gif; expected a GIF")
    if any(frame.data.get("pos") is None for frame in scenario):
        raise ConfigError(
            "the scenario has no positions; expected data.pos [N, 2] in every frame, or "
            "torch_geometric's layout of your choice put there"
        )
    error = track.error[:, run].numpy()
    fine = error[np.isfinite(error) & (error > FLOOR)]
    low, high = np.quantile(fine, [0.02, 0.995]) if fine.size else (1e-6, 1.0)
    norm = need("matplotlib.colors").LogNorm(max(low, FLOOR), max(high, 10.0 * low))
    colours = need("matplotlib").colormaps["viridis"]
    lines = need("matplotlib.collections").LineCollection
    places = torch.cat([frame.data.pos for frame in scenario]).numpy()
    pad = 0.04 * np.ptp(places, axis=0).max()
    (left, bottom), (right, top) = places.min(0) - pad, places.max(0) + pad
    row = {int(i): n for n, i in enumerate(track.ids.tolist())}
    moments = np.unique(np.linspace(0, len(track.times) - 1, frames).round().astype(int))
    where.parent.mkdir(parents=True, exist_ok=True)
    with figure(6.4, 3.4) as fig:
        ax, beside = fig.subplots(1, 2, width_ratios=[1.0, 1.05])
        worst, middle = np.nanmax(error, 1), np.nanmedian(error, 1)
        beside.plot(track.times, np.maximum(worst, FLOOR), color=GREY, label="worst node")
        beside.plot(track.times, np.maximum(middle, FLOOR), color=BLUE, label="median node")
        mark_changes(beside, track)
        beside.set_yscale("log")
        beside.set_xlim(0, scenario.length)
        beside.set_xlabel("ticks")
        beside.set_title("error")
        beside.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
        now = beside.axvline(0, color=RED, linewidth=1.0)
        scale = need("matplotlib.cm").ScalarMappable(norm, colours)
        fig.colorbar(scale, ax=ax, orientation="horizontal", shrink=0.8, pad=0.02,
                     label="error of a node")  # fmt: skip
        writer: Any = need("matplotlib.animation").PillowWriter(fps=fps)
        with writer.saving(fig, str(where), dpi=110):
            for moment in moments:
                tick = track.times[moment]
                frame = scenario.at(tick)
                place, edges = frame.data.pos.numpy(), frame.data.edge_index
                seen = error[moment][[row[i] for i in frame.ids.tolist()]]
                ax.clear()
                once = edges[:, edges[0] < edges[1]].T.numpy()
                ax.add_collection(lines(place[once], colors=GREY, linewidths=0.5, zorder=1))
                colour = colours(norm(np.maximum(seen, norm.vmin)))
                ax.scatter(*place.T, s=26, c=colour, edgecolors=INK, linewidths=0.4, zorder=2)
                ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[])
                ax.set_title(f"{scenario.name}, tick {tick}, {len(place)} nodes")
                now.set_xdata([tick, tick])
                writer.grab_frame()
    return where
