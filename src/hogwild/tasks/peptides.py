r"""Peptides-func and Peptides-struct of the Long Range Graph Benchmark (Dwivedi et al., 2022).

**Data.** The same 15,535 peptides, 150.94 heavy atoms on average; an atom has nine categories, a
bond three, numbered as OGB's ``atom_to_feature_vector`` and ``bond_to_feature_vector`` do:

========  =======================================================================  ==============
          feature (number of OGB's categories)                                     in OGB
========  =======================================================================  ==============
atoms     atomic number (119), chirality (5), degree (12), formal charge (12),     174
          hydrogens (10), radical electrons (6), hybridisation (6), aromatic (2),
          in a ring (2)
bonds     type (5), stereo (6), conjugated (2)                                     13
========  =======================================================================  ==============

Features are one-hot, feature after feature. ``encoding="present"`` keeps a column for each category
that occurs in the data set and none for a feature that never varies (31 and 5 columns: radical
electrons and stereo never vary); ``encoding="ogb"`` keeps them all (1.6 GB of features).

**Protocol.** The published split, 10,873 / 2,331 / 2,331 (training, validation, test graphs in this
order). *Func*: ten labels a peptide; loss binary cross-entropy; metric average precision, mean over
labels. *Struct*: eleven properties, standardised as LRGB stores them; loss mean squared error, as
the paper says of all regressions (LRGB trains on absolute errors); metric mean absolute error.

**Files.** ``$HOGWILD_DATA/peptides-func/raw/{train,val,test}.pt`` (``peptides-struct`` likewise) as
PyG's ``LRGBDataset`` reads them; for func also ``$HOGWILD_DATA/peptides-func/peptides_func.npz``, a
compact copy: ``x`` [N, 9], ``bonds`` [M, 2] each named once, ``bond_attr`` [M, 3], ``num_nodes``
and ``num_bonds`` [G], ``y`` [G, 10], and the graph numbers ``train``, ``val``, ``test``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import LRGBDataset

from hogwild.errors import DataError, require_one_of, require_positive
from hogwild.metrics import AVERAGE_PRECISION, BINARY_CROSS_ENTROPY, MAE, MSE
from hogwild.tasks.base import Task
from hogwild.tasks.files import data_home, prepared
from hogwild.tasks.splits import published

ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND = (5, 6, 2)
ENCODINGS = ("present", "ogb")
PARTS = ("train", "val", "test")


class Peptides(Task):
    """Graphs of the peptides; a subclass has the targets.

    Args:
        encoding: ``"present"`` or ``"ogb"``.
        limit: Keep this many training, validation and test graphs each; ``None``: all.
        download: Whether missing files may be downloaded.
    """

    pool = "mean"

    def __init__(
        self, encoding: str = "present", *, limit: int | None = None, download: bool = True
    ) -> None:
        require_one_of(ENCODINGS, encoding=encoding)
        if limit is not None:
            require_positive("limit", limit)
        parts = [part[:limit] for part in self._parts(download)]
        graphs = [g for part in parts for g in part]
        atoms = one_hot(torch.cat([g.x for g in graphs]), ATOM, encoding)
        bonds = one_hot(torch.cat([g.edge_attr for g in graphs]), BOND, encoding)
        self.in_channels, self.edge_dim = atoms.size(1), bonds.size(1)
        self.out_channels = graphs[0].y.size(1)
        rows = zip(
            graphs,
            atoms.split([g.num_nodes for g in graphs]),
            bonds.split([g.num_edges for g in graphs]),
            strict=True,
        )
        self.graphs = [
            Data(x=x, edge_index=g.edge_index, edge_attr=e, y=g.y.float()) for g, x, e in rows
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


def one_hot(code: Tensor, sizes: tuple[int, ...], encoding: str) -> Tensor:
    """Categories [n, len(sizes)] as float32 columns; see the module's docstring."""
    columns = []
    for feature, size in zip(code.T.long(), sizes, strict=True):
        if len(feature) and not 0 <= int(feature.min()) <= int(feature.max()) < size:
            raise DataError(
                f"a categorical feature ranges over {int(feature.min())} … {int(feature.max())}; "
                f"expected OGB's categories 0 … {size - 1}"
            )
        if encoding == "present":
            kinds, feature = feature.unique(return_inverse=True)
            size = len(kinds)
            if size < 2:
                continue
        columns.append(F.one_hot(feature, size).to(torch.float32))
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
