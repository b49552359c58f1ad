"""The compiled solve of energies of one round, and its adjoint.

An energy is posed by its parameters and by the first layer of its networks' feature paths, which
one matrix product computes (:func:`pose`). The compiled code does the rest: every (graph,
replica) has its own Newton iteration, line search and stop. Autograd sees one function of the posed
tensors, whose gradients :meth:`EnergyKernel.adjoint` computes in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.errors import FeatureError
from hogwild.graph import Graph
from hogwild.kernels.native import Library
from hogwild.kernels.plan import address, plan_of
from hogwild.linalg.solution import Solution
from hogwild_node.networks import PICNNParameters

ACTIVATIONS = ("softplus", "squareplus")


PRODUCTS = 250.0
"""Cost of conjugate gradients in products with the Hessian, measured in the multiplications of a
factorisation that take as long."""
MOST_NUMBERS = float(1 << 28)
"""Numbers in the fronts of one graph above which it is not factorised."""
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


def flat(net: PICNNParameters) -> list[Tensor]:
    """All parameters of a network but the first layer of its feature path, [B, …] each."""
    parts = []
    for i, wy in enumerate(net.wy):
        parts += [wy] if i == 0 else [wy, net.wz[i - 1]]
    for weight, bias in zip(net.feature_weight[1:], net.feature_bias[1:], strict=True):
        parts += [weight, bias]
    return [x.flatten(1) for x in parts]


def pose(
    networks: Sequence[PICNNParameters],
    design: Design,
    x: Tensor,
    heard: Tensor | None,
    edge_attr: Tensor | None,
    weight: Tensor | None,
    loop_weight: Tensor | None,
) -> Tensors:
    """Pose a problem from the parameters of its networks (message, self message, update) and from
    features [1 or R, p, N]."""
    message, loop, update = networks
    replicas, p, double = loop.wy[0].size(0), x.size(-2), torch.float64
    heads, both_ends = design.heads, design.both_ends

    def per_replica(t: Tensor) -> Tensor:
        """[R·H, a, …] -> [R, H·a, …]."""
        return t if heads == 1 else t.reshape(replicas, heads * t.size(1), *t.shape[2:])

    parameters = torch.cat(
        [per_replica(torch.cat(flat(message), 1)), *flat(loop), *flat(update)], 1
    ).to(double)
    first, bias = message.feature_weight[0], message.feature_bias[0]
    own = 1 if both_ends else 0
    sender = first[..., own * p : (own + 1) * p]
    at_nodes = [first[..., :p]] if both_ends else []
    biases = [bias] if both_ends else []
    if heard is None:
        at_nodes.append(sender)
        biases.append(torch.zeros_like(bias) if both_ends else bias)
    weights = [
        *(per_replica(w) for w in at_nodes),
        loop.feature_weight[0],
        update.feature_weight[0],
    ]
    shifts = [*(per_replica(b) for b in biases), loop.feature_bias[0], update.feature_bias[0]]
    nodes = (
        _project(torch.cat(weights, 1).to(double), x) + torch.cat(shifts, 1).to(double)[..., None]
    )
    edges = None
    if heard is not None:
        edges = _project(per_replica(sender).to(double), heard)
        if not both_ends:
            edges = edges + per_replica(bias).to(double)[..., None]
    if edge_attr is not None and both_ends:
        found = _project(per_replica(first[..., 2 * p :]).to(double), edge_attr)
        edges = found if edges is None else edges + found
    if weight is not None:
        weight = weight[:, :, 0]
    return Tensors(parameters, nodes, edges, weight, loop_weight)


def _project(weight: Tensor, x: Tensor) -> Tensor:
    """[R, T, p] @ [1 or R, p, n] -> [R, T, n]."""
    x = x.contiguous()  # the rounding of a product must not depend on how the caller stored x
    if x.size(0) > 1:
        return weight @ x
    return (weight.flatten(0, 1) @ x[0]).unflatten(0, weight.shape[:2])


class EnergyKernel:
    """A posed problem on a batch of graphs, ready for the compiled library."""

    rtol = 1e-10
    """Relative tolerance of the adjoint where conjugate gradients solve it."""

    def __init__(self, native: Library, graph: Graph, design: Design, tensors: Tensors) -> None:
        self.native, self.graph, self.design, self.tensors = native, graph, design, tensors
        self.plan = plan_of(graph, native, design.channels)
        self.sizes = Sizes.of(native, design)
        self._check()

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
    def pays(native: Library, graph: Graph, design: Design) -> bool:
        """Whether the compiled solve is cheaper than batched operations on all graphs."""
        return max(graph.num_edges, graph.num_nodes) <= MOST_EDGES

    @cached_property
    def direct(self) -> bool:
        """Whether Hessians are factorised; otherwise conjugate gradients multiply with them."""
        k, plan = self.design.channels, self.plan
        if plan.numbers * k**2 > MOST_NUMBERS:
            return False
        edges, nodes = self.graph.num_edges, self.graph.num_nodes
        message, loop, update = (
            sum(w * (len(inputs) + before) for w, before in zip(widths, (0, *widths), strict=False))
            for widths, inputs in zip(self.design.widths, self.design.monotone, strict=True)
        )
        product = edges * self.design.heads * message + nodes * (loop + update)
        return plan.work * k**3 < PRODUCTS * product

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
            address(t.loop_weight), int(self.direct),
        ), t  # fmt: skip

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
        arguments, _alive = self._posed
        failed, why = self.native.call(
            "solve", *arguments, address(h0), *options, torch.get_num_threads(),
            address(into.value), address(into.status), address(into.iterations),
            address(into.residual),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"the compiled solve failed: {why}")

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
        arguments, _alive = self._posed
        failed, why = self.native.call(
            "adjoint", *arguments, address(h), address(gradient), self.rtol,
            torch.get_num_threads(), *(address(x) for x in into.every()), address(status),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"the compiled adjoint failed: {why}")
