"""The names of ``hogwild``, in one place; :mod:`hogwild` imports them when the first is used.

What is not here has a module of its own: ``hogwild.solvers``, ``hogwild.asynchrony``
(impairments), ``hogwild.nn``, ``hogwild.models``, ``hogwild.tasks``, ``hogwild.plots``,
``hogwild.testing`` and ``hogwild.errors``.
"""

from hogwild.analysis.certify import certify
from hogwild.analysis.robustness import robustness
from hogwild.analysis.sweep import sweep
from hogwild.errors import HogwildError
from hogwild.executors.simulate import simulate
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models import (
    EIGNN,
    GAT,
    GCN,
    GNN,
    GSDGNN,
    IGNN,
    EIGNNConv,
    EnergyConv,
    EnergyGNN,
    GSDConv,
    IGNNConv,
    LayeredGNN,
    MaxConv,
    MaxGNN,
    Readout,
    ScarselliConv,
    ScarselliGNN,
    WarmStart,
    wrap,
)  # fmt: skip
from hogwild.training import load, train

__all__ = [
    "EIGNN", "GAT", "GCN", "GNN", "GSDGNN", "IGNN", "EIGNNConv", "EnergyConv", "EnergyGNN",
    "GSDConv", "HogwildError", "IGNNConv", "Inputs", "LayeredGNN", "MaxConv", "MaxGNN", "Readout",
    "ScarselliConv", "ScarselliGNN", "Solution", "WarmStart", "certify", "load", "robustness",
    "simulate", "sweep", "train", "wrap",
]  # fmt: skip
