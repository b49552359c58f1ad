"""The compiled solve of energies of one round, and its adjoint.

An energy is posed by a few tensors (:mod:`hogwild.engines.posing`). The compiled code does the
rest: every (graph, replica) has its own Newton iteration, line search and stop, and
:meth:`EnergyKernel.adjoint` computes the gradients of the posed tensors in closed form.
"""

from __future__ import annotations

import ctypes
import math
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.engines.posing import Design, Posing, Tensors
from hogwild.errors import FeatureError
from hogwild.graph import Graph, kept, once
from hogwild.kernels.native import Library, address
from hogwild.linalg.direct import (
    LARGEST,
    MOST_EDGES,
    MOST_NUMBERS,
    declined,
    plan_of,
)
from hogwild.linalg.solution import Solution
from hogwild_node.activations import SOFTPLUS, SQUAREPLUS

ACTIVATIONS = {act.name: act for act in (SOFTPLUS, SQUAREPLUS)}
"""The activations of ``source/vectors.h``, in its order."""

_INT, _AT = ctypes.c_int64, ctypes.c_void_p
PRODUCTS, ADJOINT_PRODUCTS = 20.0, 150.0
"""Multiplications of a factorisation for each one in a product with the Hessian, above which
conjugate gradients are cheaper: in Newton's method, and in the adjoint, which is more exact."""


class Posed(ctypes.Structure):
    """A problem, as in ``source/batch.h``."""

    _fields_ = (
        ("plan", _AT), ("sizes", _AT), ("replicas", _INT), ("parameters", _AT), ("nodes", _AT),
        ("edges", _AT), ("weight", _AT), ("weight_replica", _INT), ("weight_head", _INT),
        ("loop_weight", _AT), ("method", _INT), ("held", _AT),
    )  # fmt: skip


