"""Large graphs to try things on: lattices, random geometric graphs and scale-free graphs.

All are undirected (every edge is there in both directions), functions of a seed, and written in
chunks: with a folder, memory does not grow with the number of edges. Node features are standard
normal numbers. Neighbours mostly have close numbers, as in real data that were sorted.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from hogwild.cluster.sources import Rows
from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, is_number, require_integer, require_positive

Array = npt.NDArray[Any]

CHUNK = 1 << 20
"""Nodes that are generated at a time."""
STRIP = 1 << 17
"""Nodes of a random geometric graph whose neighbours are searched at a time."""


def grid(
    rows: int,
    columns: int | None = None,
    *,
    diagonals: bool = True,
    channels: int = 2,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Whole:
    """A lattice.

    Args:
        rows: Number of rows.
        columns: Number of columns; default: ``rows``.
        diagonals: Also join each node with its lower right neighbour. A node in the middle then has
            six neighbours, otherwise four.
        channels: Width of the node features.
        seed: Seed of the features.
        folder: Where the arrays are written; ``None``: they stay in memory.
    """
    columns = rows if columns is None else columns
    require_positive("rows", rows)
    require_positive("columns", columns)
    edges, pos = Rows(_folder(folder), "edges"), Rows(_folder(folder), "pos")
    edges.add(np.empty((0, 2), np.int64))
    step = max(CHUNK // columns, 1)
    for first in range(0, rows, step):
        row, column = np.divmod(np.arange(first * columns, min(first + step, rows) * columns),
                                columns)  # fmt: skip
        node = row * columns + column
        pos.add(np.stack([column, row], 1).astype(np.float64))
        right, down = column + 1 < columns, row + 1 < rows
        ahead = [(right, 1), (down, columns)] + ([(right & down, columns + 1)] * diagonals)
        pairs = [np.stack([node[some], node[some] + shift], 1) for some, shift in ahead]
        _both(edges, np.concatenate(pairs))
    return _whole(edges, rows * columns, channels, seed, folder, pos=pos.done())


def geometric(
    nodes: int,
    degree: float = 6.0,
    *,
    channels: int = 2,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Whole:
    """Uniform points in the unit square, joined within the radius that gives a mean degree.

    Args:
        nodes: Number of points.
        degree: Mean number of neighbours (fewer near the border of the square).
        channels: Width of the node features.
        seed: Seed of points and features.
        folder: Where the arrays are written; ``None``: they stay in memory.
    """
    require_positive("nodes", nodes)
    if not (is_number(degree) and 0 < degree < math.inf):
        raise ConfigError(f"degree={degree!r}; expected a positive number")
    radius = math.sqrt(degree / (math.pi * nodes))
    # Strips across the square, no thinner than the radius: neighbours are in adjacent strips.
    strips = max(min(nodes // STRIP, int(1.0 / radius)), 1)
    points = np.random.default_rng(seed).random((nodes, 2))
    strip = np.minimum((points[:, 1] * strips).astype(np.int64), strips - 1)
    points = points[np.lexsort((points[:, 0], strip))]
    start = np.searchsorted(np.sort(strip), np.arange(strips + 1))
    edges = Rows(_folder(folder), "edges")
    edges.add(np.empty((0, 2), np.int64))
    for s in range(strips):
        here = np.arange(start[s], start[s + 1])
        if s + 1 < strips:
            above = np.arange(start[s + 1], start[s + 2])
            above = above[points[above, 1] <= (s + 1) / strips + radius]
            here = np.concatenate([here, above])
        if len(here) < 2:
            continue
        pairs = cKDTree(points[here]).query_pairs(radius, output_type="ndarray")
        pairs = here[pairs]
        _both(edges, pairs[pairs.min(1) < start[s + 1]])
    pos = Rows(_folder(folder), "pos")
    pos.add(points)
    return _whole(edges, nodes, channels, seed, folder, pos=pos.done())


def power_law(
    nodes: int,
    links: int = 3,
    *,
    channels: int = 2,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Whole:
    r"""Preferential attachment: every new node chooses earlier nodes by their degrees.

    The share of nodes of degree d falls as :math:`d^{-3}` (Barabási & Albert, 1999). Every choice
    is a function of its position and the seed alone (Sanders & Schulz, 2016), so that chunks are
    independent. Some edges may be parallel.

    Args:
        nodes: Number of nodes.
        links: Nodes that every new node chooses; the mean degree is about twice as large.
        channels: Width of the node features.
        seed: Seed of the choices and of the features.
        folder: Where the arrays are written; ``None``: they stay in memory.
    """
    require_positive("nodes", nodes)
    require_positive("links", links)
    edges = Rows(_folder(folder), "edges")
    edges.add(np.empty((0, 2), np.int64))
    for first in range(0, nodes * links, CHUNK):
        number = np.arange(first, min(first + CHUNK, nodes * links))
        # In the list of all ends, edge e has place 2e (its new node) and place 2e + 1: a copy of
        # the end at an earlier place.
        place = _earlier(2 * number + 1, seed)
        while (odd := place % 2 == 1).any():
            place[odd] = _earlier(place[odd], seed)
        pairs = np.stack([number // links, place // 2 // links], 1)
        _both(edges, pairs[pairs[:, 0] != pairs[:, 1]])
    return _whole(edges, nodes, channels, seed, folder)


def _earlier(place: Array, seed: int) -> Array:
    """A random place before each place, a function of place and seed (SplitMix64)."""
    z = place.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z % place.astype(np.uint64)).astype(np.int64)


def _folder(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)


def _both(edges: Rows, pairs: Array) -> None:
    """Add every pair in both directions."""
    edges.add(np.concatenate([pairs, pairs[:, ::-1]]))


def _whole(
    edges: Rows, nodes: int, channels: int, seed: int, folder: str | Path | None, **fields: Array
) -> Whole:
    require_positive("channels", channels)
    require_integer("seed", seed, 0)
    x = Rows(_folder(folder), "x")
    for chunk, first in enumerate(range(0, nodes, CHUNK)):
        random = np.random.default_rng([seed, 1, chunk])
        x.add(random.standard_normal((min(CHUNK, nodes - first), channels)))
    return Whole(edges.done().T, x.done(), node_fields=fields)
