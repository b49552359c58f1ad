r"""The paper's benchmark sets, and where data sets lie.

``$HOGWILD_DATA`` is only read, ``$HOGWILD_CACHE`` (default ``~/.cache/hogwild``) holds downloaded
and processed files.

**MUTAG and PROTEINS**, one class a graph, from the TUDataset collection
(``TUDataset/MUTAG/raw/MUTAG_A.txt`` and so on). MUTAG: 188 nitroaromatic compounds, atoms one-hot
[n, 7], mutagenic or not. PROTEINS: 1,113 proteins, type of secondary structure one-hot [n, 3],
enzyme or not. **Protocol.** 10 folds, stratified by class; accuracy on the held-out fold (× 5 seeds
of the parameters in the paper). **Loss** cross-entropy of two logits (the paper's last layers are
(4, 4, number of classes)). **Metric** accuracy.

**PPI** (Hamilton et al., 2017; ``PPI/raw/train_graph.json``, ``train_feats.npy``,
``train_labels.npy``, ``train_graph_id.npy``, the same for ``valid`` and ``test``): 121 yes-or-no
questions about every protein of 24 interaction networks, features [n, 50]. **Protocol.** The
published split: 20 networks to train on, 2 to validate, 2 to test. **Loss** binary cross-entropy,
mean over nodes and labels. **Metric** micro-F1 over all test nodes and labels together; a logit
above 0 means yes.

**Peptides-func and Peptides-struct** of the Long Range Graph Benchmark (Dwivedi et al., 2022;
``peptides-func/raw/{train,val,test}.pt``, ``peptides-struct`` likewise). The same 15,535 peptides,
150.94 heavy atoms on average; an atom has nine categories, a bond three, numbered as OGB's
``atom_to_feature_vector`` and ``bond_to_feature_vector`` do:

========  =======================================================================  ==============
          feature (number of OGB's categories)                                     in OGB
========  =======================================================================  ==============
atoms     atomic number (119), chirality (5), degree (12), formal charge (12),     174
          hydrogens (10), radical electrons (6), hybridisation (6), aromatic (2),
          in a ring (2)
bonds     type (5), stereo (6), conjugated (2)                                     13
========  =======================================================================  ==============

Features are one-hot, feature after feature: a column for each category that occurs in the data set
and none for a feature that never varies (31 and 5 columns: radical electrons and stereo never
vary). **Protocol.** The published split, 10,873 / 2,331 / 2,331 (training, validation, test graphs
in this order). *Func*: ten labels a peptide; loss binary cross-entropy; metric average precision,
mean over labels. *Struct*: eleven properties, standardised as LRGB stores them; loss mean squared
error, as the paper says of all regressions (LRGB trains on absolute errors); metric mean absolute
error. For func also ``peptides-func/peptides_func.npz``, a compact copy: ``x`` [N, 9], ``bonds``
[M, 2] each named once, ``bond_attr`` [M, 3], ``num_nodes`` and ``num_bonds`` [G], ``y`` [G, 10],
and the graph numbers ``train``, ``val``, ``test``.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import PPI as Networks
from torch_geometric.datasets import LRGBDataset, TUDataset

from hogwild.errors import DataError, require_positive
from hogwild.metrics import (
    ACCURACY,
    AVERAGE_PRECISION,
    BINARY_CROSS_ENTROPY,
    CROSS_ENTROPY,
    MAE,
    MICRO_F1,
    MSE,
)
from hogwild.tasks.base import Task, published

ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND = (5, 6, 2)
PARTS = ("train", "val", "test")
T = TypeVar("T")


def data_home() -> Path | None:
    """The folder of data sets that the user keeps, if there is one."""
    place = os.environ.get("HOGWILD_DATA")
    return Path(place) if place else None


def cache_home() -> Path:
    """The folder of downloaded and processed files; deleting it is safe."""
    return Path(os.environ.get("HOGWILD_CACHE") or Path.home() / ".cache" / "hogwild")


def absent(what: str, place: str, why: str) -> DataError:
    """The error for missing files: where they were looked for, and how to supply them."""
    home = data_home()
    given = "is not set" if home is None else f"is {home}"
    return DataError(
        f"{what} was not found: HOGWILD_DATA {given}, and {why}. Expected the files as "
        f"$HOGWILD_DATA/{place}; set HOGWILD_DATA to a folder that holds them, or allow the "
        "download (option download=True of the task) where there is a network"
    )


def prepared(
    what: str,
    source: str,
    files: Sequence[str],
    raw: str,
    load: Callable[[Path], T],
    *,
    download: bool,
) -> T:
    """A PyG data set, processed in the cache because its loaders write beside the raw files.

    Args:
        what: Its name, in errors and in the cache.
        source: Where its raw files lie below ``$HOGWILD_DATA``.
        files: Names of the raw files; all of them must be there.
        raw: Where the loader expects the raw files below its root.
        load: The loader, given its root; it downloads missing raw files.
        download: Whether it may download.

    The data set is built in a temporary folder and moved into place at once, so that processes that
    start together never read half-written files. It is built again when the raw files change.
    """
    home, root = data_home(), cache_home() / what
    given = None if home is None or not (home / source).is_dir() else home / source
    if given is None and not root.is_dir() and not download:
        raise absent(what, source, "nothing was downloaded before")
    for name in files:
        if given is not None and not (given / name).is_file():
            raise absent(what, f"{source}/{name}", "the folder is there without this file")
    if not root.is_dir() or (given is not None and not _same(given, root / raw)):
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            built = Path(folder) / what
            if given is not None:
                shutil.copytree(given, built / raw)
            try:
                load(built)
            except OSError as error:
                raise absent(what, source, f"loading or downloading it failed ({error})") from error
            shutil.rmtree(root, ignore_errors=True)
            shutil.move(built, root)
    return load(root)


def _same(given: Path, place: Path) -> bool:
    """Whether a cached copy has the files it was made from, by size and time of change."""
    if not place.is_dir():
        return False
    compared = filecmp.dircmp(given, place, ignore=[])
    return not compared.left_only and not compared.diff_files


class TUTask(Task):
    """Graph classification on one of the TUDataset collection.

    Args:
        download: Whether missing files may be downloaded.
    """

    minimised, reported = CROSS_ENTROPY, ACCURACY
    pool = "mean"
    dataset: ClassVar[str]
    """The collection's name for it."""

    def __init__(self, *, download: bool = True) -> None:
        def load(root: Path) -> TUDataset:
            return TUDataset(str(root), name)

        name, parts = self.dataset, ("A", "graph_indicator", "graph_labels", "node_labels")
        files, source = [f"{name}_{part}.txt" for part in parts], f"TUDataset/{name}/raw"
        data = prepared(name, source, files, f"{name}/raw", load, download=download)
        self.in_channels, self.out_channels = data.num_node_features, data.num_classes
        self.graphs = [Data(x=g.x.float(), edge_index=g.edge_index, y=g.y) for g in data]
        self.strata = torch.cat([g.y for g in self.graphs])


