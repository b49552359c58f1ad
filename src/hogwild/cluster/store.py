"""A graph on the disk, cut into parts: a worker reads only its own part.

A store is a folder::

    index.json          sizes of all parts, checksums of all files
    cut.pt              the part of every node, and the nodes that each part sends
    part-00000.pt       the tensors of a part

The files are memory-mapped.

**Checksums.** A worker checks the files of its own part once (:meth:`Store.check`), before it reads
them: it needs nearly all of their bytes anyway. A memory-mapped tensor is not checked while it is
read.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.cluster.cutting import OVERLAP, pieces
from hogwild.cluster.work import Part, by_owner
from hogwild.errors import ConfigError, DataError, GraphError, require_integer
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs, whole

FORMAT, VERSION = "hogwild graph store", 4


class Count(NamedTuple):
    """Sizes of a part."""

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
        hops: How far beyond the nodes for which it solves a part reaches
            (:class:`~hogwild.cluster.work.Part`).
        channels: Width of the node features.
        edge_dim: Width of the edge features; ``None`` without edge features.
        has_weights: Whether the edges have weights.
        graph: A checksum of the graph.
        counts: Sizes of all parts.
        files: Checksums of all files.
    """

    folder: Path
    num_nodes: int
    num_edges: int
    num_parts: int
    hops: int
    channels: int
    edge_dim: int | None
    has_weights: bool
    graph: str = field(repr=False)
    counts: list[Count] = field(repr=False)
    files: dict[str, int] = field(repr=False)

    @classmethod
    def write(
        cls,
        folder: str | Path,
        graph: Inputs | Data,
        part: npt.ArrayLike,
        *,
        overlap: int = OVERLAP,
        hops: int = 2,
        overwrite: bool = False,
    ) -> Store:
        """Cut a graph into parts and write them into a folder, which appears when it is complete.

        Args:
            folder: The new folder.
            graph: A PyG ``Data`` or ``Inputs``. Their tensors may be memory-mapped: beside one
                part, memory holds some forty bytes for each edge.
            part: The part of every node, [N] (:func:`hogwild.cluster.partition`). Parts without
                nodes are left out, and the others numbered anew.
            overlap: Most rings of other parts' nodes for which a part solves, too
                (:mod:`hogwild.cluster.cutting`).
            hops: How far a node reads: 2 serves every model, and training; 1 is enough for the
                answers of fixed points and of graph signal denoising.
            overwrite: Replace a store that is in the folder.
        """
        found, folder = whole(graph), Path(folder)
        parts = _checked(part, found.num_nodes)
        require_integer("overlap", overlap, 0)
        if hops not in (1, 2):
            raise ConfigError(f"hops={hops!r}; expected 1 or 2")
        is_store = (folder / "index.json").is_file()
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if taken and not (is_store and overwrite):
            more = ", or overwrite=True" if is_store else ""
            raise DataError(f"{folder} exists already; expected a new folder{more}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(beside, found, parts, overlap, hops)
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
            checksum, kind, version = (index.pop(k) for k in ("checksum", "format", "version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); write the store again") from error
        if (kind, version) != (FORMAT, VERSION):
            raise DataError(
                f"{path} has format {kind!r}, version {version!r}; expected "
                f"{FORMAT!r}, version {VERSION}: write the store again with this library"
            )
        if checksum != _digest(index):
            raise DataError(f"{path} is damaged (wrong checksum); write the store again")
        return cls(folder, **index | {"counts": [Count(*each) for each in index["counts"]]})

    @property
    def parts(self) -> Tensor:
        """The part of every node, [N]."""
        found: Tensor = self._load("cut")["parts"]
        return found

    def part(self, number: int) -> Part:
        """The part of this number, 0, …, P − 1, memory-mapped."""
        if not 0 <= require_integer("number", number) < self.num_parts:
            raise ConfigError(f"number={number}; expected a part from 0 to {self.num_parts - 1}")
        found, sends = self._load(_name(number)), self._load("cut")["sends"][number]
        return Part(**found | {"inputs": Inputs(**found["inputs"]), "sends": sends})

    def check(self, number: int | None = None) -> None:
        """Read the files of one part, or all files, and compare their checksums.

        Raises:
            DataError: A file is damaged or missing.
        """
        for name in self.files if number is None else ("cut", _name(number)):
            path = self.folder / f"{name}.pt"
            if not path.is_file():
                raise DataError(f"{path} is missing; write the store again")
            if _crc(path) != self.files[name]:
                raise DataError(f"{path} is damaged (wrong checksum); write the store again")

    def _load(self, name: str) -> dict[str, Any]:
        """A memory-mapped file. Changes of its tensors stay in memory."""
        path = self.folder / f"{name}.pt"
        try:
            found: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(f"{path} is damaged ({error}); write the store again") from error
        return found


def digest_of(graph: Inputs) -> str:
    """A checksum of all tensors of a graph."""
    found = hashlib.sha256()
    for name, value in _tensors(graph).items():
        for key, tensor in (value if isinstance(value, dict) else {"": value}).items():
            found.update(f"{name} {key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(np.ascontiguousarray(tensor.detach().numpy()).data)
    return found.hexdigest()


def _tensors(inputs: Inputs) -> dict[str, Any]:
    return {name: value for name, value in vars(inputs).items() if value is not None}


def _write(folder: Path, graph: Inputs, parts: Tensor, overlap: int, hops: int) -> None:
    """Write all files of a store into a folder that exists; the index comes last."""
    files: dict[str, int] = {}
    counts: list[Count] = []
    owned, count = by_owner(parts), int(parts.max()) + 1
    sends: list[dict[int, Tensor]] = [{} for _ in range(count)]

    def save(name: str, content: dict[str, Any]) -> None:
        path = folder / f"{name}.pt"
        try:
            torch.save(content, path)
        except RuntimeError as error:  # of a full disk, in torch's words
            raise OSError(f"{path} cannot be written: {error}") from error
        files[name] = _crc(path)

    for p, piece in enumerate(pieces(graph, parts, overlap, hops)):
        save(_name(p), vars(replace(piece, sends={})) | {"inputs": _tensors(piece.inputs)})
        counts.append(Count(piece.owned, len(piece.halo), piece.inputs.edge_index.size(1)))
        for q, at in by_owner(piece.owner).items():
            sends[q][p] = torch.searchsorted(owned[q], piece.halo[at])
    save("cut", {"parts": parts, "sends": sends})
    index: dict[str, Any] = {
        "num_nodes": graph.num_nodes, "num_edges": graph.edge_index.size(1), "num_parts": count,
        "hops": hops, "channels": graph.x.size(1),
        "edge_dim": None if graph.edge_attr is None else graph.edge_attr.size(1),
        "has_weights": graph.edge_weight is not None, "graph": digest_of(graph),
        "counts": counts, "files": files,
    }  # fmt: skip
    index |= {"checksum": _digest(index), "format": FORMAT, "version": VERSION}
    write_atomically(folder / "index.json", json.dumps(index).encode())


def _name(number: int) -> str:
    """The file of a part."""
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


def _checked(part: npt.ArrayLike, nodes: int) -> Tensor:
    """The part of every node, [N], as numbers without gaps."""
    parts = np.asarray(part)
    if parts.shape != (nodes,) or parts.dtype.kind not in "iu":
        raise GraphError(
            f"part is {parts.dtype} of shape {parts.shape}; expected integers [{nodes}], the part "
            f"of every node"
        )
    _, numbers = np.unique(parts, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int32))
