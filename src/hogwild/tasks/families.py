r"""Families of connected graphs of any size, for tests of generalisation.

===========  =====================================================================================
``chain``    node i joined to i + 1
``tree``     a random recursive tree: each node joined to a uniformly drawn earlier one
``grid``     the first n cells of a square grid, row by row, joined to their four neighbours
``rgg``      n uniform points in the unit square, joined within a radius of mean degree about 6, or
             the least radius that makes the graph connected (the longest edge of the minimum
             spanning tree) if that is larger
===========  =====================================================================================
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from hogwild.errors import require_one_of

FAMILIES = ("chain", "tree", "grid", "rgg")


def undirected(i: np.ndarray, j: np.ndarray) -> Tensor:
    """Pairs, each named once, as ``edge_index`` with both directions, sorted by receiver."""
    both = np.stack([np.concatenate([i, j]), np.concatenate([j, i])])
    return torch.from_numpy(both[:, np.lexsort(both)].astype(np.int64))


def edges(family: str, n: int, random: np.random.Generator) -> Tensor:
    """``edge_index`` [2, E] of one connected graph of n nodes."""
    require_one_of(FAMILIES, graphs=family)
    node = np.arange(n)
    if family == "chain":
        return undirected(node[:-1], node[1:])
    if family == "tree":
        return undirected(random.integers(0, node[1:]), node[1:])
    if family == "grid":
        width = math.isqrt(max(n - 1, 0)) + 1  # the least square that holds n cells
        right = node[(node % width < width - 1) & (node + 1 < n)]
        down = node[node + width < n]
        return undirected(np.concatenate([right, down]), np.concatenate([right + 1, down + width]))
    distance = squareform(pdist(random.random((n, 2))))
    radius = math.sqrt(6 / (math.pi * n))
    radius = max(radius, minimum_spanning_tree(distance).max()) if n > 1 else radius
    i, j = np.nonzero(np.triu(distance <= radius, 1))
    return undirected(i, j)
