"""The readout of all models, which maps embeddings to predictions.

Small readouts are compiled (``source/dense.h``), and autograd sees one function. Matrix products of
a few thousand numbers take BLAS longer to prepare than to compute, above all on several threads: a
training step on small graphs has a dozen of them. The compiled library computes them on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.utils import softmax

from hogwild.errors import (
    ConfigError,
    GraphError,
    require_all_positive,
    require_positive,
    require_widths,
)
from hogwild.kernels.native import (
    SMALL,
    Library,
    address,
    addresses,
    applied,
    by_torch,
    integers,
    library,
    readable,
    recorded,
    require,
    unheard,
    watched,
)
from hogwild.models.base import Called
from hogwild.nn import norm as norms
from hogwild.nn.networks import MLP, items
from hogwild_node.networks import mlp

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
        compiled = Reading.of(self, h, batch, size)
        if compiled is None:
            return self.on_torch(self.node, self.graph, h, batch, size)
        if not (h.is_contiguous() or h.mT.is_contiguous()):
            h = h.contiguous()  # gradients are laid out like h
        out: Tensor = applied(_Read, compiled, h, *compiled.parameters)
        return out

    def on_torch(
        self,
        node: Callable[[Tensor], Tensor],
        graph: Callable[[Tensor], Tensor] | None,
        h: Tensor,
        batch: Tensor | None,
        size: int | None,
    ) -> Tensor:
        """The predictions, by two networks that compute what those of the readout compute."""
        y = node(h)
        if graph is None:
            return y
        pool = "sum" if self.score is not None else str(self.pool)
        if self.score is not None:
            s = self.score(h)
            y = y * (s.softmax(-2) if batch is None else softmax(s, batch, num_nodes=size, dim=-2))
        if batch is None:  # PyG would drop the dimension of the graphs where there are replicas
            whole: dict[str, Callable[..., Tensor]] = {"mean": y.mean, "max": y.amax}
            return graph(whole.get(pool, y.sum)(-2, keepdim=True))
        return graph(POOLS[pool](y, batch, size))


@lru_cache(maxsize=64)
def _shapes(lead: tuple[int, ...], *networks: tuple[int, ...]) -> tuple[list[torch.Size], int]:
    """Of perceptrons of these widths: the shapes of all weights and then of all biases, of one
    after the other, and how many numbers they have."""
    shapes: list[torch.Size] = []
    for sizes in networks:
        shapes += [torch.Size((*lead, b, a)) for a, b in pairwise(sizes)]
        shapes += [torch.Size((*lead, b)) for b in sizes[1:]]
    return shapes, sum(shape.numel() for shape in shapes)


@dataclass(frozen=True)
class Reading:
    """A readout that is compiled.

    Attributes:
        native: The compiled library.
        readout: The readout.
        networks: Its perceptrons, of nodes and, if graphs are predicted, of graphs.
        batch: The graph of every node, [N], or ``None``.
        graphs: Number of graphs; ``None``: nodes are predicted.
    """

    native: Library
    readout: Readout
    networks: tuple[MLP, ...]
    batch: Tensor | None
    graphs: int | None

    @classmethod
    def of(
        cls, readout: Readout, h: Tensor, batch: Tensor | None, size: int | None
    ) -> Reading | None:
        """The compiled readout; ``None`` where torch computes it."""
        native, node, graph = library(), readout.node, readout.graph
        networks = (node,) if graph is None else (node, graph)
        if native is None or watched() or not h.is_cpu or readout.pool not in (None, "mean"):
            return None
        if any(net.drops or not unheard(net, MLP) for net in networks):
            return None
        found = cls(native, readout, networks, batch, None)
        n = h.size(-2)
        named = n > 0 or graph is None
        if batch is not None:
            named = (batch.dtype, batch.shape) == (torch.long, (n,)) and batch.is_contiguous()
        if not named or not found.takes(h, found.parameters):
            return None
        if graph is None:
            return found
        if batch is not None and size is None:
            size = int(batch.max()) + 1 if n else 0
        return replace(found, graphs=1 if batch is None else size)

    @property
    def parameters(self) -> list[Tensor]:
        """Of every network all weights, then all biases."""
        groups = [group for net in self.networks for group in (net.weight, net.bias)]
        return [p for group in groups for p in items(group)]

    def takes(self, h: Tensor, parameters: Sequence[Tensor]) -> bool:
        """Whether the compiled code takes these tensors, and is faster than torch."""
        node = self.networks[0]
        lead = () if node.replicas is None else (node.replicas,)
        shapes, numbers = _shapes(lead, *(net.channels for net in self.networks))
        return (
            h.shape[:-2] == lead
            and h.dim() > 1
            and type(h) in (Tensor, nn.Parameter)
            and h.size(-1) == node.channels[0]
            and h.dtype in (torch.float32, torch.float64)
            and h.size(-2) * numbers <= SMALL
            and readable(parameters, h.dtype)
            and [p.shape for p in parameters] == shapes
        )

    def call(self, name: str, h: Tensor, given: Sequence[Tensor], *rest: Tensor | None) -> None:
        """Call a function of the library, with the sizes that ``source/library.cpp`` expects."""
        graphs = -1 if self.graphs is None else self.graphs
        numbers = [1 if h.dim() == 2 else h.size(0), h.size(-2), graphs]
        numbers += [0 if h.dim() == 2 else h.stride(0), h.stride(-2), h.stride(-1)]
        second = [0] * (self.graphs is None)  # there is no second network
        numbers += [len(net.channels) - 1 for net in self.networks] + second
        numbers += [w for net in self.networks for w in net.channels] + second
        failed, why = self.native.call(
            name, integers(numbers), self.networks[0].negative_slope, addresses(given),
            h.dtype == torch.float32, address(h), address(self.batch), *map(address, rest),
        )  # fmt: skip
        if failed == 2:
            raise GraphError(f"{why}; expected numbers from 0 to {(self.graphs or 0) - 1} in batch")
        require((failed, why))

    def on_torch(self, h: Tensor, *given: Tensor) -> Tensor:
        """The same predictions by operations that autograd differentiates again."""
        functions, left = [], iter(given)
        for net in self.networks:
            n = len(net.channels) - 1
            weights, biases = list(islice(left, n)), list(islice(left, n))
            functions.append(partial(mlp, weights=weights, biases=biases, slope=net.negative_slope))
        graph = functions[1] if len(functions) > 1 else None
        return self.readout.on_torch(functions[0], graph, h, self.batch, self.graphs)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reading: Reading, h: Tensor, *given: Tensor) -> Tensor:
        lead, graphs, last = h.shape[:-2], reading.graphs, reading.networks[-1].channels[-1]
        out = h.new_empty(*lead, h.size(-2) if graphs is None else graphs, last)
        width = reading.networks[0].channels[-1]
        ctx.mean = None if graphs is None else h.new_empty(*lead, graphs, width)
        reading.call("read", h, given, ctx.mean, out)
        ctx.reading, ctx.layout = reading, (h.shape, h.stride())
        ctx.save_for_backward(h, *given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        reading: Reading = ctx.reading
        h, *given = ctx.saved_tensors
        wanted: Sequence[bool] = ctx.needs_input_grad[1:]
        # Nobody counts what is assigned to `.data` since the forward pass.
        same = (h.shape, h.stride()) == ctx.layout and reading.takes(h, given)
        if recorded(grad) or not same:
            return None, *by_torch(reading.on_torch, (h, *given), wanted, grad)
        into = torch.empty_like(h) if wanted[0] else None
        sums = h.new_empty(sum(p.numel() for p in given))
        reading.call("read_back", h, given, ctx.mean, grad.contiguous(), into, sums)
        return None, into, *_unflatten_dense_tensors(sums, given)
