"""Models: every one an ordinary PyG-style module."""

from hogwild.models.eignn import EIGNN, EIGNNConv
from hogwild.models.energy import EnergyConv, EnergyGNN
from hogwild.models.explicit import GAT, GCN, LayerTagged
from hogwild.models.gsd import GSDGNN, GSDConv
from hogwild.models.ignn import IGNN, IGNNConv
from hogwild.models.layered import LayeredGNN
from hogwild.models.layers import LayeredProblem
from hogwild.models.maximum import MaxConv, MaxGNN
from hogwild.models.readout import Readout
from hogwild.models.scarselli import ScarselliConv, ScarselliGNN
from hogwild.models.stack import StackedEnergyGNN
from hogwild.models.wrapped import WrappedGNN, wrap

__all__ = [
    "EIGNN",
    "GAT",
    "GCN",
    "GSDGNN",
    "IGNN",
    "EIGNNConv",
    "EnergyConv",
    "EnergyGNN",
    "GSDConv",
    "IGNNConv",
    "LayerTagged",
    "LayeredGNN",
    "LayeredProblem",
    "MaxConv",
    "MaxGNN",
    "Readout",
    "ScarselliConv",
    "ScarselliGNN",
    "StackedEnergyGNN",
    "WrappedGNN",
    "wrap",
]
