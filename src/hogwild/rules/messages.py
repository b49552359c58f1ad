r"""Optimisation-based models at the speed of information: messages about everything behind a node.

A gradient step tells a neighbour which way to go; a message tells it what everybody behind the
sender makes of where it goes. Node i owns the cluster :math:`N(i) \cup \{i\}` of its local energy
:math:`e^i`. From every neighbour j it hears a quadratic :math:`\mu_{j \to i}(h_j, h_i)` that stands
for the energies beyond j (:mod:`hogwild.rules.elimination`). An update is

.. math::
    z_i &\leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}, \\
    \mu_{i \to j} &\leftarrow \min_{h_l,\; l \in N(i) \setminus j} \; \hat e^i
       + \sum_{l \in N(i) \setminus j} \mu_{l \to i},

:math:`z_i` being the cluster as i would have it, its own part the node's new embedding, and
:math:`\hat e^i` the quadratic model of :math:`e^i` at :math:`z_i`. The packet to j has a fixed
size: :math:`h_i`, the message (k(2k + 1) + 2k numbers) and what a gradient step needs
(:mod:`hogwild.rules.gradient`).

**On a tree** with quadratic energies this is exact elimination. All together (S = 1, D = 0) the
nodes hold the answer after as many updates as the tree's diameter (a lone node after one): a
message about a subtree of height s is right after s of them.

**Nonlinear energies.** Models are taken at :math:`z_i`, which a few local Newton steps find: no
node extrapolates its own energy. And every activation enters a message with the curvature that
bounds its growth over ``REACH`` times its last move (:meth:`Objective.bounding`), and farther
where the node trusts less: wide parabolas while things move, which keep neighbours from
overshooting; the true curvature, and Newton's rate, when they settle.

**On graphs with cycles** a fixed point is still the answer: the energy is the sum of the clusters'
functions :math:`e^i + \sum_j \mu_{j \to i}` less that of the separators'
:math:`\mu_{i \to j} + \mu_{j \to i}`; their minimisers agree, so there its gradient vanishes. That
one is reached is not guaranteed: what a node says comes back to it round the cycles. So nodes
watch how far their own part of :math:`z_i` moves (:mod:`hogwild.rules.trust`), and one that trusts
less holds on to the embedding :math:`a_i` it had before: its energy, as it minimises it and as it
tells neighbours about it, is

.. math:: e^i + \tfrac12 \sum_c \rho_{ic} (h_{ic} - a_{ic})^2,

with :math:`\rho` in proportion to the curvature it sees in each channel. At a fixed point that term
and its gradient are zero, so the answer is the same; the more strongly nodes are held the more
their moves resemble gradient steps, and the sooner echoes fade. And nodes whose moves keep undoing
each other go back to where they were, take gradient steps for a while and try again
(:mod:`hogwild.rules.retreat`). Observed to converge, not proved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.fields import gather
from hogwild.graph import Star
from hogwild.rules.base import Rule, put, put_edges
from hogwild.rules.elimination import (
    Anchor,
    Clusters,
    Elimination,
    Messages,
    Point,
    columns,
    rows,
    times,
)
from hogwild.rules.gradient import GradientRule
from hogwild.rules.mode import mode
from hogwild.rules.retreat import Retreat
from hogwild.rules.trust import Trust
from hogwild.solvers.problem import LocalQuadratic, Objective, Problem

SILENT = 1e-3
"""Curvature, relative to its own energy's, with which a node holds neighbours it has not heard
from where they are."""
HOLD = 3e-4
"""How strongly a node holds on to where it is, relative to the curvature it sees: at trust s, so
much times 1 / s² - 1."""
REACH = 3.0
"""How many times its last move an activation's parabola must hold for: at trust s, so many / s²."""


