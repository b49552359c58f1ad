r"""What a part does between two exchanges, when it is settled, and how far off all parts may be.

A part solves its own problem for its halo (:mod:`hogwild.problems.pinned`) with the solver of the
model, from its last answer. The tolerance follows the residual that fresh halos leave: a tenth of
it, down to the limit of the part. A packet holds embeddings. The part solves for the nodes of its
overlap, too, a few rings beyond its own nodes, and keeps the embeddings of its own nodes only
(restricted additive Schwarz). What the halo has wrong fades on its way through the overlap, so that
a few exchanges are enough.

**Solves of energies are damped.** Parts that minimise the same energy at the same time may
overshoot together: with three nodes that all pull at each other, twice the sum of their moves is
too much. If the gradient that a fresh halo leaves has reversed and grown, the part halves its step,
which then recovers slowly. Energies whose Hessian has no positive entry off its diagonal (graph
signal denoising), and contractions, converge for any delay without this.

**The error bar.** Every part measures itself (:class:`Measure`), and :func:`error_bar` combines the
measures. *Energies*: with strong convexity :math:`\beta` and the gradient :math:`g_p` of part p,

.. math:: \|h - h^*\|_2 \le \frac1\beta \sqrt{\textstyle\sum_p \|g_p\|_2^2} .

A part is settled when :math:`\|g_p\| \le \beta\, \text{tol}\, \|h_p\|`. If all parts are settled,
the relative error is at most ``tol``. *Contractions* with modulus :math:`\kappa` in the norm
:math:`\max_i \|h_i\| / v_i`:

.. math:: |h - h^*|_\infty \le \frac{\max_i v_i}{1 - \kappa}
          \max_p \max_{i \in p} \frac{\|F_i(h) - h_i\|}{v_i} .

*Other maps*: nothing is proved, and a part is settled when :math:`F(h) - h` is small. The residual
of the error bar is that of the problem in float64, whatever has solved it, with room for the
rounding of its own evaluation (:data:`ROUNDING`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hogwild.engines import Engine
from hogwild.graph.inputs import Inputs
from hogwild.problems.base import FixedPoint, Objective, Problem

ABSOLUTE = 1e-9
"""An entry of an embedding may be wrong by this much where all entries of a part are zero."""
ROUNDING = 16.0
"""Units of rounding of its terms by which a computed residual may be wrong: an estimate, not a
proof. A residual of this size cannot be made smaller."""
INSIDE = 0.3
"""A part solves to this share of its limit, so that small news do not unsettle it."""
FORCING = 0.1
"""A solve ends at this share of the residual that it began with."""
ITERATIONS = 25
"""Most iterations of a solver in one update."""
PAIRS = 4
"""Pairs of embeddings that an extrapolation combines."""
GROWN = 4.0
"""A part halves its step if the square of its gradient has grown by this factor, and reversed."""
PATIENCE = 3
"""Updates without news after which a damped part moves on."""


@dataclass(frozen=True)
class Measure:
    """The residual of one part, in numbers that can be combined over parts, [R] each.

    Attributes:
        kind: ``"energy"``, ``"contraction"`` or ``"map"``.
        residual: Euclidean norm of the gradient; largest weighted residual; largest residual.
        noise: How wrong the residual may be by rounding.
        limit: The residual at which the part is settled.
        size: Euclidean norm of the embeddings; their largest entry for maps.
        factor: The lower bound β; the modulus κ; 0.
        weight: Largest v of a contraction; otherwise 1.
        largest: Largest absolute entry of the residual, of all replicas.
    """

    kind: str
    residual: Tensor
    noise: Tensor
    limit: Tensor
    size: Tensor
    factor: Tensor
    weight: float
    largest: float

    @property
    def residual_ratio(self) -> float:
        """The residual divided by its limit, of the worst replica. A part is settled up to 1."""
        ratio = self.residual / self.limit
        return float(ratio.max()) if bool(torch.isfinite(ratio).all()) else math.inf

    @property
    def settled(self) -> bool:
        """Whether the part is settled, perhaps on another computation of the residual."""
        return bool((self.residual <= self.limit + 2.0 * self.noise).all())


@dataclass(frozen=True)
class ErrorBar:
    """How far the embeddings may be from the exact answer, worst replica.

    Attributes:
        residual: Largest absolute entry of the gradient or of F(h) − h.
        error: Proved bound on the distance: Euclidean for energies, of the largest entry for
            contractions; ``None``: nothing is proved.
        relative: The bound, relative to the embeddings in the same norm; ``None`` likewise.
        norm: In words, what ``error`` measures.
    """

    residual: float
    error: float | None
    relative: float | None
    norm: str

    def __str__(self) -> str:
        if self.error is None:
            return f"residual {self.residual:.2g} (no bound on the distance is proved)"
        return (
            f"within {self.error:.2g} of the exact answer ({self.norm}; relative "
            f"{self.relative:.2g}), residual {self.residual:.2g}"
        )


def error_bar(measures: Sequence[Measure], rounding: float = 0.0) -> ErrorBar:
    """The error bar of all parts together. ``rounding`` is the relative error of embeddings that
    are rounded to another dtype after the solve."""
    largest = max((m.largest for m in measures), default=0.0)
    kinds = {m.kind for m in measures}
    if not math.isfinite(largest) or kinds not in ({"energy"}, {"contraction"}):
        return ErrorBar(largest, None, None, "")
    residuals = torch.stack([m.residual + m.noise for m in measures])
    sizes = torch.stack([m.size for m in measures])
    factors = torch.stack([m.factor for m in measures])
    if kinds == {"energy"}:
        error, size = residuals.norm(dim=0) / factors.amin(0), sizes.norm(dim=0)
        norm = "Euclidean norm"
    else:
        error = max(m.weight for m in measures) * residuals.amax(0) / (1.0 - factors.amax(0))
        size, norm = sizes.amax(0), "largest entry"
    error = error + rounding * size
    relative = torch.where(error > 0, error / size.clamp_min(1e-300), 0.0)
    return ErrorBar(largest, float(error.max()), float(relative.max()), norm)


class Bound:
    """The limit of one part.

    Args:
        problem: The problem on the local nodes.
        owned: Number of owned nodes A, which come first.
        tol: Relative tolerance.
    """

    def __init__(self, problem: Problem, owned: int, tol: float) -> None:
        self.problem, self.owned, self.tol = problem, owned, tol
        self.kind, self.weights = "map", None
        self.factor = torch.zeros(problem.replicas, dtype=torch.float64)
        self.ones = 1.0  # a residual whose entries are all one
        if isinstance(problem, Objective):
            self.kind, self.ones = "energy", math.sqrt(owned * problem.channels)
            self.factor = problem.convexity().amin(-1).double().cpu()
        elif isinstance(problem, FixedPoint):
            modulus, norms = problem.modulus(), problem.weights()
            if modulus is not None and norms is not None and bool((modulus < 1.0).all()):
                self.kind, self.factor = "contraction", modulus.amax(-1).double().cpu()
                self.weights = norms[:owned]
                length = problem.lengths(norms.new_ones(1, problem.channels, 1))
                self.ones = float(length) / float(self.weights.min())

    def residual(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The residual at the owned nodes [R, k, A], for local embeddings [R, k, N], and the size
        of its terms [R]."""
        if isinstance(self.problem, Objective):
            at = self.problem.evaluate(h)
            return at.gradient[..., : self.owned].detach(), at.scale.amax(-1).detach()
        image = self.problem.step(h).detach()
        scale = torch.maximum(_largest(image), _largest(h))
        return (image - h)[..., : self.owned], scale

    def measure(self, r: Tensor, scale: Tensor, h: Tensor) -> Measure:
        """The measure of a residual [R, k, A] with terms of the size ``scale`` [R], at the local
        embeddings ``h`` [R, k, N]."""
        own, r, weight = h[..., : self.owned].double(), r.double(), 1.0
        noise = ROUNDING * torch.finfo(h.dtype).eps * self.ones * scale.double().cpu()
        if self.kind == "energy":
            residual, size = r.norm(dim=(1, 2)).cpu(), own.norm(dim=(1, 2)).cpu()
            goal = self.factor * (self.tol * size + ABSOLUTE * self.ones)
        else:
            residual, size = _largest(r).cpu(), _largest(own).cpu()
            goal = self.tol * _largest(h).double().cpu() + ABSOLUTE
        if self.weights is not None:
            assert isinstance(self.problem, FixedPoint)
            residual = (self.problem.lengths(r) / self.weights).amax(-1).cpu()
            weight = float(self.weights.max())
            goal = (1.0 - self.factor) * goal / weight
        limit, top = torch.maximum(goal, noise), float(_largest(r).max())
        return Measure(self.kind, residual, noise, limit, size, self.factor, weight, top)


