"""Nested dissection: in which order to eliminate the nodes of a graph.

Connectivity only, no numbers: a graph becomes a tree of :class:`Front` s, which
:mod:`hogwild.solvers.fronts` turns into batched dense operations.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components


class TooWide(Exception):
    """The graph has no small separators: use conjugate gradients."""


@dataclass
class Front:
    """Nodes eliminated together, and the nodes eliminated later that they touch by then."""

    pivots: np.ndarray
    boundary: np.ndarray
    parent: int  # the front of the first boundary node, -1 at a root
    height: int = 0  # of the tree below


class Elimination:
    """The fronts of one graph, and where each node sits in each of them."""

    def __init__(self, fronts: list[Front], n: int) -> None:
        self.fronts = fronts
        self.first = np.empty(n, int)  # front that eliminates each node
        self._where: list[dict[int, int]] = []
        for f, front in enumerate(fronts):
            self.first[front.pivots] = f
            here = {int(v): i for i, v in enumerate(front.pivots)}
            here |= {int(v): ~i for i, v in enumerate(front.boundary)}
            self._where.append(here)

    def locate(self, front: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Position of nodes in fronts: i for the i-th pivot, ~i for the i-th boundary node."""
        if len(self.fronts) == 1:
            return node
        pairs = zip(front.tolist(), node.tolist(), strict=True)
        return np.fromiter((self._where[f][v] for f, v in pairs), int, len(node))


_ANALYSED: dict[tuple[bytes, int, int], Elimination] = {}


def eliminate(n: int, rows: np.ndarray, cols: np.ndarray, leaf: int, widest: int) -> Elimination:
    """Elimination of a graph with this pattern; equal graphs are analysed once per process.

    Args:
        n: Number of nodes; with ``n <= leaf`` the graph is a single front.
        rows: One end of every off-diagonal entry.
        cols: The other end.
        leaf: Pieces of at most this many nodes are not split further.
        widest: Separators of more nodes raise :class:`TooWide`.
    """
    if n <= leaf:
        return Elimination([Front(np.arange(n), np.empty(0, int), -1)], n)
    pattern = hashlib.blake2b(n.to_bytes(8, "little") + rows.tobytes() + cols.tobytes()).digest()
    key = (pattern, leaf, widest)
    if key not in _ANALYSED:
        if len(_ANALYSED) >= 4096:
            _ANALYSED.clear()
        ones = np.ones(2 * len(rows), bool)
        ends = (np.concatenate([rows, cols]), np.concatenate([cols, rows]))
        adjacency = csr_matrix((ones, ends), shape=(n, n))
        _ANALYSED[key] = Elimination(dissect(adjacency, leaf, widest), n)
    return _ANALYSED[key]


def dissect(adjacency: csr_matrix, leaf: int, widest: int) -> list[Front]:
    """Fronts of one graph in an order in which children precede their parents."""
    fronts: list[Front] = []
    n = adjacency.shape[0]
    # (nodes, parent) still to be split; parents are created before their children.
    work: list[tuple[np.ndarray, int]] = [(np.arange(n), -1)]
    while work:
        nodes, parent = work.pop()
        if len(nodes) <= leaf:
            fronts.append(Front(nodes, np.empty(0, int), parent))
            continue
        sub = adjacency[nodes][:, nodes]
        count, label = connected_components(sub, directed=False)
        if count > 1:
            work += [(nodes[label == c], parent) for c in range(count)]
            continue
        separator = _separator(sub)
        if len(separator) > widest:
            raise TooWide
        if len(separator) >= len(nodes) - 1:
            fronts.append(Front(nodes, np.empty(0, int), parent))
            continue
        rest = np.setdiff1d(np.arange(len(nodes)), separator)
        fronts.append(Front(nodes[separator], np.empty(0, int), parent))
        work.append((nodes[rest], len(fronts) - 1))
    # Reverse: children first. Then boundaries bottom-up, and heights.
    last = len(fronts) - 1
    fronts = fronts[::-1]
    for front in fronts:
        front.parent = last - front.parent if front.parent >= 0 else -1
    eliminated_by = np.empty(n, int)
    for f, front in enumerate(fronts):
        eliminated_by[front.pivots] = f
    inherited: dict[int, list[np.ndarray]] = defaultdict(list)
    indptr, indices = adjacency.indptr, adjacency.indices
    for f, front in enumerate(fronts):
        touched = [indices[indptr[p] : indptr[p + 1]] for p in front.pivots] + inherited.pop(f, [])
        reach = np.unique(np.concatenate(touched)) if touched else np.empty(0, int)
        reach = reach[eliminated_by[reach] > f]
        # Boundary in elimination order: a child's lower triangle lands in its parent's.
        front.boundary = reach[np.lexsort((reach, eliminated_by[reach]))]
        front.pivots = np.sort(front.pivots)
        if len(front.boundary):
            # The parent of the elimination tree is the front of the first boundary node.
            front.parent = int(eliminated_by[front.boundary[0]])
            fronts[front.parent].height = max(fronts[front.parent].height, front.height + 1)
            inherited[front.parent].append(front.boundary)
        else:
            front.parent = -1
    return fronts


def _separator(adjacency: csr_matrix) -> np.ndarray:
    """A small set of nodes whose removal splits a connected graph into balanced pieces.

    A level of a breadth-first search from the periphery separates what lies before it from what
    lies behind; of the levels in the middle half the smallest is taken.
    """
    n = adjacency.shape[0]
    start = 0
    for _ in range(2):  # twice: the far end of a search from the far end
        order, before = breadth_first_order(adjacency, start, directed=False)
        start = order[-1]
    depth = np.zeros(n, int)
    for node in order[1:]:
        depth[node] = depth[before[node]] + 1
    sizes = np.bincount(depth)
    passed = np.cumsum(sizes)
    middle = np.flatnonzero((passed - sizes >= n // 4) & (n - passed >= n // 4))
    if len(middle) == 0:  # no level in the middle half: the one that contains the median
        middle = np.array([int(np.searchsorted(passed, n // 2))])
    level = middle[np.argmin(sizes[middle])]
    candidates = np.flatnonzero(depth == level)
    if level + 1 == len(sizes):
        return candidates
    # Only nodes that really touch the far side are needed.
    behind = np.flatnonzero(depth == level + 1)
    touched = np.unique(adjacency[behind].indices)
    return np.intersect1d(candidates, touched)
