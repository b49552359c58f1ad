r"""Retreat: nodes whose messages have failed go back, rest together, and try again.

A *home* is an embedding that no message had a part in: the node's first one, or the last one that
gradient steps led to. A node that has lost its way (:mod:`hogwild.rules.trust`) returns to its
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

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.rules.base import put, put_edges

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

    def __init__(self, h: Tensor, graph: Graph) -> None:
        self.home = h.clone()
        self.left, self.times = torch.zeros_like(h[:, 0]), torch.zeros_like(h[:, 0])
        self.quiet = (graph.src == graph.dst).repeat(h.size(0), 1)

    def forget(self, nodes: Tensor) -> None:
        """These nodes start again."""
        self.left[:, nodes] = 0.0
        self.times[:, nodes] = 0.0

    def resting(self, at: Star) -> Tensor:
        """Who rests, [R, A]."""
        return at.at_nodes(self.left) > 0.0

    def called(self, messages: Tensor, at: Star) -> Tensor:
        """Who hears in these messages [R, m, E'] that a neighbour has fallen silent, [R, A]."""
        quiet = (messages == 0.0).all(1)
        news = quiet & ~at.at_edges(self.quiet)
        put_edges(self.quiet, at, quiet)
        return at.collect(news.to(messages).unsqueeze(1))[:, 0] > 0.0

    def beyond(self, own: Tensor, at: Star) -> Tensor:
        """Who would leave for embeddings [R, k, A] beyond the leash, [R, A]."""
        leash = LEASH * at.at_nodes(self.home).abs().amax(1)
        return (at.at_nodes(self.times) > 0.0) & ~(own.abs().amax(1) <= leash)

    def count(self, lost: Tensor, at: Star) -> Tensor:
        """Another update; those in ``lost`` [R, A] begin a rest. Returns who stays at home."""
        times = (at.at_nodes(self.times) + lost.to(self.times)).clamp_max(MOST)
        whole = REST * 2.0**times
        left = torch.where(lost, whole, (at.at_nodes(self.left) - 1.0).clamp_min(0.0))
        put(self.times, at, times)
        put(self.left, at, left)
        return left > 0.5 * whole

    def settle(self, h: Tensor, resting: Tensor, at: Star) -> None:
        """Those who rest [R, A] are at home where they are, [R, k, A]."""
        put(self.home, at, torch.where(resting.unsqueeze(1), h, at.at_nodes(self.home)))
