"""Energies in compiled code on a CPU: Newton's method, and the adjoint.

Kernels read a few tensors (:mod:`hogwild.engines.inputs`). Every (graph, replica) has its own
Newton iteration, line search and stop, and :meth:`CpuEngine.adjoint` computes the gradients of
these tensors in closed form.
"""

from __future__ import annotations

import ctypes
import math
from copy import copy
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from hogwild.engines.base import Engine
from hogwild.engines.inputs import ACTIVATIONS, KernelInputs, Sizes, Tensors
from hogwild.engines.rules import RuleKernel
from hogwild.errors import FeatureError
from hogwild.graph import Graph, cached, once
from hogwild.kernels.native import Library, Missing, address, found
from hogwild.linalg.direct import (
    LARGEST,
    MOST_EDGES,
    MOST_NUMBERS,
    declined,
    plan_of,
)
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Problem
from hogwild.problems.energy import Design, EnergyProblem
from hogwild.solvers.adjoint import tolerance
from hogwild.solvers.loop import Solver
from hogwild.solvers.newton import Newton
from hogwild_node.activations import SOFTPLUS
from hogwild_node.rules.base import Rule

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


@cached
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


class CpuEngine(Engine):
    """An energy on a batch of graphs, whose solves take graphs in turn.

    Args:
        native: The compiled library.
        problem: The energy.
        solver: Newton's method.
    """

    kind = EnergyProblem
    device = "cpu"
    holds = True
    problem: EnergyProblem
    order: Tensor | None = None
    """The nodes in the order in which kernels read them, [N]; ``None``: that of the graph."""

    def __init__(self, native: Library, problem: EnergyProblem, solver: Solver) -> None:
        self.native, self.problem, self.solver = native, problem, solver
        self.graph, self.design = problem.graph, problem.design
        sizes = Sizes.of(native, problem.design)
        assert sizes is not None
        self.sizes = sizes
        self._held: Tensor | None = None  # the same as kernels read it
        self._analyse()
        self.inputs = KernelInputs(native, problem, self.order)
        self.tensors = self.inputs.tensors
        self._check()

    def _analyse(self) -> None:
        """What depends on the graph alone."""
        self.plan = plan_of(self.graph, self.native, self.design.channels)

    @classmethod
    def of(cls, problem: Problem, solver: Solver) -> Self | str:
        native = found()
        assert isinstance(problem, EnergyProblem)
        if isinstance(native, Missing):
            return f"there is no compiled library ({native.reason})"
        if type(solver) is not Newton or solver.linear == "cg":  # a subclass may change any step
            return f"solver={solver}, and the compiled solve is Newton(linear='auto')"
        act, x = problem.design.act, problem.x
        if ACTIVATIONS.get(act.name) != act:
            return f"the activation {act.name!r} is not one of {', '.join(ACTIVATIONS)}"
        if any(t is not None and t.dtype != torch.float64 for t in problem.sources[:3]):
            return "the solve runs in float32, and the compiled solve in float64"
        if type(x) is not Tensor or any(p.device != x.device for p in problem.parameters):
            return f"x is no tensor, or the features are on {x.device} and some parameters are not"
        if Sizes.of(native, problem.design) is None:
            if Sizes.of(native, replace(problem.design, act=SOFTPLUS)) is not None:
                return f"the compiled library has no activation {act.name!r}"
            return "the networks have more layers, units or inputs than the compiled solve takes"
        if not cls.is_fastest_for(native, problem):
            return "the graph is large or has no small separators: other methods are cheaper there"
        return cls(native, problem, solver)

    @classmethod
    def updates(cls, rule: Rule, graph: Graph, h: Tensor, whole: bool) -> RuleKernel | str:
        return RuleKernel.of(rule, graph, h, whole)

    @staticmethod
    def is_fastest_for(native: Library, problem: EnergyProblem) -> bool:
        """Whether the compiled solve is cheaper than batched operations on all graphs."""
        graph = problem.graph
        edges = max(graph.num_edges, graph.num_nodes)
        return edges <= MOST_EDGES and edges <= LARGEST * graph.num_graphs

    @property
    def path(self) -> str:
        return f"compiled ({self.name})"

    @property
    def name(self) -> str:
        """What computes."""
        return self.native.instructions

    def holding(self, held: Tensor) -> Self:
        out = copy(self)
        out.held, out._held = held, self._reordered(held).to(torch.uint8).contiguous()
        return out

    def _reordered(self, rows: Tensor) -> Tensor:
        """Numbers of nodes [..., N] in the order of the kernels."""
        return rows if self.order is None else rows.index_select(-1, self.order)

    def _in_graph_order(self, rows: Tensor) -> Tensor:
        """Numbers of nodes [..., N] in the order of the graph again."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(-1, self.order, rows)

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
        for name, x, allowed in known:
            if x.shape not in allowed or x.dtype != torch.float64:
                raise FeatureError(
                    f"the kernel's input {name} has shape {tuple(x.shape)} and dtype "
                    f"{x.dtype}; expected float64 and one of the shapes {allowed}"
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
        return self._reordered(x.to(torch.float64)).contiguous()

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
        return self.problem.replicas

    @once
    def _strides(self) -> tuple[int, int]:
        """Numbers between the weights of two replicas and of two heads; zero where they share."""
        if self.tensors.weight is None:
            return 0, 0
        r, h, e = self.tensors.weight.shape
        return h * e if r > 1 else 0, e if h > 1 else 0

    @once
    def _problem_arguments(self) -> tuple[tuple[Any, ...], Tensors]:
        """The arguments that say what the problem is, and the tensors that must stay alive."""
        t = self.tensors.detach()
        addresses = [address(x) for x in (t.parameters, t.nodes, t.edges, t.weight)]
        return (
            self.plan.handle, self.sizes.handle, self.replicas, *addresses, *self._strides,
            address(t.loop_weight),
        ), t  # fmt: skip

    def _arguments(self, method: int) -> Any:
        """What says what the problem is, how linear systems are solved, and which nodes are
        held."""
        arguments, _alive = self._problem_arguments
        return ctypes.byref(Posed(*arguments, int(method), address(self._held)))

    def solve(self, h0: Tensor | None, solver: Solver | None = None) -> Solution:
        method = solver or self.solver
        assert isinstance(method, Newton)
        replicas, graphs, like = self.replicas, self.graph.num_graphs, self.tensors.nodes
        shape = (replicas, self.design.channels, self.graph.num_nodes)
        h = torch.empty(shape, dtype=torch.float64, device=like.device)
        status = torch.empty(replicas, graphs, dtype=torch.long, device=like.device)
        out = Solution(h, status, torch.empty_like(status), h.new_empty(replicas, graphs))
        limits = (*method.tolerances(torch.float64), method.max_iter)
        start = None if h0 is None else self._embeddings(h0)
        self._solve(start, (*limits, method.max_backtracks, method.patience), out)
        out.value = self._in_graph_order(out.value)
        return out

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
        h = self._embeddings(h)
        out, scale = torch.empty_like(h), h.new_empty(h.size(0), self.graph.num_graphs)
        self._call(
            "gradient", self._arguments(False), address(h), torch.get_num_threads(), address(out),
            address(scale),
        )  # fmt: skip
        return self._in_graph_order(out), scale

    def adjoint(self, h: Tensor, gradient: Tensor) -> tuple[Solution, Tensors]:
        """How the adjoint solve ended, and the gradients of :attr:`tensors`, from the gradient
        [R, k, N] at the solution ``h``."""
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
        # The library counts neither iterations nor residuals here.
        ended = Solution(gradient, status, torch.full_like(status, -1), h.new_zeros(status.shape))
        weight, loop = out.weight, out.loop_weight
        if weight is not None and t.weight is not None:
            weight = weight.sum_to_size(t.weight.shape)
        if loop is not None:
            loop = loop.sum(0)
        return ended, replace(out, weight=weight, loop_weight=loop)

    def vjp(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        ended, gradients = self.adjoint(h, gradient)
        return ended, self.inputs.back(gradients)

    @property
    def rtol(self) -> float:
        """Relative tolerance of the adjoint where conjugate gradients solve it."""
        wanted = self.problem.parameters[0].dtype
        return tolerance(self.solver.adjoint_rtol, torch.float64, wanted)

    def _adjoint(self, h: Tensor, gradient: Tensor, into: Tensors, status: Tensor) -> None:
        """Write all gradients; those of weights for every replica and head."""
        self._call(
            "adjoint", self._arguments(self.direct_adjoint), address(h), address(gradient),
            self.rtol, torch.get_num_threads(), *(address(x) for x in into.every()),
            address(status),
        )  # fmt: skip