class MessageRule(Rule):
    """Messages; gradient steps where a node cannot minimise its own energy, or rests.

    Args:
        problem: The energy.
        step: For the gradient steps, see :class:`GradientRule`.
        age: Likewise.
        moving: Likewise.
    """

    def __init__(
        self,
        problem: Objective,
        step: str | float = "auto",
        *,
        age: int | None = None,
        moving: bool = False,
    ) -> None:
        self.problem, self.graph, self.channels = problem, problem.graph, problem.channels
        self.gradient = GradientRule(problem, step, age=age, moving=moving)
        self.width = Messages.width(self.channels)
        self.letter = self.width + self.gradient.letter

    def pose(self, problem: Problem) -> None:
        self.gradient.pose(problem)
        self.problem = self.gradient.problem

    # -- private memory ----------------------------------------------------------------------------

    def begin(self, h: Tensor) -> Tensor:
        graph = self.graph
        inbox = gather(h, graph.src)
        letters = self.gradient.begin(h)
        self.trust = Trust(h, graph.num_nodes)
        self.own, self.near = h.clone(), inbox.clone()  # z_i, one column a node and one an edge
        self.known = torch.zeros_like(h[:, 0], dtype=torch.bool)
        self.retreat = Retreat(h, graph)
        self.sent = self._first(h, inbox, graph.everyone)
        return torch.cat([self.sent, letters], 1)

    def forget(self, nodes: Tensor) -> None:
        self.gradient.forget(nodes)
        self.trust.forget(nodes)
        self.retreat.forget(nodes)
        self.known[:, nodes] = False

    def refresh(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        return torch.cat([at.at_edges(self.sent), self.gradient.refresh(h, inbox, at)], 1)

    def _remembered(self, clusters: Clusters, h: Tensor, inbox: Tensor) -> Point:
        """The clusters as their nodes left them; after a fresh start, as they hear them to be."""
        at = clusters.at
        left = Point(rows(at.at_nodes(self.own)), clusters.average(rows(at.at_edges(self.near))))
        heard = Point(rows(h), clusters.average(rows(inbox)))
        return left.where(clusters, at.at_nodes(self.known), heard)

    # -- the rule ----------------------------------------------------------------------------------

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor]:
        assert mail is not None
        clusters = Clusters(self.graph, at)
        before = self._remembered(clusters, h, inbox)
        heard = self._heard(clusters, mail, before)
        anchor = self._anchor(clusters, h, before, heard)
        z, sound = mode(clusters, self._model, before, heard, anchor)
        resting = self.retreat.resting(at)
        astray = self.retreat.called(mail[:, : self.width], at)
        astray = astray | self.retreat.beyond(columns(z.own), at)
        self._watch(before.own, z.own, sound, ~resting, astray, at)
        lost = at.at_nodes(self.trust.lost)
        stays, resting = self.retreat.count(lost, at), resting | lost
        sound = sound & ~resting

        sent, last = self._messages(clusters, before, z, heard, anchor), at.at_edges(self.sent)
        sent = torch.where(torch.isfinite(sent).all(1, keepdim=True), sent, last)
        sent = torch.where(resting[:, at.slot].unsqueeze(1), 0.0, sent)
        put(self.own, at, columns(z.own))
        put(self.known, at, sound)  # failed: begun afresh, from what is heard
        put_edges(self.near, at, columns(clusters.to_edges(z.near, z.own)))
        put_edges(self.sent, at, sent)

        new = columns(z.own)
        if not bool(sound.all()):
            steps = self.gradient.step(h, mail[:, self.width :], at, ~sound & ~stays)
            new = torch.where(sound.unsqueeze(1), new, steps)
            new = torch.where(stays.unsqueeze(1), at.at_nodes(self.retreat.home), new)
            self.retreat.settle(new, resting, at)
        return new, torch.cat([sent, self.gradient.refresh(new, inbox, at)], 1)

    def _heard(self, clusters: Clusters, mail: Tensor, z: Point) -> Messages:
        """The messages heard. A neighbour that is silent stays where it is, and its letter, a
        gradient and a curvature, stands for its message: at the answer that is consistent."""
        k, packed = self.channels, clusters.average(rows(mail[:, : self.width]))
        heard, silent = Messages.unpack(columns(packed), k), (packed == 0.0).all(-1)
        if not bool(silent.any()):
            return heard
        model = self._model(clusters, z, majorise=1.0)
        toward, letters = (
            clusters.merge(rows(x))[0] for x in (model.toward, mail[:, self.width :])
        )
        own = z.own[:, clusters.slot]
        hold = rows(model.b).diagonal(dim1=-2, dim2=-1).mean(-1)[:, clusters.slot]
        precision = torch.zeros_like(heard.precision)
        precision[..., :k, :k] = torch.diag_embed(hold.unsqueeze(-1).expand_as(own))
        if self.gradient.auto:
            precision[..., k:, k:] = letters[..., k:].unflatten(-1, (k, k))
        gradient = torch.cat([-toward, letters[..., :k]], -1)
        linear = times(precision, torch.cat([z.near, own], -1)) - gradient
        return Messages(
            torch.where(silent[..., None, None], precision, heard.precision),
            torch.where(silent[..., None], linear, heard.linear),
        )

    def _anchor(self, clusters: Clusters, h: Tensor, z: Point, heard: Messages) -> Anchor:
        """How strongly each node holds on to the embedding it has."""
        doubt = (clusters.at.at_nodes(self.trust.share) ** -2 - 1.0).unsqueeze(-1)
        hold = torch.zeros_like(z.own)
        if bool((doubt > 0.0).any()):
            here = Elimination(clusters, self._model(clusters, z, majorise=1.0), z, heard)
            seen = (here.b + clusters.collect(here.heard_ii)).diagonal(dim1=-2, dim2=-1)
            hold = torch.where(doubt > 0.0, HOLD * doubt * seen.clamp_min(0.0), hold)
        return Anchor(rows(h), hold)

    def _views(self, clusters: Clusters, z: Point) -> tuple[Tensor, Tensor]:
        """A point as the energy takes it: h and the inbox."""
        return columns(z.own), columns(clusters.to_edges(z.near, z.own))

    def _model(self, clusters: Clusters, z: Point, majorise: float = 0.0) -> LocalQuadratic:
        return self.problem.quadratic(*self._views(clusters, z), clusters.at, majorise=majorise)

    def _watch(
        self,
        before: Tensor,
        after: Tensor,
        sound: Tensor,
        awake: Tensor,
        astray: Tensor,
        at: Star,
    ) -> None:
        """Let the nodes think about how they have moved."""
        move = torch.where((sound & awake).unsqueeze(-1), after - before, float("nan"))
        size = torch.maximum(before.abs(), after.abs()).amax(-1)
        rounding = 1e3 * torch.finfo(after.dtype).eps * after.abs().amax(-1)
        self.trust.watch(move, size, rounding, at, awake, astray)

    def _messages(
        self, clusters: Clusters, before: Point, z: Point, heard: Messages, anchor: Anchor
    ) -> Tensor:
        back = Point(before.own - z.own, before.near - z.near)
        far = z.move(clusters, REACH * clusters.at.at_nodes(self.trust.share) ** -2, back)
        here, there = self._views(clusters, z), self._views(clusters, far)
        model = self.problem.bounding(*here, clusters.at, there)
        return self._letters(clusters, Elimination(clusters, model, z, heard, anchor).messages())

    def _first(self, h: Tensor, inbox: Tensor, at: Star) -> Tensor:
        """Messages of nodes that have not heard any."""
        clusters = Clusters(self.graph, at)
        z = Point(rows(h), clusters.average(rows(inbox)))
        model = self.problem.quadratic(h, inbox, at, majorise=1.0)
        hold = SILENT * rows(model.b).diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        hold = torch.cat([hold[:, clusters.slot].expand_as(z.near), torch.zeros_like(z.near)], -1)
        silent = Messages(torch.diag_embed(hold), hold * torch.cat([z.near, z.near], -1))
        return self._letters(clusters, Elimination(clusters, model, z, silent).messages())

    def _letters(self, clusters: Clusters, messages: Messages) -> Tensor:
        """One an edge [R, width, E']; to oneself there is nothing to say."""
        packed = rows(messages.pack())
        nothing = packed.new_zeros(packed.size(0), clusters.at.size, self.width)
        return columns(clusters.to_edges(packed, nothing))
