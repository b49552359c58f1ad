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
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import ConfigError, FeatureError, InputError, require_positive
from hogwild.graph.graph import check_edge_index
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

METHODS = ("auto", "metis", "search")
METIS_EDGES = 100_000_000
"""Most edges for which ``"auto"`` takes METIS, which needs about 75 bytes for each of them."""
OVERLAP = 8
"""Rings of an overlap, unless asked for more or fewer."""
SHARE, SMALL = 0.25, 16
"""An overlap holds at most this share of the nodes of its part, or so many nodes."""


def whole(graph: Inputs | Data) -> Inputs:
    """A graph that can be cut; its tensors may be memory-mapped.

    Raises:
        InputError: It is a batch of graphs, or a part of a larger graph.
        FeatureError: The features are no matrix.
        GraphError: An edge names a node that does not exist.
    """
    found = Inputs.of(graph)
    if found.num_graphs > 1:
        raise InputError(
            f"the data are a batch of {found.num_graphs} graphs; expected one graph. It may "
            f"consist of several components: leave batch out"
        )
    if found.degrees is not None or found.heard is not None:
        raise InputError("the inputs are a part of a larger graph; expected the whole graph")
    if found.x.dim() != 2:
        raise FeatureError(f"x has shape {tuple(found.x.shape)}; expected [nodes, channels]")
    check_edge_index(found.edge_index, found.num_nodes, True)
    attr = found.edge_attr
    if attr is not None and attr.dim() == 1:
        attr = attr[:, None]
    return replace(found, batch=None, batch_size=None, edge_attr=attr).to("cpu")


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


@dataclass(eq=False)
class Part:
    """The nodes that one worker owns, and what their problem needs of the rest of the graph.

    The local nodes are the A owned nodes, then the B nodes of the *halo*, which other parts own.
    The part solves for its owned nodes and for the first rings of the halo, its *overlap*; the
    others are held fixed.

    With one hop a part holds all edges of the nodes for which it solves. With two hops it also
    holds all edges of their neighbours, which makes the rows of these nodes exact in the gradient
    and Hessian of any one-hop energy. One hop is enough for fixed points and for graph signal
    denoising.

    Attributes:
        nodes: Owned nodes in the whole graph, [A], sorted.
        halo: Nodes of the halo in the whole graph, [B]: the first ring, then the second ring, and
            so on, each sorted.
        owner: The part that owns each node of the halo, [B].
        free: Number of nodes for which the part solves: the owned ones, then those of the overlap.
        inputs: The part as a model reads it, with the degrees of the whole graph: the problem of
            the model for these inputs has the rows of the whole problem at free nodes.
        sends: For each other part, the local indices of the owned nodes that the part needs.
        receives: For each other part, the local indices of the halo nodes that the part owns. The
            n-th node that part a sends to part b is the n-th node that b receives from a.
    """

    nodes: Array
    halo: Array
    owner: Array
    free: int
    inputs: Inputs
    sends: dict[int, Array]
    receives: dict[int, Array] = field(init=False)

    def __post_init__(self) -> None:
        groups = by_owner(self.owner)
        self.receives = {q: mine + len(self.nodes) for q, mine in groups.items()}

    @classmethod
    def only(cls, graph: Inputs) -> Part:
        """The whole graph as its only part."""
        n, none = graph.num_nodes, np.empty(0, dtype=np.int64)
        return cls(np.arange(n), none, none, n, replace(graph, degrees=degrees(graph)), {})


def by_owner(owner: Array) -> dict[int, Array]:
    """The places of each part in a list of owners, in the order of the list."""
    order = np.argsort(owner, kind="stable")
    owners, first = np.unique(owner[order], return_index=True)
    groups = np.split(order, first[1:]) if len(owners) else []
    return dict(zip(owners.tolist(), groups, strict=True))


def degrees(graph: Inputs) -> Tensor:
    """Sums of the weights of the edges into and out of each node, [N, 2]."""
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    ends = graph.edge_index.flip(0)
    found = [torch.bincount(each, weight, minlength=graph.num_nodes).double() for each in ends]
    return torch.stack(found, 1)


def pieces(
    graph: Inputs, parts: Array, count: int, overlap: int
) -> Iterator[tuple[Part, list[int], list[int]]]:
    """Every part without what it sends, as two hops need it: of the halo and of the edges, those
    that one hop needs come first; the two lists say how many of the halo, and of the edges, one
    hop and two hops need.

    Beside one part, memory holds some forty bytes for each edge.
    """
    ends, n = graph.edge_index.numpy(), graph.num_nodes
    edges = ends.shape[1]
    pair = ends.ravel(), np.tile(np.arange(edges), 2)
    # Which edges a node has.
    incident = csr_matrix((np.ones(2 * edges, dtype=np.int8), pair), shape=(n, edges))
    place = np.empty(n, dtype=np.int64)
    here, taken = np.zeros(n, dtype=bool), np.zeros(edges, dtype=bool)
    around, owned = degrees(graph), by_owner(parts)
    for p in range(count):
        nodes = owned.get(p, np.empty(0, dtype=np.int64))
        ring, overlapping, most = nodes, 0, max(SHARE * len(nodes), SMALL)
        halo, levels = list[Array](), list[Array]()
        here[nodes] = True
        while len(halo) < overlapping + 2:
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
        piece = Part(
            nodes, every, parts[every], len(nodes) + sum(map(len, halo[:overlapping])),
            _rows(graph, place[ends[:, rows]], around, local, rows), {},
        )  # fmt: skip
        near = len(every) - len(halo[-1]), len(rows) - len(levels[-1])
        yield piece, [near[0], len(every)], [near[1], len(rows)]


def _rows(graph: Inputs, ends: Array, around: Tensor, nodes: Array, edges: Array) -> Inputs:
    """Some nodes and edges of a graph, whose edges have other ends."""
    n, e = torch.from_numpy(nodes).long(), torch.from_numpy(edges).long()
    return Inputs(
        graph.x[n],
        torch.from_numpy(ends),
        None if graph.edge_attr is None else graph.edge_attr[e],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[e],
        degrees=around[n],
        nodes={name: value[n] for name, value in graph.nodes.items()},
        edges={name: value[e] for name, value in graph.edges.items()},
    )
