"""Impairments: plain values, and what is refused."""

import pytest

from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GeometricDelay,
    GilbertElliott,
    Latency,
    LinkChurn,
    ParetoDelay,
    Reordering,
    Stragglers,
)
from hogwild.errors import ConfigError


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
        lambda: Latency(-1),
        lambda: Latency(2, jitter=3),
        lambda: Stragglers(0.5, slowdown=0),
        lambda: Crashes(period=10, downtime=10),
        lambda: Crashes(rejoin="lukewarm"),
        lambda: LinkChurn(rate=3),
        lambda: Reordering(-1),
    ],
)
def test_bad_impairments(make):
    with pytest.raises(ConfigError, match="expected"):
        make()
