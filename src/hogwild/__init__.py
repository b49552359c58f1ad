"""Hogwild: graph neural networks that survive asynchrony."""

from importlib.metadata import PackageNotFoundError, version

from hogwild import errors
from hogwild.errors import HogwildError
from hogwild.executors.run import Run, simulate
from hogwild.graph import Graph
from hogwild.guarantee import Certificate, certify, explain_guarantee
from hogwild.models import (
    GAT,
    GCN,
    GSDGNN,
    EnergyConv,
    EnergyGNN,
    GSDConv,
    LayeredGNN,
    LayerTagged,
    MaxConv,
    MaxGNN,
    ScarselliConv,
    ScarselliGNN,
    StackedEnergyGNN,
)
from hogwild.nn import MLP, PICNN
from hogwild.solvers import (
    LBFGS,
    Anderson,
    GradientDescent,
    Newton,
    Picard,
    Solution,
    Status,
)
from hogwild.training import load, train

try:
    __version__ = version("hogwild-gnn")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "GAT",
    "GCN",
    "GSDGNN",
    "LBFGS",
    "MLP",
    "PICNN",
    "Anderson",
    "Certificate",
    "EnergyConv",
    "EnergyGNN",
    "GSDConv",
    "GradientDescent",
    "Graph",
    "HogwildError",
    "LayerTagged",
    "LayeredGNN",
    "MaxConv",
    "MaxGNN",
    "Newton",
    "Picard",
    "Run",
    "ScarselliConv",
    "ScarselliGNN",
    "Solution",
    "StackedEnergyGNN",
    "Status",
    "__version__",
    "certify",
    "errors",
    "explain_guarantee",
    "load",
    "simulate",
    "train",
]
