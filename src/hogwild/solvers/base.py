r"""Problems, solvers, and the one loop that runs them.

A *problem* is a batch of independent problems: one for each replica r and graph g, stacked along
the node dimension. Every vector is ``[R, k, N]``, every per-problem number ``[R, G]``.

A *solver* is one small class with :meth:`Solver.init` and :meth:`Solver.step`; it must leave the
problems outside ``active`` exactly as they are. The loop, :func:`solve`, is the only one: it stops
each problem by its own residual, freezes it, and shrinks the batch to the replicas and graphs
that still move, so that a graph's answer depends neither on its batch mates nor on when they stop.
"""

from __future__ import annotations

import enum
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from hogwild.errors import ConfigError, ConvergenceError, ConvergenceWarning, is_integer
from hogwild.fields import gather, mtm
from hogwild.graph import Graph, Star


class Status(enum.IntEnum):
    """How a solve ended; :attr:`advice` is what a user should read."""

    CONVERGED = 0
    MAX_ITERATIONS = 1
    STALLED = 2
    NOT_FINITE = 3

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "converged to the tolerance",
    Status.MAX_ITERATIONS: (
        "ran out of iterations: raise max_iter; where the residual no longer moves, it is at the "
        "rounding error of this scale: normalise large features or loosen the tolerance; other "
        "solvers than Newton may need very many iterations"
    ),
    Status.STALLED: (
        "no step decreased the residual any further: the tolerance is below the rounding error of "
        "this dtype at this scale; solve in float64 or loosen the tolerance"
    ),
    Status.NOT_FINITE: (
        "met NaN or infinity: check features and parameters (exploding training, missing "
        "normalisation)"
    ),
}


