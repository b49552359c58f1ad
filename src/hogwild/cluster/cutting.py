r"""Cuts a graph: which part owns which node, and the files of a :class:`~hogwild.cluster.Store`.

``"metis"``        METIS, through ``pymetis``: the fewest cut edges.
``"coordinates"``  Recursive bisection along the longer axis, for graphs with positions.
``"search"``       Recursive bisection of the order in which a breadth-first search finds the nodes.

The *rings* of a part are the nodes of other parts by their distance from the part: ring 1 holds the
nodes that share an edge with an owned node, ring d + 1 those that share one with ring d. An edge
has the level d + 1 if its nearer end lies in ring d (ring 0: the owned nodes). With the levels 1,
…, D a part knows all edges of its own nodes and of the rings 1, …, D − 1.

A part always has the levels that two hops need, 1 and 2. It has one level more for each ring of its
*overlap*, the rings of other parts' nodes for which it solves, too. The overlap grows ring by ring,
up to a given number of rings, while it holds at most :data:`SHARE` as many nodes as the part: on a
graph of small diameter it stays empty, since a ring would hold nearly all nodes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch_geometric.data import Data

from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, require_positive
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

METHODS = ("auto", "metis", "coordinates", "search")
METIS_EDGES = 100_000_000
"""Most edges for which ``"auto"`` takes METIS, which needs about 75 bytes for each of them."""
FORMAT, VERSION = "hogwild graph store", 2
OVERLAP = 8
"""Rings of an overlap, unless asked for more or fewer."""
MOST = 250
"""Most rings of an overlap that can be asked for."""
SHARE, SMALL = 0.25, 16
"""An overlap holds at most this share of the nodes of its part, or so many nodes."""
LEVELS = 256
"""More than the levels of an edge: an edge and its level are one number."""


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


# -- the files -----------------------------------------------------------------------------------


def part_name(number: int) -> str:
    """The folder of a part."""
    return f"part-{number:05d}"


def checksum_of(index: dict[str, Any]) -> str:
    """The checksum of the index."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def crc_of(path: Path) -> int:
    """The checksum of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            found = zlib.crc32(block, found)
    return found


@dataclass
class Held:
    """Which parts hold which nodes of others, and in which ring.

    Attributes:
        keys: node · P + part, [M], sorted.
        rings: The ring of the node, [M].
        count: P.
    """

    keys: Array
    rings: Array
    count: int

    def by(self, nodes: Array) -> tuple[Array, Array, Array]:
        """For some nodes [n]: indices into ``nodes``, parts that hold them, and rings."""
        first = np.searchsorted(self.keys, nodes * self.count)
        more = np.searchsorted(self.keys, (nodes + 1) * self.count) - first
        again = np.repeat(np.arange(len(nodes)), more)
        at = first[again] + np.arange(len(again)) - np.repeat(more.cumsum() - more, more)
        return again, self.keys[at] % self.count, self.rings[at]

    def with_ring(self, keys: Array, ring: int) -> Held:
        """With one ring more, of keys that are not in it yet."""
        both = np.concatenate([self.keys, keys])
        order = np.argsort(both, kind="stable")
        rings = np.concatenate([self.rings, np.full(len(keys), ring, dtype=self.rings.dtype)])
        return Held(both[order], rings[order], self.count)


@dataclass
class Writer:
    """Writes the files of a store into a folder.

    Attributes:
        folder: The folder, which exists.
        whole: The graph.
        parts: The part of every node, [N], int32.
        count: P.
        overlap: Most rings of an overlap.
    """

    folder: Path
    whole: Whole
    parts: Array
    count: int
    overlap: int = OVERLAP

    def write(self) -> None:
        """Write all files; the index comes last."""
        whole = self.whole
        index: dict[str, Any] = {
            "format": FORMAT, "version": VERSION,
            "num_nodes": whole.num_nodes, "num_edges": whole.num_edges, "num_parts": self.count,
            "channels": int(whole.x.shape[1]),
            "edge_dim": None if whole.edge_attr is None else int(whole.edge_attr.shape[1]),
            "has_weights": whole.edge_weight is not None,
            "node_fields": list(whole.node_fields), "edge_fields": list(whole.edge_fields),
            "graph": whole.checksum(),
        }  # fmt: skip
        index["parts_file"] = self._save("parts", self.parts)
        degrees = whole.degrees()
        # Nodes by part, and where each part begins.
        self.order = np.argsort(self.parts, kind="stable")
        self.start = np.searchsorted(self.parts[self.order], np.arange(self.count + 1))
        held = self._grown()
        with tempfile.TemporaryDirectory(dir=self.folder) as beside:
            self.beside = Path(beside)
            self._deal(held)
            entries = [self._write_part(p, degrees) for p in range(self.count)]
            for p, entry in enumerate(entries):
                entry["files"] |= self._write_sends(p)
        index["parts"] = entries
        index["checksum"] = checksum_of(index)
        write_atomically(self.folder / "index.json", json.dumps(index).encode())

    def _grown(self) -> Held:
        """The rings of all parts. Sets ``rings``, the rings of each part's overlap [P]: the part
        then holds one ring more."""
        empty = np.empty(0, dtype=np.int64)
        held = Held(empty, np.empty(0, dtype=np.int16), self.count)
        self.rings = np.zeros(self.count, dtype=np.int64)
        most = np.maximum(SHARE * np.diff(self.start), SMALL)
        sizes = np.zeros(self.count, dtype=np.int64)
        grows = np.ones(self.count, dtype=bool)
        front = np.ones(self.whole.num_nodes, dtype=bool)  # nodes of the last ring
        for ring in range(1, self.overlap + 2):
            new = self._ring(held, front, ring, grows)
            held = held.with_ring(new, ring)
            front = np.zeros_like(front)
            front[new // self.count] = True
            added = np.bincount(new % self.count, minlength=self.count)
            sizes += added
            grows &= (ring <= self.overlap) & (sizes <= most) & (added > 0)
            self.rings[grows] = ring
            if not grows.any():
                break
        return held

    def _ring(self, held: Held, front: Array, ring: int, grows: Array) -> Array:
        """The keys of the next ring of the parts that grow."""
        found = [np.empty(0, dtype=np.int64)]
        for _, src, dst in self.whole.chunks():
            for one, two in ((src, dst), (dst, src)):
                if ring == 1:
                    cut = self.parts[one] != self.parts[two]
                    far, part = two[cut], self.parts[one[cut]].astype(np.int64)
                else:
                    at = np.flatnonzero(front[one])
                    again, part, depth = held.by(one[at])
                    some = (depth == ring - 1) & grows[part]
                    far, part = two[at[again[some]]], part[some]
                    other = self.parts[far] != part
                    far, part = far[other], part[other]
                found.append(np.unique(far * self.count + part))
        keys = np.unique(np.concatenate(found))
        return np.setdiff1d(keys, held.keys, assume_unique=True)

    def _deal(self, held: Held) -> None:
        """Append every edge with its level to a file of each part that needs the edge: one that
        owns or holds an end of it."""
        marked = np.zeros(self.whole.num_nodes, dtype=bool)
        marked[held.keys // self.count] = True
        for at, src, dst in self.whole.chunks():
            size = len(src)
            own = np.flatnonzero(self.parts[src] != self.parts[dst])
            who = [self.parts[src], self.parts[dst[own]]]
            edges, rings = [np.arange(size), own], [np.zeros(size + len(own), dtype=np.int64)]
            for ends in (src, dst):
                some = np.flatnonzero(marked[ends])
                again, part, ring = held.by(ends[some])
                who.append(part)
                edges.append(some[again])
                rings.append(ring.astype(np.int64))
            keys = np.concatenate(who).astype(np.int64) * size + np.concatenate(edges)
            keys = np.sort(keys * LEVELS + np.concatenate(rings) + 1)
            pair = keys // LEVELS
            keys = keys[np.concatenate([[True], pair[1:] != pair[:-1]])]  # the nearer end
            part, edge = np.divmod(keys // LEVELS, size)
            self._append("edges", part, (at.start + edge) * LEVELS + keys % LEVELS)

    def _append(self, name: str, who: Array, rows: Array) -> None:
        """Append rows to the files of parts; ``who`` is sorted."""
        found, first = np.unique(who, return_index=True)
        for p, some in zip(found.tolist(), np.split(rows, first[1:]), strict=True):
            with (self.beside / f"{name}-{p}").open("ab") as file:
                some.astype(np.int64).tofile(file)

    def _read(self, name: str, p: int) -> Array:
        path = self.beside / f"{name}-{p}"
        found = np.fromfile(path, dtype=np.int64) if path.exists() else np.empty(0, dtype=np.int64)
        path.unlink(missing_ok=True)
        return found

    def _owned(self, p: int) -> Array:
        return self.order[self.start[p] : self.start[p + 1]]

    def _write_part(self, p: int, degrees: Array) -> dict[str, Any]:
        whole, nodes, depth = self.whole, self._owned(p), int(self.rings[p]) + 2
        edges, level = np.divmod(self._read("edges", p), LEVELS)
        order = np.argsort(level, kind="stable")
        edges, level = edges[order], level[order]
        ends = whole.edge_index[:, edges].astype(np.int64)
        starts = np.searchsorted(level, np.arange(1, depth + 2))
        foreign = self.parts[ends] != p
        halo, rings = np.empty(0, dtype=np.int64), []
        for first, last in itertools.pairwise(starts.tolist()):
            found = np.unique(ends[:, first:last][foreign[:, first:last]])
            rings.append(np.setdiff1d(found, halo, assume_unique=True))
            halo = np.concatenate([halo, rings[-1]])
        local = np.concatenate([nodes, halo])
        sort = np.argsort(local)
        src, dst = sort[np.searchsorted(local, ends, sorter=sort)] if len(local) else ends
        owner = self.parts[halo]
        self._request(p, halo, owner, np.repeat(np.arange(depth), [len(r) for r in rings]))
        arrays: dict[str, Array | None] = {
            "nodes": nodes, "halo": halo, "owner": owner, "src": src, "dst": dst, "edges": edges,
            "degrees": degrees[local], "x": whole.x[local],
            "edge_attr": None if whole.edge_attr is None else whole.edge_attr[edges],
            "edge_weight": None if whole.edge_weight is None else whole.edge_weight[edges],
        }  # fmt: skip
        arrays |= {f"node_{name}": value[local] for name, value in whole.node_fields.items()}
        arrays |= {f"edge_{name}": value[edges] for name, value in whole.edge_fields.items()}
        (self.folder / part_name(p)).mkdir()
        files = {
            name: self._save(f"{part_name(p)}/{name}", value)
            for name, value in arrays.items()
            if value is not None
        }
        return {
            "nodes": len(nodes), "halo": [len(ring) for ring in rings],
            "edges": np.diff(starts).tolist(), "files": files,
        }  # fmt: skip

    def _request(self, p: int, halo: Array, owner: Array, ring: Array) -> None:
        """Tell the owners which nodes part p needs: records (p, nodes of each ring, nodes)."""
        for q in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == q)
            near = np.bincount(ring[mine], minlength=LEVELS)
            record = np.concatenate([[p], near, halo[mine]])
            self._append("sends", np.full(len(record), q), record)

    def _write_sends(self, p: int) -> dict[str, Any]:
        record, nodes, at = self._read("sends", p), self._owned(p), 0
        peers, counts, found = [], [], [np.empty(0, dtype=np.int64)]
        while at < len(record):
            share = record[at + 1 : at + 1 + LEVELS]
            peers.append(int(record[at]))
            counts.append(share)
            at += 1 + LEVELS + int(share.sum())
            found.append(np.searchsorted(nodes, record[at - int(share.sum()) : at]))
        arrays = {
            "send_parts": np.array(peers, dtype=np.int64),
            "send_counts": np.array(counts, dtype=np.int64).reshape(-1, LEVELS),
            "send_nodes": np.concatenate(found),
        }
        return {name: self._save(f"{part_name(p)}/{name}", value) for name, value in arrays.items()}

    def _save(self, name: str, value: Array) -> dict[str, int]:
        path = self.folder / f"{name}.npy"
        np.save(path, np.ascontiguousarray(value), allow_pickle=False)
        return {"bytes": path.stat().st_size, "crc": crc_of(path)}
