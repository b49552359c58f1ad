r"""What a part does between two exchanges.

* :class:`Solve`: the part solves its own problem for its halo (:mod:`hogwild.problems.pinned`) with
  the solver of the model, from its last answer. The tolerance follows the residual that fresh halos
  leave: a tenth of it, down to the limit of the part. A packet holds embeddings.
  The part solves for the nodes of its overlap, too, a few rings beyond its own nodes, and keeps the
  embeddings of its own nodes only (restricted additive Schwarz). What the halo has wrong fades on
  its way through the overlap, so that a few exchanges are enough.
* :class:`Steps`: the part takes steps of a node's rule at all of its nodes. A packet holds
  embeddings and, for energies, the letters of the edges between the two parts.

**Solves of energies are damped.** Parts that minimise the same energy at the same time may
overshoot together: with three nodes that all pull at each other, twice the sum of their moves is
too much. If the gradient that a fresh halo leaves has reversed and grown, the part halves its step,
which then recovers slowly. Energies whose Hessian has no positive entry off its diagonal (graph
signal denoising), and contractions, converge for any delay without this.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hogwild.cluster.bound import Bound, Measure
from hogwild.errors import ConfigError
from hogwild.kernels.energy import EnergyKernel
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.problems.pinned import pinned
from hogwild.solvers.loop import Solver, solve
from hogwild_node.local import LocalEnergy, LocalMap
from hogwild_node.rules import FixedPointRule, MessageRule, Rule
from hogwild_node.rules.gradient import GradientRule

FORCING = 0.1
"""A solve ends at this share of the residual that it began with."""
ITERATIONS = 25
"""Most iterations of a solver in one update."""
TURNS = 10
"""Turns of a rule in one update."""
PAIRS = 4
"""Pairs of embeddings that an extrapolation combines."""
GROWN = 4.0
"""A part halves its step if the square of its gradient has grown by this factor, and reversed."""
PATIENCE = 3
"""Updates without news after which a damped part moves on."""
Packet = tuple[Tensor, ...]


@dataclass(frozen=True)
class Links:
    """How the local nodes of one part are shared with the other parts.

    Attributes:
        owned: Number of owned nodes A; local nodes 0, …, A − 1.
        free: Number of nodes for which the part solves: the owned ones and its overlap, which come
            first.
        sends: For each other part, the local indices of the owned nodes that it reads.
        receives: For each other part, the local indices of the halo nodes that it owns, in the
            order of what it sends.
        edges: Numbers of the local edges in the whole graph, [E].
    """

    owned: int
    free: int
    sends: dict[int, Tensor]
    receives: dict[int, Tensor]
    edges: Tensor

    @property
    def peers(self) -> list[int]:
        """The parts that send to this part or receive from it."""
        return sorted({*self.sends, *self.receives})


class Work(ABC):
    """The state of a part and its update.

    Args:
        problem: The problem on the local nodes, detached.
        links: Which nodes are shared with which parts.
        tol: Relative tolerance.
        h: Embeddings to start from, [R, k, N].
    """

    def __init__(self, problem: Problem, links: Links, tol: float, h: Tensor | None = None) -> None:
        self.problem, self.links = problem, links
        self.bound = Bound(problem, links.owned, tol)
        self.h = problem.start() if h is None else h.clone()  # [R, k, N]
        self.unrest = math.inf
        self.measure: Measure | None = None

    @property
    def own(self) -> Tensor:
        """The embeddings of the owned nodes, [R, k, A]."""
        return self.h[..., : self.links.owned]

    trust: float = 1.0
    """Damping of the steps; 1: none."""

    @property
    def waits(self) -> bool:
        """Whether nothing is gained by an update before the other parts have read the last one."""
        return False

    def place(self, own: Tensor) -> None:
        """Put the owned nodes at these embeddings, [R, k, A]."""
        self.h = torch.cat([own, self.h[..., self.links.owned :]], -1)

    def residual(self) -> tuple[Tensor, Tensor]:
        """The residual of the problem at the owned nodes, with the halo as last received
        [R, k, A], and the size of its terms [R]."""
        return self.bound.residual(self.h)

    def glance(self) -> tuple[Tensor, Tensor]:
        """The same for the decisions of the worker, computed as cheaply as possible."""
        return self.residual()

    def look(self) -> float:
        """Measure the residual with the halo as last received; returns the unrest."""
        self.r, self.scale = self.glance()
        self.measure = self.bound.measure(self.r, self.h)
        self.unrest = self.bound.unrest(self.measure, self.scale, self.h)
        return self.unrest

    def judged(self) -> Measure | None:
        """The measure for the error bar; ``None`` for a part without nodes."""
        return self.bound.judge(*self.residual(), self.h)

    @abstractmethod
    def advance(self, news: bool, answered: bool = False) -> None:
        """One update.

        Args:
            news: Whether the halo has changed since the last one.
            answered: Whether the halo is the answer of all other parts to what this part holds.
        """

    def packet(self, to: int) -> Packet:
        """What another part needs of this part; nothing, if it reads no owned node."""
        if to not in self.links.sends:
            return ()
        return (self.h[..., self.links.sends[to]].contiguous(),)

    def receive(self, sender: int, packet: Packet) -> None:
        """Write what another part has sent into the halo."""
        if not packet:
            return
        self.h[..., self.links.receives[sender]] = packet[0]

    def refresh(self) -> bool:
        """Compute again what packets hold beside embeddings, from the halo as last received;
        returns whether it has changed."""
        return False


class Nothing(Work):
    """The work of a part without nodes. ``like`` is a tensor of the solve's dtype and device."""

    def __init__(self, replicas: int, channels: int, like: Tensor) -> None:
        nothing = torch.zeros(0, dtype=torch.long)
        self.links, self.h = Links(0, 0, {}, {}, nothing), like.new_zeros(replicas, channels, 0)
        self.unrest, self.measure = 0.0, None

    def look(self) -> float:
        return 0.0

    def judged(self) -> None:
        return None

    def advance(self, news: bool, answered: bool = False) -> None:
        pass


