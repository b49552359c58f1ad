"""Counting and sums: data by definition, and what a predictor that knows nothing scores."""

import math

import pytest
import torch
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.errors import ConfigError


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
        ("counting", {"sizes": ()}),
        ("counting", {"sizes": (3, 0)}),
        ("counting", {"graphs": "star"}),
        ("counting", {"max_degree": 0}),
        ("sums", {"num_graphs": 0}),
        ("sums", {"sizes": []}),
        ("sums", {"sizes": -1}),
        ("sums", {"graphs": "star"}),
    ],
)
def test_bad_options(name, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        tasks.get(name, **options)
