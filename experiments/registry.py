"""All experiments by name."""

from __future__ import annotations

from experiments.asynchronous import Asynchronous
from experiments.convergence import Convergence
from experiments.cost import Cost
from experiments.depth import Depth
from experiments.experiment import Experiment
from experiments.figure1 import Figure1
from experiments.free import Free
from experiments.size import Size
from experiments.staleness import Staleness
from experiments.tables import Synchronous
from hogwild.errors import ConfigError, among

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
"""Experiments by name."""


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; {among(EXPERIMENTS, name)}")
    return EXPERIMENTS[name]
