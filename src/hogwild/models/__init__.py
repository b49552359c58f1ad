"""The models, as PyG-style modules."""

from hogwild.models.base import Conv, Kind, Model
from hogwild.models.contraction import EIGNN, IGNN, EIGNNConv, IGNNConv
from hogwild.models.energy import EnergyConv, EnergyGNN
from hogwild.models.explained import Explained
from hogwild.models.gnn import GNN, Features
from hogwild.models.gsd import GSDGNN, GSDConv
from hogwild.models.implicit import ImplicitConv, Stack
from hogwild.models.layered import GAT, GCN, LayeredGNN, Layers
from hogwild.models.program import LayeredProblem
from hogwild.models.readout import Readout
from hogwild.models.scarselli import ScarselliConv, ScarselliGNN
from hogwild.models.soft import SoftEnergyConv, SoftEnergyGNN
from hogwild.models.warm import Stream, WarmStart
from hogwild.models.wrapped import WrappedGNN, wrap

__all__ = [
    "EIGNN", "GAT", "GCN", "GNN", "GSDGNN", "IGNN", "Conv", "EIGNNConv", "EnergyConv", "EnergyGNN",
    "Explained", "Features", "GSDConv", "IGNNConv", "ImplicitConv", "Kind", "LayeredGNN",
    "LayeredProblem", "Layers", "Model", "Readout", "ScarselliConv", "ScarselliGNN",
    "SoftEnergyConv", "SoftEnergyGNN", "Stack", "Stream", "WarmStart", "WrappedGNN", "wrap",
]  # fmt: skip
