"""Draws are a function of what they are for."""

import numpy as np
import pytest
import torch

from hogwild.asynchrony.impairment import Streams, mix
from hogwild.errors import ConfigError


def reference(z):
    """SplitMix64's finaliser in Python's integers."""
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_mix_is_splitmix64():
    values = [0, 1, 2, 12345, (1 << 63) - 1, -1, -(1 << 63)]
    found = mix(torch.tensor(values)).tolist()
    assert [f % (1 << 64) for f in found] == [reference(v % (1 << 64)) for v in values]
    assert reference(0) == 0xE220A8397B1DCDAF  # the published first output of seed 0


def test_uniform_and_independent_of_its_neighbours():
    streams = Streams.of(7, 1, 20_000, "cpu")
    u = streams.uniform("delay", 3).numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.var() - 1 / 12) < 0.01
    for other in (streams.uniform("loss", 3), streams.uniform("delay", 4)):
        assert abs(np.corrcoef(u, other.numpy())[0, 1]) < 0.03
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.03
    assert abs(np.corrcoef(u, Streams.of(8, 1, 20_000, "cpu").uniform("delay", 3))[0, 1]) < 0.03


def test_a_run_is_the_same_alone_and_among_others():
    many, few = Streams.of(3, 5, 11, "cpu"), Streams.of(3, 2, 11, "cpu")
    assert torch.equal(many.uniform("delay", 9)[:22], few.uniform("delay", 9))
    index = torch.tensor([4, 30, 12])
    assert torch.equal(many.uniform("delay", 9)[index], many.uniform("delay", 9, index))


def test_integers_cover_their_range():
    streams = Streams.of(0, 1, 3000, "cpu")
    counts = torch.bincount(streams.integers("x", 4, 1))
    assert counts.numel() == 5
    assert int(counts.min()) > 500
    high = torch.arange(3000) % 3
    assert bool((streams.integers("x", high, 1) <= high).all())


@pytest.mark.parametrize("seed", [1.5, "a", True, None])
def test_seed_must_be_an_integer(seed):
    with pytest.raises(ConfigError, match="expected an integer"):
        Streams.of(seed, 1, 1, "cpu")
