"""Graphs from files.

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
``target``, or the first two), ``edge_weight`` or ``weight``, and edge features.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from hogwild.cluster.cutting import Array
from hogwild.errors import ConfigError, DataError, FeatureError
from hogwild.graph.inputs import whole

Table = dict[str, Array]

ENDS = (("src", "dst"), ("source", "target"), ("from", "to"), ("sender", "receiver"), ("u", "v"))
"""Names of the columns that hold the two ends of an edge."""
WEIGHTS = ("edge_weight", "weight")
PYG = (DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""Classes inside a saved ``Data``. Files with others are refused: loading could run any code."""
TABLES = (".parquet", ".csv", ".tsv", ".txt", ".edges")


def open_graph(path: str | Path, *, names: Mapping[str, str] | None = None) -> Data:
    """Read a graph from a file. Without features, x is a column of ones.

    A graph that does not fit into memory is a folder of ``.npy`` files.

    Args:
        path: The file, of one of the kinds above, or a folder of ``.npy`` files.
        names: Other names for arrays or columns of the file, such as ``{"latlon": "pos"}``.

    Raises:
        DataError: The file is missing, damaged, or holds no graph.
    """
    path, names = Path(path), names or {}
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a file with a graph")
    if path.is_dir():
        read = {file.stem: np.load(file, mmap_mode="c") for file in sorted(path.glob("*.npy"))}
        found = _graph(_renamed(read, names), path)
    elif path.suffix == ".npz":
        found = _graph(_renamed(_unpacked(path), names), path)
    elif path.suffix == ".pt":
        found = _saved(path)
    elif path.suffix in TABLES:
        table = _parquet(path) if path.suffix == ".parquet" else _text(path)
        found = _graph(_arrays(_renamed(table, names), path), path)
    else:
        raise ConfigError(
            f"{path} ends in {path.suffix!r}; expected a folder or one of "
            f"{', '.join(('.npz', '.pt', *TABLES))}"
        )
    whole(found)  # raises where it is none
    return found


def graph_of(
    edge_index: Array,
    x: Array,
    edge_attr: Array | None = None,
    edge_weight: Array | None = None,
    node_fields: Mapping[str, Array] | None = None,
    edge_fields: Mapping[str, Array] | None = None,
) -> Data:
    """A graph in arrays, which may be memory-mapped."""

    def tensor(name: str, value: Array) -> Tensor:
        if value.dtype.kind not in "fiub":
            raise FeatureError(f"{name} holds {value.dtype}; expected numbers")
        return torch.from_numpy(value if value.flags.writeable else value.copy())

    for name, value in (("edge_attr", edge_attr), ("edge_weight", edge_weight)):
        if value is not None and len(value) != edge_index.shape[-1]:
            raise FeatureError(
                f"{name} has shape {value.shape}; expected a row for each of the "
                f"{edge_index.shape[-1]} edges"
            )
    arrays = {"x": x, "edge_attr": edge_attr, "edge_weight": edge_weight}
    arrays |= {**(node_fields or {}), **(edge_fields or {})}
    found = {name: tensor(name, value) for name, value in arrays.items() if value is not None}
    return Data(edge_index=tensor("edge_index", edge_index).long().contiguous(), **found)


def _renamed(read: Table, names: Mapping[str, str]) -> Table:
    return {names.get(name, name): value for name, value in read.items()}


def _unpacked(path: Path) -> Table:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def _graph(arrays: Table, path: Path) -> Data:
    if "edge_index" in arrays:
        edge_index = arrays.pop("edge_index")
    else:
        src, dst = (arrays.pop(name) for name in _ends(list(arrays), path))
        if src.shape != dst.shape or src.ndim != 1:
            raise DataError(f"{path} has ends of shapes {src.shape} and {dst.shape}; expected [E]")
        edge_index = np.stack([src, dst]).astype(np.int64)
    weight = next((arrays.pop(name) for name in WEIGHTS if name in arrays), None)
    attr, x = arrays.pop("edge_attr", None), arrays.pop("x", None)
    if x is None:
        count = len(arrays["pos"]) if "pos" in arrays else int(edge_index.max(initial=-1)) + 1
        x = np.ones((count, 1))
    sizes = len(x), edge_index.shape[-1]
    rest = {name: value for name, value in arrays.items() if value.ndim and len(value) in sizes}
    return graph_of(edge_index, x[:, None] if x.ndim == 1 else x, attr, weight, rest)


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


def _parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{path} needs pyarrow: pip install 'hogwild-gnn[parquet]'") from error
    try:
        found = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    return {name: found[name].to_numpy() for name in found.column_names}


def _text(path: Path) -> Table:
    comma = {".csv": ",", ".tsv": "\t"}.get(path.suffix)
    with path.open() as file:
        first = next((line for line in file if line.strip() and line[0] not in "#%"), "")
        names, lines = [cell.strip() for cell in first.split(comma)], chain([], file)
        with contextlib.suppress(ValueError):  # there are no names
            [float(cell) for cell in names]
            names, lines = [f"column {i}" for i in range(len(names))], chain([first], file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a table without rows
                table = np.loadtxt(lines, delimiter=comma, comments=["#", "%"], ndmin=2)
        except ValueError as error:
            raise DataError(f"{path} cannot be read as a table of numbers: {error}") from error
    if table.size and table.shape[1] != len(names):
        raise DataError(
            f"{path} has {table.shape[1]} columns, and {len(names)} in its first line; expected "
            f"the same number"
        )
    return dict(zip(names, table.T if table.size else np.empty((len(names), 0)), strict=True))


def _arrays(table: Table, path: Path) -> Table:
    """The arrays of a table of edges, whose nodes have no features."""
    both = np.stack([table.pop(name) for name in _ends(list(table), path, positional=True)])
    edge_index = both.astype(np.int64)
    if not np.array_equal(edge_index, both):
        raise DataError(f"{path} has ends that are not integers; expected node numbers from 0")
    if not edge_index.size:
        raise DataError(f"{path} holds no edges; expected at least one")
    weight = {name: table.pop(name) for name in WEIGHTS if name in table}
    if not weight and path.suffix in (".txt", ".edges") and len(table) == 1:
        weight = {"weight": table.popitem()[1]}
    attr = {"edge_attr": np.stack(list(table.values()), 1).astype(np.float64)} if table else {}
    return {"edge_index": edge_index, **weight, **attr}
