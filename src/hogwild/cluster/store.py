"""A graph on the disk, cut into parts: a worker reads only its own part.

A store is a folder::

    index.json          sizes of all parts, checksums of all files
    parts.npy           the part of every node, [N]
    part-00000/         one .npy file for each array of a part

The files are memory-mapped. What a part of one hop needs comes first in every array, then what the
second hop adds.

**Checksums.** A worker checks the files of its own part once (:meth:`Store.check`), before it reads
them: it needs nearly all of their bytes anyway. A memory-mapped array is not checked while it is
read.
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
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.cluster.cutting import OVERLAP, Array, Part, by_owner, pieces, whole
from hogwild.errors import ConfigError, DataError, GraphError, require_integer
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs

FORMAT, VERSION = "hogwild graph store", 3
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
        graph: Inputs | Data,
        part: npt.ArrayLike,
        *,
        num_parts: int | None = None,
        overlap: int = OVERLAP,
        overwrite: bool = False,
    ) -> Store:
        """Cut a graph into parts and write them into a folder, which appears when it is complete.

        Args:
            folder: The new folder.
            graph: A PyG ``Data`` or ``Inputs``. Their tensors may be memory-mapped: beside one
                part, memory holds some forty bytes for each edge.
            part: The part of every node, [N] (:func:`hogwild.cluster.partition`).
            num_parts: Number of parts; by default the largest part that occurs and those below it.
                A part may be empty.
            overlap: Most rings of other parts' nodes for which a part solves, too
                (:mod:`hogwild.cluster.cutting`).
            overwrite: Replace a store that is in the folder.
        """
        found, folder = whole(graph), Path(folder)
        parts, count = _checked(part, found.num_nodes, num_parts)
        require_integer("overlap", overlap, 0)
        is_store = (folder / "index.json").is_file()
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (is_store and overwrite):
            more = ", or overwrite=True" if is_store else ""
            raise DataError(f"{folder} exists already; expected a new folder{more}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(beside, found, parts, count, overlap)
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
            DataError: There is no store, it has another version, or its index is damaged.
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
        if told != _digest(index):
            raise DataError(f"{path} is damaged (wrong checksum); write the store again")
        options = {k: index[k] for k in ("num_nodes", "num_edges", "num_parts")}
        options |= {k: index[k] for k in ("channels", "edge_dim", "has_weights")}
        return cls(folder, **options, index=index)

    @property
    def parts(self) -> Array:
        """The part of every node, [N]."""
        return _load(self.folder / "parts.npy")

    def counts(self, hops: int = 2) -> list[Count]:
        """Sizes of all parts, without reading the parts."""
        if hops not in HOPS:
            raise ConfigError(f"hops={hops!r}; expected 1 or 2")
        at = hops - 1
        return [Count(e["nodes"], e["halo"][at], e["edges"][at]) for e in self.index["parts"]]

    def part(self, number: int, hops: int = 2) -> Part:
        """One part, memory-mapped.

        Args:
            number: 0, …, P − 1.
            hops: 1 or 2: how far a node reads (:class:`~hogwild.cluster.cutting.Part`).
        """
        if not 0 <= require_integer("number", number) < self.num_parts:
            raise ConfigError(f"number={number}; expected a part from 0 to {self.num_parts - 1}")
        count, folder = self.counts(hops)[number], self.folder / _name(number)
        local = count.nodes + count.halo

        def load(name: str, rows: int | None = None) -> Array:
            return _load(folder / f"{name}.npy")[:rows]

        def loaded(name: str, rows: int) -> Tensor:
            return torch.from_numpy(load(name, rows))

        inputs = Inputs(
            loaded("x", local),
            torch.from_numpy(np.ascontiguousarray(load("edge_index")[:, : count.edges])),
            None if self.edge_dim is None else loaded("edge_attr", count.edges),
            edge_weight=loaded("edge_weight", count.edges) if self.has_weights else None,
            degrees=loaded("degrees", local),
            nodes={name: loaded(f"node_{name}", local) for name in self.index["node_fields"]},
            edges={name: loaded(f"edge_{name}", count.edges) for name in self.index["edge_fields"]},
        )
        sizes, gives = load("send_counts"), load("send_nodes")
        first = sizes[:, 1].cumsum() - sizes[:, 1]
        sends = {
            q: gives[at : at + size]
            for q, at, size in zip(
                load("send_parts").tolist(), first, sizes[:, hops - 1], strict=True
            )
            if size
        }
        return Part(
            load("nodes"), load("halo", count.halo), load("owner", count.halo),
            self.index["parts"][number]["free"], inputs, sends,
        )  # fmt: skip

    def check(self, number: int | None = None) -> None:
        """Read the files of one part, or all files, and compare their checksums.

        Raises:
            DataError: A file is damaged or missing.
        """
        some = range(self.num_parts) if number is None else [number]
        files = {
            f"{_name(p)}/{name}": crc
            for p in some
            for name, crc in self.index["parts"][p]["files"].items()
        }
        if number is None:
            files["parts"] = self.index["parts_file"]
        for name, crc in files.items():
            path = self.folder / f"{name}.npy"
            if not path.is_file():
                raise DataError(f"{path} is missing; write the store again")
            if _crc(path) != crc:
                raise DataError(f"{path} is damaged (wrong checksum); write the store again")


def digest_of(graph: Inputs) -> str:
    """A checksum of all tensors of a graph."""
    found = hashlib.sha256()
    named = {name: getattr(graph, name) for name in ("edge_index", "x", "edge_attr", "edge_weight")}
    named |= {f"node {name}": value for name, value in graph.nodes.items()}
    named |= {f"edge {name}": value for name, value in graph.edges.items()}
    for name, value in named.items():
        if value is not None:
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(np.ascontiguousarray(value.detach().numpy()).data)
    return found.hexdigest()


def _write(folder: Path, graph: Inputs, parts: Array, count: int, overlap: int) -> None:
    """Write all files of a store into a folder that exists; the index comes last."""

    def save(name: str, value: Array | Tensor) -> int:
        path = folder / f"{name}.npy"
        plain = value.detach().numpy() if isinstance(value, Tensor) else value
        np.save(path, np.ascontiguousarray(plain), allow_pickle=False)
        return _crc(path)

    entries: list[dict[str, Any]] = []
    wanted: list[list[tuple[int, int, Array]]] = [[] for _ in range(count)]
    for p, (piece, halo, edges) in enumerate(pieces(graph, parts, count, overlap)):
        inputs = piece.inputs
        arrays: dict[str, Any] = {
            "nodes": piece.nodes, "halo": piece.halo, "owner": piece.owner,
            "edge_index": inputs.edge_index, "degrees": inputs.degrees, "x": inputs.x,
            "edge_attr": inputs.edge_attr, "edge_weight": inputs.edge_weight,
        }  # fmt: skip
        arrays |= {f"node_{name}": value for name, value in inputs.nodes.items()}
        arrays |= {f"edge_{name}": value for name, value in inputs.edges.items()}
        (folder / _name(p)).mkdir()
        files = {k: save(f"{_name(p)}/{k}", v) for k, v in arrays.items() if v is not None}
        sizes = {"nodes": len(piece.nodes), "free": piece.free, "halo": halo, "edges": edges}
        entries.append({**sizes, "files": files})
        for q, at in by_owner(piece.owner).items():
            wanted[q].append((p, int((at < halo[0]).sum()), piece.halo[at]))
    for p, lists in enumerate(wanted):
        nodes = np.flatnonzero(parts == p)
        found = [np.searchsorted(nodes, some) for _, _, some in lists]
        arrays = {
            "send_parts": np.array([q for q, _, _ in lists], dtype=np.int64),
            "send_counts": np.array([(n, len(s)) for _, n, s in lists], np.int64).reshape(-1, 2),
            "send_nodes": np.concatenate([np.empty(0, dtype=np.int64), *found]),
        }
        entries[p]["files"] |= {k: save(f"{_name(p)}/{k}", v) for k, v in arrays.items()}
    index: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "num_nodes": graph.num_nodes,
        "num_edges": graph.edge_index.size(1), "num_parts": count, "channels": graph.x.size(1),
        "edge_dim": None if graph.edge_attr is None else graph.edge_attr.size(1),
        "has_weights": graph.edge_weight is not None,
        "node_fields": list(graph.nodes), "edge_fields": list(graph.edges),
        "graph": digest_of(graph), "parts_file": save("parts", parts), "parts": entries,
    }  # fmt: skip
    index["checksum"] = _digest(index)
    write_atomically(folder / "index.json", json.dumps(index).encode())


def _name(number: int) -> str:
    """The folder of a part."""
    return f"part-{number:05d}"


def _digest(index: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _crc(path: Path) -> int:
    """The checksum of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            found = zlib.crc32(block, found)
    return found


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


def _load(path: Path) -> Array:
    """A memory-mapped file. Changes stay in memory, so that torch may use it without a copy."""
    try:
        found: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); write the store again") from error
    return found
