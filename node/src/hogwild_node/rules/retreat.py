r"""Retreat: nodes whose messages diverge return to an earlier embedding, rest, and try again.

A node's *home* is an embedding that does not depend on messages: its first embedding, or the last
one that gradient steps reached. A node that is lost (:mod:`hogwild_node.rules.trust`) returns to
its home and rests. For the first half of the rest it stays there. For the second half it takes
gradient steps, and its home moves with it. While a node rests it sends zeros instead of messages,
so that no earlier message survives on a cycle. After the rest it uses messages again.

*All nodes retreat together.* A home is of little use while the neighbours are far away. A node that
receives zeros from a neighbour for the first time therefore also retreats, unless it already rests.
The first nodes are still at home when the last ones arrive.

*Length.* A rest lasts ``REST`` times :math:`2^m` updates, where m is the number of the node's
retreats.

*Leash.* Far from the answer an energy may be nearly linear, and gradient steps return very slowly.
A node that has retreated before therefore retreats as soon as its messages would take it beyond
``LEASH`` times the largest entry of its home. Nothing bounds a node before its first retreat.

Nodes that are never lost, and whose neighbours are never lost, do not retreat.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, carry
from hogwild_node.star import Star

REST = 4.0
"""Updates in a rest; doubled at each retreat."""
MOST = 10.0
"""Number of retreats after which rests no longer get longer."""
LEASH = 5.0
"""Largest entry that messages may give a node after its first retreat, relative to its home. On
badly scaled energies, in two settings, nodes reached 4.3 times the answer with 30, 1.3 times with
5, and 1e3 to 1e6 times without a leash."""


class Retreat:
    """The retreats of all nodes and replicas, which start at ``h`` [R, k, N].

    Attributes:
        home: The embeddings to which nodes return, [R, k, N].
        left: Updates until the end of the rest, [R, N].
        times: Number of retreats, [R, N].
        quiet: Which edges last carried zeros instead of a message, [R, E]. All are quiet at first:
            a neighbour that has not been heard yet does not call anybody back.
    """

    def __init__(self, h: Array, everyone: Star) -> None:
        xp = namespace(h)
        self.home = 1.0 * h  # a copy
        self.left, self.times = xp.zeros_like(h[:, 0]), xp.zeros_like(h[:, 0])
        self.quiet = xp.filled((h.shape[0], everyone.degree), 1.0, h) > 0.0

    def forget(self, nodes: Array) -> None:
        """Clear the memory of these nodes."""
        self.left[:, nodes] = 0.0
        self.times[:, nodes] = 0.0

    def keep(self, before: Retreat, kept: Kept) -> None:
        """Nodes and edges that stay keep their memory through a change of the graph."""
        for name in ("home", "left", "times"):
            setattr(self, name, carry(getattr(self, name), getattr(before, name), kept.nodes))
        self.quiet = carry(self.quiet, before.quiet, kept.edges)

    def resting(self, at: Star) -> Array:
        """Which nodes rest, [R, A]."""
        return at.at_nodes(self.left) > 0.0

    def called(self, messages: Array, at: Star) -> Array:
        """Which nodes learn from these messages [R, m, E'] that a neighbour began to rest,
        [R, A]."""
        quiet = (messages == 0.0).all(1)
        news = quiet & ~at.at_edges(self.quiet)
        self.quiet = at.put_edges(self.quiet, quiet)
        return at.collect(namespace(messages).as_numbers(news, messages)) > 0.0

    def beyond(self, own: Array, at: Star) -> Array:
        """Which nodes would leave the leash with the embeddings ``own`` [R, k, A], [R, A]."""
        xp = namespace(own)
        leash = LEASH * xp.max(abs(at.at_nodes(self.home)), axis=1)
        return (at.at_nodes(self.times) > 0.0) & ~(xp.max(abs(own), axis=1) <= leash)

    def count(self, lost: Array, at: Star) -> Array:
        """Count an update; nodes in ``lost`` [R, A] begin a rest. Returns which nodes stay at
        home, [R, A]."""
        xp, before = namespace(lost), at.at_nodes(self.times)
        times = xp.clip(before + xp.as_numbers(lost, before), None, MOST)
        whole = REST * 2.0**times
        left = xp.where(lost, whole, xp.clip(at.at_nodes(self.left) - 1.0, 0.0, None))
        self.times, self.left = at.put(self.times, times), at.put(self.left, left)
        return left > 0.5 * whole

    def settle(self, h: Array, resting: Array, at: Star) -> None:
        """Set the home of the nodes that rest [R, A] to their embeddings ``h`` [R, k, A]."""
        home = namespace(h).where(resting[:, None], h, at.at_nodes(self.home))
        self.home = at.put(self.home, home)
