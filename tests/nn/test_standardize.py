"""Features on one scale: the rule for a column, replicas, and what is kept."""

import copy

import pytest
import torch
from helpers import DOUBLE

from hogwild.errors import ConfigError, FeatureError
from hogwild.nn import Standardize


def columns(n=200):
    """An ordinary column, one with a heavy tail, a rare indicator and two other values."""
    x = torch.randn(n, 2, **DOUBLE)
    x[:, 1] = x[:, 1].exp() ** 3
    rare = (torch.arange(n) % 50 == 0).double()
    return torch.cat([x, rare[:, None], 2.5 - 4 * rare[:, None]], 1)


def fitted(x):
    return Standardize(x.size(1)).to(x.dtype).fit([x[:30], x[30:]])


def test_the_rule():
    torch.manual_seed(0)
    x = columns()
    y = fitted(x)(x)
    assert y[:, :2].mean(0).abs().max() < 1e-12
    torch.testing.assert_close(y[:, 0].std(correction=0), torch.tensor(1.0, **DOUBLE))
    torch.testing.assert_close(y[:, 1].amax(), torch.tensor(8.0, **DOUBLE))  # the heavy tail
    assert y[:, 1].std(correction=0) < 1
    assert torch.equal(y[:, 2], x[:, 2])  # an indicator stays as it is, however rare
    assert torch.equal(y[:, 3], 1 - x[:, 2])


def test_one_hot_features_stay_to_the_bit():
    x = torch.nn.functional.one_hot(torch.randint(5, (60,)), 6).double()  # the last one is absent
    module = fitted(x)
    assert not module.fitted
    assert torch.equal(module(x), x)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-30, 7e5])
def test_a_column_of_one_value_keeps_its_sign(value):
    x = torch.full((9, 1), value, **DOUBLE)
    assert torch.equal(fitted(x)(x), x.sign())


def test_a_column_that_varies_by_rounding_has_one_value():
    eps = torch.finfo(torch.float32).eps
    x = torch.full((9, 1), 700.0) * (1 + eps * torch.arange(-2, 7).view(-1, 1) / 2)
    assert len(x.unique()) > 2
    torch.testing.assert_close(fitted(x)(x), torch.ones_like(x))


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_the_unit_does_not_matter(factor, shift):
    x = columns()
    moved = factor * x + shift
    error = (fitted(moved)(moved) - fitted(x)(x)).abs().max()
    assert error < 1e-12 * (1 + shift / factor)  # what rounding leaves of the features themselves


@pytest.mark.parametrize(("factor", "shift"), [(1e6, 0.0), (1.0, 1e3), (1.0, 0.0)])
def test_single_precision_features(factor, shift):
    """Sums of squares in float32 would lose every digit of a deviation of 1 around 1,000."""
    x = (factor * columns(3000)[:, :1] + shift).float()
    module = fitted(x)
    z = x.double()
    assert float(module.offset) == pytest.approx(float(z.mean()), rel=1e-6)
    assert float(module.scale) == pytest.approx(float(z.std(correction=0)), rel=1e-6)
    assert module(x).dtype == torch.float32


def test_huge_features_do_not_overflow():
    x = torch.tensor([[1e200], [3e200], [5e200]], **DOUBLE)
    y = fitted(x)(x)
    torch.testing.assert_close(y, torch.tensor([[-1.0], [0.0], [1.0]], **DOUBLE) * 1.5**0.5)


def test_replicas_have_statistics_of_their_own():
    tensors = [torch.randn(5, 2, **DOUBLE) for _ in range(4)]
    members = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    module = Standardize(2, replicas=3).double().fit(tensors, members)
    x = torch.randn(7, 2, **DOUBLE)
    out = module(x)
    assert out.shape == (3, 7, 2)
    for r in range(3):
        own = [tensors[i] for i in members[r].nonzero()[:, 0].tolist()]
        alone = Standardize(2).double().fit(own)
        assert torch.equal(out[r], alone(x))
        assert torch.equal(module(x.expand(3, 7, 2))[r], alone(x))
    assert not torch.equal(out[0], out[1])


def test_replicas_that_agree_share_the_features():
    module = Standardize(2, replicas=3).double().fit(torch.randn(9, 2, **DOUBLE))
    assert module.offset.shape == (3, 2)
    assert module(torch.randn(7, 2, **DOUBLE)).shape == (7, 2)


def test_the_state_holds_the_statistics():
    module, other = Standardize(2).fit(torch.randn(9, 2)), Standardize(2)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    x = torch.randn(7, 2)
    assert other.fitted
    assert torch.equal(module(x), other(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_does_not_fit_is_passed_on(dtype):
    module = Standardize(2).fit(torch.randn(9, 2))
    for odd in (torch.ones(3, 4), torch.ones(3, 2, dtype=torch.long), torch.ones(2), None, "x"):
        assert module(odd) is odd
    assert module(torch.ones(3, 2, dtype=dtype)).dtype == dtype  # so that a model sees a mistake


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([torch.ones(3, 1)], r"are \[3, 1\]; expected tensors \[n, 2\]"),
        ([None], "NoneType"),
        ([torch.full((3, 2), torch.nan)], "NaN or infinite"),
        ([torch.ones(0, 2)], "at least one row"),
        ([], "at least one row"),
    ],
)
def test_refused(given, says):
    with pytest.raises(FeatureError, match=says):
        Standardize(2).fit(given)
    with pytest.raises(ConfigError, match="members has shape"):
        Standardize(2).fit([torch.ones(3, 2)], torch.ones(2, 1, dtype=torch.bool))
