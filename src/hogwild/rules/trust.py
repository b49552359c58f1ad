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
(:mod:`hogwild.rules.retreat`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star

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
"""What a move that is small beside the result takes back: at 1 some wanderers are not
caught in 600 ticks, and at 0.1 nodes of strongly coupled chains, which arrive, come near
``STRIKES``."""
DOUBT = 0.5
"""Share of trust at which nodes that go on turning have lost their way (1: a chain of strongly
coupled nodes, where messages are exact, turns four times at its start)."""
FLOOR = 2.0**-5
"""Least share of trust."""
MEMORY = 5
"""Failures that count when trust is won back: less than a thousand updates for each doubling."""


class Trust:
    """The trust of N nodes and R replicas, all of it at first.

    Attributes:
        share: Between ``FLOOR`` and 1, [R, N].
        lost: Who lost their way at their last update, [R, N].
    """

    def __init__(self, like: Tensor, nodes: int) -> None:
        shape = (like.size(0), nodes)
        self.last = like.new_zeros(*shape, like.size(1))  # [R, N, k], the move before
        self.count = torch.zeros(nodes, dtype=torch.long, device=like.device)
        self.share = like.new_ones(shape)
        self.score, self.turns, self.favour, self.failures, self.peak = (
            like.new_zeros(shape) for _ in range(5)
        )
        self.before = like.new_full(shape, float("inf"))
        self.lost = torch.zeros_like(self.share, dtype=torch.bool)

    def forget(self, nodes: Tensor) -> None:
        """These nodes start again."""
        self.count[nodes] = 0
        self.share[:, nodes] = 1.0
        for points in (self.score, self.turns, self.favour, self.failures, self.peak, self.last):
            points[:, nodes] = 0.0
        self.before[:, nodes] = float("inf")

    def watch(
        self,
        move: Tensor,
        size: Tensor,
        noise: Tensor,
        at: Star,
        awake: Tensor | bool = True,
        astray: Tensor | bool = False,
    ) -> None:
        """Some nodes have taken another look.

        Args:
            move: How the result moved, [R, A, k]; NaN: there is none.
            size: The result's largest entry, before or after, [R, A].
            noise: How far it may move by rounding alone, [R, A].
            awake: Whether they compute at all, [R, A]; the moves of the others are NaN.
            astray: Who is known to have lost their way, [R, A].
        """
        nodes = slice(None) if at.nodes is None else at.nodes
        last, far = self.last[:, nodes], move.abs().amax(-1)
        turned = ((move * last).sum(-1) < 0.0) & (far >= TURN * last.abs().amax(-1))
        turned, calm = turned & (far >= SWING * size), far < SWING * size
        turns = (self.turns[:, nodes] + turned.to(far) - EASE * calm.to(far)).clamp_min(0.0)
        self.last[:, nodes] = torch.nan_to_num(move, nan=0.0)

        self.count[nodes] += 1
        due = self.count[nodes] % WINDOW == 0
        peak = torch.maximum(self.peak[:, nodes], far)  # NaN if there was one
        share, failures, before = (x[:, nodes] for x in (self.share, self.failures, self.before))

        calmer = due & ((peak < before) | (peak <= noise))
        wilder = due & ~calmer & ~(peak <= MARGIN * before) & awake  # also if there is no result
        points = wilder.to(share) - calmer.to(share)
        score = (self.score[:, nodes] + points).clamp_min(-CREDIT)
        favour = (self.favour[:, nodes] - points).clamp_min(0.0)
        turning = turns >= STRIKES
        lost = ((turning & (share <= DOUBT)) | astray) & awake
        down = (score >= STRIKES) | turning | lost
        up = ~down & (share < 1.0) & (favour >= 2 * STRIKES * 2.0**failures)
        changed = down | up

        share = torch.where(down, 0.5 * share, torch.where(up, 2.0 * share, share))
        self.share[:, nodes] = share.clamp_min(FLOOR)
        self.failures[:, nodes] = (failures + down.to(share)).clamp_max(MEMORY)
        self.score[:, nodes] = torch.where(changed, 0.0, score)
        self.favour[:, nodes] = torch.where(changed, 0.0, favour)
        self.turns[:, nodes] = torch.where(down, 0.0, turns)
        self.before[:, nodes] = torch.where(due & ~peak.isnan(), peak, before)
        self.peak[:, nodes] = torch.where(due | lost, 0.0, peak)
        self.lost[:, nodes] = lost
