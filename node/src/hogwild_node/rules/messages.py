r"""Optimisation-based models at the speed of information: messages about everything behind a node.

A gradient step tells a neighbour which way to go; a message tells it what everybody behind the
sender makes of where it goes. Node i owns the cluster :math:`N(i) \cup \{i\}` of its local energy
:math:`e^i`. From every neighbour j it hears a quadratic :math:`\mu_{j \to i}(h_j, h_i)` that stands
for the energies beyond j (:mod:`hogwild_node.rules.elimination`). An update is

.. math::
    z_i &\leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}, \\
    \mu_{i \to j} &\leftarrow \min_{h_l,\; l \in N(i) \setminus j} \; \hat e^i
       + \sum_{l \in N(i) \setminus j} \mu_{l \to i},

:math:`z_i` being the cluster as i would have it, its own part the node's new embedding, and
:math:`\hat e^i` the quadratic model of :math:`e^i` at :math:`z_i`. The packet to j has a fixed
size: :math:`h_i`, the message (k(2k + 1) + 2k numbers) and what a gradient step needs
(:mod:`hogwild_node.rules.gradient`).

**On a tree** with quadratic energies this is exact elimination. All together (S = 1, D = 0) the
nodes hold the answer after as many updates as the tree's diameter (a lone node after one): a
message about a subtree of height s is right after s of them.

**Nonlinear energies.** Models are taken at :math:`z_i`, which a few local Newton steps find: no
node extrapolates its own energy. And every activation enters a message with the curvature that
bounds its growth over ``REACH`` times its last move (:meth:`LocalEnergy.bounding`), and farther
where the node trusts less: wide parabolas while things move, which keep neighbours from
overshooting; the true curvature, and Newton's rate, when they settle.

**On graphs with cycles** a fixed point is still the answer: the energy is the sum of the clusters'
functions :math:`e^i + \sum_j \mu_{j \to i}` less that of the separators'
:math:`\mu_{i \to j} + \mu_{j \to i}`; their minimisers agree, so there its gradient vanishes. That
one is reached is not guaranteed: what a node says comes back to it round the cycles. So nodes
watch how far their own part of :math:`z_i` moves (:mod:`hogwild_node.rules.trust`), and one that
trusts less holds on to the embedding :math:`a_i` it had before: its energy, as it minimises it and
as it tells neighbours about it, is

.. math:: e^i + \tfrac12 \sum_c \rho_{ic} (h_{ic} - a_{ic})^2,

with :math:`\rho` in proportion to the curvature it sees in each channel. At a fixed point that term
and its gradient are zero, so the answer is the same; the more strongly nodes are held the more
their moves resemble gradient steps, and the sooner echoes fade. And nodes whose moves keep undoing
each other go back to where they were, take gradient steps for a while and try again
(:mod:`hogwild_node.rules.retreat`). Observed to converge, not proved.
"""

from __future__ import annotations

