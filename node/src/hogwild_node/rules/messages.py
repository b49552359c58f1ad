r"""The rule ``"messages"``: nodes of an energy send quadratic functions that summarise the energies
of the nodes behind them.

Node i minimises over the cluster :math:`N(i) \cup \{i\}` of its local energy :math:`e^i`. From
every neighbour j it hears a quadratic message :math:`\mu_{j \to i}(h_j, h_i)`, which approximates
the sum of the energies beyond j (:mod:`hogwild_node.rules.elimination`). An update is

.. math::
    z_i &\leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}, \\
    \mu_{i \to j} &\leftarrow \min_{h_l,\; l \in N(i) \setminus j} \; \hat e^i
       + \sum_{l \in N(i) \setminus j} \mu_{l \to i},

where the node's own part of :math:`z_i` is its new embedding, and :math:`\hat e^i` is the
quadratic model of :math:`e^i` at :math:`z_i`. The packet to j has a fixed size: it holds
:math:`h_i`, the message (k(2k + 1) + 2k numbers) and the letter of a gradient step
(:mod:`hogwild_node.rules.gradient`).

**On a tree** with quadratic energies this is exact elimination. If all nodes update together (S =
1, D = 0), they hold the answer after as many updates as the diameter of the tree, because a message
about a subtree of height s is right after s updates. A single node needs one update.

**Nonlinear energies.** A node takes its model at :math:`z_i`, which it finds by a few Newton steps.
In a message, the curvature of every activation bounds the activation's growth over ``REACH`` times
its last move, and further if the node's trust is low (:meth:`LocalEnergy.bounding`). While
embeddings still move, these large curvatures keep neighbours from overshooting. When the moves
become small, the curvatures become the true ones, and the rule converges like Newton's method.

**On graphs with cycles** a fixed point is still the answer: the energy is the sum of the clusters'
functions :math:`e^i + \sum_j \mu_{j \to i}` minus the sum of the separators' functions
:math:`\mu_{i \to j} + \mu_{j \to i}`, and at a fixed point their minimisers agree, so the gradient
of the energy is zero. Convergence is proved for energies that are
:attr:`~hogwild_node.local.LocalEnergy.dominated`, on every graph. For others it is not guaranteed,
because messages travel around cycles and return to their sender. A node therefore watches the moves
of its own part of :math:`z_i` (:mod:`hogwild_node.rules.safeguard`). If its trust is low, it adds a
term to its energy, in its own minimisation and in its messages, that holds it near its last
embedding :math:`a_i`:

.. math:: e^i + \tfrac12 \sum_c \rho_{ic} (h_{ic} - a_{ic})^2,

with :math:`\rho` proportional to the curvature of energy and messages in each channel. The term and
its gradient are zero at a fixed point, so the answer does not change. With a large :math:`\rho` the
moves resemble gradient steps. Nodes whose moves keep reversing return to an earlier embedding, take
gradient steps for a while, and try again. Convergence with this safeguard is observed, but not
proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hogwild_node.local import LocalEnergy, LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Rule, Survivors
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
from hogwild_node.rules.safeguard import Retreat, Trust
from hogwild_node.star import Star

SILENT = 1e-3
"""Curvature that holds neighbours without a message in place, relative to the curvature of the
node's own energy."""
HOLD = 3e-4
"""Factor of ρ: at trust s, ρ is ``HOLD`` · (1 / s² − 1) times the curvature of the node's energy
and messages."""
REACH = 3.0
"""At trust s, the curvatures in a message are valid over ``REACH`` / s² times the last move."""
PASSES = 8
"""Most evaluations of a node's own energy in one update after the first."""
ENOUGH = 1e-4
"""The search ends at this predicted decrease, relative to the first one."""
ARRIVED = 1e-8
"""Largest Newton step, relative to the cluster's embeddings, that counts as rounding error."""


