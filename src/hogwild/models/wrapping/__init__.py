"""A GNN trained elsewhere, run one node at a time as it is."""

from hogwild.models.wrapping.wrapped import WrappedGNN, wrap

__all__ = ["WrappedGNN", "wrap"]