from hogwild_node.local import LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.rules.base import Rule
from hogwild_node.rules.elimination import (
    Anchor,
    Clusters,
    Elimination,
    Messages,
    Point,
    columns,
    diagonal,
    diagonal_matrix,
    rows,
    times,
)
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.rules.mode import mode
from hogwild_node.rules.retreat import Retreat
from hogwild_node.rules.trust import Trust
from hogwild_node.star import Star

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
        gradient: The gradient steps, which know the energy and the nodes.
    """

    def __init__(self, gradient: GradientRule) -> None:
        self.gradient, self.everyone = gradient, gradient.everyone
        self.channels = gradient.channels
        self.width = Messages.width(self.channels)
        self.letter = self.width + gradient.letter

    @property
    def model(self) -> LocalEnergy:
        """The energy."""
        return self.gradient.model

    def pose(self, model: LocalEnergy) -> None:
        self.gradient.pose(model)

    # -- private memory ----------------------------------------------------------------------------

    def begin(self, h: Array, inbox: Array) -> Array:
        xp = namespace(h)
        letters = self.gradient.begin(h, inbox)
        self.trust = Trust(h)
        # z_i, one column a node and one an edge; copies, since the caller's arrays may change
        self.own, self.near = 1.0 * h, 1.0 * inbox
        self.known = xp.zeros_like(h[:, 0]) > 0.0  # whose z_i holds, [R, N]: nobody's yet
        self.retreat = Retreat(h, self.everyone)
        self.sent = self._first(h, inbox, self.everyone)
        return xp.concat([self.sent, letters], axis=1)

    def forget(self, nodes: Array) -> None:
        self.gradient.forget(nodes)
        self.trust.forget(nodes)
        self.retreat.forget(nodes)
        self.known[:, nodes] = False

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array:
        letters = self.gradient.refresh(h, inbox, at)
        return namespace(h).concat([at.at_edges(self.sent), letters], axis=1)

    def _remembered(self, clusters: Clusters, h: Array, inbox: Array) -> Point:
        """The clusters as their nodes left them; after a fresh start, as they hear them to be."""
        at = clusters.at
        left = Point(rows(at.at_nodes(self.own)), clusters.average(rows(at.at_edges(self.near))))
        heard = Point(rows(h), clusters.average(rows(inbox)))
        return left.where(clusters, at.at_nodes(self.known), heard)

    # -- the rule ----------------------------------------------------------------------------------

    def update(self, h: Array, inbox: Array, mail: Array | None, at: Star) -> tuple[Array, Array]:
        assert mail is not None, "the neighbours' letters"
        xp, clusters = namespace(h), Clusters(at)
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
        sent = xp.where(xp.isfinite(sent).all(1)[:, None], sent, last)
        sent = xp.where(resting[:, at.slot][:, None], 0.0, sent)
        self.own = at.put(self.own, columns(z.own))
        self.known = at.put(self.known, sound)  # failed: begun afresh, from what is heard
        self.near = at.put_edges(self.near, columns(clusters.to_edges(z.near, z.own)))
        self.sent = at.put_edges(self.sent, sent)

        new = columns(z.own)
        if not bool(sound.all()):
            steps = self.gradient.step(h, mail[:, self.width :], at, ~sound & ~stays)
            new = xp.where(sound[:, None], new, steps)
            new = xp.where(stays[:, None], at.at_nodes(self.retreat.home), new)
            self.retreat.settle(new, resting, at)
        return new, xp.concat([sent, self.gradient.refresh(new, inbox, at)], axis=1)

    def gradient_at(self, mail: Array, at: Star) -> Array:
        return self.gradient.gradient_at(mail[:, self.width :], at)

    def _heard(self, clusters: Clusters, mail: Array, z: Point) -> Messages:
        """The messages heard. A neighbour that is silent stays where it is, and its letter, a
        gradient and a curvature, stands for its message: at the answer that is consistent."""
        xp, k = namespace(mail), self.channels
        packed = clusters.average(rows(mail[:, : self.width]))
        heard, silent = Messages.unpack(columns(packed), k), (packed == 0.0).all(-1)
        if not bool(silent.any()):
            return heard
        model = self._model(clusters, z, majorise=1.0)
        toward, letters = (
            clusters.merge(rows(x))[0] for x in (model.toward, mail[:, self.width :])
        )
        own = z.own[:, clusters.slot]
        hold = diagonal(rows(model.b)).mean(-1)[:, clusters.slot, None]
        away = diagonal_matrix(hold * xp.ones_like(own))
        here = xp.zeros_like(away)
        if self.gradient.auto:
            here = xp.reshape(letters[..., k:], here.shape)
        none = xp.zeros_like(here)
        upper, lower = xp.concat([away, none], axis=-1), xp.concat([none, here], axis=-1)
        precision = xp.concat([upper, lower], axis=-2)
        gradient = xp.concat([-toward, letters[..., :k]], axis=-1)
        linear = times(precision, xp.concat([z.near, own], axis=-1)) - gradient
        return Messages(
            xp.where(silent[..., None, None], precision, heard.precision),
            xp.where(silent[..., None], linear, heard.linear),
        )

    def _anchor(self, clusters: Clusters, h: Array, z: Point, heard: Messages) -> Anchor:
        """How strongly each node holds on to the embedding it has."""
        xp = namespace(h)
        doubt = (clusters.at.at_nodes(self.trust.share) ** -2 - 1.0)[..., None]
        hold = xp.zeros_like(z.own)
        if bool((doubt > 0.0).any()):
            here = Elimination(clusters, self._model(clusters, z, majorise=1.0), z, heard)
            seen = diagonal(here.b + clusters.collect(here.heard_ii))
            hold = xp.where(doubt > 0.0, HOLD * doubt * xp.clip(seen, 0.0, None), hold)
        return Anchor(rows(h), hold)

    def _views(self, clusters: Clusters, z: Point) -> tuple[Array, Array]:
        """A point as the energy takes it: h and the inbox."""
        return columns(z.own), columns(clusters.to_edges(z.near, z.own))

    def _model(self, clusters: Clusters, z: Point, majorise: float = 0.0) -> LocalQuadratic:
        return self.model.quadratic(*self._views(clusters, z), clusters.at, majorise=majorise)

    def _watch(
        self,
        before: Array,
        after: Array,
        sound: Array,
        awake: Array,
        astray: Array,
        at: Star,
    ) -> None:
        """Let the nodes think about how they have moved."""
        xp = namespace(after)
        move = xp.where((sound & awake)[..., None], after - before, float("nan"))
        size = xp.max(xp.maximum(abs(before), abs(after)), axis=-1)
        rounding = 1e3 * float(xp.finfo(after.dtype).eps) * xp.max(abs(after), axis=-1)
        self.trust.watch(columns(move), size, rounding, at, awake, astray)

    def _messages(
        self, clusters: Clusters, before: Point, z: Point, heard: Messages, anchor: Anchor
    ) -> Array:
        back = Point(before.own - z.own, before.near - z.near)
        far = z.move(clusters, REACH * clusters.at.at_nodes(self.trust.share) ** -2, back)
        here, there = self._views(clusters, z), self._views(clusters, far)
        model = self.model.bounding(*here, clusters.at, there)
        return self._letters(clusters, Elimination(clusters, model, z, heard, anchor).messages())

    def _first(self, h: Array, inbox: Array, at: Star) -> Array:
        """Messages of nodes that have not heard any."""
        xp, clusters = namespace(h), Clusters(at)
        z = Point(rows(h), clusters.average(rows(inbox)))
        model = self.model.quadratic(h, inbox, at, majorise=1.0)
        hold = SILENT * diagonal(rows(model.b)).mean(-1)[:, clusters.slot, None]
        hold = xp.concat([hold * xp.ones_like(z.near), xp.zeros_like(z.near)], axis=-1)
        silent = Messages(diagonal_matrix(hold), hold * xp.concat([z.near, z.near], axis=-1))
        return self._letters(clusters, Elimination(clusters, model, z, silent).messages())

    def _letters(self, clusters: Clusters, messages: Messages) -> Array:
        """One an edge [R, width, E']; to oneself there is nothing to say."""
        packed = rows(messages.pack())
        shape = (packed.shape[0], clusters.at.size, self.width)
        nothing = namespace(packed).filled(shape, 0.0, packed)
        return columns(clusters.to_edges(packed, nothing))
