"""Measures against hand computation and against their definitions, row by row."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hogwild.tasks import measures


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


def test_average_precision_by_hand():
    """Scores 0.9 (+), 0.8 (−), 0.7 (+), 0.6 (−): ½ · 1 + ½ · ⅔ = ⅚."""
    y = column(1, 0, 1, 0)
    found = measures.average_precision(column(0.9, 0.8, 0.7, 0.6), y, None)
    assert float(found) == pytest.approx(5 / 6)


def test_average_precision_with_ties_by_hand():
    """0.9 (−), then 0.5 (+), 0.5 (−), 0.5 (+) together: all recall at precision 2/4."""
    for y in ((0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)):
        found = measures.average_precision(column(0.9, 0.5, 0.5, 0.5), column(*y), None)
        assert float(found) == pytest.approx(0.5)


def test_average_precision_leaves_out_labels_without_both():
    score = torch.randn(4, 3, dtype=torch.float64)
    y = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 0, 1], [0, 0, 1]]).double()
    alone = measures.average_precision(score[:, :1], y[:, :1], None)
    torch.testing.assert_close(measures.average_precision(score, y, None), alone)


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.booleans(), st.booleans()), min_size=2, max_size=12
    ).filter(lambda rows: len({y for _, y, keep in rows if keep}) == 2)
)
def test_average_precision_is_its_definition(rows):
    score, y, keep = zip(*rows, strict=True)
    found = measures.average_precision(column(*score), column(*y), torch.tensor(keep))
    kept = [(s, int(t)) for s, t, k in rows if k]
    assert float(found) == pytest.approx(precision_by_threshold(*zip(*kept, strict=True)))


def test_micro_f1_by_hand():
    """Said 3, true 3, both 2: 2 · 2 / 6."""
    out = torch.tensor([[1.0, -1.0, 2.0], [3.0, -2.0, -1.0]])
    y = torch.tensor([[1, 0, 0], [1, 1, 0]])
    assert float(measures.micro_f1(out, y, None)) == pytest.approx(2 / 3)
    assert float(measures.micro_f1(out, y, torch.tensor([True, False]))) == pytest.approx(2 / 3)
    assert float(measures.micro_f1(out, y, torch.tensor([False, True]))) == pytest.approx(2 / 3)


def test_best_constant_f1_is_the_best_of_all():
    """Against every subset of labels."""
    y = (torch.rand(30, 6, dtype=torch.float64) < torch.linspace(0.05, 0.8, 6)).long()
    best = measures.micro_f1(measures.best_constant_f1(y).expand(30, 6), y, None)
    every = [
        measures.micro_f1(
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
        torch.testing.assert_close(measures.cross_entropy(out, y)[r], expected)


def test_one_logit_is_two():
    """One logit a, or two with difference a: the same loss and the same errors."""
    y = torch.tensor([0, 1, 1, 0])
    a = torch.randn(2, 4, 1, dtype=torch.float64)
    two = torch.cat([-a / 2, a / 2], -1)
    torch.testing.assert_close(measures.cross_entropy(a, y), measures.cross_entropy(two, y))
    assert torch.equal(measures.wrong(a, y), measures.wrong(two, y))


def test_relative_rmse_by_hand():
    """Targets 2 and 4, errors 1 and 3: √5 / 3."""
    y = torch.tensor([2.0, 4.0])
    square = torch.tensor([1.0, 9.0])
    assert float(measures.relative_rmse(square, y, None)) == pytest.approx(math.sqrt(5) / 3)
    kept = measures.relative_rmse(square, y, torch.tensor([False, True]))
    assert float(kept) == pytest.approx(3 / 4)


def test_errors_average_over_channels():
    out, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 5.0]])
    assert measures.squared_error(out, y).tolist() == [5.0]
    assert measures.absolute_error(out, y).tolist() == [2.0]


def test_majority():
    y = torch.tensor([1, 1, 0])
    assert measures.majority(y, 1).tolist() == [[1.0]]
    assert measures.majority(1 - y, 1).tolist() == [[-1.0]]
    assert measures.majority(y, 3).tolist() == [[0.0, 1.0, 0.0]]
