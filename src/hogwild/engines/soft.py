"""Soft energies in rows: their solves and adjoints by steps whose number the condition bounds.

In rows the channels of a node or an edge lie side by side, and one product serves all matrices:
with :math:`B = [W^\\top\\; V^\\top\\; U^\\top]`, :math:`Y B` holds the arguments of all edges and
of all nodes, and what comes back is multiplied by :math:`B^\\top`. The compiled library solves
every graph for itself (``source/soft.h``). On a GPU one launch takes all steps on all graphs
(:mod:`hogwild.engines.soft_gpu`), and elsewhere torch does. Their number is known beforehand:
nothing is read back, and a CUDA graph can record them. The residual at the end is torch's own, so
that no mistake of a kernel is called converged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hogwild.engines import soft_gpu
from hogwild.engines.base import Engine, TorchEngine
from hogwild.kernels.native import Library, Missing, address, found, library
from hogwild.linalg.solution import Solution
from hogwild.problems.base import Problem
from hogwild.problems.soft import SoftProblem
from hogwild.solvers.loop import Solver, solve
from hogwild.solvers.momentum import TripleMomentum, triple
from hogwild_node.soft import WIDTH, Soft
from hogwild_node.tree import arrays

MODERATE = 1e4
"""The largest condition number for which linear systems are solved by iterations."""
MOST_PRODUCTS = 10_000
"""Products with a Hessian after which conjugate gradients give a graph up."""
ROUNDING = 8.0
r"""Rounding of a residual :math:`b - H x` at most, in units of :math:`L \|x\|` times the machine's
precision: up to 2.6 in trials without a record."""
VECTOR = 64
"""Bytes of a vector in compiled code: rows are filled up to whole vectors."""


def momentum_steps(condition: float, rtol: float) -> int:
    r"""Accelerated steps after which the residual is at most ``rtol`` times the size of its terms:
    :math:`\rho^t \sqrt\kappa \le` ``rtol`` with :math:`\rho = 1 - 1/\sqrt\kappa`."""
    root = math.sqrt(condition)
    if root <= 1.0:
        return 1
    return max(math.ceil(math.log(root / rtol) / -math.log1p(-1.0 / root)), 0)


def chebyshev_steps(condition: float, rtol: float) -> int:
    r"""Steps of Chebyshev's method after which :math:`\|b - A x\| \le` ``rtol`` :math:`\|b\|`:
    :math:`2 q^t \le` ``rtol`` with :math:`q = (\sqrt\kappa - 1) / (\sqrt\kappa + 1)`."""
    root = math.sqrt(condition)
    return max(math.ceil(math.log(2.0 / rtol) / math.log((root + 1.0) / (root - 1.0))), 0)


class SoftRows:
    """A soft energy on all graphs and replicas, detached from autograd, in rows.

    Scales and weights of edges have gradients where they depend on parameters or need a gradient
    for another reason (``scaled``): without edge weights and attention they are constants.

    Args:
        problem: The energy.
    """

    def __init__(self, problem: SoftProblem) -> None:
        self.problem, self.graph, p = problem.detach(), problem.graph, problem.local
        self.condition = problem.condition
        self.beta = p.beta
        self.anchor, self.offset, self.bias = (
            t.detach().mT.contiguous() for t in (p.anchor, p.offset, p.bias)
        )  # [R, N, k], [R, N, o], [R, E, w]
        scales = p.here, p.there, p.weight
        self.scales = tuple(t.detach().contiguous() for t in scales)
        self.scaled = any(t.requires_grad for t in scales)
        self.back = torch.cat([p.receiver, p.sender, p.inner], 1).detach()  # [R, 2 w + o, k]
        self.ramps = (p.low, p.high, p.inner_low, p.inner_high)
        self.ramps = tuple(t.detach()[..., 0] for t in self.ramps)  # [R, w] or [R, o]
        self.width, self.own = self.bias.size(2), self.offset.size(2)
        self.lipschitz = problem.lipschitz().detach()

    # -- all graphs at once ------------------------------------------------------------------------

    def gradient(self, y: Tensor) -> Tensor:
        """The gradient at y, both [R, N, k]."""
        return self.problem.evaluate(y.mT).gradient.mT

    def steps(
        self, start: Tensor, rtol: float, most: int | None = None
    ) -> tuple[Tensor, Tensor, int]:
        """Accelerated steps (:mod:`hogwild.solvers.momentum`) from ``start`` [R, N, k], as many as
        the condition and the tolerance need, and ``most`` at most: where they lead, the gradient
        there, their number."""
        count = momentum_steps(self.condition, rtol)
        count = count if most is None else min(count, most)
        if soft_gpu.fused(self, start):
            y, x, before = (start.clone(memory_format=torch.contiguous_format) for _ in range(3))
            soft_gpu.run(self, count, self.bias, self.offset, self.anchor, (y, x, before))
            return y, self.gradient(y), count
        rate, keep, ahead = triple(self.beta, self.condition * self.beta)
        y = x = before = start
        for _ in range(count):
            fresh = (x + keep * (x - before)).sub_(self.gradient(y), alpha=rate)
            y, x, before = fresh + ahead * (fresh - x), fresh, x
        return y, self.gradient(y), count

    def chebyshev(self, h: Tensor, b: Tensor, rtol: float) -> tuple[Tensor, Tensor, int]:
        """The solution of H x = b with the Hessian at h, all [R, N, k]; the residual b - H x; and
        the number of steps."""
        hessian = self.problem.evaluate(h.mT).hessian()
        along, inside = (x.mT for x in hessian.curvatures)

        def apply(v: Tensor) -> Tensor:
            return hessian.apply(v.mT).mT

        least, most = self.beta, self.condition * self.beta
        middle, half = 0.5 * (most + least), 0.5 * (most - least)
        count = chebyshev_steps(self.condition, rtol)
        r = b.clone(memory_format=torch.contiguous_format)
        x, direction, ratio = torch.zeros_like(r), r / middle, half / middle
        if soft_gpu.fused(self, r, along, inside):
            soft_gpu.run(self, count, along, inside, None, (direction, x, r))
            return x, b - apply(x), count
        for _ in range(count):
            x = x + direction
            r = r - apply(direction)
            following = 1.0 / (2.0 * middle / half - ratio)
            direction = following * ratio * direction + (2.0 * following / half) * r
            ratio = following
        return x, b - apply(x), count

    def cotangents(self, h: Tensor, dual: Tensor) -> Soft:
        r"""The gradients of :math:`\langle \lambda, \nabla E(h) \rangle` in all that the energy is
        made of, in its own fields; h and λ are [R, N, k]. Constants have zeros."""
        native = library() if h.device.type == "cpu" else None
        if native is not None:
            return self._compiled_cotangents(native, h, dual)
        trust = not self.scaled and soft_gpu.fused(self, h, dual)
        if trust and soft_gpu.trusted(h.dtype, h.device):
            bias, *rest = soft_gpu.cotangents(self, h, dual)
            return self.fields(h, dual, bias, None, *rest)
        with torch.inference_mode(False), torch.enable_grad():
            attached = self.problem.map(lambda x: x.clone().requires_grad_())
            given = [x for x, _ in arrays(attached)]
            residual = attached.residual(h.mT)
            found = torch.autograd.grad(residual, given, dual.mT, materialize_grads=True)
        gradients = iter(found)
        return attached.local.map(lambda _: next(gradients))

    def fields(
        self, h: Tensor, dual: Tensor, bias: Tensor, scales: Sequence[Tensor] | None,
        bent: Tensor, straight: Tensor, flat: Tensor, steep: Tensor,
    ) -> Soft:  # fmt: skip
        """Gradients in the shapes of the energy's fields."""
        w = self.width
        matrices = bent.mT @ h + straight.mT @ dual  # [R, 2 w + o, k]
        if scales is None:
            scales = [torch.zeros_like(x) for x in self.scales]
        elif self.scales[0].size(0) == 1:
            scales = [x.sum(0, keepdim=True) for x in scales]
        return Soft(
            anchor=-self.beta * dual.mT, bias=bias.mT,
            here=scales[0], there=scales[1], weight=scales[2],
            receiver=matrices[:, :w], sender=matrices[:, w : 2 * w], inner=matrices[:, 2 * w :],
            low=flat[:, :w, None], high=steep[:, :w, None], offset=bent[..., 2 * w :].mT,
            inner_low=flat[:, w:, None], inner_high=steep[:, w:, None], beta=self.beta,
        )  # fmt: skip

    # -- compiled ----------------------------------------------------------------------------------

    def compiled(self, native: Library, at: Tensor, b: Tensor | None, **limits: Any) -> Solution:
        """The solution from ``at``, or with ``b`` the solution of H x = b with the Hessian at
        ``at``, all [R, N, k]; ``limits`` are atol, rtol and most, the largest number of steps."""
        (r, _, k), graph = self.anchor.shape, self.graph
        most = torch.full((r,), limits["most"])
        steps = torch.zeros(r, graph.num_graphs, dtype=torch.long)
        residual, limit = torch.zeros(2, r, graph.num_graphs, dtype=torch.float64)
        at, b = self._filled(at, 2), None if b is None else self._filled(b, 2)
        out = torch.empty_like(at)
        self._call(
            native, address(at), address(b), limits.get("atol", 0.0), limits["rtol"],
            address(most), torch.get_num_threads(), *map(address, (out, steps, residual, limit)),
            None,
        )  # fmt: skip
        dtype = self.anchor.dtype
        return Solution.of(out[..., :k].mT, residual.to(dtype), limit.to(dtype), steps)

    def _compiled_cotangents(self, native: Library, h: Tensor, dual: Tensor) -> Soft:
        """:meth:`cotangents`, compiled."""
        (r, n, _), w, o, heads = self.anchor.shape, self.width, self.own, self.scales[0].size(1)
        graph, edges = self.graph, self.graph.num_edges
        at, b = self._filled(h, 2), self._filled(dual, 2)
        wide, narrow = heads * self._whole(w // heads), self._whole(o)
        shapes = [
            (r, edges, wide), *[(r, heads, edges)] * 3, *[(r, n, 2 * wide + narrow)] * 2,
            *[(r, graph.num_graphs, wide + narrow)] * 2,
        ]  # fmt: skip
        out = [self.anchor.new_empty(shape) for shape in shapes]
        places = torch.tensor([address(x) or 0 for x in out])
        if not self.scaled:
            places[1:4] = 0
        arguments = address(at), address(b), 0.0, 0.0, None, torch.get_num_threads()
        self._call(native, *arguments, None, None, None, None, address(places))

        def cut(x: Tensor, dim: int, groups: int, size: int) -> Tensor:
            """Without the zeros of :meth:`_filled`."""
            parts = x.unflatten(dim, (groups, -1)) if x.size(dim) else x.unsqueeze(dim + 1)
            return parts.narrow(dim + 1, 0, size).flatten(dim, dim + 1)

        def apart(x: Tensor, couplings: int) -> Tensor:
            """[…, couplings * wide + narrow] -> […, couplings * w + o]."""
            *blocks, inner = x.split([*[wide] * couplings, narrow], 2)
            return torch.cat([*(cut(y, 2, heads, w // heads) for y in blocks), inner[..., :o]], 2)

        bias, *scales, bent, straight, flat, steep = out
        bent, straight = apart(bent, 2), apart(straight, 2)
        flat, steep = (apart(x, 1).sum(1) for x in (flat, steep))
        bias = cut(bias, 2, heads, w // heads)
        given = scales if self.scaled else None
        return self.fields(h, dual, bias, given, bent, straight, flat, steep)

    def _call(self, native: Library, *arguments: Any) -> None:
        """Call the library; ``arguments`` are those behind the problem."""
        graph, dtype, fields = self.graph, self.anchor.dtype, self._rows
        heads, edges = self.scales[0].size(1), graph.num_edges
        anchor, bias, here, offset = fields[0], fields[1], fields[2], fields[9]
        stride = heads * edges if here.size(0) > 1 else 0
        sizes = anchor.size(0), graph.num_graphs, anchor.size(1), edges
        widths = anchor.size(2), bias.size(2), offset.size(2)
        shape = torch.tensor([*sizes, *widths, heads, stride])
        addresses = torch.tensor([address(x) or 0 for x in fields])
        lipschitz = self.lipschitz.amax(1).double().contiguous()
        ends = [x.contiguous() for x in (graph.batch, graph.src, graph.dst)]
        all_arguments = (
            address(shape), int(dtype == torch.float32), *map(address, ends), address(addresses),
            address(lipschitz), self.beta, WIDTH, *arguments,
        )  # fmt: skip
        failed, why = native.interruptible(lambda: native.call("soft", *all_arguments))
        if failed:
            raise MemoryError(f"the compiled solve failed: {why}")

    @cached_property
    def _rows(self) -> list[Tensor]:
        """All fields in the order of the library, filled up to whole vectors."""
        w, heads = self.width, self.scales[0].size(1)
        blocks = self.back.split([w, w, self.own], 1)
        rows = [self._filled(x, 1, g) for x, g in zip(blocks, (heads, heads, 1), strict=True)]
        back = self._filled(torch.cat(rows, 1), 2)
        low, high, inner_low, inner_high = self.ramps
        ramps = [self._filled(x, 1, heads) for x in (low, high - low)]
        inner = [self._filled(x, 1) for x in (inner_low, inner_high - inner_low)]
        most = max(x.size(0) for x in self.scales)
        scales = [x.expand(most, -1, -1).contiguous() for x in self.scales]
        bias, offset = self._filled(self.bias, 2, heads), self._filled(self.offset, 2)
        anchor = self._filled(self.anchor, 2)
        return [anchor, bias, *scales, back.mT.contiguous(), back, *ramps, offset, *inner]

    def _whole(self, size: int) -> int:
        """A number of channels, up to whole vectors."""
        lanes = VECTOR // self.anchor.dtype.itemsize
        return -(-size // lanes) * lanes

    def _filled(self, x: Tensor, dim: int, groups: int = 1) -> Tensor:
        """With zeros up to whole vectors, in each group of channels."""
        size = x.size(dim) // groups
        more = self._whole(size) - size
        if not more:
            return x.contiguous()
        parts = x.unflatten(dim, (groups, size))
        shape = list(parts.shape)
        shape[dim + 1] = more
        return torch.cat([parts, parts.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)


class SoftEngine(Engine):
    """A soft energy in rows, of which all steps are taken at once.

    Args:
        problem: The energy.
        solver: Accelerated steps.
    """

    kind = SoftProblem
    problem: SoftProblem

    def __init__(self, problem: SoftProblem, solver: Solver) -> None:
        self.problem, self.solver, self.rows = problem, solver, SoftRows(problem)
        self.native = library() if problem.local.anchor.device.type == "cpu" else None

    @classmethod
    def of(cls, problem: Problem, solver: Solver) -> SoftEngine | str:
        assert isinstance(problem, SoftProblem)
        device = problem.local.anchor.device.type
        if type(solver) is not TripleMomentum:  # a subclass may change any step
            return f"solver={solver}, and the compiled solve is TripleMomentum()"
        if problem.condition > solver.most:
            return (
                f"the condition number {problem.condition:g} is above {solver.most:g}, the largest "
                f"one that the compiled solve takes"
            )
        native = found()
        if device == "cpu" and isinstance(native, Missing):
            return f"there is no compiled library ({native.reason})"
        return cls(problem, solver)

    @property
    def path(self) -> str:
        if self.native is not None:
            return f"compiled ({self.native.instructions})"
        on = self.problem.local.anchor.device
        return f"compiled ({on})" if soft_gpu.fused(self.rows) else "torch: there is no kernel"

    def holding(self, held: Tensor) -> TorchEngine:
        return TorchEngine(self.problem, self.solver, "some nodes are held", held.bool())

    @torch.no_grad()
    def solve(self, h0: Tensor | None, solver: Solver | None = None) -> Solution:
        problem, method = self.problem.detach(), solver or self.solver
        start = problem.start() if h0 is None else h0
        atol, rtol = method.tolerances(start.dtype)
        if self.native is not None:
            limits = {"atol": atol, "rtol": rtol, "most": method.max_iter}
            return self.rows.compiled(self.native, start.mT, None, **limits)
        # No number of steps, known beforehand, reaches an absolute tolerance surely.
        if not start.is_cuda or not rtol:
            return solve(problem, method, start)
        y, gradient, count = self.rows.steps(start.mT, rtol, method.max_iter)
        residual = problem.graph.norm(gradient.mT)
        steps = torch.full(residual.shape, count, device=y.device)
        return Solution.of(y.mT, residual, atol + rtol * problem.size_of(y.mT), steps)

    def vjp(self, h: Tensor, gradient: Tensor) -> tuple[Solution, tuple[Tensor | None, ...]]:
        found = self.dual(h, gradient)
        local = self.rows.cotangents(h.mT.contiguous(), -found.value.mT.contiguous())
        pairs = zip(arrays(self.problem.local), arrays(local), strict=True)
        return found, tuple(y for (x, _), (y, _) in pairs if x.requires_grad)

    def dual(self, h: Tensor, b: Tensor) -> Solution:
        """The solution of H x = b with the Hessian at h, all [R, k, N]."""
        problem, adjoint = self.problem, self.solver.adjoint
        rtol = adjoint.tolerance(h.dtype)
        steps = adjoint.linear.kind == "auto" and problem.condition <= MODERATE
        if steps and self.native is not None:
            return self.rows.compiled(self.native, h.mT, b.mT, rtol=rtol, most=MOST_PRODUCTS)
        if not steps or not b.is_cuda or not rtol:
            return adjoint.at(problem.detach(), h)(b, True)
        x, left, count = self.rows.chebyshev(h.mT, b.mT, rtol)
        graph = problem.graph
        norm, right, size = (graph.dot(v, v).sqrt() for v in (left.mT, b, x.mT))
        rounding = ROUNDING * torch.finfo(b.dtype).eps * self.rows.lipschitz
        limit = rtol * right + rounding * size
        return Solution.of(x.mT, norm, limit, torch.full(norm.shape, count, device=x.device))
