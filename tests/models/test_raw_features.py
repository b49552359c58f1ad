"""Plain PyG loops on raw features, as a user writes them: no solve fails.

The data sets lie in HOGWILD_DATA, and their features are not standardised: PROTEINS' attribute has
a median of 6 and a largest value of 798.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import Data
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader

from hogwild import EnergyGNN, Inputs

pytestmark = pytest.mark.slow


@pytest.fixture
def data_home():
    """The user's HOGWILD_DATA; the test is skipped without it."""
    place = os.environ.get("HOGWILD_DATA")
    if not place:
        pytest.skip("HOGWILD_DATA is not set: raw features are not tested")
    return Path(place)


def train(graphs, classes, loss, epochs):
    """Twenty lines of PyG. ``on_failure="raise"`` is the default: a failed solve ends the loop."""
    torch.manual_seed(1)
    model = EnergyGNN(graphs[0].x.size(1), out_channels=classes, pool="mean")
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005)
    most = 0
    for _ in range(epochs):
        for batch in DataLoader(graphs, batch_size=128, shuffle=True):
            size = batch.num_graphs
            found = model.embed(
                Inputs(batch.x, batch.edge_index, batch=batch.batch, batch_size=size)
            )
            most = max(most, int(found.iterations.max()))
            optimiser.zero_grad()
            loss(model.readout(found.value, batch.batch, size), batch.y).backward()
            optimiser.step()
    return most


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS", "ENZYMES"])
def test_tu_data_sets_train_for_twenty_epochs(name, data_home, tmp_path):
    source = data_home / "TUDataset" / name / "raw"
    if not source.is_dir():
        pytest.skip(f"HOGWILD_DATA has no TUDataset/{name}: it is not tested")
    shutil.copytree(source, tmp_path / name / "raw")
    graphs = list(TUDataset(str(tmp_path), name, use_node_attr=True))
    classes = 1 + max(int(graph.y) for graph in graphs)
    assert train(graphs, classes, cross_entropy, 20) < 1000


def test_peptides_train(data_home):
    """Categories of atoms as numbers; some hundred graphs."""
    source = data_home / "peptides-func" / "peptides_func.npz"
    if not source.is_file():
        pytest.skip("HOGWILD_DATA has no peptides-func: it is not tested")
    file = np.load(source)
    graphs, node, bond = [], 0, 0
    x, bonds = torch.from_numpy(file["x"]).float(), torch.from_numpy(file["bonds"]).long()
    for g in range(256):
        nodes, count = int(file["num_nodes"][g]), int(file["num_bonds"][g])
        pairs = bonds[bond : bond + count].T
        edge_index = torch.cat([pairs, pairs.flip(0)], 1)
        y = torch.from_numpy(file["y"][g]).float().view(1, -1)
        graphs.append(Data(x=x[node : node + nodes], edge_index=edge_index, y=y))
        node, bond = node + nodes, bond + count
    assert train(graphs, graphs[0].y.size(1), binary_cross_entropy_with_logits, 5) < 1000
