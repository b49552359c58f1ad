"""Partitioners: which part owns which node.

``"metis"``        METIS, through ``pymetis``: the fewest cut edges.
``"coordinates"``  Recursive bisection along the longer axis, for graphs with positions.
``"search"``       Recursive bisection of the order in which a breadth-first search finds the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch_geometric.data import Data

from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, require_positive
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

METHODS = ("auto", "metis", "coordinates", "search")
METIS_EDGES = 100_000_000
"""Most edges for which ``"auto"`` takes METIS, which needs about 75 bytes for each of them."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Which part owns which node.

    Attributes:
        part: The part of every node, [N].
        num_parts: P.
        method: How it was found.
        edge_cut: Share of the edges whose ends belong to different parts.
        balance: Size of the largest part relative to N / P; 1 is perfect.
    """

    part: Array
    num_parts: int
    method: str
    edge_cut: float
    balance: float

    def __str__(self) -> str:
        return (
            f"{self.num_parts} parts ({self.method}), {self.edge_cut:.2%} of the edges cut, "
            f"largest part {self.balance:.2f} times the mean"
        )

    @classmethod
    def of(cls, graph: Whole, part: Array, num_parts: int, method: str = "given") -> Partition:
        """Any assignment of nodes to parts, with its measures."""
        cut = sum(int((part[src] != part[dst]).sum()) for _, src, dst in graph.chunks())
        largest = int(np.bincount(part, minlength=num_parts).max())
        share = cut / max(graph.num_edges, 1)
        return cls(part, num_parts, method, share, largest * num_parts / graph.num_nodes)


def partition(
    graph: Whole | Inputs | Data, num_parts: int, *, method: str = "auto", seed: int = 0
) -> Partition:
    """Cut a graph into parts of about equal size with few edges between them.

    Args:
        graph: The graph. Bisection along coordinates reads its field ``pos``, [N, d].
        num_parts: P. With more parts than nodes some parts are empty.
        method: One of the module's methods. ``"auto"`` takes METIS if ``pymetis`` is installed and
            the graph is not too large for it, else coordinates if the graph has them.
        seed: Seed of METIS.
    """
    whole = Whole.of(graph)
    require_positive("num_parts", num_parts)
    if method not in METHODS:
        raise ConfigError(f"method={method!r}; expected one of {METHODS}")
    has_positions, has_metis = "pos" in whole.node_fields, find_spec("pymetis") is not None
    small = whole.num_nodes < 8 * num_parts  # METIS leaves parts empty, or fails
    if method == "auto":
        fits = has_metis and not small and whole.num_edges <= METIS_EDGES
        method = "metis" if fits else "coordinates" if has_positions else "search"
    elif method == "coordinates" and not has_positions:
        raise ConfigError(
            "method='coordinates' was given, but the graph has no positions; expected a field pos "
            "[N, d], or another method"
        )
    elif method == "metis" and not has_metis:
        raise ConfigError(
            "method='metis' needs pymetis: pip install 'hogwild-gnn[cluster]', or use another "
            "method"
        )
    if num_parts == 1:
        part = np.zeros(whole.num_nodes, dtype=np.int32)
    elif method == "metis":
        part = _metis(whole, num_parts, seed)
    elif method == "coordinates":
        pos = np.asarray(whole.node_fields["pos"], dtype=np.float64)
        pos = pos.reshape(whole.num_nodes, -1)
        part = _bisect(whole.num_nodes, num_parts, lambda nodes: _along(pos[nodes]))
    else:
        joined = _adjacency(whole)
        part = _bisect(whole.num_nodes, num_parts, lambda nodes: _search(joined[nodes][:, nodes]))
    return Partition.of(whole, part, num_parts, method)


def _adjacency(whole: Whole) -> csr_matrix:
    """Which nodes share an edge, without self-loops; symmetric."""
    n = whole.num_nodes
    rows, cols = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    for _, src, dst in whole.chunks():
        proper = src != dst
        rows.append(src[proper].astype(np.int32))
        cols.append(dst[proper].astype(np.int32))
    one, other = np.concatenate(rows), np.concatenate(cols)
    there = csr_matrix((np.ones(len(one), dtype=np.int8), (one, other)), shape=(n, n))
    there.data[:] = 1  # parallel edges were summed
    both = there + there.T
    both.data[:] = 1
    return both


def _metis(whole: Whole, num_parts: int, seed: int) -> Array:
    import pymetis

    joined = _adjacency(whole)
    graph = pymetis.CSRAdjacency(joined.indptr, joined.indices)
    _, part = pymetis.part_graph(num_parts, graph, options=pymetis.Options(seed=seed))
    return np.asarray(part, dtype=np.int32)


def _bisect(size: int, num_parts: int, order: Callable[[Array], Array]) -> Array:
    """Sort the nodes by ``order``, cut them in two shares, and treat both shares likewise."""
    part = np.zeros(size, dtype=np.int32)
    todo = [(np.arange(size), 0, num_parts)]
    while todo:
        nodes, first, count = todo.pop()
        if count == 1 or not len(nodes):
            part[nodes] = first
            continue
        left = count // 2
        cut = -(-len(nodes) * left // count)  # rounded up
        sort = order(nodes)
        todo.append((np.sort(nodes[sort[:cut]]), first, left))
        todo.append((np.sort(nodes[sort[cut:]]), first + left, count - left))
    return part


def _along(pos: Array) -> Array:
    """The order along the axis in which the positions [n, d] extend farthest."""
    axis = int(np.argmax(np.ptp(pos, axis=0)))
    return np.argsort(pos[:, axis], kind="stable")


def _search(joined: csr_matrix) -> Array:
    """The order of a breadth-first search from the rim (Cuthill & McKee)."""
    found: Array = reverse_cuthill_mckee(joined, symmetric_mode=True)
    return found
