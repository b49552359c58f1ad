"""MUTAG, PROTEINS, PPI and Peptides: the loaders on small files, and on the real ones."""

import numpy as np
import pytest
import torch
from samples import write_lrgb, write_npz, write_ppi, write_tu
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import ConfigError, DataError
from hogwild.tasks.benchmarks import one_hot


def test_small_files_of_tu(home):
    sizes = write_tu(home, "MUTAG")
    plain = tasks.get("mutag", download=False)
    assert [g.num_nodes for g in plain.graphs] == sizes.tolist()
    assert [g.num_edges for g in plain.graphs] == (2 * sizes).tolist()
    assert (plain.in_channels, plain.out_channels, plain.edge_dim) == (3, 2, None)
    assert torch.cat([g.y for g in plain.graphs]).tolist() == [0, 1, 1] * 4


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
def test_real_tu(name, graphs, nodes, bonds, classes, width, real):
    real(f"TUDataset/{name.upper()}/raw")
    task = tasks.get(name, download=False)
    data = Batch.from_data_list(task.graphs)
    assert data.num_graphs == graphs
    assert data.num_nodes / graphs == pytest.approx(nodes, abs=0.005)
    assert data.num_edges / 2 / graphs == pytest.approx(bonds, abs=0.005)
    assert torch.bincount(data.y).tolist() == classes
    assert task.in_channels == width
    assert task.constant(data, data) == pytest.approx(max(classes) / graphs)


def test_small_files_of_ppi(home):
    write_ppi(home, (3, 2, 2))
    task = tasks.get("ppi", download=False)
    assert (task.in_channels, task.out_channels, task.edge_dim, task.pool) == (3, 2, None, None)
    (split,) = task.splits()
    assert [split.train.tolist(), split.val.tolist(), split.test.tolist()] == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]
    for g in task.graphs:
        assert {tuple(e) for e in g.edge_index.T.tolist()} == {
            e for i in range(4) for e in ((i, (i + 1) % 4), ((i + 1) % 4, i))
        }
    for part, file in ((split.train, "train"), (split.val, "valid"), (split.test, "test")):
        for key, name in (("x", "feats"), ("y", "labels")):
            expected = np.load(home / "PPI" / "raw" / f"{file}_{name}.npy")
            found = torch.cat([task.graphs[g][key] for g in part])
            torch.testing.assert_close(found, torch.from_numpy(expected).float())


def test_one_hot():
    code = torch.tensor([[4, 0, 1], [2, 0, 1], [4, 0, 0]])
    assert one_hot(code, (5, 6, 2)).tolist() == [[0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]
    with pytest.raises(DataError, match=r"2 … 4.*0 … 3"):
        one_hot(code, (4, 6, 2))


@pytest.mark.parametrize("name", ["peptides-func", "peptides-struct"])
def test_small_files_of_peptides(name, home):
    parts = write_lrgb(home, name)
    task = tasks.get(name, download=False)
    kinds = [  # the categories of every feature, in the order of their columns
        [code[:, f].unique() for f in range(code.size(1))]
        for code in (torch.cat([g[i] for part in parts for g in part]) for i in (0, 1))
    ]
    (split,) = task.splits()
    for part, numbers in zip(parts, (split.train, split.val, split.test), strict=True):
        for (x, attr, edge_index, y), g in zip(part, numbers, strict=True):
            graph = task.graphs[g]
            assert torch.equal(graph.edge_index, edge_index)
            assert torch.equal(graph.y, y)
            pairs = ((graph.x, x), (graph.edge_attr, attr))
            for (found, code), features in zip(pairs, kinds, strict=True):
                varies = [f for f, some in enumerate(features) if len(some) > 1]
                blocks = found.split([len(features[f]) for f in varies], 1)
                for f, block in zip(varies, blocks, strict=True):
                    assert torch.equal(features[f][block.argmax(1)], code[:, f])


def test_the_compact_copy_is_the_same(home, tmp_path, monkeypatch):
    write_lrgb(home, "peptides-func")
    loaded = tasks.get("peptides-func", download=False)
    other = tmp_path / "other"
    other.mkdir()
    write_npz(other)
    monkeypatch.setenv("HOGWILD_DATA", str(other))
    compact = tasks.get("peptides-func", download=False)
    for s, t in zip(vars(loaded.fixed).values(), vars(compact.fixed).values(), strict=True):
        assert torch.equal(s, t)
    for a, b in zip(loaded.graphs, compact.graphs, strict=True):
        for key in ("x", "edge_index", "edge_attr", "y"):
            assert torch.equal(a[key], b[key])


def test_limit_keeps_the_first_of_each_part(home):
    write_lrgb(home, "peptides-func")
    whole = tasks.get("peptides-func", download=False)
    part = tasks.get("peptides-func", limit=1, download=False)
    firsts = [int(ids[0]) for ids in vars(whole.fixed).values()]
    assert [ids.tolist() for ids in vars(part.fixed).values()] == [[0], [1], [2]]
    for graph, first in zip(part.graphs, firsts, strict=True):
        assert torch.equal(graph.edge_index, whole.graphs[first].edge_index)
        assert torch.equal(graph.y, whole.graphs[first].y)
    with pytest.raises(ConfigError, match="limit=0; expected a positive integer"):
        tasks.get("peptides-func", limit=0, download=False)


def test_struct_constant_is_the_median(home):
    write_lrgb(home, "peptides-struct")
    task = tasks.get("peptides-struct", download=False)
    train, test = (
        Batch.from_data_list([task.graphs[g] for g in p]) for p in (range(6), range(6, 12))
    )
    expected = (test.y - train.y.sort(0).values[2]).abs().mean()  # the lower of two medians
    assert task.constant(train, test) == pytest.approx(float(expected))


@pytest.mark.slow
def test_real_peptides(real):
    real("peptides-func")
    task = tasks.get("peptides-func", download=False)
    nodes, edges = (sum(getattr(g, f"num_{k}") for g in task.graphs) for k in ("nodes", "edges"))
    assert len(task.graphs) == 15_535
    assert nodes / 15_535 == pytest.approx(150.94, abs=0.005)
    assert edges / 15_535 == pytest.approx(307.30, abs=0.005)
    (split,) = task.splits()
    assert [len(split.train), len(split.val), len(split.test)] == [10_873, 2331, 2331]
    assert (task.in_channels, task.edge_dim, task.out_channels) == (31, 5, 10)
