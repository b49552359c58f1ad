r"""PPI: 121 yes-or-no questions about every protein of 24 interaction networks.

**Data.** PyG's ``PPI`` (Hamilton et al., 2017): features [n, 50], labels [n, 121].

**Protocol.** The published split: 20 networks to train on, 2 to validate, 2 to test. **Loss**
binary cross-entropy, mean over nodes and labels. **Metric** micro-F1 over all test nodes and labels
together; a logit above 0 means yes.

**Files.** ``$HOGWILD_DATA/PPI/raw/train_graph.json``, ``train_feats.npy``, ``train_labels.npy``,
``train_graph_id.npy``, the same for ``valid`` and ``test``; or PyG's download.
"""

from __future__ import annotations

from pathlib import Path

from torch_geometric.data import Data
from torch_geometric.datasets import PPI as Networks

from hogwild.metrics import BINARY_CROSS_ENTROPY, MICRO_F1
from hogwild.tasks.base import Task
from hogwild.tasks.files import prepared
from hogwild.tasks.splits import published


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
