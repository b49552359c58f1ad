"""Chains, counting and sums: data by definition, and what a predictor that knows nothing scores;
graph families are connected, undirected and of the size given."""

import math

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch
from torch_geometric.utils import is_undirected, to_networkx

from hogwild import tasks
from hogwild.errors import ConfigError
from hogwild.tasks.synthetic import FAMILIES, edges


def test_the_papers_chains():
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


def test_counting_data():
    task = tasks.get("counting")
    assert [g.num_nodes for g in task.graphs] == list(range(1, 51))
    for g in task.graphs:
        degree = torch.bincount(g.edge_index[1], minlength=g.num_nodes)
        assert g.x.argmax(1).tolist() == degree.tolist()
        assert g.x.sum(1).tolist() == [1.0] * g.num_nodes
        assert (g.y == g.num_nodes).all()


def test_counting_constant():
    """Pooled: mean Σn²/Σn = 101/3, mean square Σn³/Σn = 1275; over folds about 40 %."""
    task = tasks.get("counting")
    data = Batch.from_data_list(task.graphs)
    expected = math.sqrt(1275 - (101 / 3) ** 2) / (101 / 3)
    assert expected == pytest.approx(0.353, abs=1e-3)
    assert task.constant(data, data) == pytest.approx(expected, rel=1e-5)
    folds = []
    for seed in range(12):
        for s in task.splits(seed=seed):
            train, test = (
                Batch.from_data_list([task.graphs[g] for g in p]) for p in (s.train, s.test)
            )
            folds.append(task.constant(train, test))
    assert sum(folds) / len(folds) == pytest.approx(0.40, abs=0.03)


@pytest.mark.parametrize("family", ["tree", "grid", "rgg"])
def test_families_have_one_width(family):
    """Models trained on one size run on another."""
    few, many = (tasks.get("counting", graphs=family, sizes=s) for s in ((4, 5), (150, 60)))
    assert few.in_channels == many.in_channels
    for g in many.graphs:
        degree = torch.bincount(g.edge_index[1], minlength=g.num_nodes)
        assert g.x.argmax(1).tolist() == degree.clamp(max=few.in_channels - 1).tolist()
    capped = tasks.get("counting", graphs=family, sizes=(50,), max_degree=1)
    assert capped.in_channels == 2
    assert capped.graphs[0].x.sum() == 50


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("chains", {"classes": 1}),
        ("chains", {"length": 0}),
        ("counting", {"sizes": ()}),
        ("counting", {"sizes": (3, 0)}),
        ("counting", {"graphs": "star"}),
        ("counting", {"max_degree": 0}),
        ("sums", {"num_graphs": 0}),
        ("sums", {"sizes": []}),
        ("sums", {"sizes": -1}),
        ("sums", {"graphs": "star"}),
        ("robots", {"num_graphs": 9}),
        ("robots", {"num_nodes": 1}),
        ("robots", {"degree": 0.0}),
        ("robots", {"degree": 12.0}),
        ("coordinates", {"num_graphs": 0}),
        ("coordinates", {"num_nodes": 1}),
        ("coordinates", {"radius": 0.0}),
        ("terrain", {"agents": 101}),
        ("terrain", {"side": 0}),
        ("terrain", {"radius": 0.0}),
    ],
)
def test_bad_options(name, options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}.*expected"):
        tasks.get(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("robots", {"num_graphs": 10, "num_nodes": 40, "degree": 0.5}),
        ("coordinates", {"num_graphs": 1, "num_nodes": 12, "radius": 0.05}),
    ],
)
def test_points_too_far_apart(name, options):
    with pytest.raises(ConfigError, match="connected graph; expected a larger radius or degree"):
        tasks.get(name, **options)


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


def networkx_graph(family, n, seed=0):
    edge_index = edges(family, n, np.random.default_rng(seed))
    pairs = edge_index.T.tolist()
    assert len({tuple(p) for p in pairs}) == len(pairs)
    assert {(i, j) for i, j in pairs} == {(j, i) for i, j in pairs}
    assert edge_index[1].tolist() == sorted(edge_index[1].tolist())
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(pairs)
    assert graph.number_of_nodes() == n
    assert networkx.number_of_selfloops(graph) == 0
    return graph


@given(st.sampled_from(FAMILIES), st.integers(1, 60), st.integers(0, 5))
def test_connected_at_any_size(family, n, seed):
    assert networkx.is_connected(networkx_graph(family, n, seed))


def test_shapes():
    same = networkx.is_isomorphic
    assert same(networkx_graph("chain", 7), networkx.path_graph(7))
    assert same(networkx_graph("grid", 12), networkx.grid_2d_graph(3, 4))
    assert same(networkx_graph("grid", 25), networkx.grid_2d_graph(5, 5))
    assert networkx.is_tree(networkx_graph("tree", 40))
    assert 4 < 2 * networkx_graph("rgg", 400).number_of_edges() / 400 < 16


def test_robots():
    task = tasks.get("robots", num_graphs=30)
    again = tasks.get("robots", num_graphs=20)
    for graph, same in zip(task.graphs, again.graphs, strict=False):
        assert torch.equal(graph.x, same.x)
        assert torch.equal(graph.edge_index, same.edge_index)
    for graph in task.graphs:
        assert graph.num_nodes == 12
        assert is_undirected(graph.edge_index)
        assert networkx.is_connected(to_networkx(graph, to_undirected=True))
        assert graph.edge_index.size(1) / 12 == pytest.approx(4.0, abs=0.2)
        torch.testing.assert_close(graph.y, graph.x.mean().expand(12, 1))
    assert not torch.equal(task.graphs[0].x, tasks.get("robots", num_graphs=10, seed=1).graphs[0].x)


def test_splits_and_constant_of_robots():
    task = tasks.get("robots")
    (split,) = task.splits()
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    assert sizes == [320, 40, 40]
    train, test = (
        Batch.from_data_list([task.graphs[i] for i in part]) for part in (split.train, split.test)
    )
    assert task.constant(train, test) == pytest.approx(1 / math.sqrt(12), rel=0.2)
