"""How far a node trusts a computation of its own that need not converge.

The node watches how its result moved at each of its updates, in two ways.

*Growth.* It compares the largest move of every ``WINDOW`` updates with that of the window before:
growth beyond ``MARGIN`` is a point against the computation, and a smaller move is a point for it.
This is a sign test: a computation that diverges collects a point against it at every window, and
one that converges collects few.

*Turns.* A limit cycle does not grow. But its moves undo each other: a move is a *turn* if it points
against the move before, is about as long (``TURN``), and is not small beside the result itself
(``SWING``). Every turn is a point, and every move that is small takes back ``EASE`` of one. A
computation that wanders at random turns at every third or fourth move; one that converges, a few
times in all.

At ``STRIKES`` points of either kind the node halves its share of trust. Points in favour double it
again: four times ``STRIKES`` of them after the first failure, and twice as many after each of the
next. A node that goes on turning although its trust is down to ``DOUBT`` has lost its way
(:mod:`hogwild_node.rules.retreat`).
"""

from __future__ import annotations

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star

WINDOW = 3
"""Updates in a window."""
MARGIN = 1.2
"""Growth that means nothing: windows of what converges differ by chance."""
STRIKES = 4
"""Points at which trust is halved."""
CREDIT = 2 * STRIKES
"""Most points in favour that make up for points against."""
TURN, SWING = 0.7, 0.3
"""Least length of a turn, relative to the move before and to the result
(``benchmarks/safeguard.py`` counts what it catches)."""
EASE = 0.25
"""What a move that is small beside the result takes back: at 1 some wanderers are not caught in 600
ticks, and at 0.1 nodes of strongly coupled chains, which arrive, come near ``STRIKES``."""
DOUBT = 0.5
"""Share of trust at which nodes that go on turning have lost their way (1: a chain of strongly
coupled nodes, where messages are exact, turns four times at its start)."""
FLOOR = 2.0**-5
"""Least share of trust."""
MEMORY = 5
"""Failures that count when trust is won back: less than a thousand updates for each doubling."""


class Trust:
    """The trust of N nodes and R replicas, all of it at first.

    Args:
        like: Embeddings, [R, k, N].

    Attributes:
        share: Between ``FLOOR`` and 1, [R, N].
        lost: Who lost their way at their last update, [R, N].
    """

    def __init__(self, like: Array) -> None:
        xp, (r, k, n) = namespace(like), like.shape
        self.last = xp.filled((r, k, n), 0.0, like)  # the move before
        self.share = xp.filled((r, n), 1.0, like)
        self.before = xp.filled((r, n), float("inf"), like)
        self.count, self.score, self.turns, self.favour, self.failures, self.peak = (
            xp.filled((r, n), 0.0, like) for _ in range(6)
        )
        self.lost = self.share < 0.0  # nobody

    def forget(self, nodes: Array) -> None:
        """These nodes start again."""
        fresh = type(self)(self.last)
        for name, memory in vars(self).items():
            memory[..., nodes] = getattr(fresh, name)[..., nodes]

    def watch(
        self,
        move: Array,
        size: Array,
        noise: Array,
        at: Star,
        awake: Array | bool = True,
        astray: Array | bool = False,
    ) -> None:
        """Some nodes have taken another look.

        Args:
            move: How the result moved, [R, k, A]; NaN: there is none.
            size: The result's largest entry, before or after, [R, A].
            noise: How far it may move by rounding alone, [R, A].
            awake: Whether they compute at all, [R, A]; the moves of the others are NaN.
            astray: Who is known to have lost their way, [R, A].
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
        peak = xp.maximum(old["peak"], far)  # NaN if there was one
        share, failures, before = old["share"], old["failures"], old["before"]

        calmer = due & ((peak < before) | (peak <= noise))
        wilder = due & ~calmer & ~(peak <= MARGIN * before) & awake  # also if there is no result
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
