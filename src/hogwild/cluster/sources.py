"""Graphs from files.

====================  ===========================================================================
file                  what it holds
====================  ===========================================================================
``.npz``              arrays by name: ``edge_index`` [2, E], or ``src`` and ``dst`` [E]; ``x``,
                      ``edge_attr``, ``edge_weight``; others with a row for each node or edge
a folder              the same arrays, as ``.npy`` files, which are memory-mapped
``.pt``               a PyG ``Data``, saved by ``torch.save``
====================  ===========================================================================
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
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

PYG = (DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""Classes inside a saved ``Data``. Files with others are refused: loading could run any code."""


def open_graph(path: str | Path, *, names: Mapping[str, str] | None = None) -> Data:
    """Read a graph from a file. Without features, x is a column of ones.

    A graph that does not fit into memory is a folder of ``.npy`` files.

    Args:
        path: The file, of one of the kinds above, or a folder of ``.npy`` files.
        names: Other names for arrays of the file, such as ``{"latlon": "pos"}``.

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
    else:
        raise ConfigError(f"{path} ends in {path.suffix!r}; expected a folder, .npz or .pt")
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
    if {"src", "dst"} <= arrays.keys():
        src, dst = arrays.pop("src"), arrays.pop("dst")
        if src.shape != dst.shape or src.ndim != 1:
            raise DataError(f"{path} has ends of shapes {src.shape} and {dst.shape}; expected [E]")
        arrays["edge_index"] = np.stack([src, dst]).astype(np.int64)
    if "edge_index" not in arrays:
        raise DataError(
            f"{path} has {', '.join(arrays) or 'nothing'}; expected edge_index, or src and dst"
        )
    edge_index, x = arrays.pop("edge_index"), arrays.pop("x", None)
    weight, attr = arrays.pop("edge_weight", None), arrays.pop("edge_attr", None)
    if x is None:
        count = len(arrays["pos"]) if "pos" in arrays else int(edge_index.max(initial=-1)) + 1
        x = np.ones((count, 1))
    sizes = len(x), edge_index.shape[-1]
    rest = {name: value for name, value in arrays.items() if value.ndim and len(value) in sizes}
    return graph_of(edge_index, x[:, None] if x.ndim == 1 else x, attr, weight, rest)


def _saved(path: Path) -> Data:
    torch.serialization.add_safe_globals([Data, *PYG])
    try:
        found = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as a PyG Data: {error}") from error
    if not isinstance(found, Data):
        raise DataError(f"{path} holds a {type(found).__name__}; expected a PyG Data")
    return found
