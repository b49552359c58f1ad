r"""The mode of a node's cluster: the minimiser of its energy plus the messages that it heard.

.. math:: z_i \leftarrow \arg\min_{h_i, h_{N(i)}} \; e^i + \sum_{j \in N(i)} \mu_{j \to i}

Every node runs Newton's method from its last mode, with its own line search: a step is shortened
while the slope at its end is steep and points upwards. A node is done when its predicted decrease
is a small fraction of the first one. If the first Newton step is of rounding size, the node takes
that step and stops after one evaluation of its energy.

The result of a node does not depend on the nodes that are computed with it.
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
