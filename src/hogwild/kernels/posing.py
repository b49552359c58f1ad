r"""How an energy of one round is posed to compiled code, and how gradients come back.

The posed tensors are all parameters behind the first layer of the networks' feature paths, and the
first layer itself. On the edge e from j to i it is linear in the features of both ends and of e,

.. math:: o_e = (W_i x_i + b) + W_j x_j + W_e a_e,

so that one matrix product computes the first two terms on all nodes, [R, T, N], and compiled code
adds them edge by edge. Only the last term has a row for every edge (and the second one, where
senders' features are given for every edge).

Autograd sees one function, from features and parameters to the solution: its bookkeeping of the few
dozen operations in between would take as long as the solve of a small graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import torch
from torch import Tensor

from hogwild.nn.picnn import PICNN


@dataclass(frozen=True)
class Design:
    """Everything about a model that is not a tensor.

    Attributes:
        channels: Width k of an embedding.
        message_channels: Width of a message, of one head.
        heads: Heads of attention.
        concat: Whether the heads' messages are laid side by side, or averaged.
        both_ends: Whether messages read both ends of an edge (edge-wise) or its sender (node-wise).
        sent_at_nodes: Whether a sender's features are those of its node, or given for every edge.
        beta: The convexity β.
        act: The name of the activation.
        gate: The name of the gates' activation.
        widths: Widths of the layers of the three networks (message, self message, update).
        monotone: For each convex input of the three networks, whether the output rises in it.
    """

    channels: int
    message_channels: int
    heads: int
    concat: bool
    both_ends: bool
    sent_at_nodes: bool
    beta: float
    act: str
    gate: str
    widths: tuple[tuple[int, ...], ...]
    monotone: tuple[tuple[bool, ...], ...]

    @cached_property
    def fits(self) -> bool:
        """Whether the compiled library has room for such networks (``source/library.cpp``)."""
        deepest, inputs = max(map(len, self.widths)), max(map(len, self.monotone))
        widest = max(w for some in self.widths for w in some)
        return deepest <= 12 and inputs <= 256 and widest <= 4096 and self.heads <= 1024


@dataclass(frozen=True)
class Tensors:
    """The tensors that pose a problem, in float64.

    Attributes:
        parameters: All parameters behind the first layer of the feature paths, [R, P].
        nodes: The first layer of the feature paths on nodes, [R, T, N].
        edges: The same on edges, [R, H·rows, E], or ``None``.
        weight: Weights of the messages, [R or 1, H or 1, E], or ``None``.
        loop_weight: Weights of the self messages, [N], or ``None``.
    """

    parameters: Tensor
    nodes: Tensor
    edges: Tensor | None
    weight: Tensor | None
    loop_weight: Tensor | None

    def every(self) -> tuple[Tensor | None, ...]:
        return self.parameters, self.nodes, self.edges, self.weight, self.loop_weight

    def detach(self) -> Tensors:
        """The same tensors without autograd, contiguous."""

        def plain(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach().contiguous()

        return Tensors(
            self.parameters.detach().contiguous(), self.nodes.detach().contiguous(),
            plain(self.edges), plain(self.weight), plain(self.loop_weight),
        )  # fmt: skip


class Posing:
    """A problem posed from its networks (message, self message, update) and from features.

    Args:
        networks: The three networks.
        design: Their sizes.
        x: Features of the nodes, [1 or R, p, N].
        heard: The senders' features as heard, [1 or R, p, E], or ``None``: those of ``x``.
        edge_attr: Features of the edges, [1, r, E], or ``None``.
        weight: Weights of the messages, [R or 1, H or 1, 1, E], or ``None``.
        loop_weight: Weights of the self messages, [N], or ``None``.

    Attributes:
        sources: All tensors that the problem is made of, attached to autograd.
        tensors: What compiled code reads; detached.
    """

    def __init__(
        self,
        networks: Sequence[PICNN],
        design: Design,
        x: Tensor,
        heard: Tensor | None,
        edge_attr: Tensor | None,
        weight: Tensor | None,
        loop_weight: Tensor | None,
    ) -> None:
        self.design = design
        edge_attr = edge_attr if design.both_ends else None  # node-wise messages do not read it
        given = [_parameters(net) for net in networks]
        counts = tuple(map(len, given))
        weight = None if weight is None else weight[:, :, 0]
        self.sources = (x, heard, edge_attr, weight, loop_weight, *chain(*given))
        self._x, self._heard, self._attr = x, heard, edge_attr
        self._given, self._counts = [*chain(*given)], counts
        flat, nodes, edges = self._forward()
        weight = None if weight is None else weight.detach()
        loop_weight = None if loop_weight is None else loop_weight.detach()
        self.tensors = Tensors(flat, nodes, edges, weight, loop_weight)

    @torch.no_grad()
    def _forward(self) -> tuple[Tensor, Tensor, Tensor | None]:
        design, x, heard = self.design, self._x, self._heard
        heads, two = design.heads, design.both_ends
        (first, bias, *message), (loop_w, loop_b, *loop), (update_w, update_b, *update) = _split(
            self._given, self._counts
        )
        r = loop_b.size(0) if loop_b.dim() > 1 else 1  # parameters may have a dimension of replicas
        if r * heads == 1:
            parameters = torch.cat([t.reshape(-1) for t in (*message, *loop, *update)]).unsqueeze(0)
        else:
            sets = ((message, heads), (loop, 1), (update, 1))
            flat = [torch.cat([t.reshape(r * n, -1) for t in some], 1) for some, n in sets]
            parameters = torch.cat([t.reshape(r, -1) for t in flat], 1)
        p, rows = x.size(-2), bias.size(-1)
        first, shift = first.reshape(r, heads * rows, -1), bias.reshape(r, heads * rows)
        ends = [first[..., :p], first[..., p : 2 * p]] if two else [first[..., :p]]
        shifts = [shift, torch.zeros_like(shift)][: len(ends)]
        sender = ends[-1]
        if heard is not None:
            ends, shifts = ends[:-1], shifts[:-1]
        own = torch.cat([*ends, loop_w.reshape(r, -1, p), update_w.reshape(r, -1, p)], 1)
        self._weight, self._first = own.double(), first  # [R, T, p]
        shifts += [loop_b.reshape(r, -1), update_b.reshape(r, -1)]
        nodes = _project(self._weight, x, torch.cat(shifts, 1).double())
        edges = None
        if heard is not None:
            edges = _project(sender.double(), heard, None if two else shift.double())
        if self._attr is not None:
            more = _project(first[..., 2 * p :].double(), self._attr)
            edges = more if edges is None else edges + more
        return parameters.double(), nodes, edges

    @torch.no_grad()
    def back(self, found: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """The gradients of :attr:`sources`, from those of :attr:`tensors`."""
        parameters, nodes, edges, weight, loop_weight = found
        assert parameters is not None
        assert nodes is not None
        x, heard, attr = self._x, self._heard, self._attr
        heads, two = self.design.heads, self.design.both_ends
        message, loop, update = _split(self._given, self._counts)
        r, p, rows = self._weight.size(0), x.size(-2), message[1].size(-1)
        dtype = loop[1].dtype
        to_nodes, sums = _outer(nodes, x).to(dtype), nodes.sum(-1).to(dtype)
        # Rows of o_0 on nodes: own, sent (unless it is on edges), self message, update.
        at = heads * rows
        slots = [to_nodes[:, :at]] if two else []
        start, bias = at if two else 0, sums[:, :at]
        if heard is None:
            slots.append(to_nodes[:, start : start + at])
            start += at
        elif edges is not None:
            slots.append(_outer(edges, heard).to(dtype))
            bias = bias if two else edges.sum(-1).to(dtype)
        if attr is not None and edges is not None:
            slots.append(_outer(edges, attr).to(dtype))
        middle = start + loop[1].size(-1)
        firsts = (
            (torch.cat(slots, -1) if len(slots) > 1 else slots[0], bias),
            (to_nodes[:, start:middle], sums[:, start:middle]),
            (to_nodes[:, middle:], sums[:, middle:]),
        )
        parts = self._parts(parameters.to(dtype), r)
        out: list[Tensor] = []
        for some, pair, rest in zip((message, loop, update), firsts, parts, strict=True):
            out += [g.reshape(t.shape) for g, t in zip((*pair, *rest), some, strict=True)]
        sender = self._first[..., p * (1 if two else 0) : p * (2 if two else 1)].double()
        features: list[Tensor | None] = [_back(self._weight, nodes, x) if x.requires_grad else None]
        for given, part in ((heard, sender), (attr, self._first[..., 2 * p :])):
            if given is None or edges is None or not given.requires_grad:
                features.append(None)
            else:
                features.append(_back(part.double(), edges, given))
        return *features, weight, loop_weight, *out

    def _parts(self, parameters: Tensor, r: int) -> list[Sequence[Tensor]]:
        """The gradients of the parameters behind the first layers, network by network."""
        sets = (self.design.heads, 1, 1)
        groups = [some[2:] for some in _split(self._given, self._counts)]
        if r * self.design.heads == 1:
            every = parameters[0].split([t.numel() for t in chain(*groups)])
            return _split(every, tuple(map(len, groups)))
        out: list[Sequence[Tensor]] = []
        offset = 0
        for some, n in zip(groups, sets, strict=True):
            sizes = [t.numel() // (r * n) for t in some]
            width = sum(sizes)
            mine = parameters[:, offset : offset + n * width].reshape(r * n, width)
            out.append(mine.split(sizes, 1))
            offset += n * width
        return out


def _parameters(net: PICNN) -> list[Tensor]:
    """The parameters of a network: of the feature path's first layer, then all others layer by
    layer, as ``source/picnn.h`` reads them."""
    weights, biases, wy, wz = (
        [p for p in group._parameters.values() if p is not None]
        for group in (net.feature_weight, net.feature_bias, net.wy, net.wz)
    )
    rest = [wy[0], *(p for pair in zip(wy[1:], wz, strict=True) for p in pair)]
    path = [p for pair in zip(weights[1:], biases[1:], strict=True) for p in pair]
    return [weights[0], biases[0], *rest, *path]


def _split(given: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """Consecutive parts of these lengths."""
    ends = list(accumulate(counts))
    return [given[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _project(weight: Tensor, x: Tensor, shift: Tensor | None = None) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] + [R, T] -> [R, T, n]."""
    x = x.contiguous()  # the rounding of a product must not depend on how the caller stored x
    if x.size(0) > 1:
        found = weight @ x
        return found if shift is None else found.add_(shift.unsqueeze(-1))
    r, t, p = weight.shape
    found = weight.reshape(r * t, p) @ x[0]
    if shift is not None:
        found.add_(shift.reshape(r * t, 1))
    return found.view(r, t, -1)


def _outer(found: Tensor, x: Tensor) -> Tensor:
    """Gradient of the weights of :func:`_project`: [R, T, n] and [1 or R, p, n] -> [R, T, p]."""
    if x.size(0) > 1:
        return found @ x.mT
    r, t, n = found.shape
    return (found.reshape(r * t, n) @ x[0].T).view(r, t, -1)


def _back(weight: Tensor, found: Tensor, x: Tensor) -> Tensor:
    """Gradient of the features of :func:`_project`, in their shape."""
    if x.size(0) > 1:
        return weight.mT @ found
    return (weight.flatten(0, 1).T @ found.flatten(0, 1)).unsqueeze(0)
