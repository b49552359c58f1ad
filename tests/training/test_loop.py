"""The loop: replicas that learn, stop and fail alone, mini-batches, measurements."""

import warnings

import pytest
import torch
from tiny_runs import QUICK, parameters, poison
from tiny_tasks import Chains, Sums

import hogwild
from hogwild import GCN, EnergyGNN, tasks, train
from hogwild.errors import ConvergenceWarning
from hogwild.solvers import LBFGS
from hogwild.training.batches import predict_levels


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


@pytest.mark.parametrize("model", ["energy-edge", "gcn", "scarselli", "gsdgnn"])
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
    def poor():
        return EnergyGNN(2, out_channels=1, replicas=2, solver=LBFGS(max_iter=2))

    with pytest.warns(ConvergenceWarning):  # the last measurement does not converge, either
        result = train(Chains(), poor(), epochs=5)
    assert result.failed == [0, 1]
    assert "forward solve failed" in result.stops[0].reason
    assert "ran out of iterations" in result.stops[0].reason
    ignored = train(Chains(), poor(), epochs=5, on_failure="ignore")
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


@pytest.mark.parametrize("model", ["gcn", "energy-node"])
def test_a_nan_target_stops_only_the_replicas_that_train_on_it(model):
    task = tasks.get("counting", sizes=[3, 4, 5, 6, 7, 8])
    task.graphs[4].y = torch.full_like(task.graphs[4].y, torch.nan)
    with pytest.warns(UserWarning, match="never had a finite loss"):  # who is judged by it
        result = train(task, model=model, epochs=3, folds=3, replicas=3, validation=True)
    stops = [stop is not None for stop in result.stops]
    assert stops == [4 in split.train.tolist() for split in task.splits(3, validation=True)]
    assert sum(stops) == 1


def test_batch_norm_keeps_its_statistics_with_the_best_parameters():
    model = GCN(1, out_channels=1, pool="mean", norm="BatchNorm", replicas=2)
    result = train(Sums(), model, epochs=6, validate_every=2)
    torch.testing.assert_close(result.evaluate()["val"], result.metrics["val"])


def test_a_model_is_evaluated_once_for_all_its_sets(monkeypatch):
    """Every graph is some replica's test graph and another's validation graph."""
    asked = []

    def spy(*given):
        asked.append(given)
        return predict_levels(*given)

    def look(loop):
        parts = (loop.members.train, loop.members.val, loop.members.test)
        assert len(asked) == 2  # a judgement and a step
        asked.clear()
        together = loop.measure(*parts, quiet=True, warm=True)
        assert len(asked) == 1
        alone = [loop.measure(part, quiet=True, warm=True)[0] for part in parts]
        for (loss, metric), (same, too) in zip(together, alone, strict=True):
            assert torch.equal(loss, same)
            assert torch.equal(metric, too)
        asked.clear()

    monkeypatch.setattr("hogwild.training.loop.predict_levels", spy)
    options = {"task_options": {"sizes": [3, 4, 5, 6, 7, 8]}, "folds": 3, "replicas": 3}
    train("counting", epochs=2, validation=True, validate_every=1, callback=look, **options)
    assert len(asked) == 2  # a judgement and a measurement, when all is done


def test_targets_of_one_set_do_not_reach_another():
    """Unlabelled test graphs, and a loss that masks by a product: 0 · NaN."""
    found = []
    for blank in (False, True):
        task = Sums()
        for i in task.splits()[0].test.tolist() if blank else ():
            task.graphs[i].y = task.graphs[i].y * torch.nan
        result = train(task, model="gcn", epochs=6, validate_every=2, lr=0.1)
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
