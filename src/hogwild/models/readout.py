"""From embeddings to predictions, the same for every model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch_geometric.nn import global_mean_pool

from hogwild.errors import ConfigError, require_positive
from hogwild.linalg.solution import Solution
from hogwild.models.base import ImplicitConv, Kind
from hogwild.models.features import Standardized
from hogwild.nn.mlp import MLP
from hogwild.problems.base import Problem


class Readout(nn.Module):
    """The paper's readout: an MLP (4, 4, out) on every node, and for graph-level predictions the
    mean of the node predictions through a second MLP (4, 4, out).

    Args:
        in_channels: Width of the embeddings.
        out_channels: Width of the predictions.
        widths: Hidden widths.
        pool: ``None`` or ``"mean"``.
        replicas: ``None``, or the number of independent parameter sets.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        widths: Sequence[int] = (4, 4),
        *,
        pool: str | None = None,
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if pool not in (None, "mean"):
            raise ConfigError(f"pool={pool!r}; expected None (node level) or 'mean' (graph level)")
        require_positive("out_channels", out_channels)
        self.pool = pool
        self.node = MLP(in_channels, (*widths, out_channels), replicas=replicas)
        self.graph = (
            None if pool is None else MLP(out_channels, (*widths, out_channels), replicas=replicas)
        )

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.node.reset_parameters()
        if self.graph is not None:
            self.graph.reset_parameters()

    def forward(self, h: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
        y = self.node(h)
        if self.graph is None:
            return y
        if batch is None:
            return self.graph(y.mean(-2, keepdim=True))
        return self.graph(global_mean_pool(y, batch, size))


class ImplicitGNN(Standardized):
    """Embeddings that solve a problem, and a readout: a subclass sets ``conv``, ``readout`` and
    ``features``."""

    conv: ImplicitConv
    readout: Readout

    @property
    def kind(self) -> Kind:
        """Where this model stands in the paper's taxonomy."""
        return self.conv.kind

    @property
    def replicas(self) -> int | None:
        """Number of independent parameter sets; ``None`` without a replica dimension."""
        return self.conv.replicas

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.conv.reset_parameters()  # type: ignore[operator]
        self.readout.reset_parameters()

    def problem(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Problem:
        """The problem whose solution the embeddings are; called like :meth:`forward`."""
        args_, rest = self._standardized(args, kwargs)
        return self.conv.problem(*args_, **rest)

    def embed(self, *args: Tensor | None, **kwargs: Tensor | int | None) -> Solution:
        """The embeddings with per-graph diagnostics; called like :meth:`forward`."""
        args_, rest = self._standardized(args, kwargs)
        return self.conv.embed(*args_, **rest)

    def require_asynchronous(self, edge_index: Tensor, num_nodes: int) -> None:
        """Raise :class:`~hogwild.errors.AsynchronyError`, with the reason, unless every node could
        run this model by talking to its neighbours alone."""
        self.conv.require_asynchronous(edge_index, num_nodes)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | None = None,  # missing: refused with what is expected
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        h0: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Predictions for the nodes, or for the graphs with ``pool``."""
        found = self.embed(
            x,
            edge_index,
            edge_attr,
            batch,
            edge_weight=edge_weight,
            h0=h0,
            batch_size=batch_size,
        )
        return self.readout(found.value, batch, batch_size)
