"""Peptides: PyG's loader and the compact copy on small files, categories, and the real set."""

import pytest
import torch
from samples import write_lrgb, write_npz
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import ConfigError, DataError
from hogwild.tasks.benchmarks import ATOM, BOND, one_hot


def test_one_hot():
    code = torch.tensor([[4, 0, 1], [2, 0, 1], [4, 0, 0]])
    assert one_hot(code, (5, 6, 2), "present").tolist() == [
        [0, 1, 0, 1],
        [1, 0, 0, 1],
        [0, 1, 1, 0],
    ]
    full = one_hot(code, (5, 6, 2), "ogb")
    assert full.shape == (3, 13)
    assert full.nonzero()[:, 1].tolist() == [4, 5, 12, 2, 5, 12, 4, 5, 11]
    with pytest.raises(DataError, match=r"2 … 4.*0 … 3"):
        one_hot(code, (4, 6, 2), "ogb")


@pytest.mark.parametrize("name", ["peptides-func", "peptides-struct"])
def test_small_files(name, home):
    parts = write_lrgb(home, name)
    task = tasks.get(name, encoding="ogb", download=False)
    assert (task.in_channels, task.edge_dim) == (sum(ATOM), sum(BOND)) == (174, 13)
    (split,) = task.splits()
    for part, numbers in zip(parts, (split.train, split.val, split.test), strict=True):
        for (x, attr, edge_index, y), g in zip(part, numbers, strict=True):
            graph = task.graphs[g]
            assert torch.equal(graph.edge_index, edge_index)
            assert torch.equal(graph.y, y)
            columns = [c.argmax(1) for c in graph.x.split(ATOM, 1)]
            assert torch.equal(torch.stack(columns, 1), x)
            columns = [c.argmax(1) for c in graph.edge_attr.split(BOND, 1)]
            assert torch.equal(torch.stack(columns, 1), attr)


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
    whole = tasks.get("peptides-func", encoding="ogb", download=False)
    part = tasks.get("peptides-func", encoding="ogb", limit=1, download=False)
    firsts = [int(ids[0]) for ids in vars(whole.fixed).values()]
    assert [ids.tolist() for ids in vars(part.fixed).values()] == [[0], [1], [2]]
    for graph, first in zip(part.graphs, firsts, strict=True):
        assert torch.equal(graph.x, whole.graphs[first].x)
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


def test_bad_options(home):
    with pytest.raises(ConfigError, match="encoding='x'"):
        tasks.get("peptides-func", encoding="x")


@pytest.mark.slow
def test_real(real):
    real("peptides-func")
    task = tasks.get("peptides-func", download=False)
    nodes, edges = (sum(getattr(g, f"num_{k}") for g in task.graphs) for k in ("nodes", "edges"))
    assert len(task.graphs) == 15_535
    assert nodes / 15_535 == pytest.approx(150.94, abs=0.005)
    assert edges / 15_535 == pytest.approx(307.30, abs=0.005)
    (split,) = task.splits()
    assert [len(split.train), len(split.val), len(split.test)] == [10_873, 2331, 2331]
    assert (task.in_channels, task.edge_dim, task.out_channels) == (31, 5, 10)
