"""Schedules, what goes wrong on networks, and recorded schedules."""

from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    Duplication,
    EventTriggered,
    GeometricDelay,
    GilbertElliott,
    Impairment,
    LinkChurn,
    ParetoDelay,
    Quantisation,
    Reordering,
    Stragglers,
    UniformDelay,
)  # fmt: skip
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Trace

__all__ = [
    "BernoulliLoss", "Crashes", "Duplication", "EventTriggered", "GeometricDelay", "GilbertElliott",
    "Impairment", "LinkChurn", "ParetoDelay", "Quantisation", "Reordering", "Schedule",
    "Stragglers", "Trace", "UniformDelay",
]  # fmt: skip
