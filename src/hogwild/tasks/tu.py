r"""MUTAG and PROTEINS: one class a graph, from the TUDataset collection.

**Data.** MUTAG: 188 nitroaromatic compounds, atoms one-hot [n, 7], mutagenic or not; ``bonds=True``
adds the bond's type one-hot as edge feature [E, 4] (the paper speaks of atoms only). PROTEINS:
1,113 proteins, type of secondary structure one-hot [n, 3], enzyme or not.

**Protocol.** 10 folds, stratified by class; accuracy on the held-out fold (× 5 seeds of the
parameters in the paper). **Loss** cross-entropy of two logits (the paper's last layers are
(4, 4, number of classes)). **Metric** accuracy.

**Files.** ``$HOGWILD_DATA/TUDataset/MUTAG/raw/MUTAG_A.txt`` and so on, or PyG's download.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch_geometric.data import Data
from torch_geometric.datasets import TUDataset

from hogwild.metrics import ACCURACY, CROSS_ENTROPY
from hogwild.tasks.base import Task
from hogwild.tasks.files import prepared


class TUTask(Task):
    """Graph classification on one of the TUDataset collection."""

    minimised, reported = CROSS_ENTROPY, ACCURACY
    pool = "mean"
    dataset: ClassVar[str]
    """The collection's name for it."""

    def __init__(self, bonds: bool, download: bool) -> None:
        def load(root: Path) -> TUDataset:
            return TUDataset(str(root), self.dataset)

        parts = ("A", "graph_indicator", "graph_labels", "node_labels")
        data = prepared(
            self.dataset,
            f"TUDataset/{self.dataset}/raw",
            [f"{self.dataset}_{p}.txt" for p in (*parts, *(["edge_labels"] if bonds else []))],
            f"{self.dataset}/raw",
            load,
            download=download,
        )
        self.in_channels, self.out_channels = data.num_node_features, data.num_classes
        self.edge_dim = data.num_edge_features if bonds else None
        self.graphs = [
            Data(
                x=g.x.float(),
                edge_index=g.edge_index,
                edge_attr=g.edge_attr.float() if bonds else None,
                y=g.y,
            )
            for g in data
        ]
        self.strata = torch.cat([g.y for g in self.graphs])


class Mutag(TUTask):
    """Is the compound mutagenic?

    Args:
        bonds: Give the type of each bond as ``edge_attr``.
        download: Whether missing files may be downloaded.
    """

    name = "mutag"
    dataset = "MUTAG"

    def __init__(self, bonds: bool = False, *, download: bool = True) -> None:
        super().__init__(bonds, download)


class Proteins(TUTask):
    """Is the protein an enzyme?

    Args:
        download: Whether missing files may be downloaded.
    """

    name = "proteins"
    dataset = "PROTEINS"

    def __init__(self, *, download: bool = True) -> None:
        super().__init__(False, download)
