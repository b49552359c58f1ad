r"""The safeguard of messages: nodes watch their results, and retreat where messages diverge.

**Trust** is a number that a node lowers when its result diverges or oscillates.

A *move* is the change of a node's result at one update. The node tests its moves in two ways.

*Growth.* The node compares the largest move of every ``WINDOW`` updates with that of the window
before. Growth by more than the factor ``MARGIN`` is a point against the computation, and a smaller
move is a point in its favour. A diverging computation collects a point against it in every window,
and a converging one collects few.

*Reversals.* A limit cycle does not grow, but its moves cancel each other. A move is a *reversal* if
it points against the move before, is about as long (``TURN``), and is not small compared to the
result (``SWING``). Every reversal is a point, and every small move takes back ``EASE`` points. A
random walk reverses at every third or fourth move; a converging computation reverses a few times in
all.

At ``STRIKES`` points of either kind the node halves its trust. Points in favour double the trust
again: four times ``STRIKES`` of them after the first failure, and twice as many after each further
failure. A node that keeps reversing although its trust is at most ``DOUBT`` is *lost*.

**Retreat**: nodes whose messages diverge return to an earlier embedding, rest, and try again.

A node's *home* is an embedding that does not depend on messages: its first embedding, or the last
one that gradient steps reached. A node that is lost returns to its home and rests. For the first
half of the rest it stays there. For the second half it takes gradient steps, and its home moves
with it. While a node rests it sends zeros instead of messages, so that no earlier message survives
on a cycle. After the rest it uses messages again.

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
from hogwild_node.rules.base import Survivors, take_over
from hogwild_node.star import Star

WINDOW = 3
"""Updates in a window."""
MARGIN = 1.2
"""Factor of growth that is ignored, because windows also differ by chance."""
STRIKES = 4
"""Points at which trust is halved."""
CREDIT = 2 * STRIKES
"""Most points in favour that offset later points against."""
TURN, SWING = 0.7, 0.3
"""Least length of a reversal, relative to the move before and to the result."""
EASE = 0.25
"""Points that a small move takes back. With 1, some oscillations are not detected in 600 ticks.
With 0.1, nodes of strongly coupled chains, which converge, come near ``STRIKES``."""
DOUBT = 0.5
"""Trust at which nodes that keep reversing are lost. (1 would be too much: a chain of strongly
coupled nodes, where messages are exact, reverses four times at its start.)"""
FLOOR = 2.0**-5
"""Least trust."""
MEMORY = 5
"""Most failures that count for the points in favour, so that each doubling takes less than a
thousand updates."""
REST = 4.0
"""Updates in a rest; doubled at each retreat."""
LONGEST = 10.0
"""Number of retreats after which rests no longer get longer."""
LEASH = 5.0
"""Largest entry that messages may give a node after its first retreat, relative to its home. On
badly scaled energies, in two settings, nodes reached 4.3 times the answer with 30, 1.3 times with
5, and 1e3 to 1e6 times without a leash."""


class Trust:
    """The trust of N nodes and R replicas; one at first.

    Args:
        like: Embeddings, [R, k, N].

    Attributes:
        share: The trust, between ``FLOOR`` and 1, [R, N].
        lost: Which nodes were lost at their last update, [R, N].
    """

    def __init__(self, like: Array) -> None:
        xp, (r, k, n) = namespace(like), like.shape
        self.last = xp.filled((r, k, n), 0.0, like)  # the move before
        self.share = xp.filled((r, n), 1.0, like)
        self.before = xp.filled((r, n), float("inf"), like)
        self.count, self.score, self.turns, self.favour, self.failures, self.peak = (
            xp.filled((r, n), 0.0, like) for _ in range(6)
        )
        self.lost = self.share < 0.0  # none

    def forget(self, nodes: Array) -> None:
        """Clear the memory of these nodes."""
        fresh = type(self)(self.last)
        for name, memory in vars(self).items():
            memory[..., nodes] = getattr(fresh, name)[..., nodes]

    def keep(self, before: Trust, kept: Survivors) -> None:
        """Nodes that stay keep their memory through a change of the graph."""
        take_over(self, before, dict.fromkeys(vars(self), "nodes"), kept)

    def watch(
        self,
        move: Array,
        size: Array,
        noise: Array,
        at: Star,
        awake: Array | bool = True,
        astray: Array | bool = False,
    ) -> None:
        """Update the trust of some nodes.

        Args:
            move: The moves of the results, [R, k, A]; NaN if there is no result.
            size: The largest entry of the result before or after the move, [R, A].
            noise: The largest move that may be rounding error, [R, A].
            at: The nodes.
            awake: Which nodes do not rest, [R, A]; the moves of the others are NaN.
            astray: Which nodes are known to be lost, [R, A].
        """
        xp = namespace(move)
        old = {name: at.at_nodes(memory) for name, memory in vars(self).items()}
        last, far = old["last"], xp.max(abs(move), axis=1)
        turned = ((move * last).sum(1) < 0.0) & (far >= TURN * xp.max(abs(last), axis=1))
        turned, calm = turned & (far >= SWING * size), far < SWING * size
        eased = xp.as_numbers(turned, far) - EASE * xp.as_numbers(calm, far)
        turns = xp.clip(old["turns"] + eased, 0.0, None)

        count = old["count"] + 1.0
        due = count % WINDOW == 0.0
        peak = xp.maximum(old["peak"], far)  # NaN if a move was NaN
        share, failures, before = old["share"], old["failures"], old["before"]

        calmer = due & ((peak < before) | (peak <= noise))
        wilder = due & ~calmer & ~(peak <= MARGIN * before) & awake  # true if the peak is NaN
        points = xp.as_numbers(wilder, far) - xp.as_numbers(calmer, far)
        score = xp.clip(old["score"] + points, -float(CREDIT), None)
        favour = xp.clip(old["favour"] - points, 0.0, None)
        turning = turns >= STRIKES
        lost = ((turning & (share <= DOUBT)) | astray) & awake
        down = (score >= STRIKES) | turning | lost
        up = ~down & (share < 1.0) & (favour >= 2 * STRIKES * 2.0**failures)
        changed = down | up

        share = xp.where(down, 0.5 * share, xp.where(up, 2.0 * share, share))
        new = {
            "last": xp.where(xp.isnan(move), 0.0, move),
            "count": count,
            "share": xp.clip(share, FLOOR, None),
            "failures": xp.clip(failures + xp.as_numbers(down, far), None, float(MEMORY)),
            "score": xp.where(changed, 0.0, score),
            "favour": xp.where(changed, 0.0, favour),
            "turns": xp.where(down, 0.0, turns),
            "before": xp.where(due & ~xp.isnan(peak), peak, before),
            "peak": xp.where(due | lost, 0.0, peak),
            "lost": lost,
        }
        for name, value in new.items():
            setattr(self, name, at.put(getattr(self, name), value))


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

    def keep(self, before: Retreat, kept: Survivors) -> None:
        """Nodes and edges that stay keep their memory through a change of the graph."""
        memory = {"home": "nodes", "left": "nodes", "times": "nodes", "quiet": "edges"}
        take_over(self, before, memory, kept)

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
        times = xp.clip(before + xp.as_numbers(lost, before), None, LONGEST)
        whole = REST * 2.0**times
        left = xp.where(lost, whole, xp.clip(at.at_nodes(self.left) - 1.0, 0.0, None))
        self.times, self.left = at.put(self.times, times), at.put(self.left, left)
        return left > 0.5 * whole

    def settle(self, h: Array, resting: Array, at: Star) -> None:
        """Set the home of the nodes that rest [R, A] to their embeddings ``h`` [R, k, A]."""
        home = namespace(h).where(resting[:, None], h, at.at_nodes(self.home))
        self.home = at.put(self.home, home)
