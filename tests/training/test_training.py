"""The loop: it learns, stops one replica without disturbing the others, and can be resumed."""

import json
import math
import shutil
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from tiny_tasks import Chains, Sums

import hogwild
from hogwild import GCN, EnergyGNN, load, tasks, train
from hogwild.errors import CheckpointError, ConfigError, ConvergenceWarning, InputError
from hogwild.models import IGNNConv
from hogwild.tasks.base import Split
from hogwild.training import MODELS, log
from hogwild.training.predict import predict

QUICK = {"model": "energy-node", "epochs": 12, "replicas": 2, "validate_every": 3, "log_every": 4}


def parameters(result):
    return torch.cat([p.detach().flatten(1) for p in result.ensemble.parameters()], 1)


def test_learns():
    result = train(Chains(4), model="energy-edge", epochs=80, lr=0.03, replicas=2)
    assert float(result.metrics["test"].min()) == 0.0
    assert result.history[0]["loss"][0] > 2 * result.history[-1]["loss"][0]
    assert "tiny chains" in result.summary()


def test_metrics_are_those_of_the_models_returned():
    task = Sums()
    result = train(task, **QUICK)
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


def poison(replica, epoch):
    """Put NaN into one replica's parameters after an epoch."""

    def callback(loop):
        if loop.epoch == epoch:
            with torch.no_grad():
                loop.rows.parameters[0][replica] = torch.nan

    return callback


@pytest.mark.parametrize("model", ["energy-edge", "gcn", "scarselli", "gsdgnn", "max"])
def test_one_replica_fails_alone(model):
    on_failure = "ignore" if model == "gsdgnn" else "stop"
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
    from hogwild.solvers.linear import LinearSolver

    exact = LinearSolver.solve_tangent

    def stingy(*args, **kwargs):
        found = exact(*args, **kwargs)
        status = found.status.clone()
        status[1] = int(hogwild.Status.MAX_ITERATIONS)
        return hogwild.Solution(found.value, status, found.iterations, found.residual)

    monkeypatch.setattr(LinearSolver, "solve_tangent", stingy)
    result = train(Sums(), model="scarselli", epochs=3, replicas=3)
    assert result.failed == [1]
    assert "adjoint" in result.stops[1].reason


def test_reproducible_from_a_seed():
    first, second = train(Sums(), **QUICK), train(Sums(), **QUICK)
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


def test_graphs_are_measured_in_full_batches():
    """Those trained on in the batches of training; others not scattered over as many."""
    seen = {}

    def look(loop):
        for part in ("train", "test"):
            used = getattr(loop.members, part).any(0)
            seen[part] = [ids.tolist() for ids in loop._portions(used)]
            assert sorted(i for ids in seen[part] for i in ids) == used.nonzero()[:, 0].tolist()
        assert seen["train"] == [taken.ids.tolist() for taken in loop._batches()]

    train(Sums(), model="gcn", epochs=1, batch_size=2, reshuffle=False, callback=look)
    assert [len(ids) for ids in seen["test"]] == [2, 1]


def test_a_model_is_asked_once_for_all_its_sets(monkeypatch):
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
    train(task, GCN(1, 1, pool=own), epochs=2)


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


def test_nothing_to_choose_by_is_said():
    class Blind(Sums):
        def metric(self, out, data, mask=None):
            return self.loss(out, data, mask) * torch.nan

    with pytest.warns(UserWarning, match="replica 0 never had a finite loss and squared error"):
        train(Blind(), model="gcn", epochs=2)


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
def test_a_target_that_is_no_number_stops_only_who_trains_on_it(model):
    task = tasks.get("counting", sizes=[3, 4, 5, 6, 7, 8])
    task.graphs[4].y = torch.full_like(task.graphs[4].y, torch.nan)
    with pytest.warns(UserWarning, match="never had a finite loss"):  # who is judged by it
        result = train(task, model=model, epochs=3, folds=3, replicas=3, validation=True)
    stops = [stop is not None for stop in result.stops]
    assert stops == [4 in split.train.tolist() for split in task.splits(3, validation=True)]
    assert sum(stops) == 1


def test_a_model_without_parameters_to_train():
    model = GCN(1, 1).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter of GCN requires a gradient"):
        train(Sums(), model, epochs=1)


def test_scarselli_reads_flat_edge_features():
    graphs = [g.clone() for g in Sums().graphs]
    for g in graphs:
        g.edge_attr = torch.ones(g.num_edges)
    result = train(graphs, model="scarselli", epochs=1)
    assert result.graph(0).edge_attr.shape == (graphs[0].num_edges, 1)


