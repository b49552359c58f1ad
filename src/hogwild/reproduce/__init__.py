"""Every table and figure of the paper, by one mechanism: :mod:`hogwild.reproduce.experiment`."""

from __future__ import annotations

from hogwild.errors import ConfigError, among
from hogwild.reproduce.asynchronous import Asynchronous
from hogwild.reproduce.convergence import Convergence
from hogwild.reproduce.cost import Cost
from hogwild.reproduce.depth import Depth
from hogwild.reproduce.experiment import Experiment, Results, Summary, Work, run
from hogwild.reproduce.figure1 import Figure1
from hogwild.reproduce.free import Free
from hogwild.reproduce.protocols import PROTOCOLS, Protocol
from hogwild.reproduce.size import Size
from hogwild.reproduce.staleness import Staleness
from hogwild.reproduce.tables import Synchronous

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Synchronous("table1"),
        Asynchronous("table2"),
        Synchronous("table3"),
        Synchronous("table4"),
        Synchronous("table5"),
        Asynchronous("table6"),
        Figure1(),
        Depth(),
        Convergence(),
        Size(),
        Staleness(),
        Cost(),
        Free(),
    )
}
"""By name."""


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; {among(EXPERIMENTS, name)}")
    return EXPERIMENTS[name]


__all__ = [
    "EXPERIMENTS",
    "PROTOCOLS",
    "Experiment",
    "Protocol",
    "Results",
    "Summary",
    "Work",
    "experiment",
    "run",
]
