"""The mean of noisy readings."""

import math

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import is_undirected, to_networkx

from hogwild import tasks
from hogwild.errors import ConfigError


def test_graphs():
    import networkx as nx

    task = tasks.get("robots", num_graphs=30)
    again = tasks.get("robots", num_graphs=20)
    for graph, same in zip(task.graphs, again.graphs, strict=False):
        assert torch.equal(graph.x, same.x)
        assert torch.equal(graph.edge_index, same.edge_index)
    for graph in task.graphs:
        assert graph.num_nodes == 12
        assert is_undirected(graph.edge_index)
        assert nx.is_connected(to_networkx(graph, to_undirected=True))
        assert graph.edge_index.size(1) / 12 == pytest.approx(4.0, abs=0.2)
        torch.testing.assert_close(graph.y, graph.x.mean().expand(12, 1))
    assert not torch.equal(task.graphs[0].x, tasks.get("robots", num_graphs=10, seed=1).graphs[0].x)


def test_splits_and_constant():
    task = tasks.get("robots")
    (split,) = task.splits()
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    assert sizes == [320, 40, 40]
    train, test = (
        Batch.from_data_list([task.graphs[i] for i in part]) for part in (split.train, split.test)
    )
    assert task.constant(train, test) == pytest.approx(1 / math.sqrt(12), rel=0.2)


def test_bad_options():
    for options in ({"num_graphs": 9}, {"num_nodes": 1}, {"degree": 0.0}, {"degree": 12.0}):
        with pytest.raises(ConfigError, match="expected"):
            tasks.get("robots", **options)
    with pytest.raises(ConfigError, match="gave no connected graph"):
        tasks.get("robots", num_graphs=10, num_nodes=40, degree=0.5)