class Hessian(ABC):
    """A symmetric positive definite linear map on [R, k, N], block diagonal over graphs."""

    graph: Graph
    channels: int
    has_blocks: bool = False
    """Whether the map couples only nodes that the graph's pattern joins (one-hop energies)."""

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """``H v``."""

    @abstractmethod
    def diagonal(self) -> Tensor | None:
        """The k × k diagonal blocks [R, k, k, N] for a preconditioner, or ``None``."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        """Diagonal [R, k, k, N] and off-diagonal [R, k, k, M] blocks in the order of the graph's
        :class:`~hogwild.graph.Pattern`; only where :attr:`has_blocks`."""
        raise NotImplementedError(f"{type(self).__name__} reaches beyond the graph's pattern")


class Evaluation(ABC):
    """An objective at one point; what is not asked for is not computed."""

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """[R, G]"""

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """[R, G]: rounding error to expect in the value; a line search must not believe less."""

    @property
    @abstractmethod
    def gradient(self) -> Tensor:
        """[R, k, N]"""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """[R, G]: size of the terms that cancel in the gradient, for relative tolerances."""

    @abstractmethod
    def hessian(self) -> Hessian:
        """The Hessian here, cut off from autograd."""

    def improves(
        self, before: Evaluation, graph: Graph, d: Tensor, t: Tensor, slope: Tensor
    ) -> Tensor:
        r"""Whether a step ``t d`` from ``before`` to here is acceptable on each graph, [R, G].

        Armijo's condition; or, where the decrease drowns in the rounding of the energy, a slope
        along the step that has not turned steeply upwards (Hager & Zhang's approximate Wolfe
        condition). Written so that NaN fails both.
        """
        armijo = self.value <= before.value + 1e-4 * t * slope
        if not armijo.is_cuda and bool(armijo.all()):  # on a GPU looking costs more than computing
            return armijo
        turned = graph.dot(self.gradient, d) > 0.8 * slope.abs()
        return armijo | ((self.value <= before.value + before.noise) & ~turned)

    def shorten(self, before: Evaluation, t: Tensor, slope: Tensor) -> Tensor:
        """A shorter step after ``t`` was refused: the minimiser of the parabola through the two
        values and the slope, between a tenth and a half of ``t``."""
        excess = self.value - before.value - slope * t  # > 0 for a convex function
        share = torch.nan_to_num(-0.5 * slope * t / excess, nan=0.1, posinf=0.5, neginf=0.1)
        return t * share.clamp(0.1, 0.5)


class Problem(ABC):
    """Independent problems on R replicas × G graphs."""

    graph: Graph
    replicas: int
    channels: int

    @abstractmethod
    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Problem, Tensor]:
        """The problem on these replicas and graphs, and its node indices."""

    @abstractmethod
    def step(self, h: Tensor) -> Tensor:
        r"""The problem's fixed-point map :math:`F(h)`, whose fixed point is the solution."""

    @abstractmethod
    def residual(self, h: Tensor) -> Tensor:
        """What vanishes at the solution, [R, k, N], as a differentiable function of everything the
        problem was made from."""

    @abstractmethod
    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the residual at ``h``, given ``image`` = F(h)."""

    @abstractmethod
    def size(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the terms that cancel in the residual at ``h``."""

    @abstractmethod
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same problem with every tensor it is made of transformed."""

    def detach(self) -> Self:
        """The same problem cut off from autograd: what the solver works on."""
        return self.map(Tensor.detach)

    def start(self) -> Tensor:
        """Where asynchronous nodes begin, [R, k, N]: at zero unless a subclass knows better."""
        floating: list[Tensor] = []

        def note(t: Tensor) -> Tensor:
            floating.extend([t] if t.is_floating_point() else [])
            return t

        self.map(note)  # the precision the problem was posed in
        return self.zeros(floating[0].dtype, floating[0].device)

    def zeros(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(
            self.replicas, self.channels, self.graph.num_nodes, dtype=dtype, device=device
        )


@dataclass
class LocalQuadratic:
    r"""Quadratic models of the local energies :math:`e^i` of some nodes, each in the node's own
    embedding and its neighbours': gradients and curvature of

    .. math:: \tfrac12 d_i^\top B_i d_i + \sum_e d_i^\top X_e d_e + \tfrac12 d_e^\top C_e d_e
              + \tfrac12 \bigl(\textstyle\sum_e J_e d_e\bigr)^\top U_i
                \bigl(\textstyle\sum_e J_e d_e\bigr),

    the sums over the edges into i. Two neighbours are coupled through the messages' channels only.
    """

    own: Tensor  # [R, k, A] gradient with respect to h_i
    toward: Tensor  # [R, k, E'] and to the sender's embedding
    b: Tensor  # [R, k, k, A]
    x: Tensor  # [R, k, k, E'] rows i, columns j
    c: Tensor  # [R, k, k, E']
    j: Tensor  # [R, C, k, E']
    u: Tensor  # [R, C, C, A]
    at: Star

    def toward_curvature(self) -> Tensor:
        """Each neighbour's own block, :math:`C_e + J_e^\top U_i J_e`, [R, k, k, E']."""
        u = gather(self.u.flatten(1, 2), self.at.slot).unflatten(1, self.u.shape[1:3])
        return self.c + mtm(self.j, mtm(u, self.j))


class Objective(Problem):
    """Minimise a strongly convex function on each graph."""

    has_blocks: bool = False
    """Whether the Hessian couples only nodes that the graph's pattern joins."""

    @property
    def signature(self) -> tuple[object, ...]:
        """All that, beside tensors and their shapes, decides what :meth:`evaluate` computes."""
        return (self.replicas, self.channels)

    @abstractmethod
    def evaluate(self, h: Tensor) -> Evaluation: ...

    @abstractmethod
    def convexity(self) -> Tensor:
        """A bound [R, G] on the smallest eigenvalue of the Hessian from below, valid everywhere."""

    @abstractmethod
    def row_bounds(self) -> Tensor:
        r"""Bounds [R, k, N] on the absolute row sums of the Hessian, entry by entry and valid
        everywhere: :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`."""

    def lipschitz(self) -> Tensor:
        """A bound [R, G] on the largest eigenvalue of the Hessian, valid everywhere."""
        return self.graph.norm(self.row_bounds())

    @abstractmethod
    def local(self, h: Tensor, inbox: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        r"""Gradients of the local energies :math:`e^i` of some nodes, from what those nodes know.

        Args:
            h: Their own embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard on each edge, [R, k, E'].
            at: The nodes and edges.

        Returns:
            :math:`g_{ii} = \partial e^i / \partial h_i` [R, k, A], and for every edge j → i
            :math:`g_{ij} = \partial e^i / \partial h_j` [R, k, E'], which i sends to j.
        """

    @abstractmethod
    def quadratic(
        self, h: Tensor, inbox: Tensor, at: Star, majorise: float = 0.0
    ) -> LocalQuadratic:
        """Quadratic models of the same local energies; arguments as in :meth:`local`.

        Args:
            majorise: 0 for the true curvature here, 1 for curvatures that bound the energies'
                growth from here, or a mixture.
        """

    def bounding(
        self, h: Tensor, inbox: Tensor, at: Star, far: tuple[Tensor, Tensor]
    ) -> LocalQuadratic:
        """Quadratic models whose curvatures bound the energies' growth from here as far as ``far``
        (h, inbox): the true curvature where that is here, ``majorise=1`` where it is anywhere.

        By default the latter, which is the same for quadratic energies.
        """
        return self.quadratic(h, inbox, at, majorise=1.0)

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`\nabla E(h)`."""
        return self.evaluate(h).gradient

    @cached_property
    def _bound(self) -> Tensor:
        return self.lipschitz()

    def step(self, h: Tensor) -> Tensor:
        r"""Gradient step :math:`h - \nabla E(h) / K` with the global bound K."""
        return h - self.evaluate(h).gradient / self.graph.wide(self._bound)

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self._bound * self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.evaluate(h).scale


class Tangent(ABC):
    r"""The linear map :math:`I - J`, J the Jacobian of a fixed-point map at one point.

    Newton's method solves with it, the adjoint with its transpose. On [R, k, N], block diagonal
    over graphs; not symmetric in general.
    """

    graph: Graph
    channels: int
    has_blocks: bool = False
    """Whether the map joins only nodes that an edge joins, and :meth:`blocks` gives its entries."""
    has_inverse: bool = False
    """Whether :meth:`inverse` is at hand in closed form."""
    memo: dict[Any, Any]
    """What solvers keep with it: factorisations."""

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        r""":math:`(I - J) v`."""

    @abstractmethod
    def transpose(self, v: Tensor) -> Tensor:
        r""":math:`(I - J)^\top v`."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        r""":math:`\partial r_i / \partial h_i` [R, k, k, N] and, for every edge j → i,
        :math:`\partial r_i / \partial h_j` [R, k, k, E], where :math:`r = h - F(h)`; only where
        :attr:`has_blocks`."""
        raise NotImplementedError(f"{type(self).__name__} has no blocks")

    def inverse(self, v: Tensor, transpose: bool) -> Tensor:
        r""":math:`(I - J)^{-1} v`, or with the transpose; only where :attr:`has_inverse`."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse in closed form")


