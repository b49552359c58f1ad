"""Pictures of tracked runs: error, lag and score over time, with the changes marked.

A tracked run is also shown as a picture that moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hogwild.errors import ConfigError
from hogwild.executors.track_result import Track
from hogwild.plots.style import BLUE, CYCLE, DASHES, GREY, INK, RED, STYLE, figure, need

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


FRAMES = 120
"""Most pictures of an animation, unless asked for otherwise."""


def animate(
    track: Track, path: str | Path, *, frames: int = FRAMES, fps: int = 12, run: int = 0
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
    where = Path(path)
    if where.suffix.lower() != ".gif":
        raise ConfigError(f"path={str(path)!r} does not end in .gif; expected a GIF")
    if any(frame.data.get("pos") is None for frame in track.scenario):
        raise ConfigError(
            "the scenario has no positions; expected data.pos [N, 2] in every frame, or "
            "torch_geometric's layout of your choice put there"
        )
    matplotlib, figures = need("matplotlib"), need("matplotlib.figure")
    agg = need("matplotlib.backends.backend_agg")
    images = need("PIL.Image")
    moments = np.unique(np.linspace(0, len(track.times) - 1, frames).round().astype(int))
    drawn = []
    with matplotlib.rc_context(STYLE):
        fig = figures.Figure(figsize=(6.4, 3.4), dpi=110, layout="constrained")
        canvas = agg.FigureCanvasAgg(fig)
        scene = _Scene(fig, track, run)
        for moment in moments:
            scene.draw(int(moment))
            canvas.draw()
            drawn.append(images.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    palette = drawn[len(drawn) // 2].quantize(128)
    shown = [image.quantize(palette=palette, dither=images.Dither.NONE) for image in drawn]
    where.parent.mkdir(parents=True, exist_ok=True)
    shown[0].save(where, save_all=True, append_images=shown[1:], duration=round(1000 / fps), loop=0)
    return where


class _Scene:
    """The figure and what moves in it."""

    def __init__(self, fig: Any, track: Track, run: int) -> None:
        self.track, self.run = track, run
        colors = need("matplotlib.colors")
        self.lines = need("matplotlib.collections").LineCollection
        self.place, right = fig.subplots(1, 2, width_ratios=[1.0, 1.05])
        error = track.error[:, run].numpy()
        fine = error[np.isfinite(error) & (error > FLOOR)]
        low, high = np.quantile(fine, [0.02, 0.995]) if fine.size else (1e-6, 1.0)
        self.norm = colors.LogNorm(max(low, FLOOR), max(high, 10.0 * low))
        self.map = need("matplotlib").colormaps["viridis"]
        places = torch.cat([frame.data.pos for frame in track.scenario]).numpy()
        self.least, self.most = places.min(0), places.max(0)
        middle = np.maximum(np.nanmedian(error, 1), FLOOR)
        worst = np.maximum(np.nanmax(error, 1), FLOOR)
        right.plot(track.times, worst, color=GREY, linewidth=0.7, label="worst node")
        right.plot(track.times, middle, color=BLUE, linewidth=1.0, label="median node")
        mark_changes(right, track)
        right.set_yscale("log")
        right.set_xlim(0, track.scenario.length)
        right.set_xlabel("ticks")
        right.set_title("error")
        right.legend(loc="upper right", fontsize=7, frameon=True, framealpha=0.9, edgecolor="none")
        self.now = right.axvline(0, color=RED, linewidth=1.0)
        scale = need("matplotlib.cm").ScalarMappable(self.norm, self.map)
        fig.colorbar(scale, ax=self.place, orientation="horizontal", shrink=0.8, pad=0.02,
                     label="error of a node")  # fmt: skip

    def draw(self, moment: int) -> None:
        """The picture of one moment."""
        track, ax = self.track, self.place
        tick = track.times[moment]
        frame = track.scenario.at(tick)
        place, edges = frame.data.pos.numpy(), frame.data.edge_index
        row = {int(i): n for n, i in enumerate(track.ids.tolist())}
        error = track.error[moment, self.run].numpy()[[row[i] for i in frame.ids.tolist()]]
        ax.clear()
        once = edges[:, edges[0] < edges[1]].T.numpy()
        ax.add_collection(self.lines(place[once], colors=GREY, linewidths=0.5, zorder=1))
        colour = self.map(self.norm(np.maximum(error, self.norm.vmin)))
        ax.scatter(*place.T, s=26, c=colour, edgecolors=INK, linewidths=0.4, zorder=2)
        pad = 0.04 * (self.most - self.least).max()
        ax.set_xlim(self.least[0] - pad, self.most[0] + pad)
        ax.set_ylim(self.least[1] - pad, self.most[1] + pad)
        ax.set_aspect("equal")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(f"{track.scenario.name}, tick {tick}, {len(place)} nodes")
        self.now.set_xdata([tick, tick])
