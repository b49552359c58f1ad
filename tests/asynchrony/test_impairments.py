"""Impairments: plain values, and what is refused."""

import pytest

from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    Duplication,
    GeometricDelay,
    GilbertElliott,
    Impairment,
    LinkChurn,
    ParetoDelay,
    Reordering,
    Stragglers,
)
from hogwild.errors import ConfigError

BOUNDED = [
    GeometricDelay(0.4, cap=6),
    ParetoDelay(1.2, cap=9),
    Reordering(0.4),
    Duplication(0.4),
    BernoulliLoss(0.5, burst=2),
    LinkChurn(0.4, period=90, downtime=12),
    Stragglers(0.3, slowdown=3),
    Crashes(0.3, period=80, downtime=15),
]


UNBOUNDED = [BernoulliLoss(0.5), GilbertElliott()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: BernoulliLoss(-0.1),
        lambda: BernoulliLoss(1.5),
        lambda: BernoulliLoss(0.5, burst=0),
        lambda: GilbertElliott(p=2),
        lambda: GilbertElliott(p=0, r=0),
        lambda: GeometricDelay(0.0),
        lambda: GeometricDelay(0.5, cap=-1),
        lambda: ParetoDelay(alpha=-1),
        lambda: Stragglers(0.5, slowdown=0),
        lambda: Crashes(period=10, downtime=10),
        lambda: Crashes(rejoin="lukewarm"),
        lambda: LinkChurn(rate=3),
        lambda: Reordering(-1),
        lambda: Duplication(2),
    ],
)
def test_bad_impairments(make):
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_every_impairment_is_a_plain_value():
    for impairment in [*BOUNDED, *UNBOUNDED]:
        assert isinstance(impairment, Impairment)
        assert impairment == type(impairment)(**vars(impairment))
        hash(impairment)
