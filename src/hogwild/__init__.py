"""Hogwild: graph neural networks that survive asynchrony."""

from importlib.metadata import PackageNotFoundError, version

from hogwild import errors
from hogwild.errors import HogwildError
from hogwild.graph import Graph
from hogwild.models import (
    EIGNN,
    IGNN,
    EIGNNConv,
    EnergyConv,
    EnergyGNN,
    IGNNConv,
    StackedEnergyGNN,
)
from hogwild.nn import MLP, PICNN
from hogwild.solvers import (
    LBFGS,
    Anderson,
    GradientDescent,
    Newton,
    Picard,
    SemismoothNewton,
    Solution,
    Status,
)

try:
    __version__ = version("hogwild-gnn")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "EIGNN",
    "IGNN",
    "LBFGS",
    "MLP",
    "PICNN",
    "Anderson",
    "EIGNNConv",
    "EnergyConv",
    "EnergyGNN",
    "GradientDescent",
    "Graph",
    "HogwildError",
    "IGNNConv",
    "Newton",
    "Picard",
    "SemismoothNewton",
    "Solution",
    "StackedEnergyGNN",
    "Status",
    "__version__",
    "errors",
]
