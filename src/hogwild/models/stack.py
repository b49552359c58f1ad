r"""Stacked implicit layers: the solution of one is a feature of the next.

.. math:: H^{(s)} = \arg\min_H E^{(s)}(H;\, [X \,\|\, H^{(s-1)}])

The other way to several rounds of messages. Unlike ``num_layers``, which nests the rounds inside
one convex energy, every level here is a one-hop problem of its own: it can run asynchronously on
one-hop packets, each level tracking the still-moving solution of the level below
(:mod:`hogwild.rules.stack`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn

from hogwild.errors import require_positive
from hogwild.graph import Graph
from hogwild.linalg.solution import Solution
from hogwild.models.base import ImplicitConv, Kind
from hogwild.models.energy import EnergyConv
from hogwild.models.features import Features
from hogwild.models.readout import ImplicitGNN, Readout
from hogwild.ops import gather
from hogwild.problems.base import Problem


def _with(x: Tensor, h: Tensor) -> Tensor:
    """What the next level reads: features and embeddings, [..., n, p + k]."""
    return torch.cat([x.expand(*h.shape[:-1], x.size(-1)), h], -1)


@dataclass(eq=False)
class StackProblem:
    """The problems of all levels on one graph. That of level 0 is known, and that of any other
    level is posed, again and again, by the embeddings of the level below.

    Attributes:
        first: The problem of level 0, cut off from autograd.
        widths: Width of every level's embeddings.
    """

    first: Problem
    widths: list[int]
    convs: list[ImplicitConv]
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    batch: Tensor | None
    edge_weight: Tensor | None

    @property
    def graph(self) -> Graph:
        return self.first.graph

    @property
    def channels(self) -> int:
        """Width of all levels' embeddings together."""
        return sum(self.widths)

    def pose(self, level: int, own: Tensor, heard: Tensor) -> Problem:
        """The problem of a level above the first, cut off from autograd.

        What it says about a node depends on that node's own embedding and on what that node heard,
        and on nothing else.

        Args:
            own: The embeddings of the level below, [R, k, N].
            heard: Those of the sender of every edge, as its receiver last heard them, [R, k, E].
        """
        graph = self.graph
        problem = self.convs[level].problem(
            _with(self.x, self._as_features(own)),
            self.edge_index,
            self.edge_attr,
            self.batch,
            edge_weight=self.edge_weight,
            batch_size=graph.num_graphs,
            heard=_with(self.x[..., graph.src, :], self._as_features(heard)),
        )
        return problem.detach()

    def _as_features(self, h: Tensor) -> Tensor:
        """[R, k, n] -> [(R,) n, k], in the precision of the features."""
        h = h.mT.to(self.x.dtype)
        return h[0] if self.convs[0].replicas is None else h

    @cached_property
    def begun(self) -> list[Problem]:
        """The problems of all levels where asynchronous nodes begin."""
        problems = [self.first]
        for level in range(1, len(self.convs)):
            below = problems[-1].start()
            problems.append(self.pose(level, below, gather(below, self.graph.src)))
        return problems

    def settled(self, answers: Sequence[Tensor]) -> list[Problem]:
        """The problems of all levels where every node holds, and has heard, these embeddings of
        each level, [R, k, N]."""
        source = self.graph.src
        above = [self.pose(s, h, gather(h, source)) for s, h in enumerate(answers[:-1], 1)]
        return [self.first, *above]

    def start(self) -> Tensor:
        """Where asynchronous nodes begin, [R, channels, N]."""
        return torch.cat([problem.start() for problem in self.begun], 1)


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

    def problem(  # type: ignore[override]
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Problem | StackProblem:
        """The problem of the one level, or those of all levels."""
        levels = self.levels
        x, edge_attr = self._enter(x, edge_attr)
        first = levels[0].problem(
            x, edge_index, edge_attr, batch, edge_weight=edge_weight, batch_size=batch_size
        )
        if len(levels) == 1:
            return first
        # The values of features are checked once; an embedding that diverges is no bad input.
        unchecked = [copy.copy(conv) for conv in levels]
        for conv in unchecked:
            conv.validate = False
        widths = [conv.hidden_channels for conv in levels]
        inputs = (x, edge_index, edge_attr, batch, edge_weight)
        return StackProblem(first.detach(), widths, unchecked, *inputs)

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in (*self.convs, self.readout):
            module.reset_parameters()

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise unless every level can run asynchronously."""
        for conv in self.levels:
            conv.require_asynchronous(edge_index, num_nodes)

    def solutions(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> list[Solution]:
        """Every level's embeddings, from the features up; ``h0`` starts every level."""
        found: list[Solution] = []
        x, edge_attr = self._enter(x, edge_attr)
        for conv in self.levels:
            found.append(
                conv.embed(
                    _with(x, found[-1].value) if found else x,
                    edge_index,
                    edge_attr,
                    batch,
                    edge_weight=edge_weight,
                    h0=h0,
                    batch_size=batch_size,
                )
            )
        return found

    def embed(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Solution:
        """The last level's embeddings; iterations are summed over the levels, residuals and
        statuses are the worst. Called like :meth:`solutions`."""
        found = self.solutions(*args, **kwargs)  # type: ignore[arg-type]
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
