"""Graphs as the solvers and the nodes see them, and PyG's data as models take it."""

from hogwild.graph.cached import cached, once
from hogwild.graph.graph import Graph, Pattern
from hogwild.graph.inputs import Inputs
from hogwild_node.star import Star

__all__ = ["Graph", "Inputs", "Pattern", "Star", "cached", "once"]
