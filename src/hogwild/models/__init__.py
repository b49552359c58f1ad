"""Models: every one an ordinary PyG-style module."""

from hogwild.models.energy import EnergyConv, EnergyGNN, Readout

__all__ = ["EnergyConv", "EnergyGNN", "Readout"]
