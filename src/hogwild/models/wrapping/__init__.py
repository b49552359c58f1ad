"""Wrapper that runs a GNN trained elsewhere one node at a time."""

from hogwild.models.wrapping.wrapped import WrappedGNN, wrap

__all__ = ["WrappedGNN", "wrap"]
