"""A user's own graphs and losses."""

import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_tasks import Sums, chain
from torch_geometric.data import Batch, Data

from hogwild import train
from hogwild.errors import CheckpointError, ConfigError, InputError
from hogwild.training.own import OwnTask, parts
from hogwild.training.task import resolve

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_data.py"


def test_example(capsys):
    result = runpy.run_path(str(EXAMPLE))["main"](epochs=60)
    first, last = result.history[0]["loss"], result.history[-1]["loss"]
    assert min(last) < 0.5 * min(first)
    out = capsys.readouterr().out
    assert "energy-edge on own data: 3 replicas" in out
    assert "1 of 1 runs within tolerance" in out


def classes(count=6, n=4):
    """Graph-level classes."""
    return [
        Data(x=torch.randn(n, 2), edge_index=chain(n), y=torch.tensor([i % 3]))
        for i in range(count)
    ]


def test_what_is_inferred():
    own = OwnTask(classes())
    assert (own.in_channels, own.out_channels, own.pool, own.edge_dim) == (2, 3, "mean", None)
    assert (own.metric_name, own.higher_is_better) == ("accuracy", True)
    nodes = [Data(x=torch.randn(4, 2), edge_index=chain(4), y=torch.randn(4)) for _ in range(3)]
    own = OwnTask(nodes, F.l1_loss)
    assert (own.out_channels, own.pool, own.higher_is_better) == (1, None, False)


def test_losses_are_of_what_counts():
    data, own = Batch.from_data_list(classes()), OwnTask(classes())
    out = torch.randn(2, 6, 3, dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, False, True], [True] * 6])
    found = own.loss(out, data, mask)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    rows = [0, 2, 5]
    torch.testing.assert_close(found[0], F.cross_entropy(out[0, rows], y[rows]))
    torch.testing.assert_close(found[1], F.cross_entropy(out[1], y))
    torch.testing.assert_close(own.loss(out[0], data, mask[0]), found[0])
    torch.testing.assert_close(own.loss(out, data)[1], found[1])
    accuracy = (out[0, rows].argmax(-1) == y[rows]).double().mean()
    assert float(own.metric(out, data, mask)[0]) == float(accuracy)


def test_node_level_masks_and_flat_targets():
    graphs = [Data(x=torch.randn(n, 1), edge_index=chain(n), y=torch.randn(n)) for n in (2, 3)]
    data, own = Batch.from_data_list(graphs), OwnTask(graphs)
    out = torch.randn(1, 5, 1)
    mask = torch.tensor([[False, True]])
    expected = (out[0, 2:, 0] - data.y[2:]).square().mean()
    torch.testing.assert_close(own.loss(out, data, mask)[0], expected)


def test_classification_trains_with_edge_features():
    for graph in (graphs := classes(8)):
        graph.edge_attr = torch.randn(6)
    for model in ("gat", "energy-edge", "energy-node", "gcn"):
        result = train(graphs, model=model, epochs=3)
        assert 0 <= float(result.metrics["train"][0]) <= 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: [], "non-empty list"),
        (lambda g: [*g, 3], "non-empty list"),
        (lambda g: [Data(x=g[0].x, edge_index=g[0].edge_index)], "lacks x, edge_index or y"),
        (lambda g: [*g, Data(x=g[0].x, edge_index=g[0].edge_index, y=torch.zeros(3))], "graph 6"),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "x": torch.zeros(4, 9)})], "graph 6 has 9 feat"),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "x": torch.zeros(4)})], r"x of shape \[4\]"),
        (
            lambda g: [*g, Data(**g[0].to_dict(), edge_attr=torch.ones(g[0].num_edges))],
            "edge_attr of width 1, graph 0 . and None",
        ),
        (
            lambda g: [Data(**g[0].to_dict(), train_mask=torch.ones(4, dtype=torch.bool))],
            "train_mask",
        ),
    ],
)
def test_refused(change, says):
    with pytest.raises(InputError, match=says):
        OwnTask(change(classes()))


def test_a_run_does_not_go_on_with_other_graphs(tmp_path):
    options = {"model": "energy-node", "epochs": 2, "folder": tmp_path, "resume": True}
    train(classes(), **options)
    for others in (classes(count=5), classes(n=5)):
        with pytest.raises(CheckpointError, match=r"on other data: {'graphs': 6, 'nodes': 24"):
            train(others, **{**options, "epochs": 3})
    assert train(classes(), **{**options, "epochs": 3}).config.epochs == 3


def test_validation_graphs_are_held_out_anyway():
    graphs = classes()
    asked = train(graphs, model="gcn", epochs=2, validation=True)
    assert asked.as_dict() == train(graphs, model="gcn", epochs=2).as_dict()


def test_options_that_do_not_apply():
    with pytest.raises(ConfigError, match="already built"):
        resolve(Sums(), {"length": 3})
    with pytest.raises(ConfigError, match="which has its own"):
        resolve("chains", {}, loss=F.mse_loss)
    with pytest.raises(ConfigError, match="no task was given"):
        resolve("", {})
    with pytest.raises(ConfigError, match="no file"):
        resolve("nowhere.py:Task", {})


@pytest.mark.parametrize("count", [3, 4, 5, 9, 50])
@pytest.mark.parametrize("folds", [None, 3])
def test_parts_are_disjoint_and_complete(count, folds):
    found = parts(count, folds, seed=1)
    for split in found:
        pieces = (split.train, split.val, split.test)
        assert all(p.numel() for p in pieces)
        assert all(torch.equal(p, p.sort().values) for p in pieces)
        assert torch.equal(torch.cat(pieces).sort().values, torch.arange(count))
    if folds:
        tests = torch.cat([split.test for split in found])
        assert torch.equal(tests.sort().values, torch.arange(count))
    with pytest.raises(ConfigError, match="folds="):
        parts(count, count + 1, 0)
