"""``check_impairment`` accepts the library's impairments and refuses wrong ones."""

from dataclasses import dataclass

import pytest
import torch
from helpers import UNBOUNDED, bounded

from hogwild.asynchrony import EventTriggered, Impairment, Quantisation
from hogwild.testing import check_impairment


@pytest.mark.parametrize(
    "impairment", [*bounded(0.4), *UNBOUNDED, Quantisation(0.01), EventTriggered(0.01)], ids=repr
)
def test_the_library_s_own(impairment):
    check_impairment(impairment, ticks=60)


@dataclass(frozen=True)
class Deaf(Impairment):
    """Loses every second packet of odd edges, and promises that nothing is late."""

    def loses(self, at):
        return (at.index % 2 == 1) & (at.uniform("deaf") < 0.5)


@dataclass(frozen=True)
class Silent(Impairment):
    """Loses everything, and says that packets come through."""

    def bound(self, stagger, delay):
        return None

    def loses(self, at):
        return torch.ones_like(at.index, dtype=torch.bool)


@dataclass(frozen=True)
class Moody(Impairment):
    """Draws from a generator of its own, so that one seed gives many schedules."""

    def interval(self, at, gap):
        return torch.where(torch.rand(gap.shape) < 0.5, gap, torch.ones_like(gap))


@dataclass(frozen=True)
class Wrong(Impairment):
    """Changes what packets say, and calls them exact."""

    def send(self, payload):
        return payload + 0.1


@dataclass(frozen=True)
class Rough(Impairment):
    """Changes packets by more than it says."""

    exact = False
    error = 0.01

    def send(self, payload):
        return payload + 0.1


@pytest.mark.parametrize(
    ("impairment", "says"),
    [
        (Deaf(), "used a packet"),
        (Silent(), "still .* away from the answer"),
        (Moody(), "one seed gave two schedules"),
        (Wrong(), "exact packets were changed"),
        (Rough(), "and error promises"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_ones_are_caught(impairment, says):
    with pytest.raises(AssertionError, match=says):
        check_impairment(impairment, ticks=20)
