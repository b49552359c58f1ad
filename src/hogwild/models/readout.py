"""The readout of all models, which maps embeddings to predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import softmax

from hogwild.errors import (
    ConfigError,
    require_all_positive,
    require_positive,
    require_widths,
)
from hogwild.models.base import Called
from hogwild.nn import norm as norms
from hogwild.nn.networks import MLP

POOLS: dict[str, Callable[[Tensor, Tensor | None, int | None], Tensor]] = {
    "mean": global_mean_pool, "add": global_add_pool, "sum": global_add_pool,
    "max": global_max_pool,
}  # fmt: skip
"""How the outputs of a graph's nodes become one."""


ATTENTION = "attention"


class Readout(nn.Module, metaclass=Called):
    r"""The paper's readout: an MLP o on every node. For predictions of graphs the mean of the
    nodes' outputs (or their sum, or their maximum) goes through a second MLP q of the same hidden
    widths:

    .. math:: \hat y_i = o(h_i), \qquad \hat y_G = q\Bigl(\frac1{|G|} \sum_{i \in G} o(h_i)\Bigr).

    In the paper o has the width of the predictions, also before the mean. With ``pooled`` it has
    another width, so that few predicted numbers do not squeeze wide embeddings.

    Args:
        in_channels: Width of the embeddings.
        out_channels: Width of the predictions.
        widths: Hidden widths.
        pool: ``None`` predicts for every node. ``"mean"`` (the paper's), ``"add"`` (also
            ``"sum"``), ``"max"`` and ``"attention"`` predict for every graph. All four are zero for
            a graph without nodes, which models refuse. ``"attention"`` is a sum with the weights
            :math:`\operatorname{softmax}_{i \in G} a(h_i)` of a learned affine score a, as PyG's
            ``AttentionalAggregation``.
        pooled: Width of what is pooled; ``None``: ``out_channels``.
        norm: ``None``, ``"layer"`` or ``"batch"``: embeddings are normalised first
            (:mod:`hogwild.nn.norm`).
        dropout: Probability of dropout of hidden units in training.
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
        pooled: int | None = None,
        norm: str | None = None,
        dropout: float = 0.0,
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if pool not in (None, *POOLS, ATTENTION):
            raise ConfigError(
                f"pool={pool!r}; expected None (node level), or one of "
                f"{', '.join(map(repr, [*POOLS, ATTENTION]))} (graph level)"
            )
        require_positive("in_channels", in_channels)
        require_positive("out_channels", out_channels)
        require_all_positive(replicas=replicas, pooled=pooled)
        if pool is None and pooled is not None:
            raise ConfigError(
                f"pooled={pooled!r} was given with pool=None, which pools nothing; expected no "
                f"pooled, or pool='mean'"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.pool, self.replicas = pool, replicas
        widths = require_widths("widths", widths)
        middle = out_channels if pooled is None else pooled
        options: dict[str, Any] = {"replicas": replicas, "dropout": dropout}
        self.norm = norms.norm(norm, in_channels, replicas=replicas)
        self.node = MLP(in_channels, (*widths, middle), **options)
        self.graph = None if pool is None else MLP(middle, (*widths, out_channels), **options)
        self.score = MLP(in_channels, (1,), replicas=replicas) if pool == ATTENTION else None

    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for net in (self.norm, self.node, self.graph, self.score):
            if net is not None:
                net.reset_parameters()

    def __repr__(self) -> str:
        widths = tuple(self.node.channels[1:-1])
        options: dict[str, Any] = {
            "widths": widths, "pool": self.pool, "replicas": self.replicas,
        }  # fmt: skip
        if self.graph is not None and self.graph.channels[0] != self.out_channels:
            options["pooled"] = self.graph.channels[0]
        if self.norm is not None:
            options["norm"] = self.norm.name
        if self.node.dropout:
            options["dropout"] = self.node.dropout
        given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        sizes = [f"{self.in_channels}", f"out_channels={self.out_channels}"]
        return f"Readout({', '.join(sizes + given)})"

    def forward(self, h: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
        """``size`` is the number of graphs; ``None``: read from ``batch``."""
        if self.norm is not None:
            rows = self.norm(h.mT if h.dim() == 3 else h.mT.unsqueeze(0)).mT
            h = rows if h.dim() == 3 else rows[0]
        y = self.node(h)
        if self.graph is None:
            return y
        pool = "sum" if self.score is not None else str(self.pool)
        if self.score is not None:
            s = self.score(h)
            y = y * (s.softmax(-2) if batch is None else softmax(s, batch, num_nodes=size, dim=-2))
        if batch is None:  # PyG would drop the dimension of the graphs where there are replicas
            whole: dict[str, Callable[..., Tensor]] = {"mean": y.mean, "max": y.amax}
            return self.graph(whole.get(pool, y.sum)(-2, keepdim=True))
        return self.graph(POOLS[pool](y, batch, size))