class Memory:
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

    def extrapolate(self, x: Tensor, g: Tensor, unrest: float) -> Tensor:
        """The next embeddings [R, k, A]. ``unrest`` is that at x."""
        helped, self.best = unrest < self.best, min(unrest, self.best)
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


class Solve(Work):
    """Solve the part for its halo. ``solver`` is the solver of the model, and ``kernel`` the
    problem for the compiled library, where it has that solver."""

    def __init__(
        self,
        problem: Problem,
        links: Links,
        tol: float,
        h: Tensor | None = None,
        *,
        solver: Solver,
        kernel: EnergyKernel | None = None,
    ) -> None:
        super().__init__(problem, links, tol, h)
        self.solver, self.kernel = solver, kernel
        self.holding: dict[int, EnergyKernel] = {}  # by the number of nodes that move
        self.damped = isinstance(problem, Objective) and not problem.is_attractive
        self.idle = 0
        self.last: Tensor | None = None  # the gradient that the last fresh halo left
        self.anchor = self.own.clone()
        self.memory = Memory()

    @property
    def waits(self) -> bool:
        return self.links.free > self.links.owned

    def glance(self) -> tuple[Tensor, Tensor]:
        if self.kernel is None:
            return self.residual()
        gradient, size = self.kernel.gradient(self.h)
        return gradient[..., : self.links.owned], size.amax(-1)

    def advance(self, news: bool, answered: bool = False) -> None:
        assert self.measure is not None
        owned = self.links.owned
        if self.damped and not self._may_move(news):
            return
        atol = max(
            self.bound.entry(self.measure, self.scale, self.h),
            FORCING * self.measure.largest if self.unrest > 1.0 / FORCING else 0.0,
        )
        most = min(self.solver.max_iter, ITERATIONS)
        solver = replace(self.solver, atol=atol, rtol=0.0, max_iter=most)
        # With the overlap, the residual at owned nodes is zero only if the other parts follow. Once
        # they have read the last answer and are silent, the part settles what is left by itself.
        value = self._solved(solver, self.links.free if news else owned)
        if not bool(torch.isfinite(value).all()):
            return
        moved = value[..., :owned]
        if self.trust < 1.0:
            moved = torch.lerp(self.anchor, moved, self.trust)
        elif answered and news:
            moved = self.memory.extrapolate(self.own, moved, self.unrest)
        self.h = torch.cat([moved, self.h[..., owned:]], -1)

    def _solved(self, solver: Solver, free: int) -> Tensor:
        """The embeddings [R, k, N] after a solve for the first ``free`` nodes."""
        if self.kernel is not None:
            if free not in self.holding:
                held = torch.arange(self.h.size(-1)) >= free
                self.holding[free] = self.kernel.holding(held)
            return solver.run(self.holding[free], self.h).value
        moves = torch.arange(self.h.size(-1), device=self.h.device) < free
        return solve(pinned(self.problem, moves, self.h), solver, self.h).value

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


