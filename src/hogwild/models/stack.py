r"""Stacked implicit layers: the solution of one is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

The other way to several rounds of messages. Unlike ``num_layers``, which nests the rounds inside
one convex energy, every level here is a one-hop problem of its own: it can run asynchronously on
one-hop packets, each level tracking the still-moving solution of the level below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from hogwild.errors import AsynchronyError, require_positive
from hogwild.models.base import ImplicitConv, Kind
from hogwild.models.energy import EnergyConv
from hogwild.models.features import Features
from hogwild.models.readout import ImplicitGNN, Readout
from hogwild.solvers.problem import Problem
from hogwild.solvers.solution import Solution


class StackedGNN(ImplicitGNN):
    """Implicit layers on top of each other, and a readout.

    Args:
        layer: Makes a layer from the width of its features; every one but the first takes
            [features ‖ previous embeddings].
        in_channels: Width of the node features.
        out_channels: Width of the predictions.
        count: Number of layers.
        pool: ``None`` predicts for every node, ``"mean"`` for every graph.
        readout: Hidden widths of the readout MLPs.
    """

    def __init__(
        self,
        layer: Callable[[int], ImplicitConv],
        in_channels: int,
        out_channels: int,
        count: int,
        *,
        pool: str | None = None,
        readout: Sequence[int] = (4, 4),
    ) -> None:
        super().__init__()
        first = layer(in_channels)
        k = first.hidden_channels
        self.convs = nn.ModuleList([first, *(layer(in_channels + k) for _ in range(count - 1))])
        self.readout = Readout(k, out_channels, readout, pool=pool, replicas=first.replicas)
        self.features = Features.of(first)

    @property
    def levels(self) -> list[ImplicitConv]:
        """The layers, from the features up."""
        return cast("list[ImplicitConv]", list(self.convs))

    @property
    def kind(self) -> Kind:
        return self.levels[0].kind

    @property
    def replicas(self) -> int | None:
        return self.levels[0].replicas

    def problem(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Problem:
        if len(self.levels) == 1:
            args_, rest = self._standardized(args, kwargs)
            return self.levels[0].problem(*args_, **rest)
        raise AsynchronyError(
            f"a stack of {len(self.levels)} layers poses one problem a level, not one in all; ask "
            f"the levels: model.levels[0].problem(...)"
        )

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in (*self.convs, self.readout):
            module.reset_parameters()

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise unless every level can run asynchronously."""
        for conv in self.levels:
            conv.require_asynchronous(edge_index, num_nodes)

    def embed(  # type: ignore[override]
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
        x, edge_attr = self._enter(x, edge_attr)
        features = x
        for conv in self.levels:
            if found:
                h = found[-1].value
                features = torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)
            found.append(
                conv.embed(
                    features,
                    edge_index,
                    edge_attr,
                    batch,
                    edge_weight=edge_weight,
                    h0=h0,
                    batch_size=batch_size,
                )
            )
        return Solution(
            found[-1].value,
            torch.stack([f.status for f in found]).amax(0),
            torch.stack([f.iterations for f in found]).sum(0),
            torch.stack([f.residual for f in found]).amax(0),
        )


class StackedEnergyGNN(StackedGNN):
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
        require_positive("num_levels", num_levels)
        layer = partial(EnergyConv, hidden_channels=hidden_channels, **kwargs)  # type: ignore[arg-type]
        super().__init__(layer, in_channels, out_channels, num_levels, pool=pool)
