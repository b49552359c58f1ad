"""The compiled solve of energies of one round, and its adjoint.

An energy is posed by its parameters and by the first layer of its networks' feature paths, which
one matrix product computes (:func:`pose`). The compiled code does the rest: every (graph,
replica) has its own Newton iteration, line search and stop. Autograd sees one function of the posed
tensors, whose gradients :meth:`EnergyKernel.adjoint` computes in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hogwild.errors import FeatureError
from hogwild.graph import Graph
from hogwild.kernels.native import Library
from hogwild.kernels.plan import address, plan_of
from hogwild.linalg.solution import Solution
from hogwild.nn.picnn import PICNN

ACTIVATIONS = ("softplus", "squareplus")


PRODUCTS, ADJOINT_PRODUCTS = 40.0, 150.0
"""Multiplications of a factorisation for each one in a product with the Hessian, above which
conjugate gradients are cheaper: in Newton's method, and in the adjoint, which is more exact."""
MOST_NUMBERS = float(1 << 28)
"""Numbers in the fronts of one graph above which it is not factorised."""
LARGEST = 400_000
"""Edges of a graph above which a factorisation on one thread is slower than conjugate gradients in
torch on two threads: between random geometric graphs of 50,000 and of 100,000 nodes (a trial
without a record)."""
MOST_EDGES = 2_000_000
"""Edges of a batch above which no plan is made."""


@dataclass(frozen=True)
class Design:
    """Everything about a model that is not a tensor."""

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

    @property
    def fits(self) -> bool:
        """Whether the compiled library has room for such networks (``source/library.cpp``)."""
        deepest, inputs = max(map(len, self.widths)), max(map(len, self.monotone))
        widest = max(w for some in self.widths for w in some)
        return deepest <= 12 and inputs <= 256 and widest <= 4096 and self.heads <= 1024


class Sizes:
    """The sizes of a model, in the compiled library's memory."""

    _known: dict[tuple[Library, Design], Sizes] = {}  # noqa: RUF012

    def __init__(self, native: Library, design: Design) -> None:
        numbers = [
            design.channels, design.message_channels, design.heads, int(design.concat),
            2 if design.both_ends else 1, int(design.sent_at_nodes), ACTIVATIONS.index(design.act),
            int(design.gate == "relu"),
        ]  # fmt: skip
        for widths, monotone in zip(design.widths, design.monotone, strict=True):
            numbers += [len(widths), len(monotone), *widths]
        rising = np.array([m for some in design.monotone for m in some], dtype=np.uint8)
        given = np.array(numbers, dtype=np.int64)
        self.handle = native.sizes(given.ctypes.data, design.beta, rising.ctypes.data)
        if not self.handle:
            raise ValueError(f"the compiled library does not know sizes {design}")
        found = np.zeros(5, dtype=np.int64)
        native.shapes(self.handle, found.ctypes.data)
        self.parameters, self.node_rows, self.edge_rows = found[:3].tolist()
        self.node_fields, self.edge_fields = found[3:].tolist()

    @classmethod
    def of(cls, native: Library, design: Design) -> Sizes:
        key = (native, design)
        if key not in cls._known:
            cls._known[key] = cls(native, design)
        return cls._known[key]


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


def pose(
    networks: Sequence[PICNN],
    design: Design,
    x: Tensor,
    heard: Tensor | None,
    edge_attr: Tensor | None,
    weight: Tensor | None,
    loop_weight: Tensor | None,
) -> Tensors:
    """Pose a problem from its networks (message, self message, update) and from features
    [1 or R, p, N]."""
    edge_attr = edge_attr if design.both_ends else None  # node-wise messages do not read it
    given = [_parameters(net) for net in networks]
    counts = tuple(map(len, given))
    flat, nodes, edges = _Pose.apply(design, counts, x, heard, edge_attr, *chain(*given))
    weight = None if weight is None else weight[:, :, 0]
    return Tensors(flat, nodes, edges, weight, loop_weight)


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


