"""The demonstration's task."""

import pytest
import torch
from scipy.sparse.csgraph import shortest_path
from torch_geometric.utils import is_undirected, to_scipy_sparse_matrix

from hogwild.demo import Rumour
from hogwild.errors import ConfigError


@pytest.mark.parametrize("seed", [0, 7])
def test_task(seed):
    task = Rumour(6, seed=seed)
    for g, data in enumerate(task.graphs):
        n = data.num_nodes
        assert is_undirected(data.edge_index)
        hops = shortest_path(
            to_scipy_sparse_matrix(data.edge_index, num_nodes=n).tocsr(), unweighted=True
        )
        assert hops.max() <= 5  # five layers suffice
        told = int(data.x.sum(1).argmax())
        assert data.x.sum() == data.x[told, data.y[0]] == 1
        assert data.hops.tolist() == hops[told].tolist()
        assert data.y.tolist() == [g % 2] * n
    assert [len(x) for x in (task.fixed.train, task.fixed.val, task.fixed.test)] == [8, 2, 2]
    for a, b in zip(task.graphs[::2], task.graphs[1::2], strict=True):
        assert torch.equal(a.edge_index, b.edge_index)
    with pytest.raises(ConfigError, match="pairs=2"):
        Rumour(2)
