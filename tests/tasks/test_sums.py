"""Sums of bits: data by definition, and what a predictor that knows nothing scores."""

import math

import pytest
from torch_geometric.data import Batch

from hogwild import tasks


def test_sums_data():
    task = tasks.get("sums", num_graphs=5, sizes=(3, 8), graphs="grid")
    assert [g.num_nodes for g in task.graphs] == [3, 8, 3, 8, 3]
    for g in task.graphs:
        assert set(g.x.flatten().tolist()) <= {0.0, 1.0}
        assert (g.y == g.x.sum()).all()
    longer = tasks.get("sums", num_graphs=9, sizes=(3, 8), graphs="grid")
    assert all(a.x.equal(b.x) for a, b in zip(task.graphs, longer.graphs, strict=False))


def test_sums_constant():
    task = tasks.get("sums")
    data = Batch.from_data_list(task.graphs)
    assert (data.num_graphs, data.num_nodes) == (2000, 100_000)
    assert task.constant(data, data) == pytest.approx(math.sqrt(12.5) / 25, rel=0.05)
