"""Metrics: by hand and by their definitions, what targets suggest, and what does not fit."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import DOUBLE
from hypothesis import given
from hypothesis import strategies as st

from hogwild import metrics
from hogwild.errors import ConfigError, InputError
from hogwild.metrics import METRICS, choose


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def precision_by_threshold(score, y):
    """The definition: recall gained at each distinct score, times the precision there."""
    total, before, out = sum(y), 0, 0.0
    for t in sorted(set(score), reverse=True):
        said = [label for s, label in zip(score, y, strict=True) if s >= t]
        out += (sum(said) - before) / total * sum(said) / len(said)
        before = sum(said)
    return out


def test_average_precision_leaves_out_labels_without_both():
    score = torch.randn(4, 3, dtype=torch.float64)
    y = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]]).double()
    alone = metrics.average_precision(score[:, :1], y[:, :1], None)
    torch.testing.assert_close(metrics.average_precision(score, y, None), alone)


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.booleans(), st.booleans()), min_size=2, max_size=12
    ).filter(lambda rows: len({y for _, y, keep in rows if keep}) == 2)
)
def test_average_precision_is_its_definition(rows):
    score, y, keep = zip(*rows, strict=True)
    found = metrics.average_precision(column(*score), column(*y), torch.tensor(keep))
    kept = [(s, int(t)) for s, t, k in rows if k]
    assert float(found) == pytest.approx(precision_by_threshold(*zip(*kept, strict=True)))


def test_micro_f1_by_hand():
    """Said 3, true 3, both 2: 2 · 2 / 6."""
    out = torch.tensor([[1.0, -1.0, 2.0], [3.0, -2.0, -1.0]])
    y = torch.tensor([[1, 0, 0], [1, 1, 0]])
    assert float(metrics.micro_f1(out, y, None)) == pytest.approx(2 / 3)
    assert float(metrics.micro_f1(out, y, torch.tensor([True, False]))) == pytest.approx(2 / 3)
    assert float(metrics.micro_f1(out, y, torch.tensor([False, True]))) == pytest.approx(2 / 3)


def test_best_constant_f1_is_the_best_of_all():
    """Against every subset of labels."""
    y = (torch.rand(30, 6, dtype=torch.float64) < torch.linspace(0.05, 0.8, 6)).long()
    best = metrics.micro_f1(metrics.best_constant_f1(y).expand(30, 6), y, None)
    every = [
        metrics.micro_f1(
            torch.tensor([(s >> i & 1) * 2.0 - 1 for i in range(6)]).expand(30, 6), y, None
        )
        for s in range(1, 64)
    ]
    assert float(best) == pytest.approx(float(max(every)))


def test_cross_entropy_is_torchs():
    y = torch.tensor([0, 2, 1, 1])
    out = torch.randn(3, 4, 5, dtype=torch.float64)
    for r in range(3):
        expected = F.cross_entropy(out[r], y, reduction="none")
        torch.testing.assert_close(metrics.cross_entropy(out, y)[r], expected)


def test_one_logit_is_two():
    """One logit a, or two with difference a: the same loss and the same errors."""
    y = torch.tensor([0, 1, 1, 0])
    a = torch.randn(2, 4, 1, dtype=torch.float64)
    two = torch.cat([-a / 2, a / 2], -1)
    torch.testing.assert_close(metrics.cross_entropy(a, y), metrics.cross_entropy(two, y))
    assert torch.equal(metrics.wrong(a, y), metrics.wrong(two, y))


def test_relative_rmse_by_hand():
    """Targets 2 and 4, errors 1 and 3: √5 / 3."""
    out, y = column(3.0, 1.0), torch.tensor([2.0, 4.0])
    assert float(metrics.relative_rmse(out, y, None)) == pytest.approx(math.sqrt(5) / 3)
    kept = metrics.relative_rmse(out, y, torch.tensor([False, True]))
    assert float(kept) == pytest.approx(3 / 4)


def test_errors_average_over_channels():
    out, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 5.0]])
    assert metrics.squared_error(out, y).tolist() == [5.0]
    assert metrics.absolute_error(out, y).tolist() == [2.0]


def test_majority():
    y = torch.tensor([1, 1, 0])
    assert metrics.majority(y, 1).tolist() == [[1.0]]
    assert metrics.majority(1 - y, 1).tolist() == [[-1.0]]
    assert metrics.majority(y, 3).tolist() == [[0.0, 1.0, 0.0]]
    labels = torch.tensor([[1, 0], [1, 1], [0, 0]])
    assert metrics.majority(labels, 2).tolist() == [[1.0, -1.0]]


# -- by name --------------------------------------------------------------------------------------

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
    assert metric is METRICS[name] is choose(metric, None, P, target)
    assert float(metric(P, target)) == pytest.approx(expected, rel=1e-15)
    stack = torch.stack([P, P + 100.0])
    each = metric(stack, target)
    assert each.shape == (2,)
    assert float(each[0]) == pytest.approx(expected, rel=1e-15)
    assert float(each[1]) == pytest.approx(float(metric(P + 100.0, target)), rel=1e-15)


def test_one_output_is_a_sign():
    p = torch.tensor([[0.3], [-0.2], [1.0], [-4.0]])
    for target in (torch.tensor([1, 0, 0, 0]), torch.tensor([[True], [False], [False], [False]])):
        assert float(choose(None, None, p, target)(p, target)) == 0.75


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
    assert (metric.name, metric.higher_is_better) == ("gap", False)
    assert float(metric(P, torch.zeros(1))) == 3.0
    assert choose(lambda p, t: 0.0, True, P, P).higher_is_better
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
    with pytest.raises(ConfigError, match="higher_is_better=True was given with metric='mse'"):
        choose("mse", True, P, torch.zeros(3, 2))
