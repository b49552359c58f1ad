r"""What compiled code reads of an energy, and how gradients come back.

The kernels' inputs are all parameters behind the first layer of the networks' feature paths, and
the first layer itself. On the edge e from j to i it is linear in the features of both ends and of
e,

.. math:: o_e = (W_i x_i + b) + W_j x_j + W_e a_e,

so that one matrix product computes the first two terms on all nodes, [R, T, N], and compiled code
adds them edge by edge. Only the last term has a row for every edge (and the second one, where
senders' features are given for every edge).

Autograd sees one function, from features and parameters to the solution: its bookkeeping of the few
dozen operations in between would take as long as the solve of a small graph. For the same reason
the few dozen parameters are arranged by one gather, and so are their gradients (:class:`Layout`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from hogwild.kernels.native import (
    SMALL,
    Library,
    gather,
    integers,
    project,
    project_back,
    readable,
)
from hogwild.problems.energy import Design, EnergyProblem
from hogwild_node.activations import SOFTPLUS, SQUAREPLUS

ACTIVATIONS = {act.name: act for act in (SOFTPLUS, SQUAREPLUS)}
"""The activations of ``source/vectors.h``, in its order."""


class Sizes:
    """The sizes of a model, in the compiled library's memory."""

    _known: dict[tuple[Library, Design], Sizes | None] = {}  # noqa: RUF012

    def __init__(self, native: Library, design: Design) -> None:
        numbers = [
            design.channels, design.message_channels, design.heads, int(design.concat),
            2 if design.both_ends else 1, int(design.sent_at_nodes),
            list(ACTIVATIONS).index(design.act.name), int(design.gate == "relu"),
        ]  # fmt: skip
        for widths, monotone in zip(design.widths, design.monotone, strict=True):
            numbers += [len(widths), len(monotone), *widths]
        rising = np.array([m for some in design.monotone for m in some], dtype=np.uint8)
        given = np.array(numbers, dtype=np.int64)
        self.handle = native.sizes(given.ctypes.data, design.beta, rising.ctypes.data)
        if self.handle:
            shapes = np.zeros(5, dtype=np.int64)
            native.shapes(self.handle, shapes.ctypes.data)
            self.parameters, self.node_rows, self.edge_rows = shapes[:3].tolist()
            self.node_fields, self.edge_fields = shapes[3:].tolist()

    @classmethod
    def of(cls, native: Library, design: Design) -> Sizes | None:
        """The sizes; ``None`` where the library has no room for such networks."""
        key = (native, design)
        if key not in cls._known:
            made = cls(native, design)
            cls._known[key] = made if made.handle else None
        return cls._known[key]


