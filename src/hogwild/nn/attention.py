r"""Attention over neighbourhoods, computed from features only.

.. math::
    \alpha_{ij} = \operatorname{softmax}_{j \in \mathcal N(i)} \operatorname{LeakyReLU}\bigl(
        \theta_a^\top [\theta_x x_i \,\|\, \theta_x x_j \,\|\, \theta_e e_{ij}]\bigr)

The weights do not depend on the embeddings :math:`h`, because the product of a convex function with
a factor that depends on :math:`h` is not convex. Nonnegative weights that are constant in :math:`h`
keep the energy convex. The self message is not part of the softmax and has weight one.

Small attentions are compiled (``source/attention.h``), and autograd sees one function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import GraphError
from hogwild.graph import Graph
from hogwild.kernels.native import (
    SMALL,
    Library,
    address,
    applied,
    by_torch,
    integers,
    library,
    readable,
    recorded,
    require,
    strides,
    unheard,
    watched,
)
from hogwild_node.networks import ATTENTION_SLOPE, Slot, attention


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


EDGE = 32
"""The weight of one edge takes as long as this many multiplications."""
Parameters = tuple[Tensor, Tensor, Tensor | None]
Features = tuple[Tensor, Tensor | None, Tensor | None]


def attend(
    net: NeighbourhoodAttention,
    x: Tensor,
    edge_attr: Tensor | None,
    graph: Graph,
    heard: Tensor | None = None,
) -> Tensor:
    """The weights [B, E] that ``net`` computes from these arguments."""
    native, given = library(), (net.theta_x, net.theta_a, net.theta_e)
    features = (x, heard, None if net.theta_e is None else edge_attr)
    compiled = native is not None and unheard(net, NeighbourhoodAttention) and not watched()
    if native is None or not compiled or not _fits(given, features, graph):
        out: Tensor = net(x, edge_attr, graph, heard)
        return out
    q, p = net.theta_x.shape[-2:]
    sets = net.theta_x.numel() // (q * p)
    replicas = max(x.size(0), 1 if heard is None else heard.size(0))
    numbers = [sets, sets // replicas, graph.num_nodes, graph.num_edges, q, p]
    numbers.append(0 if features[2] is None else features[2].size(-2))
    for some in features:
        numbers += (0, 0, 0) if some is None else strides(some)
    found: Tensor = applied(
        _Attend, Attending(native, net, integers(numbers), graph, features, sets), *given
    )
    return found


def _fits(given: Parameters, features: Features, graph: Graph) -> bool:
    """Whether the compiled attention takes these tensors, and is faster than torch."""
    (theta_x, theta_a, theta_e), (x, heard, attr) = given, features
    (q, p), lead = theta_x.shape[-2:], theta_x.shape[:-2]
    sets, nodes, edges = lead.numel(), graph.num_nodes, graph.num_edges
    more = 0 if attr is None else attr.size(-2)
    return (
        sets * p * q * nodes * edges > 0
        and sets * (2 * p * (nodes + q) + (EDGE + more) * edges) <= SMALL
        and theta_x.dtype in (torch.float32, torch.float64)
        and readable([t for t in given if t is not None], theta_x.dtype)
        and theta_a.shape == (*lead, q * (2 if theta_e is None else 3))
        and (theta_e is None) == (attr is None)
        and (theta_e is None or theta_e.shape[:-1] == (*lead, q))
        and _are(x, p, nodes, sets)
        and (heard is None or _are(heard, p, edges, sets))
        and (heard is None or 1 in (x.size(0), heard.size(0)) or x.size(0) == heard.size(0))
        and (attr is None or theta_e is None or _are(attr, theta_e.size(-1), edges, 1))
        and graph.src.is_contiguous()
        and graph.dst.is_contiguous()
    )


def _are(x: Tensor, width: int, rows: int, sets: int) -> bool:
    """Whether these are features [1 or R, width, rows] for the parameter sets of R replicas."""
    return (
        type(x) is Tensor
        and x.is_cpu
        and x.dtype == torch.float64
        and not x.requires_grad
        and not x.is_neg()
        and x.dim() == 3
        and x.shape[1:] == (width, rows)
        and x.size(0) > 0
        and sets % x.size(0) == 0
    )


@dataclass(frozen=True)
class Attending:
    """An attention that is compiled.

    Attributes:
        native: The compiled library.
        net: The same on torch.
        shape: What ``source/library.cpp`` is told of the sizes.
        graph: The edges.
        features: Features of nodes [1 or R, p, N], of senders as heard [1 or R, p, E] or ``None``,
            and of edges [1, r, E] or ``None``.
        sets: Number B of parameter sets.
    """

    native: Library
    net: NeighbourhoodAttention
    shape: bytes
    graph: Graph
    features: Features
    sets: int

    def call(self, name: str, given: Sequence[Tensor | None], *rest: Tensor | None) -> None:
        """Call a function of the library."""
        single = given[0] is not None and given[0].dtype == torch.float32
        ends = address(self.graph.src), address(self.graph.dst)
        failed, why = self.native.call(
            name, self.shape, ATTENTION_SLOPE, *ends, *map(address, self.features), single,
            *map(address, given), *map(address, rest),
        )  # fmt: skip
        if failed == 2:
            raise GraphError(f"{why}; expected nodes from 0 to {self.graph.num_nodes - 1}")
        require((failed, why))

    def on_torch(self, theta_x: Tensor, theta_a: Tensor, theta_e: Tensor | None) -> Tensor:
        """The same weights by operations that autograd differentiates."""
        x, heard, attr = self.features
        found: Tensor = self.net.weights(theta_x, theta_a, theta_e, x, attr, self.graph, heard)
        return found


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, one: Attending, *given: Tensor | None) -> Tensor:
        shape = one.sets, one.graph.num_edges
        logits, out = (one.features[0].new_empty(shape) for _ in range(2))
        one.call("attend", given, logits, out)
        ctx.one, ctx.logits, ctx.sizes = one, logits, _sizes(given)
        # The features are in `one`, too. Here torch notices when somebody changes them.
        ctx.save_for_backward(*given, out, *one.features)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        one: Attending = ctx.one
        theta_x, theta_a, theta_e, out, *_ = ctx.saved_tensors
        given = (theta_x, theta_a, theta_e)
        # Nobody counts what is assigned to `.data` since the forward pass.
        same = _sizes(given) == ctx.sizes and _fits(given, one.features, one.graph)
        if recorded(grad) or not same:
            return None, *by_torch(one.on_torch, given, ctx.needs_input_grad[1:], grad)
        into = [None if t is None else torch.empty_like(t) for t in given]
        one.call("attend_back", given, ctx.logits, out, grad.contiguous(), *into)
        return None, *into


def _sizes(given: Sequence[Tensor | None]) -> list[torch.Size | None]:
    return [None if t is None else t.shape for t in given]
