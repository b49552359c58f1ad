"""The loop: it learns, and stops one replica without disturbing the others."""

import warnings
from dataclasses import replace

import pytest
import torch
from tiny_runs import QUICK, parameters, poison
from tiny_tasks import Chains, Sums

import hogwild
from hogwild import GCN, EnergyGNN, load, tasks, train
from hogwild.errors import ConfigError, ConvergenceWarning, InputError
from hogwild.models import IGNNConv
from hogwild.tasks.splits import Split
from hogwild.training import MODELS


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
    with pytest.warns(ConvergenceWarning, match="forward solve"):
        warned = train(Chains(), model="energy-edge", epochs=5, on_failure="warn", **options)
    assert warned.failed == []
    assert torch.equal(parameters(warned), parameters(ignored))
    assert (warned.model.conv.on_failure, ignored.model.conv.on_failure) == ("warn", "ignore")


def test_an_adjoint_that_fails_stops_the_replica(monkeypatch):
    """The adjoint's failure is caught, although nothing in the forward pass tells of it."""
    from hogwild.linalg.linear import LinearSolver

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
    hogwild.training.checkpoint.load(tmp_path / "model", again)
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


def test_a_model_of_another_width_than_the_tasks():
    with pytest.raises(ConfigError, match=r"reads 1 features.*chains have 2.*EnergyGNN\(2, 1"):
        train("chains", EnergyGNN(1, 1))
