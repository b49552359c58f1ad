"""The loop: it learns, and stops one replica without disturbing the others."""

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import QUICK, graphs, parameters, poison
from tiny_tasks import Chains, Sums

import hogwild
from hogwild import GCN, EnergyGNN, load, tasks, train
from hogwild.errors import (
    ConfigError,
    ConvergenceWarning,
    InputError,
)
from hogwild.models import IGNNConv
from hogwild.tasks.splits import Split
from hogwild.training import MODELS
from hogwild.training.ensemble import Members
from hogwild.training.predict import predict
from hogwild.training.shelf import portions


def test_learns():
    result = train(Chains(4), model="energy-edge", epochs=80, lr=0.03, replicas=2)
    assert float(result.metrics["test"].min()) == 0.0
    assert result.history[0]["loss"][0] > 2 * result.history[-1]["loss"][0]
    assert "tiny chains" in result.summary()


def test_metrics_are_those_of_the_models_returned(trained):
    task = Sums()
    result = trained[0]
    again = result.evaluate()
    for part, values in result.metrics.items():
        torch.testing.assert_close(again[part], values, rtol=0, atol=1e-9)
    for r in range(2):
        ids = task.splits()[r].test
        batch = torch.arange(len(ids)).repeat_interleave(4)
        x = torch.cat([task.graphs[i].x for i in ids]).double()
        edges = torch.cat([task.graphs[i].edge_index + 4 * n for n, i in enumerate(ids)], 1)
        y = torch.cat([task.graphs[i].y for i in ids]).double()
        error = (result.replica(r)(x, edges, batch=batch) - y).square().mean()
        torch.testing.assert_close(error.detach(), result.metrics["test"][r], rtol=0, atol=1e-9)


def test_best_parameters_are_kept():
    """With a learning rate that destroys everything the best epoch is an early one."""
    scores = []
    result = train(Sums(), model="gsdgnn", epochs=12, lr=5.0, clip=1e9, validate_every=1,
                   callback=lambda loop: scores.append(float(loop.score[0])))  # fmt: skip
    assert float(result.metrics["val"][0]) == pytest.approx(min(scores), abs=1e-9)
    assert scores.index(min(scores)) == int(result.best_epoch[0])
    assert max(scores) > 2 * min(scores)


def test_patience():
    """A replica that no longer improves stops by itself, at its best."""
    epochs = []
    result = train(Sums(), model="gsdgnn", epochs=200, lr=5.0, clip=1e9, patience=6,
                   replicas=2, validate_every=2,
                   callback=lambda loop: epochs.append(loop.epoch))  # fmt: skip
    assert all(stop is not None and not stop.failed for stop in result.stops)
    for stop, best in zip(result.stops, result.best_epoch.tolist(), strict=True):
        assert 6 <= stop.epoch - best < 8
    assert len(epochs) < 200
    assert result.failed == []
    assert "2 stopped early" in result.summary()


@pytest.mark.parametrize("model", ["energy-edge", "gcn", "scarselli", "gsdgnn", "max"])
def test_one_replica_fails_alone(model):
    on_failure = "ignore" if model == "gsdgnn" else "raise"
    options = {"model": model, "epochs": 10, "replicas": 3, "on_failure": on_failure}
    options["validate_every"] = 4
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        result = train(Sums(), callback=poison(1, 6), **options)
        healthy = train(Sums(), **options)
    assert result.failed == [1]
    stop = result.stops[1]
    assert stop.epoch == 6
    assert "NaN" in stop.reason
    assert "replica 1 stopped at epoch 6" in result.summary()
    ours, theirs = parameters(result), parameters(healthy)
    assert bool(torch.isfinite(ours).all())
    torch.testing.assert_close(ours[[0, 2]], theirs[[0, 2]], rtol=0, atol=1e-9)
    assert int(result.best_epoch[1]) in (0, 4)
    assert result.best != 1


def test_a_solve_that_fails_stops_the_replica_with_advice():
    options = {"solver": "lbfgs", "solver_options": {"max_iter": 2}}
    with pytest.warns(ConvergenceWarning):  # the last measurement does not converge, either
        result = train(Chains(), model="energy-edge", epochs=5, replicas=2, **options)
    assert result.failed == [0, 1]
    assert "forward solve failed" in result.stops[0].reason
    assert "ran out of iterations" in result.stops[0].reason
    ignored = train(Chains(), model="energy-edge", epochs=5, on_failure="ignore", **options)
    assert ignored.failed == []


def test_an_adjoint_that_fails_stops_the_replica(monkeypatch):
    """The adjoint's failure is caught, although nothing in the forward pass tells of it."""
    from hogwild.linalg.linear import LinearSolver

    exact = LinearSolver.solve_tangent

    def stingy(*args, **kwargs):
        found = exact(*args, **kwargs)
        status = found.status.clone()
        status[1] = int(hogwild.solvers.Status.MAX_ITERATIONS)
        return hogwild.Solution(found.value, status, found.iterations, found.residual)

    monkeypatch.setattr(LinearSolver, "solve_tangent", stingy)
    result = train(Sums(), model="scarselli", epochs=3, replicas=3)
    assert result.failed == [1]
    assert "adjoint" in result.stops[1].reason