class Mutag(TUTask):
    """Is the compound mutagenic?"""

    name = "mutag"
    dataset = "MUTAG"


class Proteins(TUTask):
    """Is the protein an enzyme?"""

    name = "proteins"
    dataset = "PROTEINS"


class PPI(Task):
    """The functions of each protein.

    Args:
        download: Whether missing files may be downloaded.
    """

    name = "ppi"
    minimised, reported = BINARY_CROSS_ENTROPY, MICRO_F1

    def __init__(self, *, download: bool = True) -> None:
        def load(root: Path) -> list[Networks]:
            return [Networks(str(root), split) for split in ("train", "val", "test")]

        kinds = ("graph.json", "feats.npy", "labels.npy", "graph_id.npy")
        files = [f"{split}_{kind}" for split in ("train", "valid", "test") for kind in kinds]
        parts = prepared("PPI", "PPI/raw", files, "raw", load, download=download)
        self.graphs = [Data(x=g.x, edge_index=g.edge_index, y=g.y) for part in parts for g in part]
        self.in_channels = self.graphs[0].x.size(1)
        self.out_channels = self.graphs[0].y.size(1)
        self.fixed = published([len(part) for part in parts])


class Peptides(Task):
    """Graphs of the peptides; a subclass has the targets.

    Args:
        limit: Keep this many training, validation and test graphs each; ``None``: all.
        download: Whether missing files may be downloaded.
    """

    pool = "mean"

    def __init__(self, *, limit: int | None = None, download: bool = True) -> None:
        if limit is not None:
            require_positive("limit", limit)
        parts = [part[:limit] for part in self._parts(download)]
        graphs = [g for part in parts for g in part]
        atoms = one_hot(torch.cat([g.x for g in graphs]), ATOM)
        bonds = one_hot(torch.cat([g.edge_attr for g in graphs]), BOND)
        self.in_channels, self.edge_dim = atoms.size(1), bonds.size(1)
        self.out_channels = graphs[0].y.size(1)
        x = atoms.split([g.num_nodes for g in graphs])
        attr = bonds.split([g.num_edges for g in graphs])
        self.graphs = [
            Data(x=x[i], edge_index=g.edge_index, edge_attr=attr[i], y=g.y.float())
            for i, g in enumerate(graphs)
        ]
        self.fixed = published([len(part) for part in parts])

    def _parts(self, download: bool) -> list[list[Data]]:
        """Training, validation and test graphs with categories as integers."""

        def load(root: Path) -> list[LRGBDataset]:
            return [LRGBDataset(str(root), self.name, split) for split in PARTS]

        raw = f"{self.name}/raw"
        files = [f"{part}.pt" for part in PARTS]
        found = prepared(self.name, raw, files, raw, load, download=download)
        return [list(part) for part in found]


