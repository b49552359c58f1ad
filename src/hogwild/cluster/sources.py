"""Graphs from files, read in chunks.

====================  ===========================================================================
file                  what it holds
====================  ===========================================================================
``.npz``              arrays by name: ``edge_index`` [2, E], or ``src`` and ``dst`` [E]; ``x``,
                      ``edge_attr``, ``edge_weight``; others with a row for each node or edge
a folder              the same arrays, as ``.npy`` files, which are memory-mapped
``.parquet``          a table of edges (needs ``pyarrow``)
``.csv``, ``.tsv``    a table of edges, with or without names in the first line
``.txt``, ``.edges``  two numbers a line, and perhaps a weight; ``#`` and ``%`` begin comments
``.pt``               a PyG ``Data``, saved by ``torch.save``
====================  ===========================================================================

The columns of a table of edges are the sender, the receiver (``src`` and ``dst``, ``source`` and
``target``, or the first two), ``edge_weight`` or ``weight``, and edge features. A second table may
hold node features, row i those of node i.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from hogwild.cluster.whole import Whole
from hogwild.errors import ConfigError, DataError

Array = npt.NDArray[Any]
Table = dict[str, Array]

LINES = 1 << 19
"""Lines of a text file that are read at a time."""
ENDS = (("src", "dst"), ("source", "target"), ("from", "to"), ("sender", "receiver"), ("u", "v"))
"""Names of the columns that hold the two ends of an edge."""
WEIGHTS = ("edge_weight", "weight")
PYG = (DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""Classes inside a saved ``Data``. Files with others are refused: loading could run any code."""
SUFFIXES = (".npz", ".parquet", ".csv", ".tsv", ".txt", ".edges", ".pt")