def test_reproducible_from_a_seed(trained):
    first, second = trained[0], train(Sums(), **QUICK)
    assert torch.equal(parameters(first), parameters(second))
    other = train(Sums(), **{**QUICK, "seed": 1})
    assert not torch.equal(parameters(first), parameters(other))


def test_warm_starts_change_the_work_and_not_the_result():
    warm = train(Chains(), model="energy-edge", epochs=20)
    cold = train(Chains(), model="energy-edge", epochs=20, warm_start=False)
    torch.testing.assert_close(parameters(warm), parameters(cold), rtol=0, atol=1e-6)
    assert warm.history[-1]["iterations"] < cold.history[-1]["iterations"]


@pytest.mark.parametrize("reshuffle", [True, False])
def test_mini_batches(reshuffle):
    """Every training graph once an epoch, in new company or always in the same."""
    seen = []

    def look(loop):
        loop.epoch -= 1  # the epoch that has just ended
        seen.append([taken.ids.tolist() for taken in loop._batches()])
        loop.epoch += 1

    train(Sums(), model="gcn", epochs=4, batch_size=2, reshuffle=reshuffle, callback=look)
    expected = Sums().splits()[0].train.tolist()
    for batches in seen:
        assert sorted(i for ids in batches for i in ids) == expected
        assert all(1 <= len(ids) <= 2 for ids in batches)
    assert (seen[0] == seen[1] == seen[2]) is not reshuffle


def test_warnings_of_others_are_passed_on_once():
    class Wordy(Sums):
        def loss(self, out, data, mask=None):
            warnings.warn("out of ink", RuntimeWarning, stacklevel=1)
            return super().loss(out, data, mask)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        train(Wordy(), model="gcn", epochs=40, validate_every=100)
    # Once in 40 steps, and once whenever graphs are measured.
    assert 1 <= len([w for w in caught if "out of ink" in str(w.message)]) <= 5


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


@pytest.mark.parametrize("model", ["gcn", "energy-node"])
def test_a_nan_target_stops_only_the_replicas_that_train_on_it(model):
    task = tasks.get("counting", sizes=[3, 4, 5, 6, 7, 8])
    task.graphs[4].y = torch.full_like(task.graphs[4].y, torch.nan)
    with pytest.warns(UserWarning, match="never had a finite loss"):  # who is judged by it
        result = train(task, model=model, epochs=3, folds=3, replicas=3, validation=True)
    stops = [stop is not None for stop in result.stops]
    assert stops == [4 in split.train.tolist() for split in task.splits(3, validation=True)]
    assert sum(stops) == 1


def test_a_model_without_parameters_to_train():
    model = GCN(1, out_channels=1).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter of GCN requires a gradient"):
        train(Sums(), model, epochs=1)


def test_scarselli_reads_flat_edge_features():
    graphs = [g.clone() for g in Sums().graphs]
    for g in graphs:
        g.edge_attr = torch.ones(g.num_edges)
    result = train(graphs, model="scarselli", epochs=1)
    flat = graphs[0]
    assert result.model(flat.x, flat.edge_index, flat.edge_attr).shape == (1, 1)


def test_generators_of_the_user_are_left_alone(monkeypatch):
    """Those of other devices, too; torch.manual_seed would not."""
    monkeypatch.setattr(torch, "manual_seed", None)
    before = torch.get_rng_state()
    train(Sums(), model="gcn", epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


# -- models of the user's own ---------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "option", [{"replicas": 3}, {"model_options": {"beta": 1.0}}, {"solver": "lbfgs"}]
)
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
    with pytest.raises(ConfigError, match="loss given with a task"):
        train(Sums(), loss=torch.nn.functional.mse_loss, epochs=1)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            train(Sums(), epochs=1, device="cuda")


def test_batch_norm_keeps_its_statistics_with_the_best_parameters():
    model = GCN(1, out_channels=1, pool="mean", norm="BatchNorm", replicas=2)
    result = train(Sums(), model, epochs=6, validate_every=2)
    torch.testing.assert_close(result.evaluate()["val"], result.metrics["val"])


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


def test_a_model_of_another_width_than_the_tasks():
    with pytest.raises(ConfigError, match=r"reads 1 features.*chains have 2.*EnergyGNN\(2, 1"):
        train("chains", EnergyGNN(1, out_channels=1))


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


def test_graphs_are_measured_in_full_batches():
    """Those trained on in the batches of training; others not scattered over as many."""
    seen = {}

    def look(loop):
        for part in ("train", "test"):
            used = getattr(loop.members, part).any(0)
            trained = loop.members.train.any(0)
            seen[part] = [ids.tolist() for ids in portions(used, trained, 2, 0)]
            assert sorted(i for ids in seen[part] for i in ids) == used.nonzero()[:, 0].tolist()
        assert seen["train"] == [taken.ids.tolist() for taken in loop._batches()]

    train(Sums(), model="gcn", epochs=1, batch_size=2, reshuffle=False, callback=look)
    assert [len(ids) for ids in seen["test"]] == [2, 1]


