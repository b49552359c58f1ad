"""Points that move, who is near whom, and what they measure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist
from torch import Tensor

from hogwild.errors import ConfigError, DataError, require_integer
from hogwild.tasks.families import undirected
from hogwild.tasks.files import absent, data_home

FALL = 0.2
"""Distance, relative to the side of the square, at which a source is half as strong."""


def waypoints(n: int, steps: int, speed: float, random: np.random.Generator) -> np.ndarray:
    """Random waypoints: every point goes straight to a uniform point of the unit square, then to
    another one. Positions [steps + 1, n, 2]; a point goes ``speed`` far in a step. Points gather in
    the middle; they have done so before the first position, which is that of a point on its way."""
    require_integer("steps", steps, 0)
    if not 0.0 <= speed < math.inf:
        raise ConfigError(f"speed={speed!r}; expected a nonnegative number")
    # On its way: a pair of ends is met as often as their distance is long.
    ends = random.random((64, n, 2, 2))
    far = np.linalg.norm(ends[..., 0, :] - ends[..., 1, :], axis=-1)
    chosen = ends[(random.random((64, n)) * math.sqrt(2.0) < far).argmax(0), np.arange(n)]
    share, goal = random.random((n, 1)), chosen[:, 1]
    here = chosen[:, 0] + share * (goal - chosen[:, 0])
    out = [here]
    for _ in range(steps):
        way = goal - here
        far = np.linalg.norm(way, axis=1, keepdims=True)
        arrived = far[:, 0] <= speed
        here = np.where(far <= speed, goal, here + speed * way / np.maximum(far, 1e-12))
        goal = np.where(arrived[:, None], random.random((n, 2)), goal)
        out.append(here)
    return np.stack(out)


def radius_of(position: np.ndarray, degree: float) -> float:
    """The radius within which points [..., n, 2] have this many neighbours on average."""
    n = position.shape[-2]
    if not 0 < degree <= n - 1:
        raise ConfigError(f"degree={degree!r}; expected a number from 0 to {n - 1}")
    some = position.reshape(-1, n, 2)
    some = some[:: max(len(some) // 20, 1)]
    return float(np.quantile(np.concatenate([pdist(each) for each in some]), degree / (n - 1)))


def near(position: np.ndarray, radius: float) -> Tensor:
    """``edge_index`` of the points [n, 2] that are at most ``radius`` apart, both directions."""
    pairs = cKDTree(position).query_pairs(radius, output_type="ndarray")
    return undirected(pairs[:, 0], pairs[:, 1])


def strength(position: np.ndarray, source: np.ndarray, fall: float = FALL) -> np.ndarray:
    r"""What points [..., n, 2] measure of a source [..., 2]: :math:`1 / (1 + d^2 / f^2)`."""
    gap = position - source[..., None, :]
    return 1.0 / (1.0 + (gap**2).sum(-1) / fall**2)


def readings(
    place: np.ndarray,
    source: np.ndarray,
    noise: float,
    random: np.random.Generator,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[Tensor, Tensor]]:
    """For every position of a source [T, 2]: the features of sensors at ``place`` [n, 2], a noisy
    reading and the sensor's position [n, 3], and the source's position for every sensor [n, 2]."""
    for at in source:
        reading = strength(place, at) + noise * random.standard_normal(len(place))
        x = np.concatenate([reading[:, None], place], 1)
        y = torch.from_numpy(at).to(dtype).repeat(len(place), 1)
        yield torch.from_numpy(x).to(dtype), y


def mote_positions() -> np.ndarray:
    """The positions of the motes of the Intel Berkeley lab, [54, 2], in the unit square (scaled by
    the longer side)."""
    home, place = data_home(), "sensor/intel_lab_mote_locs.txt"
    if home is None or not (home / place).is_file():
        raise absent("the positions of the motes", place, "there is no such file")
    table = np.loadtxt(home / place, skiprows=1, ndmin=2)
    position = table[:, 1:3] - table[:, 1:3].min(0)
    return position / position.max()


def read_positions(path: str | Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions over time from a file: times [n], identities [n] and positions [n, 2].

    A CSV has the columns time, id, x, y and a line with these names first. An NPZ has arrays with
    these names.

    Raises:
        DataError: The file is not such a file.
    """
    path = Path(path)
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                columns = {name: np.asarray(file[name]) for name in ("time", "id", "x", "y")}
        else:
            table = np.genfromtxt(path, delimiter=",", names=True)
            columns = {name: np.atleast_1d(table[name]) for name in ("time", "id", "x", "y")}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"{path} has no positions over time ({error}); expected a CSV with the columns time, "
            f"id, x, y, or an NPZ with arrays of these names"
        ) from error
    if not all(np.isfinite(column).all() for column in columns.values()):
        raise DataError(f"{path} has entries that are no numbers; expected numbers only")
    return (
        columns["time"],
        columns["id"].astype(np.int64),
        np.stack([columns["x"], columns["y"]], -1).astype(float),
    )


def circling(steps: int, random: np.random.Generator, turns: float = 1.0) -> np.ndarray:
    """A source that moves along a smooth random curve in the unit square, [steps + 1, 2]."""
    time = np.linspace(0.0, 2.0 * math.pi * turns, steps + 1)
    phase = random.random((2, 3)) * 2.0 * math.pi
    size = np.array([0.5, 0.3, 0.2])
    waves = size * np.sin(np.outer(time, [1.0, 2.0, 3.0])[None] + phase[:, None])
    return 0.5 + 0.4 * waves.sum(-1).T / size.sum() * 1.2
