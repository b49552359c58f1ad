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
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from hogwild.cluster.cutting import Array
from hogwild.errors import ConfigError, DataError, FeatureError
from hogwild.graph.inputs import whole

Table = dict[str, Array]

PYG = (DataEdgeAttr, DataTensorAttr, GlobalStorage)
"""Classes inside a saved ``Data``. Files with others are refused: loading could run any code."""


def open_graph(path: str | Path) -> Data:
    """Read a graph from a file. Without features, x is a column of ones.

    A graph that does not fit into memory is a folder of ``.npy`` files.

    Args:
        path: The file, of one of the kinds above, or a folder of ``.npy`` files.

    Raises:
        DataError: The file is missing, damaged, or holds no graph.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a file with a graph")
    if path.is_dir():
        read = {file.stem: np.load(file, mmap_mode="c") for file in sorted(path.glob("*.npy"))}
        found = _graph(read, path)
    elif path.suffix == ".npz":
        found = _graph(_unpacked(path), path)
    elif path.suffix == ".pt":
        found = _saved(path)
    else:
        raise ConfigError(f"{path} ends in {path.suffix!r}; expected a folder, .npz or .pt")
    whole(found)  # raises where it is none
    return found


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
        arrays["edge_index"] = np.stack([src, dst])
    if "edge_index" not in arrays:
        raise DataError(
            f"{path} has {', '.join(arrays) or 'nothing'}; expected edge_index, or src and dst"
        )
    ends = arrays["edge_index"]
    if "x" not in arrays:
        count = len(arrays["pos"]) if "pos" in arrays else int(ends.max(initial=-1)) + 1
        arrays["x"] = np.ones((count, 1))
    sizes, found = (len(arrays["x"]), ends.shape[-1]), Data()
    for name, value in arrays.items():
        if name in ("edge_attr", "edge_weight") and len(value) != sizes[1]:
            raise FeatureError(
                f"{name} has shape {value.shape}; expected a row for each of the {sizes[1]} edges"
            )
        if name != "edge_index" and (not value.ndim or len(value) not in sizes):
            continue
        if value.dtype.kind not in "fiub":
            raise FeatureError(f"{name} holds {value.dtype}; expected numbers")
        found[name] = torch.from_numpy(value if value.flags.writeable else value.copy())
    found.edge_index = found.edge_index.long().contiguous()
    found.x = found.x[:, None] if found.x.dim() == 1 else found.x
    return found


def _saved(path: Path) -> Data:
    torch.serialization.add_safe_globals([Data, *PYG])
    try:
        found = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as a PyG Data: {error}") from error
    if not isinstance(found, Data):
        raise DataError(f"{path} holds a {type(found).__name__}; expected a PyG Data")
    return found
