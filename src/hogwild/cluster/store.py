"""A graph on the disk, cut into parts: a worker reads only its own part.

A store is a folder::

    index.json          sizes of all parts, sizes and checksums of all files
    parts.npy           the part of every node, [N]
    part-00000/         one .npy file for each array of a part

The files are memory-mapped. The arrays of a part are sorted by rings: what a part of one hop needs
comes first, then what the second hop adds, and so on for the overlap.

**Checksums.** :meth:`Store.open` compares the sizes of all files, and :meth:`Store.check` compares
checksums. A worker checks the files of its own part once, before it reads them: it needs nearly all
of their bytes anyway. Whoever reads a part with :meth:`Store.part` calls :meth:`Store.check` first
where damage is to be feared: a memory-mapped array is not checked while it is read.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch_geometric.data import Data

from hogwild.cluster.cutting import (
    FORMAT,
    MOST,
    OVERLAP,
    VERSION,
    Writer,
    checksum_of,
    crc_of,
    part_name,
)
from hogwild.cluster.whole import Count, Part, Whole
from hogwild.errors import ConfigError, DataError, GraphError, require_integer
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

HOPS = (1, 2)


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
        overlap: int = OVERLAP,
        overwrite: bool = False,
    ) -> Store:
        """Cut a graph into parts and write them into a folder, which appears when it is complete.

        Beside one part, memory holds a few numbers for each node.

        Args:
            folder: The new folder.
            graph: A PyG ``Data``, ``Inputs``, or a :class:`Whole` with memory-mapped arrays.
            part: The part of every node, [N] (:func:`hogwild.cluster.partition`).
            num_parts: Number of parts; by default the largest part that occurs and those below it.
                A part may be empty.
            overlap: Most rings of other parts' nodes for which a part solves, too
                (:mod:`hogwild.cluster.cutting`).
            overwrite: Replace a store that is in the folder.
        """
        whole, folder = Whole.of(graph), Path(folder)
        parts, count = _checked(part, whole.num_nodes, num_parts)
        if require_integer("overlap", overlap, 0) > MOST:
            raise ConfigError(f"overlap={overlap}; expected 0 to {MOST} rings")
        is_store = (folder / "index.json").is_file()
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (is_store and overwrite):
            more = ", or overwrite=True" if is_store else ""
            raise DataError(f"{folder} exists already; expected a new folder{more}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            Writer(beside, whole, parts, count, overlap).write()
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
        if told != checksum_of(index):
            raise DataError(f"{path} is damaged (wrong checksum); write the store again")
        sizes = {"parts.npy": index["parts_file"]["bytes"]} | {
            f"{part_name(p)}/{name}.npy": file["bytes"]
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

    def overlap(self, number: int, most: int | None = None) -> int:
        """Rings of other parts' nodes for which a part solves, too: at most ``most``, and at most
        those that were written."""
        found = len(self.index["parts"][number]["halo"]) - 2
        return found if most is None else min(found, most)

    def counts(self, hops: int = 2, overlap: int | None = 0) -> list[Count]:
        """Sizes of all parts, without reading the parts."""
        _require_hops(hops)
        deep = [hops + self.overlap(p, overlap) for p in range(self.num_parts)]
        return [
            Count(e["nodes"], sum(e["halo"][:depth]), sum(e["edges"][:depth]))
            for e, depth in zip(self.index["parts"], deep, strict=True)
        ]

    def part(self, number: int, hops: int = 2, overlap: int | None = 0) -> Part:
        """One part, memory-mapped.

        Args:
            number: 0, …, P − 1.
            hops: 1 or 2: how far a node reads (:class:`~hogwild.cluster.whole.Part`).
            overlap: Most rings of other parts' nodes for which the part solves, too; ``None``: all
                that were written. All parts of a run must have the same number here.
        """
        _require_hops(hops)
        if overlap is not None:
            require_integer("overlap", overlap, 0)
        if not 0 <= require_integer("number", number) < self.num_parts:
            raise ConfigError(f"number={number}; expected a part from 0 to {self.num_parts - 1}")
        entry, folder = self.index["parts"][number], self.folder / part_name(number)
        count = self.counts(hops, overlap)[number]
        local, rings = count.nodes + count.halo, self.overlap(number, overlap)

        def load(name: str, rows: int | None = None) -> Array:
            return _load(folder / f"{name}.npy")[:rows]

        peers, shares = load("send_parts"), load("send_counts")
        ends = shares.sum(1).cumsum()
        send = load("send_nodes")
        sends = {}
        for q, share, end in zip(peers.tolist(), shares, ends, strict=True):
            first = end - share.sum()
            sends[q] = send[first : first + share[: hops + self.overlap(q, overlap)].sum()]
        return Part(
            number,
            load("nodes"),
            load("halo", count.halo),
            load("owner", count.halo),
            tuple(entry["halo"][: hops + rings]),
            rings,
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

    def check(self, number: int | None = None) -> None:
        """Read the files of one part, or all files, and compare their checksums.

        Raises:
            DataError: A file is damaged.
        """
        some = range(self.num_parts) if number is None else [number]
        files = {
            f"{part_name(p)}/{name}.npy": file["crc"]
            for p in some
            for name, file in self.index["parts"][p]["files"].items()
        }
        if number is None:
            files["parts.npy"] = self.index["parts_file"]["crc"]
        for name, crc in files.items():
            if crc_of(self.folder / name) != crc:
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


def _load(path: Path) -> Array:
    """A memory-mapped file. Changes stay in memory, so that torch may use it without a copy."""
    try:
        found: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); write the store again") from error
    return found