def _largest(x: Tensor) -> Tensor:
    """Largest absolute entry of each replica, [R, ...] -> [R]."""
    return x.abs().flatten(1).amax(-1)


@dataclass(eq=False)
class Part:
    """The nodes that one worker owns, and what their problem needs of the rest of the graph.

    The local nodes are the A owned nodes, then the B nodes of the *halo*, which other parts own.
    The part solves for its owned nodes and for the first rings of the halo, its *overlap*; the
    others are held fixed.

    With one hop a part holds all edges of the nodes for which it solves. With two hops it also
    holds all edges of their neighbours, which makes the rows of these nodes exact in the gradient
    and Hessian of any one-hop energy. One hop is enough for fixed points and for graph signal
    denoising.

    Attributes:
        nodes: Owned nodes in the whole graph, [A], sorted.
        halo: Nodes of the halo in the whole graph, [B]: the first ring, then the second ring, and
            so on, each sorted.
        owner: The part that owns each node of the halo, [B].
        free: Number of nodes for which the part solves: the owned ones, then those of the overlap.
        inputs: The part as a model reads it, with the degrees of the whole graph: the problem of
            the model for these inputs has the rows of the whole problem at free nodes.
        sends: For each other part, the local indices of the owned nodes that the part needs.
    """

    nodes: Tensor
    halo: Tensor
    owner: Tensor
    free: int
    inputs: Inputs
    sends: dict[int, Tensor]

    @property
    def owned(self) -> int:
        """A."""
        return len(self.nodes)

    @cached_property
    def receives(self) -> dict[int, Tensor]:
        """For each other part, the local indices of the halo nodes that the part owns. The n-th
        node that part a sends to part b is the n-th node that b receives from a."""
        return {q: at + self.owned for q, at in by_owner(self.owner).items()}

    @property
    def peers(self) -> list[int]:
        """The parts that send to this part or receive from it."""
        return sorted({*self.sends, *self.receives})

    def to(self, device: str) -> Part:
        """The part on a device."""
        sends = {q: nodes.to(device) for q, nodes in self.sends.items()}
        owner, inputs = self.owner.to(device), self.inputs.to(device)
        return replace(self, owner=owner, inputs=inputs, sends=sends)


