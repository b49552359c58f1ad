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
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import softmax

from hogwild.ops import gather


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
        self.theta_e = (
            None
            if edge_dim is None
            else nn.Parameter(torch.empty(*batch_shape, channels, edge_dim))
        )
        width = 2 * channels if edge_dim is None else 3 * channels
        self.theta_a = nn.Parameter(torch.empty(*batch_shape, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for p in self.parameters():
            p.normal_(0.0, 1.0 / math.sqrt(p.size(-1)))

    def forward(
        self,
        x: Tensor,
        edge_attr: Tensor | None,
        src: Tensor,
        dst: Tensor,
        num_nodes: int,
        heard: Tensor | None = None,
    ) -> Tensor:
        """Weights [R·H, E]. ``heard`` [Rx, p, E] holds the senders' features as the receivers last
        heard them; by default these are the features in ``x``."""
        batch = math.prod(self.batch_shape)
        q = self.theta_x.size(-2)
        a = self.theta_a.to(x.dtype).reshape(batch, 1, -1)

        def project(theta: Tensor, part: Tensor, features: Tensor) -> Tensor:  # -> [B, n]
            row = torch.bmm(part, theta.to(x.dtype).reshape(batch, q, -1))  # θ_aᵀ θ, [B, 1, p]
            if features.size(0) == 1:
                return row[:, 0] @ features[0]
            return torch.bmm(row.view(features.size(0), -1, row.size(-1)), features).flatten(0, 1)

        receiver = project(self.theta_x, a[..., :q], x)
        sender = project(self.theta_x, a[..., q : 2 * q], x if heard is None else heard)
        logits = gather(receiver, dst) + (gather(sender, src) if heard is None else sender)
        if self.theta_e is not None:
            assert edge_attr is not None
            logits = logits + project(self.theta_e, a[..., 2 * q :], edge_attr)
        if not src.numel():
            return logits
        return softmax(F.leaky_relu(logits, 0.2), dst, num_nodes=num_nodes, dim=-1)
