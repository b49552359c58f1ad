"""The names of ``hogwild``, in one place; :mod:`hogwild` imports them when the first is used.

What is not here has a module of its own: ``hogwild.models`` (the convolutions of the other models),
``hogwild.solvers``, ``hogwild.asynchrony`` (impairments, ready-made scenarios), ``hogwild.nn``,
``hogwild.tasks``, ``hogwild.plots``, ``hogwild.testing`` and ``hogwild.errors``.
"""

from hogwild.analysis.certify import certify
from hogwild.analysis.robustness import robustness
from hogwild.analysis.sweep import sweep
from hogwild.asynchrony.moving import Scenario
from hogwild.errors import HogwildError
from hogwild.executors.run import Run
from hogwild.executors.simulate import simulate
from hogwild.executors.track import track
from hogwild.executors.track_result import Track
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models import (
    EIGNN,
    GAT,
    GCN,
    GNN,
    GSDGNN,
    IGNN,
    EnergyConv,
    EnergyGNN,
    LayeredGNN,
    Readout,
    ScarselliGNN,
    SoftEnergyGNN,
    Stream,
    WarmStart,
    wrap,
)  # fmt: skip
from hogwild.models.export import export
from hogwild.training import load, train

__all__ = [
    "EIGNN", "GAT", "GCN", "GNN", "GSDGNN", "IGNN", "EnergyConv", "EnergyGNN", "HogwildError",
    "Inputs", "LayeredGNN", "Readout", "Run", "ScarselliGNN", "Scenario",
    "SoftEnergyGNN", "Solution", "Stream", "Track", "WarmStart", "certify",
    "export", "load", "robustness", "simulate", "sweep", "track", "train", "wrap",
]  # fmt: skip