class Rows:
    """Collects rows [n, …] of one dtype. With a folder they go into a file as they come, and
    :meth:`done` maps the file into memory; without one they stay in memory.

    Args:
        folder: The folder of the file, or ``None``.
        name: The name of the file, without its ending.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / f"{name}.rows"
        self.count, self.like = 0, np.empty(0)
        self.parts: list[Array] = []
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")

    def add(self, rows: Array) -> None:
        """Append rows. The first rows decide the dtype and the width."""
        if not self.count:
            self.like = np.empty((0, *rows.shape[1:]), rows.dtype)
        rows = np.ascontiguousarray(rows, dtype=self.like.dtype)
        self.count += len(rows)
        if self.path is None:
            self.parts.append(rows)
        else:
            with self.path.open("ab") as file:
                rows.tofile(file)

    def done(self) -> Array:
        """All rows; in a file, memory-mapped and copied on writing."""
        if self.path is None or not self.count:
            return np.concatenate([self.like, *self.parts])
        shape = (self.count, *self.like.shape[1:])
        return np.memmap(self.path, self.like.dtype, mode="c", shape=shape)


def open_graph(
    path: str | Path,
    *,
    nodes: str | Path | None = None,
    folder: str | Path | None = None,
    undirected: bool = False,
    names: Mapping[str, str] | None = None,
) -> Whole:
    """Read a graph from a file.

    Args:
        path: The file, of one of the kinds above, or a folder of ``.npy`` files.
        nodes: A table (``.csv``, ``.tsv``, ``.parquet``, ``.npy``) with the features of node i in
            row i. The columns ``y`` and ``…_mask`` become fields. Without features, x is a column
            of ones.
        folder: Where the arrays are written, so that memory holds a chunk at a time. ``None``: the
            arrays stay in memory.
        undirected: Each edge of the file stands for both directions.
        names: Other names for arrays or columns of the file, such as ``{"latlon": "pos"}``.

    Raises:
        DataError: The file is missing, damaged, or holds no graph.
    """
    path = Path(path)
    place = None if folder is None else Path(folder)
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a file with a graph")
    if path.is_dir():
        read = {file.stem: np.load(file, mmap_mode="c") for file in sorted(path.glob("*.npy"))}
        whole = _from_arrays(read, path, place, names or {})
    elif path.suffix == ".npz":
        whole = _from_arrays(_unpacked(path, place), path, place, names or {})
    elif path.suffix == ".pt":
        whole = Whole.of(_saved(path))
    elif path.suffix in SUFFIXES:
        whole = _from_table(_tables(path), path, place, names or {})
    else:
        raise ConfigError(
            f"{path} ends in {path.suffix!r}; expected a folder or one of {', '.join(SUFFIXES)}"
        )
    if nodes is not None:
        whole = _with_nodes(whole, Path(nodes), place, names or {})
    return _doubled(whole, place) if undirected else whole


# -- arrays by name --------------------------------------------------------------------------------


def _unpacked(path: Path, folder: Path | None) -> Table:
    """The arrays of an .npz file; with a folder, unpacked there and memory-mapped."""
    try:
        if folder is None:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        folder.mkdir(parents=True, exist_ok=True)
        found = {}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if Path(name).name == name and name.endswith(".npy"):
                    file = archive.extract(name, folder)
                    found[name[:-4]] = np.load(file, mmap_mode="c", allow_pickle=False)
        return found
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def _from_arrays(read: Table, path: Path, folder: Path | None, names: Mapping[str, str]) -> Whole:
    arrays = {names.get(name, name): value for name, value in read.items()}
    if "edge_index" in arrays:
        edge_index = arrays.pop("edge_index")
    else:
        ends = _ends(list(arrays), path)
        pairs = Rows(folder, "edges")
        src, dst = (arrays.pop(name) for name in ends)
        if src.shape != dst.shape or src.ndim != 1:
            raise DataError(f"{path} has ends of shapes {src.shape} and {dst.shape}; expected [E]")
        pairs.add(np.empty((0, 2), np.int64))
        for at in range(0, len(src), LINES):
            pairs.add(np.stack([src[at : at + LINES], dst[at : at + LINES]], 1).astype(np.int64))
        edge_index = pairs.done().T
    edges = int(edge_index.shape[-1])
    weight = next((arrays.pop(name) for name in WEIGHTS if name in arrays), None)
    attr, x = arrays.pop("edge_attr", None), arrays.pop("x", None)
    rest = {name: value for name, value in arrays.items() if value.ndim}
    count = len(x) if x is not None else _count(edge_index, rest, edges)
    return Whole(
        edge_index,
        np.ones((count, 1)) if x is None else x[:, None] if x.ndim == 1 else x,
        attr if attr is None or attr.ndim == 2 else attr[:, None],
        weight,
        {name: value for name, value in rest.items() if len(value) == count},
        {name: value for name, value in rest.items() if len(value) == edges != count},
    )


def _count(edge_index: Array, others: Table, edges: int) -> int:
    """Number of nodes: that of the shortest array which is long enough, else of the largest end."""
    least = 0
    for at in range(0, edges, LINES):
        least = max(least, int(edge_index[:, at : at + LINES].max()) + 1)
    long = [len(value) for value in others.values() if len(value) >= least and len(value) != edges]
    return min(long, default=least)


def _ends(names: list[str], path: Path, positional: bool = False) -> tuple[str, str]:
    """The names of the columns with the two ends of the edges."""
    for pair in ENDS:
        if set(pair) <= set(names):
            return pair
    if positional and len(names) >= 2:
        return names[0], names[1]
    raise DataError(
        f"{path} has {', '.join(names) or 'nothing'}; expected edge_index, or the ends of the "
        f"edges by name: {' or '.join(' and '.join(pair) for pair in ENDS)}"
    )


def _saved(path: Path) -> Data:
    torch.serialization.add_safe_globals([Data, *PYG])
    try:
        found = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as a PyG Data: {error}") from error
    if not isinstance(found, Data):
        raise DataError(f"{path} holds a {type(found).__name__}; expected a PyG Data")
    return found


# -- tables ----------------------------------------------------------------------------------------


def _tables(path: Path) -> Iterator[Table]:
    """A table in chunks of rows: columns by name."""
    return _parquet(path) if path.suffix == ".parquet" else _text(path)


def _parquet(path: Path) -> Iterator[Table]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{path} needs pyarrow: pip install 'hogwild-gnn[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for batch in file.iter_batches(LINES):
                columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
                yield dict(zip(names, columns, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _text(path: Path) -> Iterator[Table]:
    comma = {".csv": ",", ".tsv": "\t"}.get(path.suffix)
    with path.open() as file:
        first = next((line for line in file if line.strip() and line[0] not in "#%"), "")
        cells = [cell.strip() for cell in first.split(comma)]
        named = not all(map(_is_number, cells))
        names = cells if named else [f"column {i}" for i in range(len(cells))]
        rest: Iterator[str] = iter([]) if named else iter([first])
        while True:
            lines = [*islice(rest, 1), *_lines(file)]
            if not lines:
                return
            try:
                table = np.loadtxt(lines, delimiter=comma, comments=["#", "%"], ndmin=2)
            except ValueError as error:
                raise DataError(f"{path} cannot be read as a table of numbers: {error}") from error
            if table.shape[1] != len(names):
                raise DataError(
                    f"{path} has {table.shape[1]} columns in some lines and {len(names)} in the "
                    f"first; expected the same number"
                )
            yield dict(zip(names, table.T, strict=True))


def _lines(file: TextIO) -> list[str]:
    return [line for line in islice(file, LINES) if line.strip() and line[0] not in "#%"]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _from_table(
    chunks: Iterator[Table], path: Path, folder: Path | None, names: Mapping[str, str]
) -> Whole:
    pairs, weights, attrs = (Rows(folder, name) for name in ("edges", "edge_weight", "edge_attr"))
    pairs.add(np.empty((0, 2), np.int64))
    largest = -1
    for read in chunks:
        table = {names.get(name, name): column for name, column in read.items()}
        ends = _ends(list(table), path, positional=True)
        both = np.stack([table.pop(name) for name in ends], 1)
        whole = both.astype(np.int64)
        if both.dtype.kind not in "iu" and not np.array_equal(whole, both):
            raise DataError(f"{path} has ends that are not integers; expected node numbers from 0")
        pairs.add(whole)
        largest = max(largest, int(whole.max(initial=-1)))
        weight = next((table.pop(name) for name in WEIGHTS if name in table), None)
        if weight is None and path.suffix in (".txt", ".edges") and len(table) == 1:
            weight = table.popitem()[1]
        if weight is not None:
            weights.add(weight)
        if table:
            attrs.add(np.stack(list(table.values()), 1).astype(np.float64))
    if largest < 0:
        raise DataError(f"{path} holds no edges; expected at least one")
    return Whole(
        pairs.done().T,
        np.ones((largest + 1, 1)),
        attrs.done() if attrs.count else None,
        weights.done() if weights.count else None,
    )


def _with_nodes(whole: Whole, path: Path, folder: Path | None, names: Mapping[str, str]) -> Whole:
    """The graph with the features of a table of nodes."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a table of node features")
    fields: dict[str, Rows] = {}
    if path.suffix == ".npy":
        x: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    else:
        features = Rows(folder, "x")
        for read in _tables(path):
            table = {names.get(name, name): column for name, column in read.items()}
            for name in [name for name in table if name == "y" or name.endswith("_mask")]:
                if name not in fields:
                    fields[name] = Rows(folder, name)
                column = table.pop(name)
                fields[name].add(column.astype(bool) if name.endswith("_mask") else column)
            features.add(np.stack(list(table.values()), 1).astype(np.float64))
        x = features.done()
    if len(x) < whole.num_nodes:
        raise DataError(
            f"{path} has {len(x)} rows, and the edges name nodes up to {whole.num_nodes - 1}; "
            f"expected a row for each node"
        )
    more = {name: rows.done() for name, rows in fields.items()}
    return Whole(whole.edge_index, x, whole.edge_attr, whole.edge_weight, more, whole.edge_fields)


def _doubled(whole: Whole, folder: Path | None) -> Whole:
    """The graph with the reverse of every edge that is not a self-loop."""
    values = {"edge_attr": whole.edge_attr, "edge_weight": whole.edge_weight}
    values |= {f"edge {name}": value for name, value in whole.edge_fields.items()}
    given = {name: value for name, value in values.items() if value is not None}
    found = {name: Rows(folder, f"both {name}") for name in ("edge_index", *given)}
    for at, src, dst in whole.chunks():
        back = src != dst
        pairs = np.stack([src, dst], 1)
        found["edge_index"].add(np.concatenate([pairs, pairs[back][:, ::-1]]))
        for name, value in given.items():
            found[name].add(np.concatenate([value[at], value[at][back]]))
    if not whole.num_edges:
        return whole
    done = {name: rows.done() for name, rows in found.items()}
    edges = done.pop("edge_index").T
    attr, weight = done.pop("edge_attr", None), done.pop("edge_weight", None)
    more = {name.removeprefix("edge "): value for name, value in done.items()}
    return Whole(edges, whole.x, attr, weight, whole.node_fields, more)
