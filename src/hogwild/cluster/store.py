"""A graph on the disk, cut into parts: a worker reads only its own part.

A store is a folder::

    index.json          sizes of all parts and files, with a checksum
    parts.npy           the part of every node, [N]
    part-00000/         one .npy file for each array of a part

The files are memory-mapped. The arrays of a part begin with what one hop needs, so that a part with
one hop is the beginning of the part with two hops.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch_geometric.data import Data

from hogwild.cluster.part import Part
from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, DataError, GraphError, require_integer
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

FORMAT, VERSION = "hogwild graph store", 1
HOPS = (1, 2)


class Count(NamedTuple):
    """Sizes of a part for one or two hops."""

    nodes: int
    halo: int
    edges: int


@dataclass(frozen=True)
class Store:
    """A graph in a folder, cut into parts. :meth:`write` makes one, and :meth:`open` opens one.

    Attributes:
        folder: The folder.
        num_nodes: N.
        num_edges: E.
        num_parts: P.
        channels: Width of the node features.
        edge_dim: Width of the edge features; ``None`` without edge features.
        has_weights: Whether the edges have weights.
    """

    folder: Path
    num_nodes: int
    num_edges: int
    num_parts: int
    channels: int
    edge_dim: int | None
    has_weights: bool
    index: dict[str, Any] = field(repr=False)

    @classmethod
    def write(
        cls,
        folder: str | Path,
        graph: Whole | Inputs | Data,
        part: npt.ArrayLike,
        *,
        num_parts: int | None = None,
        overwrite: bool = False,
    ) -> Store:
        """Cut a graph into parts and write them into a folder, which appears when it is complete.

        Beside one part, memory holds a few numbers for each node.

        Args:
            folder: The new folder.
            graph: A PyG ``Data``, ``Inputs``, or a :class:`Whole` with memory-mapped arrays.
            part: The part of every node, [N] (:func:`~hogwild.cluster.partitioning.partition`).
            num_parts: Number of parts; by default the largest part that occurs and those below it.
                A part may be empty.
            overwrite: Replace a store that is in the folder.
        """
        whole, folder = Whole.of(graph), Path(folder)
        parts, count = _checked(part, whole.num_nodes, num_parts)
        is_store = (folder / "index.json").is_file()
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (is_store and overwrite):
            more = ", or overwrite=True" if is_store else ""
            raise DataError(f"{folder} exists already; expected a new folder{more}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _Writer(beside, whole, parts, count).write()
            if folder.exists():
                shutil.rmtree(folder)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """The store in a folder.

        Raises:
            DataError: There is no store, it has another version, or it is damaged.
        """
        folder = Path(folder)
        path = folder / "index.json"
        if not path.is_file():
            raise DataError(
                f"{folder} has no index.json; expected a folder that Store.write has made"
            )
        try:
            index = json.loads(path.read_bytes())
            told, version = index.pop("checksum"), index["version"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); write the store again") from error
        if index.get("format") != FORMAT or version != VERSION:
            raise DataError(
                f"{path} has format {index.get('format')!r}, version {version!r}; expected "
                f"{FORMAT!r}, version {VERSION}: write the store again with this library"
            )
        if told != _checksum(index):
            raise DataError(f"{path} is damaged (wrong checksum); write the store again")
        sizes = {"parts.npy": index["parts_file"]["bytes"]} | {
            f"{_name(p)}/{name}.npy": file["bytes"]
            for p, entry in enumerate(index["parts"])
            for name, file in entry["files"].items()
        }
        for name, size in sizes.items():
            file = folder / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes"
                raise DataError(f"{file} {what}; expected {size} bytes: write the store again")
        options = {k: index[k] for k in ("num_nodes", "num_edges", "num_parts")}
        options |= {k: index[k] for k in ("channels", "edge_dim", "has_weights")}
        return cls(folder, **options, index=index)

    @property
    def parts(self) -> Array:
        """The part of every node, [N]."""
        return _load(self.folder / "parts.npy")

    @property
    def node_fields(self) -> list[str]:
        """Names of further arrays with a row for each node."""
        return list(self.index["node_fields"])

    def counts(self, hops: int = 2) -> list[Count]:
        """Sizes of all parts, without reading the parts."""
        _require_hops(hops)
        return [
            Count(e["nodes"], sum(e["halo"][:hops]), sum(e["edges"][:hops]))
            for e in self.index["parts"]
        ]

    def part(self, number: int, hops: int = 2) -> Part:
        """One part, memory-mapped.

        Args:
            number: 0, …, P − 1.
            hops: 1 or 2: how far the part reaches (:class:`~hogwild.cluster.part.Part`).
        """
        _require_hops(hops)
        if not 0 <= require_integer("number", number) < self.num_parts:
            raise ConfigError(f"number={number}; expected a part from 0 to {self.num_parts - 1}")
        entry, folder = self.index["parts"][number], self.folder / _name(number)
        count = self.counts(hops)[number]
        local = count.nodes + count.halo

        def load(name: str, rows: int | None = None) -> Array:
            return _load(folder / f"{name}.npy")[:rows]

        peers, shares = load("send_parts"), load("send_counts")
        ends = shares.sum(1).cumsum()
        send = load("send_nodes")
        sends = {
            int(q): send[end - share.sum() : end - share.sum() + share[:hops].sum()]
            for q, share, end in zip(peers, shares, ends, strict=True)
        }
        return Part(
            number,
            load("nodes"),
            load("halo", count.halo),
            load("owner", count.halo),
            (entry["halo"][0], sum(entry["halo"][1:hops])),
            np.stack([load("src", count.edges), load("dst", count.edges)]),
            load("edges", count.edges),
            load("x", local),
            None if self.edge_dim is None else load("edge_attr", count.edges),
            load("edge_weight", count.edges) if self.has_weights else None,
            load("degrees", local),
            {q: nodes for q, nodes in sends.items() if len(nodes)},
            {name: load(f"node_{name}", local) for name in self.index["node_fields"]},
            {name: load(f"edge_{name}", count.edges) for name in self.index["edge_fields"]},
        )

    def check(self) -> None:
        """Read all files and compare their checksums.

        Raises:
            DataError: A file is damaged.
        """
        files = {"parts.npy": self.index["parts_file"]["crc"]} | {
            f"{_name(p)}/{name}.npy": file["crc"]
            for p, entry in enumerate(self.index["parts"])
            for name, file in entry["files"].items()
        }
        for name, crc in files.items():
            if _crc(self.folder / name) != crc:
                raise DataError(
                    f"{self.folder / name} is damaged (wrong checksum); write the store again"
                )


def _checked(part: npt.ArrayLike, nodes: int, count: int | None) -> tuple[Array, int]:
    """The part of every node as an array, and the number of parts."""
    parts = np.asarray(part)
    if parts.shape != (nodes,) or parts.dtype.kind not in "iu":
        raise GraphError(
            f"part is {parts.dtype} of shape {parts.shape}; expected integers [{nodes}], the part "
            f"of every node"
        )
    low, high = int(parts.min()), int(parts.max())
    count = high + 1 if count is None else require_integer("num_parts", count, 1)
    if low < 0 or high >= count:
        raise GraphError(f"part holds {low} to {high}; expected 0 to {count - 1}")
    return parts.astype(np.int32), count


def _require_hops(hops: int) -> None:
    if hops not in HOPS:
        raise ConfigError(f"hops={hops!r}; expected 1 or 2")


def _name(number: int) -> str:
    return f"part-{number:05d}"


def _load(path: Path) -> Array:
    """A memory-mapped file. Changes stay in memory, so that torch may use it without a copy."""
    try:
        found: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); write the store again") from error
    return found


def _checksum(index: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _crc(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            found = zlib.crc32(block, found)
    return found


@dataclass
class _Writer:
    """Writes the files of a store into a folder."""

    folder: Path
    whole: Whole
    parts: Array  # [N] int32
    count: int

    def write(self) -> None:
        whole = self.whole
        index: dict[str, Any] = {
            "format": FORMAT, "version": VERSION,
            "num_nodes": whole.num_nodes, "num_edges": whole.num_edges, "num_parts": self.count,
            "channels": int(whole.x.shape[1]),
            "edge_dim": None if whole.edge_attr is None else int(whole.edge_attr.shape[1]),
            "has_weights": whole.edge_weight is not None,
            "node_fields": list(whole.node_fields), "edge_fields": list(whole.edge_fields),
        }  # fmt: skip
        index["parts_file"] = self._save("parts", self.parts)
        degrees, listeners = self._survey()
        # Nodes by part, and where each part begins.
        self.order = np.argsort(self.parts, kind="stable")
        self.start = np.searchsorted(self.parts[self.order], np.arange(self.count + 1))
        with tempfile.TemporaryDirectory(dir=self.folder) as beside:
            self.beside = Path(beside)
            self._deal(listeners)
            entries = [self._write_part(p, degrees) for p in range(self.count)]
            for p, entry in enumerate(entries):
                entry["files"] |= self._write_sends(p)
        index["parts"] = entries
        index["checksum"] = _checksum(index)
        write_atomically(self.folder / "index.json", json.dumps(index).encode())

    def _survey(self) -> tuple[Array, Array]:
        """Degrees [N, 2] of the whole graph, and all (node, part) such that the node hears a node
        of another part, as sorted numbers node · P + part."""
        whole, n = self.whole, self.whole.num_nodes
        degrees = np.zeros((n, 2))
        found = [np.empty(0, dtype=np.int64)]
        for at, src, dst in whole.chunks():
            weight = None if whole.edge_weight is None else whole.edge_weight[at].astype(np.float64)
            degrees[:, 0] += np.bincount(dst, weight, minlength=n)
            degrees[:, 1] += np.bincount(src, weight, minlength=n)
            cut = self.parts[src] != self.parts[dst]
            found.append(np.unique(dst[cut] * self.count + self.parts[src[cut]]))
        return degrees, np.unique(np.concatenate(found))

    def _deal(self, listeners: Array) -> None:
        """Append the number of every edge to a file of each part that needs the edge: the part of
        its receiver, and all parts with a node that the receiver hears."""
        node, part = listeners // self.count, listeners % self.count
        for at, _, dst in self.whole.chunks():
            first = np.searchsorted(node, dst)
            more = np.searchsorted(node, dst, side="right") - first
            again = np.repeat(np.arange(len(dst)), more)
            offset = np.arange(len(again)) - np.repeat(more.cumsum() - more, more)
            who = np.concatenate([self.parts[dst], part[first[again] + offset]])
            edges = at.start + np.concatenate([np.arange(len(dst)), again])
            order = np.lexsort((edges, who))
            self._append("edges", who[order], edges[order])

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
        whole, nodes, edges = self.whole, self._owned(p), self._read("edges", p)
        ends = whole.edge_index[:, edges].astype(np.int64)
        near = (self.parts[ends] == p).any(0)
        order = np.argsort(~near, kind="stable")
        edges, ends, inner = edges[order], ends[:, order], int(near.sum())
        foreign = self.parts[ends] != p
        first = np.unique(ends[:, :inner][foreign[:, :inner]])
        second = np.setdiff1d(ends[:, inner:][foreign[:, inner:]], first)
        halo = np.concatenate([first, second])
        local = np.concatenate([nodes, halo])
        sort = np.argsort(local)
        src, dst = sort[np.searchsorted(local, ends, sorter=sort)] if len(local) else ends
        owner = self.parts[halo]
        self._request(p, halo, owner, len(first))
        arrays: dict[str, Array | None] = {
            "nodes": nodes, "halo": halo, "owner": owner, "src": src, "dst": dst, "edges": edges,
            "degrees": degrees[local], "x": whole.x[local],
            "edge_attr": None if whole.edge_attr is None else whole.edge_attr[edges],
            "edge_weight": None if whole.edge_weight is None else whole.edge_weight[edges],
        }  # fmt: skip
        arrays |= {f"node_{name}": value[local] for name, value in whole.node_fields.items()}
        arrays |= {f"edge_{name}": value[edges] for name, value in whole.edge_fields.items()}
        (self.folder / _name(p)).mkdir()
        files = {
            name: self._save(f"{_name(p)}/{name}", value)
            for name, value in arrays.items()
            if value is not None
        }
        return {
            "nodes": len(nodes), "halo": [len(first), len(second)],
            "edges": [inner, len(edges) - inner], "files": files,
        }  # fmt: skip

    def _request(self, p: int, halo: Array, owner: Array, first: int) -> None:
        """Tell the owners which nodes part p needs: records (p, first ring, second ring, nodes)."""
        for q in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == q)
            near = int((mine < first).sum())
            record = np.concatenate([[p, near, len(mine) - near], halo[mine]])
            self._append("sends", np.full(len(record), q), record)

    def _write_sends(self, p: int) -> dict[str, Any]:
        record, nodes, at = self._read("sends", p), self._owned(p), 0
        peers, counts, found = [], [], [np.empty(0, dtype=np.int64)]
        while at < len(record):
            q, near, far = record[at : at + 3].tolist()
            at += 3 + near + far
            peers.append(q)
            counts.append((near, far))
            found.append(np.searchsorted(nodes, record[at - near - far : at]))
        arrays = {
            "send_parts": np.array(peers, dtype=np.int64),
            "send_counts": np.array(counts, dtype=np.int64).reshape(-1, 2),
            "send_nodes": np.concatenate(found),
        }
        return {name: self._save(f"{_name(p)}/{name}", value) for name, value in arrays.items()}

    def _save(self, name: str, value: Array) -> dict[str, int]:
        path = self.folder / f"{name}.npy"
        np.save(path, np.ascontiguousarray(value), allow_pickle=False)
        return {"bytes": path.stat().st_size, "crc": _crc(path)}
