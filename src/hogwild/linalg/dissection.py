"""Nested dissection: in which order to eliminate the nodes of a graph.

This module uses the connectivity only: it makes a tree of :class:`Front` s from a graph, which
:mod:`hogwild.linalg.fronts` turns into batched dense operations. All graphs of a batch, and all of
their pieces, are split at once: a batch of a thousand molecules costs a few dozen passes over its
edges.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components


class TooWide(Exception):
    """The graph has no small separators; conjugate gradients are the better choice."""


@dataclass
class Front:
    """Nodes that are eliminated together (pivots), and the later nodes coupled to them
    (boundary)."""

    pivots: np.ndarray
    boundary: np.ndarray  # in the order of elimination
    parent: int  # the front of the first boundary node, -1 at a root
    height: int = 0  # of the tree below this front


class Elimination:
    """The fronts of one graph, children before parents, and where each node sits in each."""

    def __init__(self, fronts: list[Front], n: int) -> None:
        self.fronts = fronts
        self.first = np.empty(n, int)  # the front that eliminates each node
        self._where: list[dict[int, int]] = []
        for f, front in enumerate(fronts):
            self.first[front.pivots] = f
            here = {v: i for i, v in enumerate(front.pivots.tolist())}
            here |= {v: ~i for i, v in enumerate(front.boundary.tolist())}
            self._where.append(here)

    def locate(self, front: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Position of nodes in fronts: i for the i-th pivot, ~i for the i-th boundary node."""
        if len(self.fronts) == 1:
            return node
        pairs = zip(front.tolist(), node.tolist(), strict=True)
        return np.fromiter((self._where[f][v] for f, v in pairs), int, len(node))


@dataclass(frozen=True, eq=False)
class Shape:
    """A graph to be eliminated.

    Attributes:
        n: Number of nodes.
        rows: One end of every off-diagonal entry.
        cols: The other end.
    """

    n: int
    rows: np.ndarray
    cols: np.ndarray

    @property
    def digest(self) -> bytes:
        """A hash; equal graphs have equal hashes."""
        ends = self.rows.tobytes() + self.cols.tobytes()
        return hashlib.blake2b(self.n.to_bytes(8, "little") + ends).digest()


_ANALYSED: dict[tuple[bytes, int, int], Elimination] = {}
"""Eliminations by the digest of a graph. The table belongs to the process and not to a
:class:`Graph`, because mini-batches are new ``Graph`` objects of known graphs: dissecting 200 of
them again takes a quarter of a training step (``benchmarks/training_step.py``)."""
_ANALYSED_MOST = 1 << 12
"""Eliminations after which the table is emptied, to bound its memory."""


def eliminate(
    shapes: Sequence[Shape], whole: Sequence[bool], leaf: int, widest: int
) -> list[Elimination]:
    """Eliminations of graphs; equal graphs are analysed once per process.

    Args:
        shapes: The graphs.
        whole: Whether each is to be a single front.
        leaf: Pieces of at most this many nodes are not split further.
        widest: Separators of more nodes raise :class:`TooWide`.
    """
    keys = [
        None if single or shape.n <= leaf else (shape.digest, leaf, widest)
        for shape, single in zip(shapes, whole, strict=True)
    ]
    new = {
        key: shape
        for key, shape in zip(keys, shapes, strict=True)
        if key is not None and key not in _ANALYSED
    }
    found = dict(zip(new, dissect(list(new.values()), leaf, widest), strict=True))
    # The table is cleared only after its values were read.
    out = [
        Elimination([Front(np.arange(shape.n), np.empty(0, int), -1)], shape.n)
        if key is None
        else found.get(key) or _ANALYSED[key]
        for key, shape in zip(keys, shapes, strict=True)
    ]
    if len(_ANALYSED) + len(found) > _ANALYSED_MOST:
        _ANALYSED.clear()
    _ANALYSED.update(found)
    return out


def dissect(shapes: Sequence[Shape], leaf: int, widest: int) -> list[Elimination]:
    """Split graphs by small separators until their pieces have at most ``leaf`` nodes."""
    if not shapes:
        return []
    sizes = np.array([shape.n for shape in shapes])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.concatenate([s.rows + at for s, at in zip(shapes, starts, strict=False)])
    cols = np.concatenate([s.cols + at for s, at in zip(shapes, starts, strict=False)])
    links = _symmetric(rows, cols, starts[-1])
    fronts = _order(links, leaf, widest)
    # Fronts of one graph together, in an unchanged order.
    owner = np.searchsorted(starts, [front[0] for front in fronts], side="right") - 1
    order = np.argsort(owner, kind="stable")
    trees = _boundaries([fronts[f] for f in order], links)
    cuts = np.cumsum(np.bincount(owner, minlength=len(shapes)))
    out = []
    for shape, at, begin, end in zip(shapes, starts, [0, *cuts], cuts, strict=False):
        mine = trees[begin:end]
        for front in mine:
            front.pivots -= at
            front.boundary -= at
            front.parent = max(front.parent - begin, -1)
        out.append(Elimination(mine, shape.n))
    return out


def first_separator(shape: Shape) -> int:
    """Nodes of the first separator of the largest connected piece of a graph; for large graphs, in
    little memory."""
    ends = (shape.rows.astype(np.int32), shape.cols.astype(np.int32))
    links = csr_matrix((np.ones(len(ends[0]), np.int8), ends), shape=(shape.n, shape.n))
    del ends
    links = links + links.T
    count, piece = connected_components(links, directed=False)
    if count > 1:
        rest = np.flatnonzero(piece == np.argmax(np.bincount(piece)))
        links = links[rest][:, rest]
    return int(_separators(links, np.zeros(links.shape[0], int)).sum())