class _Pose(torch.autograd.Function):
    """Lay out the parameters, and compute the first layer of all feature paths with one product.

    One function instead of a few dozen operations: on small graphs autograd's bookkeeping of these
    would take as long as the solve.
    """

    @staticmethod
    def forward(
        ctx: Any,
        design: Design,
        counts: tuple[int, ...],
        x: Tensor,
        heard: Tensor | None,
        edge_attr: Tensor | None,
        *given: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        heads, two = design.heads, design.both_ends
        (first, bias, *message), (loop_w, loop_b, *loop), (update_w, update_b, *update) = _split(
            given, counts
        )
        lead = loop_b.dim() - 1  # whether parameters have a dimension of replicas
        r = loop_b.size(0) if lead else 1

        def flat(parts: Sequence[Tensor], sets: int = 1) -> Tensor:
            """[R, …] parameters, or ``sets`` of them for each replica, side by side."""
            return torch.cat([p.reshape(r * sets, -1) for p in parts], 1).reshape(r, -1)

        parameters = torch.cat([flat(message, heads), flat(loop), flat(update)], 1).double()
        p, rows = x.size(-2), bias.size(-1)
        first = first.reshape(r, heads * rows, -1).double()
        ends = [first[..., :p], first[..., p : 2 * p]] if two else [first[..., :p]]
        shift = bias.reshape(r, heads * rows).double()
        shifts = [shift, torch.zeros_like(shift)][: len(ends)]
        sender = ends[-1]
        if heard is not None:
            ends, shifts = ends[:-1], shifts[:-1]
        rest = [t.reshape(r, -1, p).double() for t in (loop_w, update_w)]
        weight = torch.cat([*ends, *rest], 1)  # [R, T, p]
        shifts += [t.reshape(r, -1).double() for t in (loop_b, update_b)]
        nodes = _project(weight, x) + torch.cat(shifts, 1)[..., None]
        edges = None
        if heard is not None:
            edges = _project(sender, heard)
            edges = edges if two else edges + shift[..., None]
        if edge_attr is not None:
            more = _project(first[..., 2 * p :], edge_attr)
            edges = more if edges is None else edges + more
        ctx.save_for_backward(x, heard, edge_attr, weight, first, *given)
        ctx.design, ctx.counts = design, counts
        return parameters, nodes, edges

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, parameters: Tensor, nodes: Tensor, edges: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, heard, edge_attr, weight, first, *given = ctx.saved_tensors
        needs_x, needs_heard, needs_attr = ctx.needs_input_grad[2:5]
        heads, two = ctx.design.heads, ctx.design.both_ends
        message, loop, update = _split(given, ctx.counts)
        r, p, rows = weight.size(0), x.size(-2), message[1].size(-1)
        to_nodes, sums = _outer(nodes, x), nodes.sum(-1)
        # Rows of o_0 on nodes: own, sent (unless it is on edges), self message, update.
        at = heads * rows
        slots = [to_nodes[:, :at]] if two else []
        start, bias = at if two else 0, sums[:, :at]
        if heard is None:
            slots.append(to_nodes[:, start : start + at])
            start += at
        elif edges is not None:
            slots.append(_outer(edges, heard))
            bias = bias if two else edges.sum(-1)
        if edge_attr is not None and edges is not None:
            slots.append(_outer(edges, edge_attr))
        middle = start + loop[1].size(-1)
        groups = (
            (message, heads, torch.cat(slots, -1), bias),
            (loop, 1, to_nodes[:, start:middle], sums[:, start:middle]),
            (update, 1, to_nodes[:, middle:], sums[:, middle:]),
        )
        out: list[Tensor] = []
        offset = 0
        for (fw, fb, *rest), sets, dw, db in groups:
            sizes = [t.numel() // (r * sets) for t in rest]
            width = sum(sizes)
            mine = parameters[:, offset : offset + sets * width].reshape(r * sets, width)
            offset += sets * width
            out += [dw.reshape(fw.shape).to(fw.dtype), db.reshape(fb.shape).to(fb.dtype)]
            parts = mine.split(sizes, 1)
            out += [g.reshape(t.shape).to(t.dtype) for g, t in zip(parts, rest, strict=True)]
        sender = first[..., p * (1 if two else 0) : p * (2 if two else 1)]
        back = [_back(weight, nodes, x) if needs_x else None, None, None]
        if edges is not None and needs_heard:
            back[1] = _back(sender, edges, heard)
        if edges is not None and needs_attr:
            back[2] = _back(first[..., 2 * p :], edges, edge_attr)
        return None, None, *back, *out


def _split(given: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """Consecutive parts of these lengths."""
    ends = list(accumulate(counts))
    return [given[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _project(weight: Tensor, x: Tensor) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] -> [R, T, n]."""
    x = x.contiguous()  # the rounding of a product must not depend on how the caller stored x
    if x.size(0) > 1:
        return weight @ x
    return (weight.flatten(0, 1) @ x[0]).unflatten(0, weight.shape[:2])


def _outer(found: Tensor, x: Tensor) -> Tensor:
    """Gradient of the weights of :func:`_project`: [R, T, n] and [1 or R, p, n] -> [R, T, p]."""
    if x.size(0) > 1:
        return found @ x.mT
    return (found.flatten(0, 1) @ x[0].T).unflatten(0, found.shape[:2])


def _back(weight: Tensor, found: Tensor, x: Tensor) -> Tensor:
    """Gradient of the features of :func:`_project`, in their shape."""
    if x.size(0) > 1:
        return weight.mT @ found
    return (weight.flatten(0, 1).T @ found.flatten(0, 1)).unsqueeze(0)


class EnergyKernel:
    """A posed problem on a batch of graphs, ready for the compiled library."""

    rtol = 1e-10
    """Relative tolerance of the adjoint where conjugate gradients solve it."""

    def __init__(self, native: Library, graph: Graph, design: Design, tensors: Tensors) -> None:
        self.native, self.graph, self.design, self.tensors = native, graph, design, tensors
        self.plan = plan_of(graph, native, design.channels)
        self.sizes = Sizes.of(native, design)
        self.held: Tensor | None = None
        self._check()

    def holding(self, held: Tensor) -> EnergyKernel:
        """The same problem, in which some nodes [N] stay where a solve begins."""
        out = copy(self)
        out.__dict__.pop("_posed", None)
        out.held = held.to(torch.uint8).contiguous()
        return out

    def _check(self) -> None:
        """Raise unless every array has the shape and the dtype that the library reads."""
        t, r, h = self.tensors, self.replicas, self.design.heads
        n, e = self.graph.num_nodes, self.graph.num_edges
        for name, found, allowed in (
            ("parameters", t.parameters, [(r, self.sizes.parameters)]),
            ("nodes", t.nodes, [(r, self.sizes.node_rows, n)]),
            ("edges", t.edges, [(r, self.sizes.edge_rows, e)]),
            ("weight", t.weight, [(a, b, e) for a in (1, r) for b in (1, h)]),
            ("loop_weight", t.loop_weight, [(n,)]),
        ):
            if found is None:
                continue
            if tuple(found.shape) not in allowed or found.dtype != torch.float64:
                raise FeatureError(
                    f"the posed tensor {name} has shape {tuple(found.shape)} and dtype "
                    f"{found.dtype}; expected float64 and one of the shapes {allowed}"
                )
        if t.edges is None and not self.design.sent_at_nodes:
            raise FeatureError("features of senders are missing; expected them on nodes or edges")

    @staticmethod
    def pays(native: Library, graph: Graph, design: Design, replicas: int = 1) -> bool:
        """Whether the compiled solve is cheaper than batched operations on all graphs."""
        edges = max(graph.num_edges, graph.num_nodes)
        return edges <= MOST_EDGES and edges <= LARGEST * graph.num_graphs

    @cached_property
    def direct(self) -> bool:
        """Whether Newton's method factorises Hessians; otherwise conjugate gradients multiply with
        them."""
        return self._factorisation < PRODUCTS

    @cached_property
    def direct_adjoint(self) -> bool:
        """The same for the adjoint."""
        return self._factorisation < ADJOINT_PRODUCTS

    @cached_property
    def _factorisation(self) -> float:
        """Multiplications of a factorisation for each one in a product with the Hessian."""
        k, plan = self.design.channels, self.plan
        if plan.numbers * k**2 > MOST_NUMBERS:
            return math.inf
        edges, nodes = self.graph.num_edges, self.graph.num_nodes
        message, loop, update = (
            sum(w * (len(inputs) + before) for w, before in zip(widths, (0, *widths), strict=False))
            for widths, inputs in zip(self.design.widths, self.design.monotone, strict=True)
        )
        product = edges * self.design.heads * message + nodes * (loop + update)
        return plan.work * k**3 / max(product, 1)

    @property
    def replicas(self) -> int:
        return self.tensors.parameters.size(0)

    @property
    def name(self) -> str:
        """What computes, for :meth:`~hogwild.models.Model.solver_path`."""
        return self.native.instructions

    @cached_property
    def _strides(self) -> tuple[int, int]:
        """Numbers between the weights of two replicas and of two heads; zero where they share."""
        if self.tensors.weight is None:
            return 0, 0
        r, h, e = self.tensors.weight.shape
        return h * e if r > 1 else 0, e if h > 1 else 0

    @cached_property
    def _posed(self) -> tuple[Any, ...]:
        """The arguments that pose the problem, and the tensors that must stay alive."""
        t = self.tensors.detach()
        addresses = [address(x) for x in (t.parameters, t.nodes, t.edges, t.weight)]
        return (
            self.plan.handle, self.sizes.handle, self.replicas, *addresses, *self._strides,
            address(t.loop_weight),
        ), t  # fmt: skip

    def _arguments(self, direct: bool) -> tuple[Any, ...]:
        """The arguments that pose the problem, and whether Hessians are factorised."""
        posed, _alive = self._posed
        return (*posed, int(direct), address(self.held))

    def solve(
        self, h0: Tensor | None, atol: float, rtol: float, max_iter: int, max_backtracks: int,
        patience: int,
    ) -> Solution:  # fmt: skip
        """Solve from ``h0`` [R, k, N] (``None``: zero)."""
        replicas, graphs, like = self.replicas, self.graph.num_graphs, self.tensors.nodes
        h = like.new_empty(replicas, self.design.channels, self.graph.num_nodes).detach()
        status = torch.empty(replicas, graphs, dtype=torch.long, device=like.device)
        found = Solution(h, status, torch.empty_like(status), h.new_empty(replicas, graphs))
        options = (atol, rtol, max_iter, max_backtracks, patience)
        start = None if h0 is None else h0.to(h.dtype).contiguous()
        self._solve(start, options, found)
        return found

    def _solve(self, h0: Tensor | None, options: tuple[Any, ...], into: Solution) -> None:
        """Solve, and write the solution."""
        failed, why = self.native.call(
            "solve", *self._arguments(self.direct), address(h0), *options, torch.get_num_threads(),
            address(into.value), address(into.status), address(into.iterations),
            address(into.residual),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"the compiled solve failed: {why}")

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient at ``h`` [R, k, N], zero at nodes that are held, and the size of its terms
        [R, G]."""
        h = h.detach().to(torch.float64).contiguous()
        out, scale = torch.empty_like(h), h.new_empty(h.size(0), self.graph.num_graphs)
        failed, why = self.native.call(
            "gradient", *self._arguments(False), address(h), torch.get_num_threads(), address(out),
            address(scale),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"the compiled gradient failed: {why}")
        return out, scale

    def adjoint(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        """How the adjoint solve ended, and the gradients of everything that was posed, from the
        gradient [R, k, N] at the solution ``h``."""
        t, replicas = self.tensors, self.replicas
        h, gradient = h.detach().contiguous(), gradient.contiguous()
        out = Tensors(
            h.new_empty(t.parameters.shape),
            h.new_empty(t.nodes.shape),
            None if t.edges is None else h.new_empty(t.edges.shape),
            None
            if t.weight is None
            else h.new_empty(replicas, self.design.heads, self.graph.num_edges),
            None if t.loop_weight is None else h.new_empty(replicas, self.graph.num_nodes),
        )
        status = torch.empty(replicas, self.graph.num_graphs, dtype=torch.long, device=h.device)
        self._adjoint(h, gradient, out, status)
        ended = Solution(gradient, status, torch.ones_like(status), 0.0 * status)
        weight, loop = out.weight, out.loop_weight
        if weight is not None and t.weight is not None:
            weight = weight.sum_to_size(t.weight.shape)
        if loop is not None:
            loop = loop.sum(0)
        return ended, (out.parameters, out.nodes, out.edges, weight, loop)

    def _adjoint(self, h: Tensor, gradient: Tensor, into: Tensors, status: Tensor) -> None:
        """Write all gradients; those of weights for every replica and head."""
        failed, why = self.native.call(
            "adjoint", *self._arguments(self.direct_adjoint), address(h), address(gradient),
            self.rtol, torch.get_num_threads(), *(address(x) for x in into.every()),
            address(status),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"the compiled adjoint failed: {why}")
