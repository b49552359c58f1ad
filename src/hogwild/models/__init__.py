"""Models: every one an ordinary PyG-style module."""

from hogwild.models.energy import EnergyConv, EnergyGNN
from hogwild.models.gsd import GSDGNN, GSDConv
from hogwild.models.maximum import MaxConv, MaxGNN
from hogwild.models.readout import Readout
from hogwild.models.scarselli import ScarselliConv, ScarselliGNN
from hogwild.models.stack import StackedEnergyGNN

__all__ = [
    "GSDGNN",
    "EnergyConv",
    "EnergyGNN",
    "GSDConv",
    "MaxConv",
    "MaxGNN",
    "Readout",
    "ScarselliConv",
    "ScarselliGNN",
    "StackedEnergyGNN",
]
