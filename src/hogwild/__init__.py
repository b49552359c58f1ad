"""Hogwild: graph neural networks that survive asynchrony."""

from importlib.metadata import PackageNotFoundError, version

from hogwild import errors, plots
from hogwild.errors import HogwildError
from hogwild.executors.run import Run, simulate
from hogwild.graph import Graph
from hogwild.models import (
    GAT,
    GCN,
    EnergyConv,
    EnergyGNN,
    LayeredGNN,
    LayerTagged,
    StackedEnergyGNN,
)
from hogwild.nn import MLP, PICNN
from hogwild.robustness import robustness
from hogwild.solvers import (
    LBFGS,
    Anderson,
    GradientDescent,
    Newton,
    Picard,
    Solution,
    Status,
)
from hogwild.sweep import sweep

try:
    __version__ = version("hogwild-gnn")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "GAT",
    "GCN",
    "LBFGS",
    "MLP",
    "PICNN",
    "Anderson",
    "EnergyConv",
    "EnergyGNN",
    "GradientDescent",
    "Graph",
    "HogwildError",
    "LayerTagged",
    "LayeredGNN",
    "Newton",
    "Picard",
    "Run",
    "Solution",
    "StackedEnergyGNN",
    "Status",
    "__version__",
    "errors",
    "plots",
    "robustness",
    "simulate",
    "sweep",
]
