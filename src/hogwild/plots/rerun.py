"""A tracked run in Rerun, the viewer of robotics people (``pip install 'hogwild-gnn[rerun]'``).

The recording has a timeline of ticks. ``graph`` holds the nodes, coloured by their error, and the
edges; ``error``, ``lag`` and ``score`` are scalars; ``changes`` says what has changed.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.executors.tracked import Track
from hogwild.plots.motion import FLOOR

DARK, BRIGHT = np.array([68, 1, 84]), np.array([253, 231, 37])
"""Colours of small and large errors."""


def log(track: Track, path: str | Path | None = None, *, run: int = 0) -> None:
    """Log a tracked run to Rerun.

    Args:
        track: What :func:`hogwild.track` returned.
        path: Write the recording to this file (.rrd); ``None``: open the viewer.
        run: Which of the runs.
    """
    rr = _rerun()
    if path is not None and Path(path).suffix != ".rrd":
        raise ConfigError(f"path={str(path)!r} does not end in .rrd; expected a Rerun recording")
    recording = rr.RecordingStream("hogwild")
    if path is None:
        recording.spawn()
    else:
        recording.save(str(path))
    error = track.error[:, run].numpy()
    fine = error[np.isfinite(error) & (error > FLOOR)]
    low, high = (np.log(fine.min()), np.log(fine.max())) if fine.size else (0.0, 1.0)
    row = {int(i): n for n, i in enumerate(track.ids.tolist())}
    for moment, tick in enumerate(track.times):
        recording.set_time("tick", sequence=tick)
        frame = track.scenario.at(tick)
        ids = frame.ids.tolist()
        mine = error[moment][[row[i] for i in ids]]
        share = (np.log(np.maximum(mine, FLOOR)) - low) / max(high - low, 1e-12)
        colours = (DARK + np.clip(share, 0.0, 1.0)[:, None] * (BRIGHT - DARK)).astype(np.uint8)
        pos, names = frame.data.get("pos"), [str(i) for i in ids]
        places = None if pos is None else pos.numpy() * np.array([100.0, -100.0])
        edges = [(names[j], names[i]) for j, i in frame.data.edge_index.T.tolist() if j < i]
        recording.log(
            "graph",
            rr.GraphNodes(names, positions=places, colors=colours),
            rr.GraphEdges(edges, graph_type="undirected"),
        )
        scalars = {
            "error/median": np.nanmedian(error[moment]),
            "error/worst": np.nanmax(error[moment]),
            "lag": float(track.lag[moment, run]),
        }
        if track.score is not None:
            scalars["score"] = float(track.score[moment, run])
        for name, value in scalars.items():
            recording.log(name, rr.Scalars(float(value)))
    for number, tick in enumerate(track.changes):
        recording.set_time("tick", sequence=tick)
        moved = float(track.moves[number])
        recording.log(
            "changes", rr.TextLog(f"change {number + 1}: the answer moves by {moved:.3g}")
        )
    recording.flush()
    recording.disconnect()


def _rerun() -> Any:
    try:
        return importlib.import_module("rerun")
    except ImportError as error:
        raise ImportError(
            "rerun is missing, which shows runs; install it with: pip install 'hogwild-gnn[rerun]'"
        ) from error
