"""`train`: the tasks and models that it takes, what it refuses, and standardised features."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_runs import graphs
from tiny_tasks import Chains, Sums

import hogwild
from hogwild import GCN, EnergyGNN, load, train
from hogwild.errors import (
    ConfigError,
    InputError,
)
from hogwild.models import IGNNConv
from hogwild.tasks.base import Split
from hogwild.training import MODELS
from hogwild.training.registry import Members


class Untaught(Sums):
    """Nothing to train on."""

    def splits(self, folds=None, seed=0):
        nothing = torch.arange(0)
        return [Split(nothing, nothing, torch.arange(len(self.graphs)))]


class Total(Sums):
    """A loss of all replicas."""

    def loss(self, out, data, mask=None):
        return super().loss(out, data, mask).sum()


@pytest.mark.parametrize(
    ("task", "options", "error", "says"),
    [
        (Untaught, {}, ConfigError, "fold 0 of 'tiny sums' has no graphs to train on"),
        (Total, {"replicas": 2}, InputError, r"shape \[\] with 2 replicas; expected \[2\]"),
        (Sums, {"validation": True}, ConfigError, "has no argument of that name"),
    ],
)
def test_tasks_that_cannot_be_trained_on(task, options, error, says):
    with pytest.raises(error, match=says):
        train(task(), model="gcn", epochs=1, **options)


def test_a_model_without_parameters_to_train():
    model = GCN(1, out_channels=1).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter of GCN requires a gradient"):
        train(Sums(), model, epochs=1)


def test_generators_of_the_user_are_left_alone(monkeypatch):
    """Those of other devices, too; torch.manual_seed would not."""
    monkeypatch.setattr(torch, "manual_seed", None)
    before = torch.get_rng_state()
    train(Sums(), model="gcn", epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_model_instead_of_a_name(replicas):
    torch.manual_seed(1)
    model = EnergyGNN(1, out_channels=1, pool="mean", replicas=replicas)
    before = [p.clone() for p in model.parameters()]
    result = train(Sums(), model, epochs=5)
    assert result.model is model
    assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert result.metrics["test"].shape == (replicas or 1,)


def test_a_model_object_is_loaded_by_hand(tmp_path):
    model = EnergyGNN(1, out_channels=1, pool="mean")
    train(Sums(), model, epochs=2, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"EnergyGNN that was built by hand.*checkpoint\.load"):
        load(tmp_path, task=Sums())
    again = EnergyGNN(1, out_channels=1, pool="mean").double()
    hogwild.training.checkpoint.load(tmp_path / "model", again)
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("option", [{"replicas": 3}, {"model_options": {"beta": 1.0}}])
def test_options_of_a_model_that_was_already_built_are_refused(option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))}=.*model's constructor"):
        train(Sums(), EnergyGNN(1, out_channels=1, pool="mean", replicas=2), epochs=1, **option)


@pytest.mark.parametrize("task", [3, iter([])])
def test_other_objects_are_refused_as_tasks(task):
    with pytest.raises(ConfigError, match=f"task is a {type(task).__name__}; expected a name"):
        train(task, model="gcn")


def test_refused():
    with pytest.raises(ConfigError, match="LayeredGNN"):
        train(Sums(), torch.nn.Linear(1, 1), epochs=1)
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        train(Sums(), epoch=1)
    with pytest.raises(ConfigError, match="did you mean 'energy-edge'"):
        train("chains", model="energy-edg")
    with pytest.raises(ConfigError, match="config= was given along with options"):
        train(Sums(), config=hogwild.training.Config.of(), epochs=3)
    with pytest.raises(ConfigError, match=r"reads 1 features.*chains have 2.*EnergyGNN\(2, 1"):
        train("chains", EnergyGNN(1, out_channels=1))
    with pytest.raises(ConfigError, match="loss given with a task"):
        train(Sums(), loss=torch.nn.functional.mse_loss, epochs=1)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="there are 0 CUDA devices"):
            train(Sums(), epochs=1, device="cuda")


def test_options_of_a_name_are_kept_with_the_run(tmp_path, monkeypatch):
    """A name may come to mean other options; a run that is kept goes on meaning its own."""
    kept = train("chains", "ignn", epochs=1, folder=tmp_path, task_options={"length": 4})
    assert kept.config.model_options == {"act": "leaky_relu", "kappa": 0.999}
    published = replace(MODELS["ignn"], options={"act": "relu", "kappa": 0.95})
    monkeypatch.setitem(MODELS, "ignn", published)
    found = load(tmp_path)
    assert [m.kappa for m in found.model.modules() if isinstance(m, IGNNConv)] == [0.999]
    torch.testing.assert_close(found.evaluate(), kept.metrics)
    other = train("chains", "ignn", epochs=1, model_options={"act": "tanh"})
    assert other.config.model_options == {"act": "tanh", "kappa": 0.95}


def test_numpy_numbers_mean_the_same_as_python_numbers(tmp_path):
    options = {"epochs": 3, "replicas": 2, "folds": 3, "batch_size": 4, "seed": 5, "log_every": 1}
    task = {"num_graphs": 9, "sizes": 3}
    plain = {**options, "lr": 0.25, "decay": (0.5, 2), "task_options": task}
    numpy = {k: np.int64(v) for k, v in options.items()} | {"lr": np.float32(0.25)}
    numpy |= {"decay": (np.float64(0.5), np.int64(2))}
    numpy |= {"task_options": {"num_graphs": np.int64(9), "sizes": np.array([3])}}
    one = hogwild.train("sums", "gcn", **plain)
    other = hogwild.train("sums", "gcn", folder=tmp_path, **numpy)
    for p, q in zip(one.ensemble.parameters(), other.ensemble.parameters(), strict=True):
        assert torch.equal(p, q)
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["task_options"] == {"num_graphs": 9, "sizes": [3]}
    assert (kept["epochs"], kept["lr"], kept["decay"]) == (3, 0.25, [0.5, 2])
    assert hogwild.load(tmp_path).as_dict() == other.as_dict()


def predictions(result, data):
    with torch.no_grad():
        found = [result.model(g.x, g.edge_index, g.edge_attr) for g in data]
    return torch.cat(found)


@pytest.mark.filterwarnings("ignore:the graphs have edge_attr")
@pytest.mark.parametrize("model", ["energy-edge", "gat", "ignn"])
def test_the_unit_does_not_matter(model):
    options = {"model": model, "epochs": 2, "lr": 0.02}
    if model == "ignn":
        options["model_options"] = {"kappa": 0.9}
    plain = graphs()
    expected = train(plain, **options)
    for change in ((1e3, 0.0), (1e6, 0.0), (1.0, 1e3)):
        moved = graphs(*change)
        found = train(moved, **options)
        error = predictions(found, moved) - predictions(expected, plain)
        assert error.abs().max() < 1e-6
        assert torch.equal(found.metrics["test"], expected.metrics["test"])


@pytest.mark.parametrize(("factor", "shift"), [(1e6, 0.0), (1.0, 1e3)])
def test_in_single_precision(factor, shift):
    options = {"model": "gat", "epochs": 3, "lr": 0.02}
    plain, moved = graphs(dtype=torch.float32), graphs(factor, shift, dtype=torch.float32)
    a = predictions(train(plain, **options), plain)
    b = predictions(train(moved, **options), moved)
    torch.testing.assert_close(a, b, rtol=0, atol=5e-3)  # 1,000.123 has four digits after the point


def test_without_it_the_unit_matters():
    options = {"model": "gat", "epochs": 6, "lr": 0.02, "standardize": False}
    a, b = (predictions(train(g, **options), g) for g in (graphs(), graphs(1e3)))
    assert (a - b).abs().max() > 1e-2


def test_replicas_have_the_statistics_of_their_own_graphs():
    data = graphs()
    for g in data:
        g.edge_attr = None
    result = train(data, model="energy-node", epochs=2, folds=3, replicas=3)
    members = Members.of(result.config, result.task, 3, torch.device("cpu"))
    offset = result.ensemble.features.nodes.offset
    for r in range(3):
        x = torch.cat([data[i].x for i in members.train[r].nonzero()[:, 0].tolist()])
        assert float(offset[r, 0]) == pytest.approx(float(x[:, 0].mean()), rel=1e-12)
        assert float(offset[r, 1]) == 0.0
        g, model = data[0], result.replica(r)
        torch.testing.assert_close(model.features.nodes.offset, offset[r])
        found = result.ensemble(g.x, g.edge_index)[r]
        torch.testing.assert_close(model(g.x, g.edge_index), found, rtol=0, atol=1e-9)
    assert offset[0, 0] != offset[1, 0]


def test_tasks_of_indicators_stay_as_they_are():
    a, b = (train(Chains(), "energy-edge", epochs=5, standardize=s) for s in (True, False))
    assert not a.ensemble.features.fitted
    for p, q in zip(a.ensemble.parameters(), b.ensemble.parameters(), strict=True):
        assert torch.equal(p, q)


def test_checkpoints_keep_the_statistics(tmp_path):
    data = graphs(1e3, 1e3)
    options = {"model": "energy-edge", "epochs": 2, "folder": tmp_path, "resume": True}
    first = train(data, **{**options, "epochs": 1})
    result = train(data, **options)
    assert torch.equal(first.ensemble.features.nodes.scale, result.ensemble.features.nodes.scale)
    again = load(tmp_path, task=data)
    assert again.model.features.fitted
    assert torch.equal(predictions(again, data), predictions(result, data))
    assert torch.equal(again.evaluate()["test"], result.metrics["test"])
    model = EnergyGNN(2, out_channels=2, edge_dim=1, pool="mean", replicas=1).double()
    hogwild.training.checkpoint.load(tmp_path / "model", model)
    assert torch.equal(model.features.edges.offset, result.ensemble.features.edges.offset)


def test_a_model_that_has_statistics_keeps_them():
    data = graphs()
    model = EnergyGNN(2, out_channels=2, edge_dim=1, pool="mean").double()
    train(data, model, epochs=1)
    first = model.features.nodes.offset.clone()
    assert model.features.fitted
    train(graphs(1.0, 5.0), model, epochs=1)
    assert torch.equal(model.features.nodes.offset, first)
    raw = EnergyGNN(2, out_channels=2, edge_dim=1, pool="mean").double()
    train(data, raw, epochs=1, standardize=False)
    assert not raw.features.fitted