def test_a_model_is_evaluated_once_for_all_its_sets(monkeypatch):
    """Every graph is some replica's test graph and another's validation graph."""
    asked = []

    def spy(*given):
        asked.append(given)
        return predict(*given)

    def look(loop):
        parts = (loop.members.train, loop.members.val, loop.members.test)
        # Every epoch one step; before the first one a judgement, and none after that of a callback.
        assert len(asked) == (2 if loop.epoch == 1 else 1)
        asked.clear()
        together = loop.measure(*parts, quiet=True, warm=True)
        assert len(asked) == 1
        alone = [loop.measure(part, quiet=True, warm=True)[0] for part in parts]
        for (loss, metric), (same, too) in zip(together, alone, strict=True):
            assert torch.equal(loss, same)
            assert torch.equal(metric, too)
        asked.clear()
        [(loss, metric)] = loop.judge(loop.members.test)  # and not again at the next epoch
        assert len(asked) == 1
        assert torch.equal(metric, alone[2][1])
        assert torch.equal(loop.score, alone[1][1])
        asked.clear()

    monkeypatch.setattr("hogwild.training.loop.predict", spy)
    options = {"task_options": {"sizes": [3, 4, 5, 6, 7, 8]}, "folds": 3, "replicas": 3}
    train("counting", epochs=2, validation=True, validate_every=1, callback=look, **options)
    assert len(asked) == 1  # when all is done


def test_targets_of_one_set_do_not_reach_another():
    """Unlabelled test graphs, and a loss that masks by a product: 0 · NaN."""

    def look(loop):
        loop.judge(loop.members.test)

    found = []
    for blank in (False, True):
        task = Sums()
        for i in task.splits()[0].test.tolist() if blank else ():
            task.graphs[i].y = task.graphs[i].y * torch.nan
        result = train(task, model="gcn", epochs=6, validate_every=2, lr=0.1, callback=look)
        found.append((result.best_epoch, *(result.metrics[p] for p in ("train", "val"))))
        assert bool(result.metrics["test"].isnan()) is blank
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("pool", "own"), [(None, "mean"), ("mean", None)])
def test_predictions_may_be_of_another_level_than_the_task_says(pool, own):
    class Other(Sums):
        def loss(self, out, data, mask=None):
            return super().loss(
                out.mean(1, keepdim=True).expand(-1, data.num_graphs, -1), data, mask
            )

        metric = loss

    task = Other()
    task.pool = pool
    result = train(task, GCN(1, out_channels=1, pool=own), epochs=2)
    assert bool(result.metrics["test"].isfinite().all())


def test_a_metric_may_work_in_place():
    class Careless(Sums):
        def metric(self, out, data, mask=None):
            return self.loss(out.sub_(1e3), data, mask)

    class Careful(Sums):
        def metric(self, out, data, mask=None):
            return self.loss(out - 1e3, data, mask)

    found = [train(task(), model="gcn", epochs=1, replicas=3) for task in (Careless, Careful)]
    for part in ("train", "val", "test"):
        assert torch.equal(found[0].metrics[part], found[1].metrics[part])


def test_a_warning_says_that_no_epoch_can_be_chosen():
    class Blind(Sums):
        def metric(self, out, data, mask=None):
            return self.loss(out, data, mask) * torch.nan

    with pytest.warns(UserWarning, match="replica 0 never had a finite loss and squared error"):
        train(Blind(), model="gcn", epochs=2)


def test_measuring_in_inference_mode_leaves_training_alone():
    def look(loop):
        with torch.inference_mode():
            loop.measure(loop.members.train, loop.members.test, quiet=True)

    options = {"model": "energy-edge", "epochs": 3, "batch_size": 1}
    watched, plain = train(Sums(), callback=look, **options), train(Sums(), **options)
    assert torch.equal(parameters(watched), parameters(plain))


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


@pytest.mark.slow
@pytest.mark.skipif("HOGWILD_DATA" not in os.environ, reason="needs the files of PROTEINS")
def test_raw_attributes_of_proteins(tmp_path):
    """The attribute reaches 798 beside indicators; its unit does not matter."""
    import shutil

    from torch_geometric.datasets import TUDataset

    root = Path(os.environ["HOGWILD_DATA"]) / "TUDataset" / "PROTEINS" / "raw"
    shutil.copytree(root, tmp_path / "PROTEINS" / "raw")
    data = list(TUDataset(tmp_path, "PROTEINS", use_node_attr=True))[::25]
    found = []
    for factor, shift in ((1.0, 0.0), (1e3, 0.0), (1.0, 1e3)):
        moved = [g.clone() for g in data]
        for g in moved:
            g.x = factor * g.x.double() + shift
        result = train(moved, epochs=3)
        assert not result.failed
        found.append(torch.cat([result.model(g.x, g.edge_index) for g in moved]).detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-6)
