"""Models: every one an ordinary PyG-style module."""

from hogwild.models.energy import EnergyConv, EnergyGNN
from hogwild.models.explicit import GAT, GCN, LayerTagged
from hogwild.models.layered import LayeredGNN, LayeredProblem
from hogwild.models.readout import Readout
from hogwild.models.stack import StackedEnergyGNN

__all__ = [
    "GAT",
    "GCN",
    "EnergyConv",
    "EnergyGNN",
    "LayerTagged",
    "LayeredGNN",
    "LayeredProblem",
    "Readout",
    "StackedEnergyGNN",
]