class Sizes:
    """The sizes of a model, in the compiled library's memory."""

    _known: dict[tuple[Library, Design], Sizes] = {}  # noqa: RUF012

    def __init__(self, native: Library, design: Design) -> None:
        numbers = [
            design.channels, design.message_channels, design.heads, int(design.concat),
            2 if design.both_ends else 1, int(design.sent_at_nodes),
            list(ACTIVATIONS).index(design.act), int(design.gate == "relu"),
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


@kept
def factorisation(graph: Graph, native: Library, design: Design) -> float:
    """Multiplications of a factorisation for each one in a product with the Hessian; infinite where
    there is none."""
    k, case = design.channels, (factorisation, design)
    if case in declined(graph):
        return math.inf
    plan = plan_of(graph, native, k)
    message, loop, update = (
        sum(w * (len(inputs) + before) for w, before in zip(widths, (0, *widths), strict=False))
        for widths, inputs in zip(design.widths, design.monotone, strict=True)
    )
    product = graph.num_edges * design.heads * message + graph.num_nodes * (loop + update)
    cost = plan.work * k**3 / max(product, 1)
    if plan.numbers * k**2 > MOST_NUMBERS:
        cost = math.inf
    if cost >= PRODUCTS:
        declined(graph).add(case)
    return cost


class EnergyKernel:
    """A posed problem on a batch of graphs, ready for the compiled library."""

    rtol = 1e-10
    """Relative tolerance of the adjoint where conjugate gradients solve it."""

    def __init__(self, native: Library, graph: Graph, design: Design, tensors: Tensors) -> None:
        self.native, self.graph, self.design, self.tensors = native, graph, design, tensors
        self.plan = plan_of(graph, native, design.channels)
        self.sizes = Sizes.of(native, design)
        self.held: Tensor | None = None
        self.posing: Posing | None = None
        self._check()

    @classmethod
    def of(cls, native: Library, graph: Graph, design: Design, posing: Posing) -> EnergyKernel:
        """The kernel of a problem that was posed from networks and features."""
        made = cls(native, graph, design, posing.tensors)
        made.posing = posing if torch.is_grad_enabled() else None  # it keeps features alive
        return made

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
        known: list[tuple[str, Tensor, list[tuple[int, ...]]]] = [
            ("parameters", t.parameters, [(r, self.sizes.parameters)]),
            ("nodes", t.nodes, [(r, self.sizes.node_rows, n)]),
        ]
        if t.edges is not None:
            known.append(("edges", t.edges, [(r, self.sizes.edge_rows, e)]))
        if t.weight is not None:
            known.append(("weight", t.weight, [(a, b, e) for a in (1, r) for b in (1, h)]))
        if t.loop_weight is not None:
            known.append(("loop_weight", t.loop_weight, [(n,)]))
        for name, found, allowed in known:
            if found.shape not in allowed or found.dtype != torch.float64:
                raise FeatureError(
                    f"the posed tensor {name} has shape {tuple(found.shape)} and dtype "
                    f"{found.dtype}; expected float64 and one of the shapes {allowed}"
                )
        if t.edges is None and not self.design.sent_at_nodes:
            raise FeatureError("features of senders are missing; expected them on nodes or edges")

    def _embeddings(self, x: Tensor) -> Tensor:
        """Embeddings [R, k, N], or gradients of them, as the library reads them."""
        shape = (self.replicas, self.design.channels, self.graph.num_nodes)
        if x.shape != shape:
            raise FeatureError(
                f"embeddings, or gradients of them, have shape {tuple(x.shape)}; expected {shape}"
            )
        x = x.detach() if x.requires_grad else x
        return x.to(torch.float64).contiguous()

    @staticmethod
    def pays(native: Library, graph: Graph, design: Design, replicas: int = 1) -> bool:
        """Whether the compiled solve is cheaper than batched operations on all graphs."""
        edges = max(graph.num_edges, graph.num_nodes)
        return edges <= MOST_EDGES and edges <= LARGEST * graph.num_graphs

    @staticmethod
    def arranged(native: Library, graph: Graph, rows: Tensor) -> Tensor:
        """Numbers of nodes [..., N] in the order in which the posed tensors have the nodes."""
        return rows

    def in_graph_order(self, rows: Tensor) -> Tensor:
        """Numbers of nodes [..., N], :meth:`arranged`, in the order of the graph again."""
        return rows

    @once
    def direct(self) -> bool:
        """Whether Newton's method factorises Hessians; otherwise conjugate gradients multiply with
        them."""
        return factorisation(self.graph, self.native, self.design) < PRODUCTS

    @once
    def direct_adjoint(self) -> bool:
        """The same for the adjoint."""
        return factorisation(self.graph, self.native, self.design) < ADJOINT_PRODUCTS

    @property
    def replicas(self) -> int:
        return self.tensors.parameters.size(0)

    @property
    def name(self) -> str:
        """What computes, for :meth:`~hogwild.models.Model.solver_path`."""
        return self.native.instructions

    @once
    def _strides(self) -> tuple[int, int]:
        """Numbers between the weights of two replicas and of two heads; zero where they share."""
        if self.tensors.weight is None:
            return 0, 0
        r, h, e = self.tensors.weight.shape
        return h * e if r > 1 else 0, e if h > 1 else 0

    @once
    def _posed(self) -> tuple[Any, ...]:
        """The arguments that pose the problem, and the tensors that must stay alive."""
        t = self.tensors.detach()
        addresses = [address(x) for x in (t.parameters, t.nodes, t.edges, t.weight)]
        return (
            self.plan.handle, self.sizes.handle, self.replicas, *addresses, *self._strides,
            address(t.loop_weight),
        ), t  # fmt: skip

    def plain(self) -> Tensors:
        """The posed tensors, detached, with the nodes in the order of the graph."""
        return self.tensors.detach()

    def _arguments(self, direct: bool) -> Any:
        """What poses the problem, and whether Hessians are factorised."""
        posed, _alive = self._posed
        return ctypes.byref(Posed(*posed, int(direct), address(self.held)))

    def solve(
        self, h0: Tensor | None, atol: float, rtol: float, max_iter: int, max_backtracks: int,
        patience: int,
    ) -> Solution:  # fmt: skip
        """Solve from ``h0`` [R, k, N] (``None``: zero)."""
        replicas, graphs, like = self.replicas, self.graph.num_graphs, self.tensors.nodes
        shape = (replicas, self.design.channels, self.graph.num_nodes)
        h = torch.empty(shape, dtype=torch.float64, device=like.device)
        status = torch.empty(replicas, graphs, dtype=torch.long, device=like.device)
        found = Solution(h, status, torch.empty_like(status), h.new_empty(replicas, graphs))
        options = (atol, rtol, max_iter, max_backtracks, patience)
        start = None if h0 is None else self._embeddings(h0)
        self._solve(start, options, found)
        return found

    def _solve(self, h0: Tensor | None, options: tuple[Any, ...], into: Solution) -> None:
        """Solve, and write the solution."""
        self._call(
            "solve", self._arguments(self.direct), address(h0), *options, torch.get_num_threads(),
            address(into.value), address(into.status), address(into.iterations),
            address(into.residual),
        )  # fmt: skip

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raise where it fails."""
        failed, why = self.native.call(name, *arguments)
        if failed:
            raise MemoryError(f"the compiled {name} failed: {why}")

    def gradient(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient at ``h`` [R, k, N], zero at nodes that are held, and the size of its terms
        [R, G]."""
        h = self._embeddings(h)
        out, scale = torch.empty_like(h), h.new_empty(h.size(0), self.graph.num_graphs)
        self._call(
            "gradient", self._arguments(False), address(h), torch.get_num_threads(), address(out),
            address(scale),
        )  # fmt: skip
        return out, scale

    def adjoint(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        """How the adjoint solve ended, and the gradients of everything that was posed, from the
        gradient [R, k, N] at the solution ``h``."""
        t, replicas = self.tensors, self.replicas
        h, gradient = self._embeddings(h), self._embeddings(gradient)
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
        ended = Solution(gradient, status, torch.ones_like(status), h.new_zeros(status.shape))
        weight, loop = out.weight, out.loop_weight
        if weight is not None and t.weight is not None:
            weight = weight.sum_to_size(t.weight.shape)
        if loop is not None:
            loop = loop.sum(0)
        return ended, (out.parameters, out.nodes, out.edges, weight, loop)

    @property
    def sources(self) -> tuple[Tensor | None, ...]:
        """The tensors that :meth:`gradients` computes gradients of."""
        return self.tensors.every() if self.posing is None else self.posing.sources

    def gradients(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        """As :meth:`adjoint`, with the gradients of :attr:`sources`."""
        ended, found = self.adjoint(h, gradient)
        return ended, found if self.posing is None else self.posing.back(found)

    def _adjoint(self, h: Tensor, gradient: Tensor, into: Tensors, status: Tensor) -> None:
        """Write all gradients; those of weights for every replica and head."""
        self._call(
            "adjoint", self._arguments(self.direct_adjoint), address(h), address(gradient),
            self.rtol, torch.get_num_threads(), *(address(x) for x in into.every()),
            address(status),
        )  # fmt: skip