class FixedPoint(Problem):
    r"""Find :math:`h = F(h)` on each graph, F a contraction."""

    monotone: bool = False
    r"""Whether :math:`h \le h'` entails :math:`F(h) \le F(h')` and every cycle of influence loses:
    updates in any order, late or repeated, then reach the one fixed point in finite time, although
    F need not contract."""
    has_blocks: bool = False
    """Whether its tangents have blocks."""
    has_inverse: bool = False
    """Whether its tangents have an inverse in closed form."""

    @abstractmethod
    def update(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        r"""F at some nodes, from what those nodes know: the node's rule, written once.

        Args:
            h: Their own embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard on each edge, [R, k, E'].
            at: The nodes and edges.

        Returns:
            Their new embeddings, [R, k, A].
        """

    def step(self, h: Tensor) -> Tensor:
        return self.update(h, gather(h, self.graph.src), self.graph.everyone)

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`F(h) - h`."""
        return self.step(h) - h

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image) + self.graph.norm(h)

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        r""":math:`(\partial F / \partial h)^\top v`, for the adjoint; by autograd unless a
        subclass knows better."""
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            (out,) = torch.autograd.grad(self.step(h), h, v, materialize_grads=True)
        return out

    def adjoint(self, h: Tensor, grad: Tensor) -> Tensor | None:
        r"""The :math:`\lambda` with :math:`(\partial F / \partial h - I)^\top \lambda` = ``grad``,
        where it is known in closed form; ``None``: a Krylov method finds it."""
        return None

    def linearise(self, h: Tensor) -> Tangent:
        r""":math:`I - \partial F / \partial h`; by autograd unless a subclass knows better."""
        return _AutogradTangent(self, h)

    def modulus(self) -> Tensor | None:
        r"""A proved bound [R, G] on the contraction modulus of F in a weighted block-maximum norm
        :math:`\max_i \|h_i\| / v_i`, v > 0; ``None``: nothing is proved.

        A bound below one guarantees convergence to the one fixed point under *any* order of
        updates and any bounded delays. A contraction in another norm, the Euclidean one for
        instance, guarantees nothing of the kind.
        """
        return None


@dataclass
class _AutogradTangent(Tangent):
    problem: FixedPoint
    h: Tensor
    memo: dict[Any, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:  # type: ignore[override]
        return self.problem.graph

    @property
    def channels(self) -> int:  # type: ignore[override]
        return self.problem.channels

    def apply(self, v: Tensor) -> Tensor:
        # J v as the derivative of u ↦ ⟨Jᵀu, v⟩, which is linear in u.
        with torch.enable_grad():
            h = self.h.detach().requires_grad_()
            u = torch.zeros_like(v, requires_grad=True)
            (pulled,) = torch.autograd.grad(
                self.problem.step(h), h, u, create_graph=True, materialize_grads=True
            )
            if not pulled.requires_grad:  # F does not depend on h
                return v
            (out,) = torch.autograd.grad(pulled, u, v, materialize_grads=True)
        return v - out

    def transpose(self, v: Tensor) -> Tensor:
        return v - self.problem.pullback(self.h, v)


@dataclass
class State:
    """A solver's memory; tensors are filed by shape so that the loop can drop what has converged.

    ``nodes`` holds tensors [..., R, k, N], ``graphs`` tensors [..., R, G]. ``nodes["h"]`` is the
    iterate and ``graphs["residual"]`` its residual; a solver may set ``graphs["stalled"]``.
    ``cache`` holds anything else and is dropped when the batch shrinks.
    """

    nodes: dict[str, Tensor]
    graphs: dict[str, Tensor]
    cache: object | None = field(default=None)

    def select(self, replicas: Tensor, graphs: Tensor, nodes: Tensor) -> State:
        return State(
            {k: v.index_select(-3, replicas)[..., nodes] for k, v in self.nodes.items()},
            {k: v.index_select(-2, replicas)[..., graphs] for k, v in self.graphs.items()},
        )


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True, kw_only=True)
class Solver(ABC, Generic[P]):
    r"""Base class of the solvers.

    A problem has converged when its residual (the largest absolute entry of the gradient, or of
    :math:`F(h) - h`) is at most ``atol + rtol · scale``, ``scale`` being the size of the terms
    that cancel in it.

    Args:
        atol: Absolute tolerance; ``None`` is 1e-8 in float64 and 0 in float32, where rounding
            alone exceeds any fixed absolute tolerance once weights have grown.
        rtol: Relative tolerance; ``None`` is 0 in float64 and 2e-6 in float32.
        max_iter: Iterations after which a problem is given up.
    """

    atol: float | None = None
    rtol: float | None = None
    max_iter: int = 100

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{name}={value!r}; expected a nonnegative number or None")
        if not is_integer(self.max_iter) or self.max_iter < 0:
            raise ConfigError(f"max_iter={self.max_iter!r}; expected a nonnegative integer")

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(atol, rtol) in force for this dtype."""
        double = dtype == torch.float64
        atol = (1e-8 if double else 0.0) if self.atol is None else self.atol
        rtol = (0.0 if double else 2e-6) if self.rtol is None else self.rtol
        return atol, rtol

    def objective_state(self, problem: Objective, h: Tensor, at: Evaluation) -> State:
        """A fresh state at ``h`` with the residual, and its scale where the tolerance needs it."""
        graphs = {"residual": problem.graph.norm(at.gradient)}
        if self.tolerances(h.dtype)[1]:
            graphs["scale"] = at.scale
        return State({"h": h}, graphs, at)

    def fixed_point_state(self, problem: Problem, h: Tensor, image: Tensor) -> State:
        """The same for a fixed point: residual :math:`F(h) - h`; keeps ``F(h)``."""
        graphs = {"residual": problem.distance(h, image)}
        if self.tolerances(h.dtype)[1]:
            graphs["scale"] = problem.size(h, image)
        return State({"h": h, "image": image}, graphs)

    @abstractmethod
    def init(self, problem: P, h: Tensor) -> State:
        """Memory at the starting point, residual included."""

    @abstractmethod
    def step(self, problem: P, state: State, active: Tensor) -> State:
        """One iteration on the problems in ``active`` [R, G]; the others stay as they are."""


@dataclass
class Solution:
    """What a solve found, graph by graph.

    Attributes:
        value: The embeddings, [N, k] or [R, N, k].
        status: A :class:`Status` for each graph, [G] or [R, G] (integers).
        iterations: Iterations each graph took, same shape.
        residual: Largest absolute residual of each graph, same shape.
    """

    value: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor

    @property
    def converged(self) -> Tensor:
        """Whether each graph converged, same shape as :attr:`status`."""
        return self.status == Status.CONVERGED

    def check(self, on_failure: str = "raise", what: str = "forward solve") -> Solution:
        """Raise (or warn) with the graphs, residuals and likely causes unless all converged."""
        if on_failure == "ignore" or bool(self.converged.all()):
            return self
        message = self._diagnosis(what)
        if on_failure == "raise":
            raise ConvergenceError(message)
        warnings.warn(ConvergenceWarning(message, ~self.converged), stacklevel=3)
        return self

    def _diagnosis(self, what: str) -> str:
        failed = (~self.converged).nonzero()
        lines = [f"the {what} did not converge on {len(failed)} of {self.status.numel()} problems:"]
        for index in failed[:5].tolist():
            at = tuple(index)
            where = f"graph {at[-1]}"
            if len(at) == 2 and self.status.size(0) > 1:
                where += f" of replica {at[0]}"
            lines.append(
                f"  {where}: residual {float(self.residual[at]):.3g} after "
                f"{int(self.iterations[at])} iterations"
            )
        if len(failed) > 5:
            lines.append(f"  … and {len(failed) - 5} more")
        seen = self.status[~self.converged].unique().tolist()
        lines += [Status(code).advice for code in seen]
        lines.append("(on_failure='warn' or 'ignore' continues with the last iterate.)")
        return "\n".join(lines)


SMALL = {"cpu": 20_000, "cuda": 200_000}
"""Number of node embeddings up to which a batch counts as small."""


def is_small(h: Tensor) -> bool:
    """Whether computing frozen graphs along is cheaper than analysing a smaller batch: on a CPU for
    a few thousand nodes, on a GPU as long as launching kernels costs more than running them."""
    return h.size(0) * h.size(-1) < SMALL.get(h.device.type, 0)


ON_FAILURE = ("raise", "warn", "ignore")


def check_on_failure(on_failure: str) -> str:
    """``on_failure`` itself, if it is one of :data:`ON_FAILURE`."""
    if on_failure not in ON_FAILURE:
        raise ConfigError(f"on_failure={on_failure!r}; expected one of {ON_FAILURE}")
    return on_failure


@torch.no_grad()
def solve(problem: P, solver: Solver[P], h0: Tensor) -> Solution:
    """Run ``solver`` on ``problem`` from ``h0`` [R, k, N]; never raises for non-convergence."""
    atol, rtol = solver.tolerances(h0.dtype)
    state = solver.init(problem, h0)
    device = h0.device
    shape = (problem.replicas, problem.graph.num_graphs)
    value = torch.empty_like(state.nodes["h"])
    residual = torch.empty(shape, dtype=h0.dtype, device=device)
    status = torch.full(shape, int(Status.MAX_ITERATIONS), device=device)
    iterations = torch.zeros(shape, dtype=torch.long, device=device)
    # The replicas, graphs and nodes of the current (shrunken) batch; None: all of them.
    at: tuple[Tensor, Tensor, Tensor] | None = None

    def record(current: State, done: Tensor, stalled: Tensor, count: Tensor) -> None:
        nonlocal value, residual, status, iterations
        outcome = torch.full(done.shape, int(Status.MAX_ITERATIONS), device=device)
        outcome.masked_fill_(done, int(Status.CONVERGED))
        outcome.masked_fill_(stalled, int(Status.STALLED))
        outcome.masked_fill_(~torch.isfinite(current.graphs["residual"]), int(Status.NOT_FINITE))
        if at is None:
            value, residual = current.nodes["h"].clone(), current.graphs["residual"].clone()
            status, iterations = outcome, count.clone()
            return
        replicas, graphs, nodes = at
        value[
            replicas[:, None, None], torch.arange(value.size(1), device=device)[:, None], nodes
        ] = current.nodes["h"]
        pair = (replicas[:, None], graphs)
        residual[pair] = current.graphs["residual"]
        status[pair], iterations[pair] = outcome, count

    count = torch.zeros_like(iterations)
    given_up = torch.zeros(shape, dtype=torch.bool, device=device)
    for iteration in range(solver.max_iter + 1):
        now = state.graphs["residual"]
        limit = atol if rtol == 0.0 else atol + rtol * state.graphs["scale"]
        done, finite = now <= limit, torch.isfinite(now)
        if "stalled" in state.graphs:
            given_up = given_up | state.graphs["stalled"]
        stalled = given_up & ~done
        active = ~done & finite & ~stalled
        host = active.cpu()  # the only synchronisation of the loop
        moving = int(host.sum())
        if not moving or iteration == solver.max_iter:
            record(state, done, stalled, count)
            break
        rows, cols = host.any(1), host.any(0)
        small = is_small(state.nodes["h"])
        if small or 2 * int(cols.sum()) > cols.numel():
            cols = torch.ones_like(cols)
        if small and h0.is_cuda:
            rows = torch.ones_like(rows)
        if 2 * int(rows.sum()) * int(cols.sum()) <= host.numel():
            record(state, done, stalled, count)
            keep_r, keep_g = (m.nonzero()[:, 0].to(device) for m in (rows, cols))
            problem, nodes = problem.select(keep_r, keep_g)  # type: ignore[assignment]
            state = state.select(keep_r, keep_g, nodes)
            active, count, given_up = (m[keep_r][:, keep_g] for m in (active, count, given_up))
            at = (
                (keep_r, keep_g, nodes)
                if at is None
                else (at[0][keep_r], at[1][keep_g], at[2][nodes])
            )
        state = solver.step(problem, state, active)
        count = count + active
    return Solution(value, status, iterations, residual)