@dataclass(frozen=True)
class Tensors:
    """The tensors that kernels read, in float64.

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
        others = (self.edges, self.weight, self.loop_weight)
        rest = (None if x is None else _contiguous(x) for x in others)
        return Tensors(_contiguous(self.parameters), _contiguous(self.nodes), *rest)


def _contiguous(x: Tensor) -> Tensor:
    """A tensor without autograd, contiguous; itself, if it is (torch takes longer to find out)."""
    x = x.detach() if x.requires_grad else x
    return x if x.is_contiguous() else x.contiguous()


class Layout:
    """Where compiled code reads the entries of all parameters.

    The arrangement is written once, for the numbers of the entries. One gather by these numbers
    then arranges parameters, and another one brings gradients back.

    Args:
        design: The sizes of the networks.
        replicas: Number R of parameter sets.
        features: Width p of the node features.
        edge_features: Width of the edge features that messages read, or 0.
        dtype: The dtype of the parameters.
        device: Their device.

    Attributes:
        shapes: Shapes of the arranged parts: all parameters behind the first layers [R, P]; weight
            and shift of the first layers on nodes, [R, T, p] and [R, T]; where senders' features
            are given for every edge, their weight [R, S, p] and, if messages read no other end, the
            shift [R, S]; the weight of edge features [R, S, r], if there are any.
    """

    def __init__(
        self,
        design: Design,
        replicas: int,
        features: int,
        edge_features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        lengths: list[int] = []

        def numbers(*shape: int) -> Tensor:
            """The numbers of the next parameter's entries, [R, heads, …]."""
            begin = sum(lengths)
            lengths.append(replicas * math.prod(shape))
            return torch.arange(begin, sum(lengths)).view(replicas, *shape)

        two, p = design.both_ends, features
        firsts: list[tuple[Tensor, Tensor]] = []
        behind: list[Tensor] = []
        for widths, inputs, n, width in zip(
            design.widths, design.monotone, (design.heads, 1, 1),
            (p * (1 + two) + edge_features, p, p), strict=True,
        ):  # fmt: skip
            d, before = len(inputs), (0, *widths[:-1])
            rows = [
                a + b + d + w for a, b, w in zip((*widths[:-1], 0), before, widths, strict=True)
            ]
            # In the order in which a PICNN has its parameters.
            weight = [numbers(n, a, b) for a, b in zip(rows, (width, *widths), strict=False)]
            bias = [numbers(n, a) for a in rows]
            wy = [numbers(n, w, d) for w in widths]
            wz = [numbers(n, w, b) for w, b in zip(widths[1:], widths, strict=False)]
            # In the order in which source/picnn.h reads them.
            path = [wy[0], *chain(*zip(wy[1:], wz, strict=True))]
            path += chain(*zip(weight[1:], bias[1:], strict=True))
            behind.append(torch.cat([t.flatten(2) for t in path], 2).flatten(1))
            firsts.append((weight[0].flatten(1, 2), bias[0].flatten(1)))
        (first, shift), *others = firsts
        count = sum(lengths)
        weights, shifts = [first[..., :p]], [shift]  # of the receiver, or the only end
        if two:
            weights.append(first[..., p : 2 * p])
            shifts.append(torch.full_like(shift, count))  # the zero behind all parameters
        sent: list[Tensor] = []
        if not design.sent_at_nodes:
            sent = [weights.pop()] if two else [weights.pop(), shifts[0]]
            shifts.pop()
        own = torch.cat([*weights, *(weight for weight, _ in others)], 1)
        constant = torch.cat([*shifts, *(bias for _, bias in others)], 1)
        parts = [torch.cat(behind, 1), own, constant, *sent]
        if edge_features:
            parts.append(first[..., 2 * p :])
        self.shapes = [part.shape for part in parts]
        self._sizes = [part.numel() for part in parts]
        self._lengths = lengths
        self._part_sizes = integers(self._sizes)
        self._given_sizes = integers(lengths)
        arranged = torch.cat([part.flatten() for part in parts])
        original = torch.empty(count + 1, dtype=torch.long)
        original[arranged] = torch.arange(arranged.numel())
        self._arranged, self._original = arranged.to(device), original[:count].to(device)
        self._zero = torch.zeros(1, dtype=dtype, device=device)

    @classmethod
    @lru_cache(maxsize=64)
    @torch.inference_mode(False)  # what is kept must serve training, too
    def of(cls, *given: Any) -> Layout:
        """The layout of these arguments of the constructor; the same object for the same ones."""
        return cls(*given)

    def reads(self, given: Sequence[Tensor]) -> bool:
        """Whether compiled code on a CPU can read these parameters, and write gradients of them."""
        dtype = self._zero.dtype
        known = dtype in (torch.float32, torch.float64) and readable(given, dtype)
        return known and [p.numel() for p in given] == self._lengths

    def arranged(self, given: Sequence[Tensor], native: Library | None) -> list[Tensor]:
        """All parts, in float64, from the parameters."""
        if native is not None and self.reads(given):
            into = [torch.empty(s, dtype=torch.float64, device="cpu") for s in self.shapes]
            gather(native, given, self._given_sizes, self._arranged, into, self._part_sizes)
            return into
        dtype = self._zero.dtype
        if any(p.dtype != dtype for p in given):
            given = [p.to(dtype) for p in given]
        flat = _flatten_dense_tensors([*given, self._zero])  # one call, not one a parameter
        flat = flat.index_select(0, self._arranged).double()
        parts = flat.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def original(
        self, parts: Sequence[Tensor], given: Sequence[Tensor], native: Library | None
    ) -> Sequence[Tensor]:
        """The gradients of the parameters, from those of all parts, which are contiguous."""
        if native is not None and self.reads(given):
            # Tensors of their own: autograd takes them as they are, and views take it longer.
            into = [torch.empty_like(p) for p in given]
            gather(native, parts, self._part_sizes, self._original, into, self._given_sizes)
            return into
        flat = torch.cat([part.view(-1) for part in parts])
        flat = flat.index_select(0, self._original).to(self._zero.dtype)
        found: tuple[Tensor, ...] = _unflatten_dense_tensors(flat, given)
        return found


