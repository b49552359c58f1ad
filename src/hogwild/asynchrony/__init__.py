"""Schedules, what goes wrong on networks, recorded schedules, and graphs that move.

Ready-made scenarios are in :mod:`hogwild.asynchrony.scenarios`.
"""

from hogwild.asynchrony.impairment import Impairment
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    EventTriggered,
    GeometricDelay,
    GilbertElliott,
    Latency,
    LinkChurn,
    ParetoDelay,
    Quantisation,
    Reordering,
    Stragglers,
)  # fmt: skip
from hogwild.asynchrony.moving import Frame, Scenario
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Trace

__all__ = [
    "BernoulliLoss", "Crashes", "EventTriggered", "Frame", "GeometricDelay",
    "GilbertElliott", "Impairment", "Latency", "LinkChurn", "ParetoDelay", "Quantisation",
    "Reordering", "Scenario", "Schedule", "Stragglers", "Trace",
]  # fmt: skip
