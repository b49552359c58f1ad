"""Training together is training alone, only faster."""

import pytest
import torch
from tiny_tasks import Chains, Sums

from hogwild.errors import ConfigError
from hogwild.training import Config, train
from hogwild.training.registry import build, initial


class OneFold(Sums):
    """The same task with one of its folds only."""

    def __init__(self, fold):
        super().__init__()
        self.fold = fold

    def splits(self, folds=None, seed=0):
        return [super().splits(folds, seed)[self.fold]]


def trajectory(task, **options):
    """The result, and the parameters of all replicas after every epoch [T, R, P]."""
    seen = []
    result = train(task, callback=lambda loop: seen.append(loop.rows.values()), **options)
    return result, torch.stack(seen)


@pytest.mark.parametrize(
    ("model", "batch_size", "epochs"),
    [
        ("energy-edge", None, 12),
        ("energy-edge", 4, 6),
        ("gsdgnn", 4, 10),
        ("gcn", None, 30),
        ("scarselli", None, 8),
    ],
)
def test_folds_together_and_alone(model, batch_size, epochs):
    options = {"model": model, "epochs": epochs, "batch_size": batch_size, "validate_every": 5}
    result, together = trajectory(Sums(), replicas=3, **options)
    assert (together[-1] - together[0]).abs().amax(1).min() > 1e-3  # all of them moved
    for fold in range(3):
        alone_result, alone = trajectory(OneFold(fold), **options)
        torch.testing.assert_close(together[:, fold], alone[:, 0], rtol=0, atol=1e-8)
        for part in ("train", "val", "test"):
            torch.testing.assert_close(
                result.metrics[part][fold], alone_result.metrics[part][0], rtol=0, atol=1e-7
            )
        assert result.best_epoch[fold] == alone_result.best_epoch[0]


def test_seeds_together_and_alone():
    options = {"model": "energy-node", "epochs": 30}
    _, together = trajectory(Chains(), replicas=3, seed=5, **options)
    for r in range(3):
        _, alone = trajectory(Chains(), seed=5 + r, **options)
        torch.testing.assert_close(together[:, r], alone[:, 0], rtol=0, atol=1e-8)


def test_folds_of_one_seed_start_alike_and_seeds_differ():
    config = Config.of(model="energy-edge", replicas=6)
    model = initial(config, Sums(), [0, 0, 0, 1, 1, 1])
    first = torch.cat([p.flatten(1) for p in model.parameters()], 1)
    assert torch.equal(first[0], first[2])
    assert torch.equal(first[3], first[5])
    assert not torch.equal(first[0], first[3])
    torch.manual_seed(1)
    alone = build(config, Sums(), None)
    assert torch.equal(first[4], torch.cat([p.flatten() for p in alone.parameters()]))


@pytest.mark.parametrize(
    ("options", "folds", "seeds"),
    [
        ({"replicas": 5}, [0, 1, 2, 0, 1], [7, 7, 7, 8, 8]),  # further seeds
        ({"replicas": 3, "fold": 2}, [2, 2, 2], [7, 8, 9]),  # one fold for all
    ],
)
def test_folds_and_seeds_of_replicas(options, folds, seeds):
    seen = []
    result = train(Sums(), model="gcn", epochs=1, seed=7, **options,
                   callback=lambda loop: seen.append(loop.members))  # fmt: skip
    assert (seen[0].folds, seen[0].seeds) == (folds, seeds)
    assert not bool((seen[0].train & seen[0].test).any())
    assert torch.equal(seen[0].test[0], seen[0].test[folds.index(folds[0], 1)])
    assert result.replicas == options["replicas"]
    with pytest.raises(ConfigError, match="fold=3 of 'tiny sums'; expected a fold from 0 to 2"):
        train(Sums(), model="gcn", epochs=1, fold=3)
