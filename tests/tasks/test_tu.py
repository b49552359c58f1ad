"""MUTAG and PROTEINS: PyG's loader on small files, and on the real ones where they are."""

import pytest
import torch
from samples import write_tu
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import DataError


def test_small_files(home):
    sizes = write_tu(home, "MUTAG")
    plain = tasks.get("mutag", download=False)
    bonds = tasks.get("mutag", bonds=True, download=False)
    assert [g.num_nodes for g in plain.graphs] == sizes.tolist()
    assert [g.num_edges for g in plain.graphs] == (2 * sizes).tolist()
    assert (plain.in_channels, plain.out_channels, plain.edge_dim) == (3, 2, None)
    assert bonds.edge_dim == 2
    assert torch.cat([g.y for g in plain.graphs]).tolist() == [0, 1, 1] * 4
    assert all((g.edge_attr.sum(1) == 1).all() for g in bonds.graphs)


def test_folds_are_stratified(home):
    write_tu(home, "PROTEINS", graphs=30)
    task = tasks.get("proteins", download=False)
    for split in task.splits():
        assert sorted(int(task.graphs[g].y) for g in split.test) == [0, 1, 1]


def test_given_files_stay_untouched_and_changes_are_seen(home):
    write_tu(home, "MUTAG")
    tasks.get("mutag", download=False)
    folder = home / "TUDataset" / "MUTAG"
    assert [p.name for p in folder.iterdir()] == ["raw"]
    label = folder / "raw" / "MUTAG_graph_labels.txt"
    label.write_text("1\n" * 11 + "-1\n")
    task = tasks.get("mutag", download=False)
    assert sum(int(g.y) for g in task.graphs) == 11


def test_the_cache_serves_without_the_files(home, monkeypatch):
    write_tu(home, "MUTAG")
    tasks.get("mutag", download=False)
    monkeypatch.delenv("HOGWILD_DATA")
    assert len(tasks.get("mutag", download=False).graphs) == 12


def test_incomplete(home):
    """A folder without one of its files is named, not silently replaced by a download."""
    write_tu(home, "MUTAG")
    (home / "TUDataset" / "MUTAG" / "raw" / "MUTAG_node_labels.txt").unlink()
    with pytest.raises(DataError, match=r"without this file.*MUTAG_node_labels\.txt"):
        tasks.get("mutag")


@pytest.mark.parametrize("name", ["mutag", "proteins", "ppi", "peptides-func", "peptides-struct"])
def test_absent(name, home, monkeypatch):
    with pytest.raises(DataError, match=rf"HOGWILD_DATA is {home}"):
        tasks.get(name, download=False)
    monkeypatch.delenv("HOGWILD_DATA")
    with pytest.raises(DataError, match=r"HOGWILD_DATA is not set.*\$HOGWILD_DATA/.*raw"):
        tasks.get(name, download=False)


@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "bonds", "classes", "width"),
    [("mutag", 188, 17.93, 19.79, [63, 125], 7), ("proteins", 1113, 39.06, 72.82, [663, 450], 3)],
)
def test_real(name, graphs, nodes, bonds, classes, width, real):
    real(f"TUDataset/{name.upper()}/raw")
    task = tasks.get(name, download=False)
    data = Batch.from_data_list(task.graphs)
    assert data.num_graphs == graphs
    assert data.num_nodes / graphs == pytest.approx(nodes, abs=0.005)
    assert data.num_edges / 2 / graphs == pytest.approx(bonds, abs=0.005)
    assert torch.bincount(data.y).tolist() == classes
    assert task.in_channels == width
    assert task.constant(data, data) == pytest.approx(max(classes) / graphs)
    if name == "mutag":
        assert tasks.get("mutag", bonds=True, download=False).edge_dim == 4
