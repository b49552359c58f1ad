r"""Attention over neighbourhoods, computed from features only.

.. math::
    \alpha_{ij} = \operatorname{softmax}_{j \in \mathcal N(i)} \operatorname{LeakyReLU}\bigl(
        \theta_a^\top [\theta_x x_i \,\|\, \theta_x x_j \,\|\, \theta_e e_{ij}]\bigr)

The weights do not depend on the embeddings :math:`h`, because the product of a convex function with
a factor that depends on :math:`h` is not convex. Nonnegative weights that are constant in :math:`h`
keep the energy convex. The self message is not part of the softmax and has weight one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hogwild.graph import Graph
from hogwild_node.networks import Slot, attention


class NeighbourhoodAttention(nn.Module):
    """Attention weights [R·H, E] from node features [Rx, p, N] and edge features [1, r, E].

    Args:
        in_channels: Width p of the node features.
        edge_dim: Width r of the edge features, or ``None``.
        channels: Width q of the projections.
        batch_shape: Leading shape of independent parameter sets (replicas, heads).
    """

    def __init__(
        self,
        in_channels: int,
        edge_dim: int | None,
        channels: int,
        *,
        batch_shape: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.batch_shape = batch_shape
        self.theta_x = nn.Parameter(torch.empty(*batch_shape, channels, in_channels))
        self.theta_e: nn.Parameter | None = None
        if edge_dim is not None:
            self.theta_e = nn.Parameter(torch.empty(*batch_shape, channels, edge_dim))
        width = 2 * channels if edge_dim is None else 3 * channels
        self.theta_a = nn.Parameter(torch.empty(*batch_shape, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for p in self.parameters():
            p.normal_(0.0, 1.0 / math.sqrt(p.size(-1)))

    def forward(
        self, x: Tensor, edge_attr: Tensor | None, graph: Graph, heard: Tensor | None = None
    ) -> Tensor:
        """Weights [R·H, E]. ``heard`` [Rx, p, E] holds the senders' features as the receivers last
        heard them; by default these are the features in ``x``."""
        return self.weights(self.theta_x, self.theta_a, self.theta_e, x, edge_attr, graph, heard)

    def weights(
        self,
        theta_x: Tensor,
        theta_a: Tensor,
        theta_e: Tensor | None,
        x: Tensor,
        edge_attr: Tensor | None,
        graph: Graph,
        heard: Tensor | None,
    ) -> Tensor:
        """As :meth:`forward`, with these parameters."""
        batch = math.prod(self.batch_shape)

        def flat(theta: Tensor) -> Tensor:  # [*batch_shape, …] -> [B, …] in the solver's dtype
            return theta.to(x.dtype).reshape(batch, *theta.shape[len(self.batch_shape) :])

        edges = None if theta_e is None else flat(theta_e)
        senders = Slot(x, graph.src) if heard is None else Slot(heard)
        out: Tensor = attention(
            flat(theta_x), flat(theta_a), edges, x, senders, edge_attr, graph.everyone
        )
        return out