class PeptidesFunc(Peptides):
    """Which of ten functions a peptide has."""

    name = "peptides-func"
    minimised, reported = BINARY_CROSS_ENTROPY, AVERAGE_PRECISION

    def _parts(self, download: bool) -> list[list[Data]]:
        home = data_home()
        if home is not None and not (home / self.name / "raw").is_dir():
            compact = home / self.name / "peptides_func.npz"
            if compact.is_file():
                return unpack(compact)
        return super()._parts(download)


class PeptidesStruct(Peptides):
    """Eleven properties of a peptide's shape."""

    name = "peptides-struct"
    minimised, reported = MSE, MAE


def one_hot(code: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Categories [n, len(sizes)] as float32 columns; see the module's docstring."""
    columns = []
    for feature, size in zip(code.T.long(), sizes, strict=True):
        if len(feature) and not 0 <= int(feature.min()) <= int(feature.max()) < size:
            raise DataError(
                f"a categorical feature ranges over {int(feature.min())} … {int(feature.max())}; "
                f"expected OGB's categories 0 … {size - 1}"
            )
        kinds, number = feature.unique(return_inverse=True)
        if len(kinds) > 1:
            columns.append(F.one_hot(number, len(kinds)).to(torch.float32))
    return torch.cat(columns, 1) if columns else code.new_zeros(len(code), 0, dtype=torch.float32)


def unpack(path: Path) -> list[list[Data]]:
    """The compact copy of Peptides-func as training, validation and test graphs."""
    with np.load(path) as file:
        z = {key: torch.from_numpy(file[key].astype(np.int64)) for key in file}
    atoms = z["x"].split(z["num_nodes"].tolist())
    bonds = z["bonds"].split(z["num_bonds"].tolist())
    kinds = z["bond_attr"].split(z["num_bonds"].tolist())

    def graph(i: int) -> Data:
        both = torch.stack([bonds[i], bonds[i].flip(1)], 1).reshape(-1, 2).T  # there and back
        attr = kinds[i].repeat_interleave(2, 0)
        return Data(x=atoms[i], edge_index=both.contiguous(), edge_attr=attr, y=z["y"][i][None])

    return [[graph(i) for i in z[part].tolist()] for part in PARTS]
