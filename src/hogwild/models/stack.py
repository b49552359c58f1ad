r"""Stacked energies: the solution of one is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

The other way to several rounds of messages. Unlike ``num_layers``, which nests the rounds inside
one convex energy, every level here is a one-hop energy of its own: it can run asynchronously on
one-hop packets, each level tracking the still-moving solution of the level below.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hogwild.errors import require_positive
from hogwild.models.energy import EnergyConv
from hogwild.models.readout import ImplicitGNN, Readout
from hogwild.solvers.base import Solution


class StackedEnergyGNN(ImplicitGNN):
    """``num_levels`` energies, each with the features and the previous solution as its features.

    Args:
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        hidden_channels: Width of every level's embeddings.
        num_levels: Number of energies.
        pool: ``None`` or ``"mean"``, as in :class:`EnergyGNN`.
        kwargs: Everything else goes to every :class:`EnergyConv`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 2,
        *,
        num_levels: int = 2,
        pool: str | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__()
        require_positive("num_levels", num_levels)
        self.convs = nn.ModuleList(
            EnergyConv(
                in_channels + (hidden_channels if level else 0),
                hidden_channels,
                **kwargs,  # type: ignore[arg-type]
            )
            for level in range(num_levels)
        )
        replicas = self.convs[0].replicas
        assert replicas is None or isinstance(replicas, int)
        self.replicas = replicas
        self.readout = Readout(hidden_channels, out_channels, pool=pool, replicas=replicas)

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in (*self.convs, self.readout):
            module.reset_parameters()

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise unless every level can run asynchronously."""
        for conv in self.convs:
            conv.require_asynchronous(edge_index, num_nodes)  # type: ignore[operator]

    def embed(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Solution:
        """The last level's embeddings; iterations are summed over the levels, residuals and
        statuses are the worst. ``h0`` starts every level."""
        found: list[Solution] = []
        features = x
        for conv in self.convs:
            found.append(
                conv.embed(  # type: ignore[operator]
                    features,
                    edge_index,
                    edge_attr,
                    batch,
                    edge_weight=edge_weight,
                    h0=h0,
                    batch_size=batch_size,
                )
            )
            h = found[-1].value
            features = torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)
        return Solution(
            found[-1].value,
            torch.stack([f.status for f in found]).amax(0),
            torch.stack([f.iterations for f in found]).sum(0),
            torch.stack([f.residual for f in found]).amax(0),
        )
