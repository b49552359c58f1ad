"""Metrics: by hand, what targets suggest, and targets that do not fit."""

import pytest
import torch
from helpers import DOUBLE

from hogwild.analysis.scores import METRICS, choose
from hogwild.errors import ConfigError, InputError

P = torch.tensor([[0.5, -1.0], [2.0, 3.0], [-1.0, -2.0]], **DOUBLE)


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("accuracy", torch.tensor([0, 0, 0]), 2 / 3),
        ("error", torch.tensor([0, 0, 0]), 1 / 3),
        ("accuracy", torch.tensor([[1], [1], [0]]), 2 / 3),
        ("accuracy", torch.tensor([[1, 0], [1, 1], [1, 0]]), 5 / 6),  # several labels each
        ("mse", torch.zeros(3, 2), (0.25 + 1 + 4 + 9 + 1 + 4) / 6),
        ("rmse", torch.zeros(3, 2), ((0.25 + 1 + 4 + 9 + 1 + 4) / 6) ** 0.5),
        ("mae", torch.ones(3, 2), (0.5 + 2 + 1 + 2 + 2 + 3) / 6),
    ],
)
def test_by_hand(name, target, expected):
    metric = choose(name, None, P, target)
    assert metric is METRICS[name]
    assert float(metric.each(P, target)) == pytest.approx(expected, rel=1e-15)
    stack = torch.stack([P, P + 100.0])
    each = metric.each(stack, target)
    assert each.shape == (2,)
    assert float(each[0]) == pytest.approx(expected, rel=1e-15)
    assert float(each[1]) == pytest.approx(float(metric.each(P + 100.0, target)), rel=1e-15)


def test_one_output_is_a_sign():
    p = torch.tensor([[0.3], [-0.2], [1.0], [-4.0]])
    for target in (torch.tensor([1, 0, 0, 0]), torch.tensor([[True], [False], [False], [False]])):
        assert float(choose(None, None, p, target).each(p, target)) == 0.75


@pytest.mark.parametrize(
    ("target", "out", "name"),
    [
        (torch.tensor([0, 1, 1]), 2, "accuracy"),
        (torch.tensor([0, 1, 1]), 1, "accuracy"),
        (torch.tensor([True, False, True]), 1, "accuracy"),
        (torch.tensor([3, 17, 50]), 1, "rmse"),  # counts
        (torch.rand(3), 1, "rmse"),
        (torch.rand(3, 2), 2, "rmse"),
    ],
)
def test_what_targets_suggest(target, out, name):
    assert choose(None, None, torch.zeros(3, out), target).name == name


def test_functions():
    def gap(prediction, target):
        return (prediction - target).abs().max()

    metric = choose(gap, None, P, torch.zeros(1))
    assert (metric.name, metric.maximise) == ("gap", False)
    assert float(metric.each(P, torch.zeros(1))) == 3.0
    assert choose(lambda p, t: 0.0, True, P, P).maximise
    assert choose(lambda p, t: 0.0, True, P, P).name == "metric"


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("rmse", torch.zeros(3), r"shape \[3\] and predictions \[3, 2\]; expected a target \[3, 2"),
        ("accuracy", torch.zeros(4), r"shape \[4\].*expected a target \[3\] or \[3, 2\]"),
        ("rmse", torch.tensor(1.0), r"shape \[\]"),
        ("accuracy", torch.tensor([0, 2, 1]), "classes 0 to 2; expected 0 to 1"),
        ("accuracy", torch.tensor([0, -1, 1]), "classes -1 to 1; expected 0 to 1"),
        ("accuracy", torch.tensor([[0, 2], [1, 1], [0, 0]]), "values other than 0 and 1"),
    ],
)
def test_targets_that_do_not_fit(name, target, message):
    with pytest.raises(InputError, match=message):
        choose(name, None, P, target)


def test_bad_metrics():
    with pytest.raises(ConfigError, match="metric='f1'; expected a function"):
        choose("f1", None, P, torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="maximise=True was given with metric='mse'"):
        choose("mse", True, P, torch.zeros(3, 2))