def by_owner(owner: Tensor) -> dict[int, Tensor]:
    """The places of each part in a list of owners, in the order of the list."""
    order = owner.argsort(stable=True)
    owners, sizes = owner[order].unique_consecutive(return_counts=True)
    return dict(zip(owners.tolist(), order.split(sizes.tolist()), strict=True))


class Extrapolation:
    r"""Extrapolates the updates of a part whose halos are answers to its own embeddings.

    If all other parts have answered the embeddings x of this part, its next solution g is a
    function of x alone: :math:`g = G(x)`. Anderson's method combines the last pairs (x, g) such
    that the changes :math:`g - x` cancel as far as possible. This happens to a part that is much
    slower than its neighbours, which then needs fewer updates.

    After an extrapolation that did not lower the residual, plain updates follow until the residual
    is below the least one so far.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.best = math.inf

    def next(self, x: Tensor, g: Tensor, residual_ratio: float) -> Tensor:
        """The next embeddings [R, k, A]. ``residual_ratio`` is that at x."""
        helped, self.best = residual_ratio < self.best, min(residual_ratio, self.best)
        self.pairs = [*self.pairs[1 - PAIRS :], (x, g)] if helped else [(x, g)]
        if len(self.pairs) < 2:
            return g
        images = torch.stack([g.flatten(1) for _, g in self.pairs], -1)  # [R, kA, m]
        changes = images - torch.stack([x.flatten(1) for x, _ in self.pairs], -1)
        steps = changes.diff(dim=-1)
        # Least squares by the normal equations of a few columns, slightly regularised.
        normal = steps.mT @ steps
        size = normal.diagonal(dim1=-2, dim2=-1).amax(-1)[:, None, None]
        eye = torch.eye(normal.size(-1)).to(normal)
        right = steps.mT @ changes[..., -1:]
        share = torch.linalg.solve(normal + (1e-12 * size + 1e-300) * eye, right)
        out = (images[..., -1:] - images.diff(dim=-1) @ share)[..., 0].view_as(g)
        return out if bool(torch.isfinite(out).all()) else g


class Work:
    """A part at work: it solves its problem for its halo.

    Args:
        part: The part.
        tol: Relative tolerance.
        h: Embeddings to start from, [R, k, N].
        engine: Solves the problem on the local nodes, which is detached.
    """

    def __init__(self, part: Part, tol: float, h: Tensor | None = None, *, engine: Engine) -> None:
        problem = engine.problem
        self.problem, self.part = problem, part
        self.h = problem.start() if h is None else h.clone()
        self.bound = Bound(problem, part.owned, tol)
        self.residual_ratio = math.inf
        self.measure: Measure | None = None
        self.trust = 1.0
        """Damping of the steps; 1: none."""
        self.engine, self.solver = engine, engine.solver
        self.holding: dict[int, Engine] = {}  # by the number of nodes that move
        self.damped = isinstance(problem, Objective) and not problem.is_attractive
        self.idle = 0
        self.last: Tensor | None = None  # the gradient that the last fresh halo left
        self.anchor = self.own.clone()
        self.extrapolation = Extrapolation()

    @property
    def own(self) -> Tensor:
        """The embeddings of the owned nodes, [R, k, A]."""
        return self.h[..., : self.part.owned]

    @property
    def waits(self) -> bool:
        """Whether nothing is gained by an update before the other parts have read the last one."""
        return self.part.free > self.part.owned

    def place(self, own: Tensor) -> None:
        """Put the owned nodes at these embeddings, [R, k, A]."""
        self.h = torch.cat([own, self.h[..., self.part.owned :]], -1)

    def packet(self, to: int) -> Tensor | None:
        """What another part needs of this part; ``None`` if it reads no owned node."""
        if to not in self.part.sends:
            return None
        return self.h[..., self.part.sends[to]].contiguous()

    def receive(self, sender: int, packet: Tensor | None) -> None:
        """Write what another part has sent into the halo."""
        if packet is not None:
            self.h[..., self.part.receives[sender]] = packet

    def look(self) -> float:
        """Measure the residual with the halo as last received; returns its ratio to the limit."""
        if self.engine.holds:
            gradient, size = self.engine.gradient(self.h)
            self.r, scale = gradient[..., : self.part.owned], size.amax(-1)
        else:
            self.r, scale = self.bound.residual(self.h)
        self.measure = self.bound.measure(self.r, scale, self.h)
        self.residual_ratio = self.measure.residual_ratio
        return self.residual_ratio

    def judged(self) -> Measure:
        """The measure for the error bar: that of the problem, whatever has solved it."""
        return self.bound.measure(*self.bound.residual(self.h), self.h)

    def advance(self, news: bool, answered: bool = False) -> None:
        """One update.

        Args:
            news: Whether the halo has changed since the last one.
            answered: Whether the halo is the answer of all other parts to what this part holds.
        """
        owned = self.part.owned
        if self.damped and not self._may_move(news):
            return
        # With the overlap, the residual at owned nodes is zero only if the other parts follow. Once
        # they have read the last answer and are silent, the part settles what is left by itself.
        value = self._solved(self.part.free if news else owned)
        if not bool(torch.isfinite(value).all()):
            return
        moved = value[..., :owned]
        if self.trust < 1.0:
            moved = torch.lerp(self.anchor, moved, self.trust)
        elif answered and news:
            moved = self.extrapolation.next(self.own, moved, self.residual_ratio)
        self.place(moved)

    def _solved(self, free: int) -> Tensor:
        """The embeddings [R, k, N] after a solve for the first ``free`` nodes."""
        assert self.measure is not None
        atol = max(
            INSIDE * float(self.measure.limit.min()) / self.bound.ones,
            FORCING * self.measure.largest if self.residual_ratio > 1.0 / FORCING else 0.0,
        )
        most = min(self.solver.max_iter, ITERATIONS)
        solver = replace(self.solver, atol=atol, rtol=0.0, max_iter=most)
        if free not in self.holding:
            self.holding[free] = self.engine.holding(~self.moves(free))
        return self.holding[free].solve(self.h, solver).value

    def moves(self, free: int) -> Tensor:
        """The mask [N] of the first ``free`` nodes."""
        return torch.arange(self.h.size(-1), device=self.h.device) < free

    def _may_move(self, news: bool) -> bool:
        """Adapt the damping to fresh news; whether the part moves now. A damped part moves once for
        each news, and without news now and then."""
        if not news:
            self.idle += 1
            if self.trust < 1.0 and self.idle <= PATIENCE:
                return False
            self.idle, self.anchor = 0, self.own.clone()
            return True
        if self.last is not None:
            turned = bool((self.r * self.last).sum() < 0)
            grown = bool(self.r.square().sum() > GROWN * self.last.square().sum())
            self.trust = 0.5 * self.trust if turned and grown else min(1.0, 1.1 * self.trust)
        self.last, self.anchor, self.idle = self.r, self.own.clone(), 0
        return True
