r"""The layers of an explicit model on one graph, one node at a time: what all rules for them ask.

A node i holds a *state*, and of every layer ℓ it has a *value* :math:`v_i^\ell` that its neighbours
read:

.. math::
    v_i^\ell = \nu^\ell_i(s_i), \qquad
    s_i \leftarrow f^\ell_i\bigl(s_i, \{v_j^\ell, e_{ij} \mid j \in \mathcal N(i)\}\bigr),
    \qquad \ell = 0, \dots, L - 1.

In :class:`~hogwild.LayeredGNN` state and value are the same, the embedding :math:`h_i^\ell`. In a
wrapped model (:func:`hogwild.wrap`) the value is the input of the ℓ-th convolution, and the state
all results of the node's convolutions so far, from which the user's own code makes the next input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph, Star


@dataclass(eq=False)
class LayeredProblem(ABC):
    """The layers of an explicit model on one graph, one node at a time.

    Attributes:
        graph: Who hears whom.
        replicas: R, 1 for a model without replicas.
        channels: Width of a node's state.
        depth: L, the number of layers.
        widths: Widths of the values of layers 0, …, L: L + 1 numbers. The last is what a node
            would say after its last layer, which only overwriting sends.
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

    @abstractmethod
    def value(self, layer: int, h: Tensor, at: Star) -> Tensor:
        """What nodes in these states [R, channels, A] say of a layer, [R, widths[layer], A]."""

    @abstractmethod
    def update(self, layer: int, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        """The state of some nodes after a layer, from what those nodes know.

        Args:
            layer: ℓ = 0, …, L − 1.
            h: Their own states, [R, channels, A].
            inbox: The neighbours' values as last heard on each edge, [R, widths[ℓ], E']; on an edge
                from a node to itself nothing is sent, the node reads its own value.
            at: The nodes and edges.

        Returns:
            Their new states, [R, channels, A].
        """

    def recompute(self, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        """All layers of some nodes at once.

        Args:
            inbox: The neighbours' values of layers 0, …, L − 1 as last heard, one below the other,
                [R, sum(widths[:-1]), E'].

        Returns:
            The nodes' states [R, channels, A], and their own values of the same layers,
            [R, sum(widths[:-1]), A].
        """
        h, values = at.at_nodes(self.start()), []
        for layer, heard in enumerate(inbox.split(self.widths[:-1], 1)):
            values.append(self.value(layer, h, at))
            h = self.update(layer, h, heard, at)
        return h, torch.cat(values, 1)