class KernelInputs:
    """The inputs of the kernels, made of the data of a problem.

    Args:
        native: The compiled library.
        problem: The problem.
        order: The nodes in the order in which kernels read them [N]; ``None``: that of the graph.

    Attributes:
        tensors: What kernels read; detached.
    """

    def __init__(
        self, native: Library, problem: EnergyProblem, order: Tensor | None = None
    ) -> None:
        x, heard, self._given = problem.x, problem.heard, problem.parameters
        # Node-wise messages do not read features of edges.
        attr = problem.edge_attr if problem.design.both_ends else None
        self._problem, self._native, self._order = problem, native if x.is_cpu else None, order
        last = self._given[-1]
        self._layout = Layout.of(
            problem.design, problem.replicas, x.size(-2), 0 if attr is None else attr.size(-2),
            last.dtype, last.device,
        )  # fmt: skip
        self._heard, self._attr = heard, attr
        self.tensors = self._forward()

    def _reordered(self, rows: Tensor) -> Tensor:
        """Numbers of nodes [..., N] in the order of the kernels."""
        return rows if self._order is None else rows.index_select(-1, self._order)

    def _in_graph_order(self, rows: Tensor | None) -> Tensor | None:
        """Numbers of nodes [..., N] in the order of the graph again."""
        if rows is None or self._order is None:
            return rows
        return torch.empty_like(rows).index_copy_(-1, self._order, rows)

    @torch.no_grad()
    def _forward(self) -> Tensors:
        native, heard, attr, p = self._native, self._heard, self._attr, self._problem
        self._x = self._reordered(p.x)
        _, weight, shift, *rest = self._parts = self._layout.arranged(self._given, native)
        nodes, edges = _project(native, weight, self._x, shift), None
        if heard is not None:
            on_edges = rest if attr is None else rest[:-1]
            edges = _project(native, on_edges[0], heard, *on_edges[1:])
        if attr is not None:
            more = _project(native, rest[-1], attr)
            edges = more if edges is None else edges + more
        return Tensors(
            self._parts[0], nodes, edges,
            None if p.weight is None else p.weight.detach()[:, :, 0],
            None if p.loop_weight is None else self._reordered(p.loop_weight.detach()),
        )  # fmt: skip

    @torch.no_grad()
    def back(self, found: Tensors) -> tuple[Tensor | None, ...]:
        """The gradients of the problem's sources, from those of :attr:`tensors`."""
        native, x, heard, attr = self._native, self._x, self._heard, self._attr
        p, edges = self._problem, found.edges
        features = [
            _back(self._parts[1], found.nodes, x) if p.x.requires_grad else None,
            None,
            None,
        ]
        parts = [found.parameters, *_outer(native, found.nodes, x)]
        if heard is not None and p.heard is not None:
            assert edges is not None
            shifted = len(self._parts) - (attr is not None) > 4
            parts += _outer(native, edges, heard)[: 1 + shifted]
            features[1] = _back(self._parts[3], edges, heard) if p.heard.requires_grad else None
        if attr is not None and p.edge_attr is not None:
            assert edges is not None
            parts += _outer(native, edges, attr)[:1]
            features[2] = _back(self._parts[-1], edges, attr) if p.edge_attr.requires_grad else None
        weight = None if found.weight is None else found.weight.unsqueeze(2)
        return (
            self._in_graph_order(features[0]), *features[1:], weight,
            self._in_graph_order(found.loop_weight),
            *self._layout.original(parts, self._given, native),
        )  # fmt: skip


def _project(
    native: Library | None, weight: Tensor, x: Tensor, shift: Tensor | None = None
) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] + [R, T] -> [R, T, n]."""
    if native is not None and weight.numel() * x.size(-1) <= SMALL:
        return project(native, weight, x, shift)
    x = x.contiguous()  # the rounding of a product must not depend on how the caller stored x
    if x.size(0) > 1:
        found = weight @ x
        return found if shift is None else found.add_(shift.unsqueeze(-1))
    r, t, p = weight.shape
    found = weight.reshape(r * t, p) @ x[0]
    if shift is not None:
        found.add_(shift.reshape(r * t, 1))
    return found.view(r, t, -1)


def _outer(native: Library | None, found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of weight and shift of :func:`_project`: [R, T, n] and [1 or R, p, n] -> [R, T, p]
    and [R, T]."""
    if native is not None and found.numel() * x.size(-2) <= SMALL:
        return project_back(native, found, x)
    if x.size(0) > 1:
        return found @ x.mT, found.sum(-1)
    r, t, n = found.shape
    return (found.reshape(r * t, n) @ x[0].T).view(r, t, -1), found.sum(-1)


def _back(weight: Tensor, found: Tensor, x: Tensor) -> Tensor:
    """Gradient of the features of :func:`_project`, in their shape."""
    if x.size(0) > 1:
        return weight.mT @ found
    return (weight.flatten(0, 1).T @ found.flatten(0, 1)).unsqueeze(0)
