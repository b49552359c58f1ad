"""Measuring and judging: one pass for all sets, which do not reach each other."""

from dataclasses import replace

import pytest
import torch
from tiny_tasks import Sums

from hogwild import GCN, train
from hogwild.training.predict import predict
from hogwild.training.shelf import portions


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