def test_generators_of_the_user_are_left_alone(monkeypatch):
    """Those of other devices, too; torch.manual_seed would not."""
    monkeypatch.setattr(torch, "manual_seed", None)
    before = torch.get_rng_state()
    train(Sums(), model="gcn", epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_measuring_in_inference_mode_leaves_training_alone():
    def look(loop):
        with torch.inference_mode():
            loop.measure(loop.members.train, loop.members.test, quiet=True)

    train(Sums(), model="energy-edge", epochs=3, batch_size=1, callback=look)


def test_ranking_compares_like_with_like(tmp_path):
    result = train(Sums(), model="gcn", epochs=1, replicas=3)
    metrics = {"val": torch.tensor([0.5, torch.nan, 0.2]), "train": torch.tensor([1.0, 0.01, 1.0])}
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [2, 0, 1]
    metrics["val"] = torch.full((3,), torch.nan)
    assert replace(result, metrics={**result.metrics, **metrics}).ranking == [1, 0, 2]


# -- folders --------------------------------------------------------------------------------------


class Kill(BaseException):
    """Stands for a kill."""


def killed_at(epoch):
    def callback(loop):
        if loop.epoch == epoch:
            raise Kill

    return callback


def test_a_finished_run_whose_state_is_gone(tmp_path):
    """Is not trained again over what is there."""
    result = train(Sums(), model="gcn", epochs=2, folder=tmp_path)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CheckpointError, match="holds a finished run, and what to go on from"):
        train(Sums(), model="gcn", epochs=3, folder=tmp_path, resume=True)
    assert torch.equal(load(tmp_path, Sums()).metrics["test"], result.metrics["test"])


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"model": "gcn", "batch_size": 4},
                                     {"recipe": "paper", "epochs": 12}])  # fmt: skip
def test_interrupted_and_resumed_is_uninterrupted(tmp_path, options):
    options = {**QUICK, "checkpoint_every": 0.0, **options}
    whole = train(Sums(), folder=tmp_path / "whole", **options)
    for epoch in (1, 5, 11):  # several kills of one run
        with pytest.raises(Kill):
            train(Sums(), folder=tmp_path / "cut", resume=True, callback=killed_at(epoch),
                  **options)  # fmt: skip
    resumed = train(Sums(), folder=tmp_path / "cut", resume=True, **options)
    assert torch.equal(parameters(whole), parameters(resumed))
    for part in whole.metrics:
        assert torch.equal(whole.metrics[part], resumed.metrics[part])

    def timeless(folder):
        lines = log.read(folder / "metrics.jsonl")
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")
    assert torch.equal(whole.best_epoch, resumed.best_epoch)


def test_killed_before_the_first_checkpoint(tmp_path):
    with pytest.raises(Kill):
        train(Sums(), folder=tmp_path, callback=killed_at(2), **QUICK)
    with pytest.raises(CheckpointError, match="no finished run"):
        load(tmp_path, task=Sums())
    resumed = train(Sums(), folder=tmp_path, resume=True, **QUICK)
    assert torch.equal(parameters(resumed), parameters(train(Sums(), **QUICK)))


def test_stopped_replicas_stay_stopped_after_resuming(tmp_path):
    options = {**QUICK, "checkpoint_every": 0.0, "replicas": 3}

    def callback(loop):
        poison(1, 4)(loop)
        killed_at(8)(loop)

    with pytest.raises(Kill):
        train(Sums(), folder=tmp_path, callback=callback, **options)
    resumed = train(Sums(), folder=tmp_path, resume=True, **options)
    whole = train(Sums(), callback=poison(1, 4), **options)
    assert resumed.stops == whole.stops
    assert resumed.stops[1].epoch == 4
    assert torch.equal(parameters(resumed), parameters(whole))


SMALL = {"task_options": {"sizes": range(1, 13)}, "folds": 4}


def test_folder(tmp_path):
    result = train(Sums(), folder=tmp_path / "run", **QUICK)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"config.json", "metrics.jsonl", "result.json", "model", "state"} <= names
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"] == "energy-node"
    again = load(tmp_path / "run", task=Sums())
    assert torch.equal(parameters(again), parameters(result))
    assert again.as_dict() == result.as_dict()
    assert again.config == result.config
    assert again.history == result.history
    with pytest.raises(ConfigError, match="already holds a run"):
        train(Sums(), folder=tmp_path / "run", **QUICK)
    with pytest.raises(ConfigError, match=r"other options: lr=0\.005, now 0\.5"):
        train(Sums(), folder=tmp_path / "run", resume=True, **{**QUICK, "lr": 0.5})
    with pytest.raises(ConfigError, match="give the same task again"):
        load(tmp_path / "run")


def test_a_run_that_broke_before_its_first_checkpoint_does_not_keep_the_folder(tmp_path):
    """A mistake in a callback or a loss is corrected and tried again, with other options, too."""

    def broken(loop):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Sums(), folder=tmp_path, callback=broken, **QUICK)
    assert (tmp_path / "config.json").exists()
    result = train(Sums(), folder=tmp_path, **{**QUICK, "lr": 0.01})
    assert torch.equal(parameters(result), parameters(train(Sums(), **{**QUICK, "lr": 0.01})))
    assert load(tmp_path, task=Sums()).history == result.history


