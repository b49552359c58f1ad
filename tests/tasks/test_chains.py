"""Chains: the paper's two graphs, and the other protocol of the same name."""

import pytest
import torch
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import ConfigError


def test_the_papers():
    task = tasks.get("chains")
    data = Batch.from_data_list(task.graphs)
    assert data.x.shape == (200, 2)
    assert data.x.nonzero().tolist() == [[0, 0], [100, 1]]
    assert data.num_edges == 2 * 2 * 99
    assert data.y.tolist() == [0] * 100 + [1] * 100
    (split,) = task.splits()
    assert split.train.tolist() == split.val.tolist() == split.test.tolist() == [0, 1]
    assert task.constant(data, data) == 0.5


def test_a_five_layer_gcn_errs_on_47_percent():
    """Six nodes of a chain hear its label; the others answer alike."""
    task = tasks.get("chains")
    out = torch.ones(2, 100, 1)
    out[0, :6] = -1.0
    error = task.metric(out.view(200, 1), Batch.from_data_list(task.graphs))
    assert float(error) == pytest.approx(0.47)


def test_more_classes():
    task = tasks.get("chains", classes=3, length=4)
    data = Batch.from_data_list(task.graphs)
    assert (task.in_channels, task.out_channels) == (3, 3)
    assert task.constant(data, data) == pytest.approx(2 / 3)
    perfect = torch.eye(3)[data.y] * 50
    assert task.metric(perfect, data) == 0
    assert task.loss(perfect, data) < 1e-12


def test_ignn_variant():
    """20 directed chains a class; every node counts in exactly one of the three copies."""
    task = tasks.get("chains", length=10, variant="ignn")
    (split,) = task.splits()
    assert len(split.train) == len(split.val) == len(split.test) == 40
    counts = torch.stack([g.counted for g in task.graphs]).view(3, 40, 10)
    assert (counts.sum(0) == 1).all()
    assert counts.sum((1, 2)).tolist() == [20, 40, 340]
    for g in task.graphs:
        assert g.edge_index.tolist() == [list(range(9)), list(range(1, 10))]
    data = Batch.from_data_list(task.graphs)
    out = torch.where(data.counted & (torch.arange(1200) < 400), -9.0, 9.0)[:, None]
    train = torch.arange(120) < 40
    expected = (data.y[:400][data.counted[:400]] == 1).double().mean()
    assert float(task.metric(out, data, train)) == pytest.approx(float(expected))


def test_bad_options():
    for options in ({"classes": 1}, {"length": 0}, {"variant": "x"}, {"copies": 3}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            tasks.get("chains", **options)
