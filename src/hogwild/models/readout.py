"""The readout of all models, which maps embeddings to predictions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hogwild.errors import ConfigError, require_all_positive, require_positive, require_widths
from hogwild.kernels.reading import POOLS, read
from hogwild.models.keywords import Called
from hogwild.nn.mlp import MLP


class Readout(nn.Module, metaclass=Called):
    """The paper's readout: an MLP on every node. For predictions of graphs the mean of the node
    predictions (or their sum, or their maximum) goes through a second MLP of the same widths.

    Args:
        in_channels: Width of the embeddings.
        out_channels: Width of the predictions.
        widths: Hidden widths.
        pool: ``None`` predicts for every node. ``"mean"`` (the paper's), ``"add"`` (also
            ``"sum"``) and ``"max"`` predict for every graph. All three are zero for a graph without
            nodes, which models refuse.
        replicas: ``None``, or the number R of independent parameter sets.

    Shapes:
        h [N, k] or [R, N, k], batch [N] → [N, out] or [R, N, out]; with ``pool`` [G, out] or
        [R, G, out].
    """

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int,
        widths: Sequence[int] = (4, 4),
        pool: str | None = None,
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if pool not in (None, *POOLS):
            raise ConfigError(
                f"pool={pool!r}; expected None (node level), or one of "
                f"{', '.join(map(repr, POOLS))} (graph level)"
            )
        require_positive("in_channels", in_channels)
        require_positive("out_channels", out_channels)
        require_all_positive(replicas=replicas)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.pool, self.replicas = pool, replicas
        widths = require_widths("widths", widths)
        self.node = MLP(in_channels, (*widths, out_channels), replicas=replicas)
        self.graph = (
            None if pool is None else MLP(out_channels, (*widths, out_channels), replicas=replicas)
        )

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        self.node.reset_parameters()
        if self.graph is not None:
            self.graph.reset_parameters()

    def __repr__(self) -> str:
        widths = tuple(self.node.channels[1:-1])
        options = {"widths": widths, "pool": self.pool, "replicas": self.replicas}
        given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        sizes = [f"{self.in_channels}", f"out_channels={self.out_channels}"]
        return f"Readout({', '.join(sizes + given)})"

    def forward(self, h: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
        return read(self.node, self.graph, h, batch, size, self.pool or "mean")