def rule_on(problem: Problem, owned: int, name: str) -> tuple[Rule, Tensor, Tensor]:
    """A node's rule on the owned nodes: the rule, and the local indices of the edges into these
    nodes and of their senders."""
    part = problem.part(torch.arange(owned))
    local = part.local
    if isinstance(local, LocalMap) and name == "fixed-point":
        rule: Rule = FixedPointRule(local, part.star, problem.channels)
    elif isinstance(local, LocalEnergy) and name in ("gradient", "messages"):
        steps = GradientRule(local, part.star, problem.channels)
        rule = steps if name == "gradient" else MessageRule(steps)
    else:
        fits = "fixed-point" if isinstance(problem, FixedPoint) else "messages or gradient"
        raise ConfigError(f"work={name!r} does not fit this model; expected solve or {fits}")
    return rule, part.edges, part.senders


class Steps(Work):
    """Take steps of a node's rule at all owned nodes. ``rule`` is its name."""

    def __init__(
        self, problem: Problem, links: Links, tol: float, h: Tensor | None = None, *, rule: str
    ) -> None:
        super().__init__(problem, links, tol, h)
        owned, graph = links.owned, problem.graph
        self.rule, edges, self.senders = rule_on(problem, owned, rule)
        self.star = self.rule.everyone
        letters = self.rule.begin(self.own.clone(), self.h[..., self.senders])
        self.letters = letters
        self.mail = None if letters is None else torch.zeros_like(letters)
        if letters is None:
            return
        # The letter on the edge i → j was written by i, on the edge j → i.
        reverse = graph.reverse[edges]
        place = torch.full_like(graph.src, -1)
        place[edges] = torch.arange(edges.numel(), device=edges.device)
        self.inner = (self.senders < owned).nonzero()[:, 0]
        self.inner_from = place[reverse[self.inner]]
        owner = torch.full_like(graph.batch, -1)
        for q, halo in links.receives.items():
            owner[halo] = q
        of = owner[self.senders]
        self.writes: dict[int, Tensor] = {}
        self.reads: dict[int, Tensor] = {}
        for q in links.receives:
            cut = (of == q).nonzero()[:, 0]
            self.writes[q] = cut[torch.argsort(links.edges[edges[cut]])]
            self.reads[q] = cut[torch.argsort(links.edges[reverse[cut]])]

    def place(self, own: Tensor) -> None:
        super().place(own)
        self.letters = self.rule.begin(self.own.clone(), self.h[..., self.senders])

    def residual(self) -> tuple[Tensor, Tensor]:
        found, scale = self.bound.residual(self.h)
        # A part of one hop lacks edges into its halo; letters hold what the halo knows.
        return found if self.mail is None else self.glance()[0], scale

    def glance(self) -> tuple[Tensor, Tensor]:
        if self.mail is None:
            return self.residual()
        found = self.rule.gradient_at(self._mail(), self.star)
        assert found is not None
        return found, found.abs().amax((1, 2))

    def _mail(self) -> Tensor | None:
        """The letters at hand; those from owned nodes are the newest."""
        if self.mail is not None and self.letters is not None:
            self.mail[..., self.inner] = self.letters[..., self.inner_from]
        return self.mail

    def advance(self, news: bool, answered: bool = False) -> None:
        for _ in range(TURNS):
            inbox = self.h[..., self.senders]
            mail = self._mail()
            mail = None if mail is None else mail.clone()
            moved, self.letters = self.rule.update(self.own, inbox, mail, self.star)
            self.h = torch.cat([moved, self.h[..., self.links.owned :]], -1)
        self.refresh()  # a move leaves letters that know the neighbours of before

    def packet(self, to: int) -> Packet:
        nodes = super().packet(to)
        if self.letters is None or to not in self.writes:
            return nodes
        return (*nodes, self.letters[..., self.writes[to]].contiguous())

    def receive(self, sender: int, packet: Packet) -> None:
        super().receive(sender, packet[:1])
        if self.mail is not None and len(packet) > 1:
            self.mail[..., self.reads[sender]] = packet[1]

    def refresh(self) -> bool:
        if self.letters is None:
            return False
        before = self.letters
        self.letters = self.rule.refresh(self.own, self.h[..., self.senders], self.star)
        assert self.letters is not None
        return not torch.equal(before, self.letters)
