"""Models: every one an ordinary PyG-style module."""

from hogwild.models.eignn import EIGNN, EIGNNConv
from hogwild.models.energy import EnergyConv, EnergyGNN
from hogwild.models.ignn import IGNN, IGNNConv
from hogwild.models.readout import Readout
from hogwild.models.stack import StackedEnergyGNN

__all__ = [
    "EIGNN",
    "IGNN",
    "EIGNNConv",
    "EnergyConv",
    "EnergyGNN",
    "IGNNConv",
    "Readout",
    "StackedEnergyGNN",
]