class MessageRule(Rule):
    """Quadratic messages. A node that rests, or whose minimisation fails, takes a gradient step.

    Args:
        gradient: The rule for the gradient steps, which holds the energy and the nodes.
    """

    fits = LocalEnergy
    curves = model_may_change = True
    carried: Mapping[str, str] = {
        "own": "nodes", "known": "nodes", "near": "edges", "sent": "edges"
    }  # fmt: skip

    def __init__(self, gradient: GradientRule) -> None:
        self.gradient, self.everyone = gradient, gradient.everyone
        self.channels = gradient.channels
        self.width = Messages.width(self.channels)
        self.letter_width = self.width + gradient.letter_width

    @classmethod
    def of(cls, local: LocalEnergy, everyone: Star, channels: int) -> Rule:
        return cls(GradientRule(local, everyone, channels))

    @property
    def model(self) -> LocalEnergy:
        """The energy."""
        return self.gradient.model

    def set_model(self, model: LocalEnergy) -> None:
        self.gradient.set_model(model)

    # -- private memory ----------------------------------------------------------------------------

    def begin(self, h: Array, inbox: Array) -> Array:
        xp = namespace(h)
        letters = self.gradient.begin(h, inbox)
        self.trust = Trust(h)
        # z_i: one column for each node and edge; copies, because the caller's arrays may change
        self.own, self.near = 1.0 * h, 1.0 * inbox
        self.known = xp.zeros_like(h[:, 0]) > 0.0  # which nodes have a valid z_i, [R, N]
        self.retreat = Retreat(h, self.everyone)
        self._seen: tuple[LocalEnergy, Star, Array, Array, LocalQuadratic] | None = None
        self.sent = self._first(h, inbox, self.everyone)
        return xp.concat([self.sent, letters], axis=1)

    def forget(self, nodes: Array) -> None:
        self.gradient.forget(nodes)
        self.trust.forget(nodes)
        self.retreat.forget(nodes)
        self.known[:, nodes] = False

    def keep(self, before: MessageRule, kept: Survivors) -> None:
        super().keep(before, kept)
        self.gradient.keep(before.gradient, kept)
        self.trust.keep(before.trust, kept)
        self.retreat.keep(before.retreat, kept)

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array:
        letters = self.gradient.refresh(h, inbox, at)
        return namespace(h).concat([at.at_edges(self.sent), letters], axis=1)

    def _remembered(self, clusters: Clusters, h: Array, inbox: Array) -> Point:
        """The last z_i of each node; for nodes without one, their embedding and their inbox."""
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
        self.known = at.put(self.known, sound)  # after a failure the node starts from its inbox
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
        """The messages heard. A neighbour that rests sends zeros. Its message is replaced by a
        quadratic from the gradient and the curvature in its letter, which holds it in place and is
        consistent at the answer."""
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
        """The terms that hold each node near its embedding."""
        xp = namespace(h)
        doubt = (clusters.at.at_nodes(self.trust.share) ** -2 - 1.0)[..., None]
        hold = xp.zeros_like(z.own)
        if bool((doubt > 0.0).any()):
            here = Elimination(clusters, self._model(clusters, z, majorise=1.0), z, heard)
            seen = diagonal(here.b + clusters.collect(here.heard_ii))
            hold = xp.where(doubt > 0.0, HOLD * doubt * xp.clip(seen, 0.0, None), hold)
        return Anchor(rows(h), hold)

    def _views(self, clusters: Clusters, z: Point) -> tuple[Array, Array]:
        """A point in the form that the energy reads: embeddings and inbox."""
        return columns(z.own), columns(clusters.to_edges(z.near, z.own))

    def _model(self, clusters: Clusters, z: Point, majorise: float = 0.0) -> LocalQuadratic:
        h, inbox = self._views(clusters, z)
        if majorise:
            return self.model.quadratic(h, inbox, clusters.at, majorise=majorise)
        if not self._is_seen(h, inbox, clusters.at):
            model = self.model.quadratic(h, inbox, clusters.at)
            self._seen = (self.model, clusters.at, h, inbox, model)
        assert self._seen is not None
        return self._seen[-1]

    def _is_seen(self, h: Array, inbox: Array, at: Star) -> bool:
        """Whether the last quadratic model is of this point. A node alone begins its search where
        its last search ended, and saves one evaluation of five."""
        if self._seen is None or self._seen[0] is not self.model or self._seen[1] is not at:
            return False
        equal = namespace(h).known_equal
        return equal(self._seen[2], h) and equal(self._seen[3], inbox)

    def _watch(
        self,
        before: Array,
        after: Array,
        sound: Array,
        awake: Array,
        astray: Array,
        at: Star,
    ) -> None:
        """Update the trust of the nodes from their moves. Where messages are proved to converge,
        nodes trust them."""
        if self.model.dominated:
            return
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
        """The first messages of nodes, which have not heard any message."""
        xp, clusters = namespace(h), Clusters(at)
        z = Point(rows(h), clusters.average(rows(inbox)))
        model = self.model.quadratic(h, inbox, at, majorise=1.0)
        hold = SILENT * diagonal(rows(model.b)).mean(-1)[:, clusters.slot, None]
        hold = xp.concat([hold * xp.ones_like(z.near), xp.zeros_like(z.near)], axis=-1)
        silent = Messages(diagonal_matrix(hold), hold * xp.concat([z.near, z.near], axis=-1))
        return self._letters(clusters, Elimination(clusters, model, z, silent).messages())

    def _letters(self, clusters: Clusters, messages: Messages) -> Array:
        """The messages on edges, [R, width, E']; zero on self-loops."""
        packed = rows(messages.pack())
        shape = (packed.shape[0], clusters.at.size, self.width)
        nothing = namespace(packed).filled(shape, 0.0, packed)
        return columns(clusters.to_edges(packed, nothing))


