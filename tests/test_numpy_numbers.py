"""NumPy's numbers are taken wherever Python's are, and mean the same."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import hogwild
from hogwild.asynchrony.impairments import BernoulliLoss, GeometricDelay
from hogwild.asynchrony.trace import Trace
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.training import Config

INTEGERS = [np.int8, np.int32, np.int64, np.uint16]


@pytest.fixture
def data():
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Data(x=torch.randn(3, 2, dtype=torch.float64), edge_index=path, y=torch.ones(3, 1))


@pytest.mark.parametrize("kind", INTEGERS)
def test_checks_return_pythons(kind):
    for found in (require_positive("n", kind(3)), require_integer("n", kind(3), 0)):
        assert type(found) is int
        assert found == 3
    for bad in (kind(0), np.bool_(True), True, np.float64(2), 2.0, "2"):
        with pytest.raises(ConfigError, match="n="):
            require_positive("n", bad)


@pytest.mark.parametrize("kind", INTEGERS)
def test_simulate(kind, data, tmp_path):
    model = hogwild.EnergyGNN(kind(2), out_channels=kind(1), hidden_channels=kind(2)).double()
    options = {"stagger": 3, "delay": 1, "seed": 7, "runs": 2, "ticks": 50, "history": 5}
    expected = hogwild.simulate(model, data, record=True, **options)
    found = hogwild.simulate(
        model, data, record=tmp_path / "trace", **{k: kind(v) for k, v in options.items()}
    )
    assert torch.equal(found.predictions, expected.predictions)
    about = json.loads(json.dumps(expected.trace.about))
    assert Trace.load(tmp_path / "trace").about == about
    assert hogwild.certify(model, data, kind(3), kind(1)).rate == pytest.approx(
        hogwild.certify(model, data, 3, 1).rate
    )


def test_negative_seeds_and_impairments(data):
    model = hogwild.GCN(2, out_channels=1).double()
    python = (GeometricDelay(0.5, cap=4), BernoulliLoss(0.25, burst=3))
    numpy = (
        GeometricDelay(np.float32(0.5), cap=np.int64(4)),
        BernoulliLoss(np.float32(0.25), burst=np.int64(3)),
    )
    one, other = (
        hogwild.simulate(model, data, seed=seed, impairments=given).predictions
        for seed, given in ((-3, python), (np.int64(-3), numpy))
    )
    assert torch.equal(one, other)


def test_sweep(data):
    model = hogwild.GCN(2, out_channels=1).double()
    python = hogwild.sweep(model, data, staggers=(1, 4), delays=(0, 2), losses=(0.0, 0.5), runs=2)
    numpy = hogwild.sweep(
        model,
        data,
        staggers=np.array([1, 4]),
        delays=[np.int64(0), np.int64(2)],
        losses=np.array([0.0, 0.5]),
        runs=np.int64(2),
    )
    assert torch.equal(python.grid(), numpy.grid())
    assert str(python) == str(numpy)
    assert numpy.at(np.int64(4), 2).stagger == 4
    with pytest.raises(ConfigError, match="non-empty"):
        hogwild.sweep(model, data, staggers=np.array([], int))


def test_train(tmp_path):
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


def test_ranges_survive_a_folder():
    config = Config.of(task="counting", task_options={"sizes": range(1, 4)})
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert config.task_options == {"sizes": [1, 2, 3]}


def test_solvers():
    assert hogwild.solvers.Newton(max_iter=np.int64(7)) == hogwild.solvers.Newton(max_iter=7)
