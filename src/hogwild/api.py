"""The names of ``hogwild``, in one place; :mod:`hogwild` gets them from here when asked for one."""

from hogwild import __version__, errors, plots
from hogwild.analysis.certificate import Certificate
from hogwild.analysis.certify import certify, explain_guarantee
from hogwild.analysis.robustness import robustness
from hogwild.analysis.sweep import sweep
from hogwild.errors import HogwildError
from hogwild.executors.run import Run
from hogwild.executors.simulate import simulate
from hogwild.graph import Graph
from hogwild.models import (
    EIGNN,
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EIGNNConv,
    EnergyConv,
    EnergyGNN,
    GSDConv,
    IGNNConv,
    LayeredGNN,
    LayerTagged,
    MaxConv,
    MaxGNN,
    ScarselliConv,
    ScarselliGNN,
    StackedEnergyGNN,
    WrappedGNN,
    wrap,
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
from hogwild.training import load, train

__all__ = [
    "EIGNN",
    "GAT",
    "GCN",
    "GSDGNN",
    "IGNN",
    "LBFGS",
    "MLP",
    "PICNN",
    "Anderson",
    "Certificate",
    "EIGNNConv",
    "EnergyConv",
    "EnergyGNN",
    "GSDConv",
    "GradientDescent",
    "Graph",
    "HogwildError",
    "IGNNConv",
    "LayerTagged",
    "LayeredGNN",
    "MaxConv",
    "MaxGNN",
    "Newton",
    "Picard",
    "Run",
    "ScarselliConv",
    "ScarselliGNN",
    "SemismoothNewton",
    "Solution",
    "StackedEnergyGNN",
    "Status",
    "WrappedGNN",
    "__version__",
    "certify",
    "errors",
    "explain_guarantee",
    "load",
    "plots",
    "robustness",
    "simulate",
    "sweep",
    "train",
    "wrap",
]
