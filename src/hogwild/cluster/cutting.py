r"""Cuts a graph: which part owns which node, and what a part holds of the rest.

``"metis"``        METIS, through ``pymetis``: the fewest cut edges.
``"search"``       Recursive bisection of the order in which a breadth-first search finds the nodes.

The *rings* of a part are the nodes of other parts by their distance from the part: ring 1 holds the
nodes that share an edge with an owned node, ring d + 1 those that share one with ring d. The first
rings are the part's *overlap*: the part solves for them, too. The overlap grows ring by ring, up to
a given number of rings, while it holds at most :data:`SHARE` as many nodes as the part: on a graph
of small diameter it stays empty, since a ring would hold nearly all nodes. Beyond the overlap the
part holds one ring for every hop that its problem needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.data import Data

from hogwild.cluster.work import Part, by_owner
from hogwild.errors import ConfigError, require_positive
from hogwild.graph.inputs import Inputs, whole

Array = npt.NDArray[Any]

METHODS = ("auto", "metis", "search")
METIS_EDGES = 100_000_000
"""Most edges for which ``"auto"`` takes METIS, which needs about 75 bytes for each of them."""
OVERLAP = 8
"""Rings of an overlap, unless asked for more or fewer."""
SHARE, SMALL = 0.25, 16
"""An overlap holds at most this share of the nodes of its part, or so many nodes."""


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
    def of(
        cls, graph: Inputs | Data, part: Array, num_parts: int, method: str = "given"
    ) -> Partition:
        """Any assignment of nodes to parts, with its measures."""
        src, dst = part[Inputs.of(graph).edge_index.numpy()]
        cut = int((src != dst).sum()) / max(len(src), 1)
        largest = int(np.bincount(part, minlength=num_parts).max())
        return cls(part, num_parts, method, cut, largest * num_parts / len(part))


def partition(
    graph: Inputs | Data, num_parts: int, *, method: str = "auto", seed: int = 0
) -> Partition:
    """Cut a graph into parts of about equal size with few edges between them.

    Args:
        graph: The graph.
        num_parts: P. With more parts than nodes some parts are empty.
        method: One of the module's methods. ``"auto"`` takes METIS if ``pymetis`` is installed and
            the graph is not too large for it.
        seed: Seed of METIS.
    """
    found = whole(graph)
    n, edges = found.num_nodes, found.edge_index.size(1)
    require_positive("num_parts", num_parts)
    if method not in METHODS:
        raise ConfigError(f"method={method!r}; expected one of {METHODS}")
    has_metis = find_spec("pymetis") is not None
    small = n < 8 * num_parts  # METIS leaves parts empty, or fails
    if method == "auto":
        fits = has_metis and not small and edges <= METIS_EDGES
        method = "metis" if fits else "search"
    elif method == "metis" and not has_metis:
        raise ConfigError(
            "method='metis' needs pymetis: pip install 'hogwild-gnn[cluster]', or use another "
            "method"
        )
    if num_parts == 1:
        part = np.zeros(n, dtype=np.int32)
    elif method == "metis":
        part = _metis(found, num_parts, seed)
    else:
        part = _bisect(_adjacency(found), num_parts)
    return Partition.of(found, part, num_parts, method)


def _adjacency(graph: Inputs) -> csr_matrix:
    """Which nodes share an edge, without self-loops; symmetric."""
    src, dst = graph.edge_index.numpy()
    proper, n = src != dst, graph.num_nodes
    src, dst = src[proper], dst[proper]
    there = csr_matrix((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(n, n))
    there.data[:] = 1  # parallel edges were summed
    both = there + there.T
    both.data[:] = 1
    return both


def _metis(graph: Inputs, num_parts: int, seed: int) -> Array:
    import pymetis

    joined = _adjacency(graph)
    read = pymetis.CSRAdjacency(joined.indptr, joined.indices)
    _, part = pymetis.part_graph(num_parts, read, options=pymetis.Options(seed=seed))
    return np.asarray(part, dtype=np.int32)


def _bisect(joined: csr_matrix, num_parts: int) -> Array:
    """Sort the nodes by a breadth-first search from the rim (Cuthill & McKee), cut them in two
    shares, and treat both shares likewise."""
    part = np.zeros(joined.shape[0], dtype=np.int32)
    todo = [(np.arange(len(part)), 0, num_parts)]
    while todo:
        nodes, first, count = todo.pop()
        if count == 1 or not len(nodes):
            part[nodes] = first
            continue
        left = count // 2
        cut = -(-len(nodes) * left // count)  # rounded up
        sort = reverse_cuthill_mckee(joined[nodes][:, nodes], symmetric_mode=True)
        todo.append((np.sort(nodes[sort[:cut]]), first, left))
        todo.append((np.sort(nodes[sort[cut:]]), first + left, count - left))
    return part


# -- what a part holds -----------------------------------------------------------------------------


def pieces(graph: Inputs, parts: Tensor, overlap: int, hops: int) -> Iterator[Part]:
    """Every part, without what it sends. Beside one part, memory holds some forty bytes for each
    edge.

    Args:
        graph: The graph.
        parts: The part of every node, [N].
        overlap: Most rings of the overlap.
        hops: Rings beyond the overlap.
    """
    ends, n = graph.edge_index.numpy(), graph.num_nodes
    edges = ends.shape[1]
    pair = ends.ravel(), np.tile(np.arange(edges), 2)
    # Which edges a node has.
    incident = csr_matrix((np.ones(2 * edges, dtype=np.int8), pair), shape=(n, edges))
    place = np.empty(n, dtype=np.int64)
    here, taken = np.zeros(n, dtype=bool), np.zeros(edges, dtype=bool)
    around = degrees(graph)
    for owned in by_owner(parts).values():
        ring = nodes = owned.numpy()
        overlapping, most = 0, max(SHARE * len(nodes), SMALL)
        halo, levels = list[Array](), list[Array]()
        here[nodes] = True
        while len(halo) < overlapping + hops:
            found = np.unique(incident[ring].indices)
            levels.append(found[~taken[found]])
            taken[levels[-1]] = True
            ring = np.unique(ends[:, levels[-1]])
            ring = ring[~here[ring]]
            here[ring] = True
            halo.append(ring)
            fits = len(halo) <= overlap and len(ring) > 0 and sum(map(len, halo)) <= most
            if fits and len(halo) == overlapping + 1:
                overlapping += 1
        every, rows = np.concatenate(halo), np.concatenate(levels)
        local = np.concatenate([nodes, every])
        place[local] = np.arange(len(local))
        here[local] = False
        taken[rows] = False
        inputs = _rows(graph, place[ends[:, rows]], around, local, rows)
        free = len(nodes) + sum(map(len, halo[:overlapping]))
        rim = torch.from_numpy(every)
        yield Part(owned, rim, parts[rim], free, inputs, {})


def degrees(graph: Inputs) -> Tensor:
    """Sums of the weights of the edges into and out of each node, [N, 2]."""
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    ends = graph.edge_index.flip(0)
    found = [torch.bincount(each, weight, minlength=graph.num_nodes).double() for each in ends]
    return torch.stack(found, 1)


def _rows(graph: Inputs, ends: Array, around: Tensor, nodes: Array, edges: Array) -> Inputs:
    """Some nodes and edges of a graph, whose edges have other ends."""
    n, e = torch.from_numpy(nodes), torch.from_numpy(edges)
    return Inputs(
        graph.x[n],
        torch.from_numpy(ends),
        None if graph.edge_attr is None else graph.edge_attr[e],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[e],
        degrees=around[n],
        nodes={name: value[n] for name, value in graph.nodes.items()},
        edges={name: value[e] for name, value in graph.edges.items()},
    )
