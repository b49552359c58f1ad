r"""The mode of a node's cluster: where its energy plus the messages it heard is least.

.. math:: z_i \leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}

Newton's method from where the node left off, with a line search of its own for every node: a step
is shortened while the slope along it turns steeply upwards. A node is done when its predicted
decrease has become a small share of the first one, or at once when its first Newton step may be
nothing but rounding: the node takes that step, whose error is of second order, and has evaluated
its energy once.

Nothing about a node depends on the nodes that are computed beside it: the iterate of a node that is
done is frozen, and the node is cut out of the work that is left.
"""

from __future__ import annotations

from collections.abc import Callable

from hogwild_node.ops import Array, namespace
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.rules.elimination import Anchor, Clusters, Elimination, Messages, Point

PASSES = 8
"""Most evaluations of its own energy a node makes in an update beyond the first."""
ENOUGH = 1e-4
"""Predicted decrease, relative to the first, at which the mode counts as found."""
ARRIVED = 1e-8
"""Newton step, relative to the cluster's embeddings, that may be nothing but rounding."""


def mode(
    clusters: Clusters,
    model: Callable[[Clusters, Point], LocalQuadratic],
    z: Point,
    heard: Messages,
    anchor: Anchor,
) -> tuple[Point, Array]:
    """The modes of these clusters, and for which replicas and nodes that went well, [R, A].

    Args:
        clusters: The nodes.
        model: Quadratic models of their energies at a point.
        z: Where the search begins.
        heard: The messages they heard.
        anchor: Where they are held.
    """
    d, slope = Elimination(clusters, model(clusters, z), z, heard, anchor).solve()
    xp = namespace(slope)
    there = xp.isfinite(slope) & _rounding(clusters, d, z)
    z = z.move(clusters, xp.ones_like(slope), d).where(clusters, there, z)
    if bool(there.all()):
        return z, there
    search = Search(clusters, model, heard, anchor, z, d, slope, ~there)
    for _ in range(PASSES):
        if not search.step():
            break
    # Far out, where an energy is all slopes and kinks, no step may help within so many passes;
    # standing still there must not be taken for having arrived.
    return search.z, there | search.sound


def _rounding(clusters: Clusters, d: Point, z: Point) -> Array:
    """Whether displacements may be nothing but rounding, for each replica and node, [R, A]."""
    least = max(ARRIVED, 10.0 * namespace(d.own).finfo(d.own.dtype).eps)  # float32 has fewer digits
    return clusters.largest(d) <= least * clusters.largest(z)  # False for NaN


class Search:
    """Newton's method under way, for all nodes that are still searching."""

    def __init__(
        self,
        clusters: Clusters,
        model: Callable[[Clusters, Point], LocalQuadratic],
        heard: Messages,
        anchor: Anchor,
        z: Point,
        d: Point,
        slope: Array,
        busy: Array,
    ) -> None:
        self.clusters, self.model, self.heard, self.anchor = clusters, model, heard, anchor
        self.z, self.d, self.slope, self.busy = z, d, slope, busy
        xp = namespace(slope)
        self.t, self.goal = xp.ones_like(slope), ENOUGH * abs(slope)
        self.moved = xp.zeros_like(busy)

    @property
    def sound(self) -> Array:
        """Where a step was taken, and nothing went wrong since, [R, A]."""
        return namespace(self.slope).isfinite(self.slope) & self.moved

    def step(self) -> bool:
        """One trial of every node that is searching; whether any still is."""
        some = self.busy.any(0)
        if bool(some.all()):
            self._step()
        elif bool(some.any()):
            part = self._part(some)
            part._step()
            self._join(some, part)
        return bool(self.busy.any())

    def _step(self) -> None:
        xp, clusters = namespace(self.slope), self.clusters
        d, slope, busy = self.d, self.slope, self.busy
        trial = self.z.move(clusters, self.t, d)
        model = self.model(clusters, trial)
        here = Elimination(clusters, model, trial, self.heard, self.anchor)
        turned = here.slope(d)
        good = busy & (turned <= 0.5 * abs(slope))  # False for NaN
        further, ahead = here.solve()
        secant = slope / (slope - turned)
        secant = xp.clip(xp.where(xp.isnan(secant), 0.1, secant), 0.1, 0.7)
        self.z = trial.where(clusters, good, self.z)
        self.d = further.where(clusters, good, d)
        self.t = xp.where(good, 1.0, secant * self.t)
        self.slope = xp.where(good, ahead, slope)
        self.moved = self.moved | good
        self.busy = busy & ~(good & (abs(self.slope) <= self.goal))

    def _part(self, some: Array) -> Search:
        """The search of some of the nodes (a mask [A])."""
        clusters, near = self.clusters.part(some)
        part = Search(
            clusters,
            self.model,
            Messages(self.heard.precision[:, near], self.heard.linear[:, near]),
            Anchor(self.anchor.at[:, some], self.anchor.hold[:, some]),
            Point(self.z.own[:, some], self.z.near[:, near]),
            Point(self.d.own[:, some], self.d.near[:, near]),
            self.slope[:, some],
            self.busy[:, some],
        )
        part.t, part.goal, part.moved = self.t[:, some], self.goal[:, some], self.moved[:, some]
        return part

    def _join(self, some: Array, part: Search) -> None:
        """Write what the search of some of the nodes has become into this one, in place."""
        near = some[self.clusters.slot]
        for mine, theirs in ((self.z, part.z), (self.d, part.d)):
            mine.own[:, some], mine.near[:, near] = theirs.own, theirs.near
        self.t[:, some], self.slope[:, some] = part.t, part.slope
        self.moved[:, some], self.busy[:, some] = part.moved, part.busy
