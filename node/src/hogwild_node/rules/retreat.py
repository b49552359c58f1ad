r"""Retreat: nodes whose messages have failed go back, rest together, and try again.

A *home* is an embedding that no message had a part in: the node's first one, or the last one that
gradient steps led to. A node that has lost its way (:mod:`hogwild_node.rules.trust`) returns to its
home and rests: for the first half of the rest it stays there, and for the second half it takes
gradient steps, and its home with it. While it rests it sends the message zero: it has nothing to
say about what lies behind it, and no echo survives. Then it tries messages again.

*One calls all.* A home is worth little while the neighbours are far off. So a node that hears a
neighbour fall silent retreats, too, unless it rests already. Word goes round while the first ones
stay where they are.

*Rests* last ``REST`` times :math:`2^m` updates, m the number of times that the node retreated.

*A leash.* Far out an energy may be nearly linear: gradients do not tell that a node is far off,
and it may take for ever to come back. A node that has retreated before retreats as soon as its
messages would take it beyond ``LEASH`` times its home's largest entry.

So after its first retreat a node stays within ``LEASH`` homes, and homes move by gradient steps
only. Before it, nothing bounds a node. A node that never lost its way has nothing to do
with any of this.
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star

REST = 4.0
"""Updates in a rest, times two for each retreat."""
MOST = 10.0
"""Retreats that make rests longer."""
LEASH = 5.0
"""How far from zero messages may lead a node, relative to its home, once they have failed. Chosen
on two settings of ``benchmarks/safeguard.py``: 30 let nodes go to 4.3 times the answer, 5 to 1.3;
without a leash runs left for 1e3 to 1e6 times the answer after their rests."""


class Retreat:
    """The retreats of all nodes and replicas, which start at ``h`` [R, k, N].

    Attributes:
        home: Where nodes go back to, [R, k, N].
        left: Updates until the end of the rest, [R, N].
        times: How often they retreated, [R, N].
        quiet: Which neighbours were silent when last heard, [R, E]; nobody writes to oneself.
    """

    def __init__(self, h: Array, everyone: Star) -> None:
        xp = namespace(h)
        self.home = 1.0 * h  # a copy
        self.left, self.times = xp.zeros_like(h[:, 0]), xp.zeros_like(h[:, 0])
        nobody = xp.filled((h.shape[0], everyone.degree), 0.0, h) > 0.0
        self.quiet = nobody if everyone.loops is None else nobody | everyone.loops

    def forget(self, nodes: Array) -> None:
        """These nodes start again."""
        self.left[:, nodes] = 0.0
        self.times[:, nodes] = 0.0

    def resting(self, at: Star) -> Array:
        """Who rests, [R, A]."""
        return at.at_nodes(self.left) > 0.0

    def called(self, messages: Array, at: Star) -> Array:
        """Who hears in these messages [R, m, E'] that a neighbour has fallen silent, [R, A]."""
        quiet = (messages == 0.0).all(1)
        news = quiet & ~at.at_edges(self.quiet)
        self.quiet = at.put_edges(self.quiet, quiet)
        return at.collect(namespace(messages).as_numbers(news, messages)) > 0.0

    def beyond(self, own: Array, at: Star) -> Array:
        """Who would leave for embeddings [R, k, A] beyond the leash, [R, A]."""
        xp = namespace(own)
        leash = LEASH * xp.max(abs(at.at_nodes(self.home)), axis=1)
        return (at.at_nodes(self.times) > 0.0) & ~(xp.max(abs(own), axis=1) <= leash)

    def count(self, lost: Array, at: Star) -> Array:
        """Another update; those in ``lost`` [R, A] begin a rest. Returns who stays at home."""
        xp, before = namespace(lost), at.at_nodes(self.times)
        times = xp.clip(before + xp.as_numbers(lost, before), None, MOST)
        whole = REST * 2.0**times
        left = xp.where(lost, whole, xp.clip(at.at_nodes(self.left) - 1.0, 0.0, None))
        self.times, self.left = at.put(self.times, times), at.put(self.left, left)
        return left > 0.5 * whole

    def settle(self, h: Array, resting: Array, at: Star) -> None:
        """Those who rest [R, A] are at home where they are, [R, k, A]."""
        home = namespace(h).where(resting[:, None], h, at.at_nodes(self.home))
        self.home = at.put(self.home, home)