def test_summary_names_validation_only_where_graphs_were_held_out():
    assert "val " not in hogwild.train("counting", "gcn", epochs=1, **SMALL).summary()
    assert "val " in hogwild.train("counting", "gcn", epochs=1, validation=True, **SMALL).summary()


def test_a_finished_run_can_be_extended(tmp_path):
    train(Sums(), folder=tmp_path, **QUICK)
    longer = {**QUICK, "epochs": 24}
    extended = train(Sums(), folder=tmp_path, resume=True, **longer)
    assert [line["epoch"] for line in extended.history] == [0, 4, 8, 11, 12, 16, 20, 23]
    assert torch.equal(parameters(extended), parameters(train(Sums(), **longer)))


def test_fewer_epochs_than_were_trained_are_refused(tmp_path):
    """The folder would hold one thing and say another."""
    train(Sums(), folder=tmp_path, **QUICK)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"holds a run of 12 epochs already, and epochs=3"):
        train(Sums(), folder=tmp_path, resume=True, **{**QUICK, "epochs": 3})
    assert (tmp_path / "config.json").read_text() == before


def test_one_run_at_a_time_in_a_folder(tmp_path):
    refused = []

    def intrude(loop):
        if loop.epoch == 3:
            with pytest.raises(ConfigError, match="another run is at work in") as error:
                train(Sums(), folder=tmp_path, resume=True, **QUICK)
            refused.append(error)

    result = train(Sums(), folder=tmp_path, callback=intrude, **QUICK)
    assert len(refused) == 1
    assert torch.equal(parameters(result), parameters(train(Sums(), **QUICK)))
    train(Sums(), folder=tmp_path, resume=True, **QUICK)  # the claim ended with the run


def test_without_checkpoints_in_between(tmp_path):
    options = {**QUICK, "checkpoint_every": math.inf}
    result = train(Sums(), folder=tmp_path, **options)
    again = load(tmp_path, task=Sums())
    assert again.config == result.config
    assert again.config.checkpoint_every == math.inf
    longer = {**options, "epochs": 24}
    assert train(Sums(), folder=tmp_path, resume=True, **longer).config.epochs == 24


def test_what_is_refused_leaves_no_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="needs the package tensorboard"):
        train(Sums(), folder=tmp_path / "run", tensorboard=tmp_path / "logs", **QUICK)
    train(Sums(), folder=tmp_path / "run", **QUICK)


def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"folder='.*' cannot be used \("):
            train(Sums(), folder=folder, **QUICK)
        with pytest.raises(CheckpointError, match="is a file"):
            load(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_damaged_files_beside_the_state_are_refused(text, tmp_path):
    train(Sums(), folder=tmp_path, **QUICK)
    for name in ("metrics.jsonl", "config.json"):
        whole = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + "\n")
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            train(Sums(), folder=tmp_path, resume=True, **QUICK)
        (tmp_path / name).write_text(whole)


def test_a_run_of_a_device_that_is_not_here_is_used_here(tmp_path, monkeypatch):
    result = train(Sums(), folder=tmp_path, **QUICK)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "device": "cuda"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    again = load(tmp_path, task=Sums())
    assert again.config.device == "cpu"
    assert torch.equal(again.evaluate()["test"], result.metrics["test"])


def test_damaged_state_is_refused(tmp_path):
    train(Sums(), folder=tmp_path, **QUICK)
    (file,) = (tmp_path / "state").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="damaged"):
        train(Sums(), folder=tmp_path, resume=True, **QUICK)


# -- models of the user's own ---------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_model_instead_of_a_name(replicas):
    model = EnergyGNN(1, 1, pool="mean", replicas=replicas)
    before = [p.clone() for p in model.parameters()]
    result = train(Sums(), model, epochs=5)
    assert result.model is model
    assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert result.metrics["test"].shape == (replicas or 1,)


def test_a_model_object_is_loaded_by_hand(tmp_path):
    model = EnergyGNN(1, 1, pool="mean")
    train(Sums(), model, epochs=2, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"EnergyGNN that was built by hand.*checkpoint\.load"):
        load(tmp_path, task=Sums())
    again = EnergyGNN(1, 1, pool="mean").double()
    hogwild.checkpoint.load(tmp_path / "model", again)
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    "option", [{"replicas": 3}, {"model_options": {"beta": 1.0}}, {"solver": "lbfgs"}]
)
def test_options_of_a_model_that_is_built_already(option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))}=.*model's constructor"):
        train(Sums(), EnergyGNN(1, 1, pool="mean", replicas=2), epochs=1, **option)


@pytest.mark.parametrize("task", [3, iter([])])
def test_what_is_no_task(task):
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
    model = GCN(1, 1, pool="mean", norm="BatchNorm", replicas=2)
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
