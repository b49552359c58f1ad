r"""The layers of an explicit model on one graph: what all rules for layers ask
(:mod:`hogwild_node.layers`).

In :class:`~hogwild.LayeredGNN` the state and the value of a node are the same, the embedding
:math:`h_i^\ell`. In a wrapped model (:func:`hogwild.wrap`) the value is the input of the ℓ-th
convolution, and the state is all results of the node's convolutions so far: the user's own code
makes the next input from these.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild_node.layers import LocalLayers


@dataclass(eq=False)
class LayeredProblem(LocalLayers):
    """The layers of an explicit model on one graph, one node at a time.

    Attributes:
        graph: Who hears whom.
        replicas: R, 1 for a model without replicas.
        channels: Width of a node's state.
        depth: L, the number of layers.
        widths: Widths of the values of layers 0, …, L: L + 1 numbers. The last is the width of
            what a node would send after its last layer, which only overwriting sends.
        usual: The rule that ``"auto"`` means for this model.
    """

    graph: Graph
    replicas: int
    channels: int
    depth: int
    widths: tuple[int, ...]
    usual: str

    def detach(self) -> LayeredProblem:
        """The problem itself: it is evaluated without gradients, or unrolled with them."""
        return self

    @abstractmethod
    def start(self) -> Tensor:
        """Every node's state before the first layer, [R, channels, N]."""

    def initial(self, at: Star) -> Tensor:
        return at.at_nodes(self.start())

    @property
    def node(self) -> LocalLayers:
        """The layers as a node computes them: without torch where they are those of a GCN."""
        return self
