"""A tracked run as a picture that moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hogwild.errors import ConfigError
from hogwild.executors.tracked import Track
from hogwild.plots.motion import FLOOR, mark_changes
from hogwild.plots.style import BLUE, GREY, INK, RED, STYLE, need

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