def mode(
    clusters: Clusters,
    model: Callable[[Clusters, Point], LocalQuadratic],
    z: Point,
    heard: Messages,
    anchor: Anchor,
) -> tuple[Point, Array]:
    """The modes :math:`z_i` of some clusters.

    Every node runs Newton's method from its last mode, with its own line search: a step is
    shortened while the slope at its end is steep and points upwards. A node is done when its
    predicted decrease is a small fraction of the first one. If the first Newton step is of rounding
    size, the node takes that step and stops after one evaluation of its energy. The result of a
    node does not depend on the nodes that are computed with it.

    Args:
        clusters: The nodes.
        model: A function that gives quadratic models of the nodes' energies at a point.
        z: The starting point.
        heard: The messages that the nodes heard.
        anchor: Quadratic terms that hold the nodes near their embeddings.

    Returns:
        The modes, and for which replicas and nodes the search succeeded, [R, A].
    """
    d, slope = Elimination(clusters, model(clusters, z), z, heard, anchor).solve()
    xp = namespace(slope)
    there, one = xp.isfinite(slope) & _rounding(clusters, d, z), xp.ones_like(slope)
    z = z.move(clusters, one, d).where(clusters, there, z)
    busy, moved, t, goal = ~there, xp.zeros_like(there), one, ENOUGH * abs(slope)
    for _ in range(PASSES):
        if not bool(busy.any()):
            break
        trial = z.move(clusters, t, d)
        here = Elimination(clusters, model(clusters, trial), trial, heard, anchor)
        turned = here.slope(d)
        good = busy & (turned <= 0.5 * abs(slope))  # False for NaN
        further, ahead = here.solve()
        secant = slope / (slope - turned)
        secant = xp.clip(xp.where(xp.isnan(secant), 0.1, secant), 0.1, 0.7)
        z, d = trial.where(clusters, good, z), further.where(clusters, good, d)
        t, slope = xp.where(good, 1.0, secant * t), xp.where(good, ahead, slope)
        moved = moved | good
        busy = busy & ~(good & (abs(slope) <= goal))
    # Far from the answer it may happen that no trial is accepted. The search has then failed.
    return z, there | (xp.isfinite(slope) & moved)


def _rounding(clusters: Clusters, d: Point, z: Point) -> Array:
    """Whether displacements are of rounding size, for each replica and node, [R, A]."""
    least = max(ARRIVED, 10.0 * namespace(d.own).finfo(d.own.dtype).eps)  # float32 has fewer digits
    return clusters.largest(d) <= least * clusters.largest(z)  # False for NaN