def _symmetric(rows: np.ndarray, cols: np.ndarray, n: int) -> csr_matrix:
    """The adjacency matrix with links in both directions."""
    ends = (np.concatenate([rows, cols]), np.concatenate([cols, rows]))
    return csr_matrix((np.ones(2 * len(rows), np.int8), ends), shape=(n, n))


def _order(links: csr_matrix, leaf: int, widest: int) -> list[np.ndarray]:
    """The nodes of every front; pieces come before the separators between them."""
    fronts: list[np.ndarray] = []
    nodes = np.arange(links.shape[0])  # not in a front yet
    while len(nodes):
        count, piece = connected_components(links, directed=False)
        sizes = np.bincount(piece, minlength=count)
        done = sizes[piece] <= leaf
        cut = np.zeros(len(nodes), bool)
        rest = np.flatnonzero(~done)
        if len(rest):
            _, large = np.unique(piece[rest], return_inverse=True)
            cut[rest] = _separators(links[rest][:, rest], large)
            cuts = np.bincount(piece[cut], minlength=count)
            if cuts.max() > widest:
                raise TooWide
            # A piece that is nearly all separator is not split.
            done |= (cuts >= sizes - 1)[piece]
        here = np.flatnonzero(done | cut)
        here = here[np.argsort(piece[here], kind="stable")]
        ends = np.flatnonzero(np.diff(piece[here])) + 1
        fronts += np.split(nodes[here], ends)
        left = np.flatnonzero(~(done | cut))
        nodes, links = nodes[left], links[left][:, left]
    return fronts[::-1]


def _separators(links: csr_matrix, piece: np.ndarray) -> np.ndarray:
    """A small set of nodes of every connected piece that splits it into balanced parts: a mask [N].

    Every level of a breadth-first search from the periphery separates the nodes before it from the
    nodes behind it. The smallest of the levels in the middle half is taken.
    """
    sizes = np.bincount(piece)
    _, start = np.unique(piece, return_index=True)
    order, _ = _search(links, start)
    start[piece[order]] = order  # the last node found in each piece: its far end
    order, before = _search(links, start)
    depth = _depths(before)

    # Levels of all pieces, by piece and depth.
    deepest = int(depth.max()) + 1
    key, counts = np.unique(piece * deepest + depth, return_counts=True)
    of, level = key // deepest, key % deepest
    first = np.searchsorted(of, np.arange(len(sizes)))
    passed = np.cumsum(counts)
    passed -= (passed - counts)[first][of]
    n = sizes[of]
    middle = (passed - counts >= n // 4) & (n - passed >= n // 4)
    # Without a level in the middle half, the level that contains the median is taken.
    without = np.bincount(of, middle, minlength=len(sizes)) == 0
    middle |= without[of] & (passed >= n // 2) & (passed - counts < np.maximum(n // 2, 1))
    found = np.flatnonzero(middle)
    found = found[np.lexsort((level[found], counts[found], of[found]))]
    _, best = np.unique(of[found], return_index=True)
    chosen = level[found[best]]  # [P]
    last = chosen == np.maximum.reduceat(level, first)

    # Only nodes that really touch the far side are needed.
    rows = np.repeat(np.arange(len(piece)), np.diff(links.indptr))
    touching = np.zeros(len(piece), bool)
    touching[rows[depth[links.indices] == depth[rows] + 1]] = True
    return (depth == chosen[piece]) & (touching | last[piece])


def _search(links: csr_matrix, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Breadth-first search from one node of every piece: the nodes in the order of the search, and
    the predecessor of every node (the number of nodes: none)."""
    n = links.shape[0]
    indices = np.concatenate([links.indices, start.astype(links.indices.dtype)])
    indptr = np.append(links.indptr, len(indices))  # one more node, which links to every start
    rooted = csr_matrix((np.ones(len(indices), np.int8), indices, indptr), shape=(n + 1, n + 1))
    order, before = breadth_first_order(rooted, n, directed=True)
    return order[1:], before[:-1]


def _depths(before: np.ndarray) -> np.ndarray:
    """Depth of each node in the search tree, by doubling the length of jumps."""
    n = len(before)
    jump = np.append(before, n)
    depth = np.append(np.ones(n, int), 0)
    while (jump != n).any():
        depth += depth[jump]
        jump = jump[jump]
    return depth[:-1] - 1


def _boundaries(fronts: list[np.ndarray], links: csr_matrix) -> list[Front]:
    """The tree of fronts; ``fronts`` holds the nodes of each, in the order of elimination."""
    fronts = [np.sort(nodes) for nodes in fronts]
    order = np.concatenate(fronts)
    ends = np.cumsum([len(nodes) for nodes in fronts])
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    number = np.repeat(np.arange(len(fronts)), np.diff(ends, prepend=0)).tolist()
    # Neighbours of the r-th node to be eliminated, by rank.
    ranked = links[order]
    neighbours, indptr = rank[ranked.indices].tolist(), ranked.indptr.tolist()
    inherited: dict[int, list[int]] = defaultdict(list)
    out: list[Front] = [Front(nodes, np.empty(0, int), -1) for nodes in fronts]
    begin = 0
    for f, end in enumerate(ends.tolist()):
        reach = set(neighbours[indptr[begin] : indptr[end]])
        reach.update(inherited.pop(f, ()))
        begin = end
        # In the order of elimination: a child's lower triangle lands in its parent's.
        later = sorted(r for r in reach if r >= end)
        if later:
            front, above = out[f], number[later[0]]
            front.boundary, front.parent = order[later], above
            out[above].height = max(out[above].height, front.height + 1)
            inherited[above] += later
    return out
