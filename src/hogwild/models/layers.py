r"""The layers of an explicit model on one graph, as the rules use them
(:mod:`hogwild_node.problems`).

In :class:`~hogwild.LayeredGNN` the state and the value of a node are both its embedding
:math:`h_i^\ell`. In a wrapped model (:func:`hogwild.wrap`) the value is the input of the ℓ-th
convolution. The state holds the results of all convolutions so far, from which the user's code
computes the next input.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild_node.problems import LocalLayers


@dataclass(eq=False)
class LayeredProblem(LocalLayers):
    """The layers of an explicit model on one graph, one node at a time.

    Attributes:
        graph: The graph.
        replicas: R; 1 for a model without replicas.
        channels: Width of a node's state.
        depth: L, the number of layers.
        widths: Widths of the values of layers 0, …, L: L + 1 numbers. Only the rule
            ``"overwriting"`` sends values of layer L.
    """

    graph: Graph
    replicas: int
    channels: int
    depth: int
    widths: tuple[int, ...]

    def detach(self) -> LayeredProblem:
        """The problem itself."""
        return self

    @abstractmethod
    def start(self) -> Tensor:
        """Every node's state before the first layer, [R, channels, N]."""

    def initial(self, at: Star) -> Tensor:
        return at.at_nodes(self.start())

    @property
    def node(self) -> LocalLayers:
        """The layers as a node computes them; the layers of a GCN need no torch."""
        return self
