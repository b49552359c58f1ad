r"""The mode of a node's cluster: the minimiser of its energy plus the messages that it heard.

.. math:: z_i \leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}

Every node runs Newton's method from its last mode, with its own line search: a step is shortened
while the slope at its end is steep and points upwards. A node is done when its predicted decrease
is a small fraction of the first one. If the first Newton step is of rounding size, the node takes
that step and stops after one evaluation of its energy.

The result of a node does not depend on the nodes that are computed with it. Nodes that are done
are removed from the computation.
"""

from __future__ import annotations

from collections.abc import Callable

from hogwild_node.local import LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.elimination import Anchor, Clusters, Elimination, Messages, Point

PASSES = 8
"""Most evaluations of a node's own energy in one update after the first."""
ENOUGH = 1e-4
"""The search ends at this predicted decrease, relative to the first one."""
ARRIVED = 1e-8
"""Largest Newton step, relative to the cluster's embeddings, that counts as rounding error."""


def mode(
    clusters: Clusters,
    model: Callable[[Clusters, Point], LocalQuadratic],
    z: Point,
    heard: Messages,
    anchor: Anchor,
) -> tuple[Point, Array]:
    """The modes of some clusters.

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
    there = xp.isfinite(slope) & _rounding(clusters, d, z)
    z = z.move(clusters, xp.ones_like(slope), d).where(clusters, there, z)
    if bool(there.all()):
        return z, there
    search = Search(clusters, model, heard, anchor, z, d, slope, ~there)
    for _ in range(PASSES):
        if not search.step():
            break
    # Far from the answer it may happen that no trial is accepted. The search has then failed.
    return search.z, there | search.sound


def _rounding(clusters: Clusters, d: Point, z: Point) -> Array:
    """Whether displacements are of rounding size, for each replica and node, [R, A]."""
    least = max(ARRIVED, 10.0 * namespace(d.own).finfo(d.own.dtype).eps)  # float32 has fewer digits
    return clusters.largest(d) <= least * clusters.largest(z)  # False for NaN


class Search:
    """Newton's method with a line search for every node."""

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
        """Which nodes accepted a trial and have a finite slope, [R, A]."""
        return namespace(self.slope).isfinite(self.slope) & self.moved

    def step(self) -> bool:
        """Make one trial for every node that still searches; returns whether any node does."""
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
        """Copy the search of some of the nodes back into this one, in place."""
        near = some[self.clusters.slot]
        for mine, theirs in ((self.z, part.z), (self.d, part.d)):
            mine.own[:, some], mine.near[:, near] = theirs.own, theirs.near
        self.t[:, some], self.slope[:, some] = part.t, part.slope
        self.moved[:, some], self.busy[:, some] = part.moved, part.busy
