"""How far a node trusts a computation of its own that need not converge.

The node watches one number, how much the computation moved at each of its updates, and compares
the largest of every ``WINDOW`` updates with that of the window before: growth is a point against
it, the contrary a point for it. It is a sign test: what diverges collects points against it at
every window, a limit cycle at random, and what converges, however slowly, few. At ``STRIKES``
points the node halves its share of trust; points in favour double it again, but twice as many after
each failure. Some trust is always left, so that no node is given up for what happened long ago.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star

WINDOW = 3
"""Updates in a window."""
STRIKES = 4
"""Points at which trust is halved."""
FLOOR = 2.0**-7
"""Least share of trust."""


class Trust:
    """The trust of N nodes and R replicas, all of it at first.

    Attributes:
        share: Between ``FLOOR`` and 1, [R, N].
    """

    def __init__(self, like: Tensor, nodes: int) -> None:
        shape = (like.size(0), nodes)
        self.count = torch.zeros(nodes, dtype=torch.long, device=like.device)
        self.share = like.new_ones(shape)
        self.score, self.failures, self.peak = (like.new_zeros(shape) for _ in range(3))
        self.before = like.new_full(shape, float("inf"))

    def forget(self, nodes: Tensor) -> None:
        """These nodes start again."""
        self.count[nodes] = 0
        self.share[:, nodes] = 1.0
        self.score[:, nodes] = self.failures[:, nodes] = self.peak[:, nodes] = 0.0
        self.before[:, nodes] = float("inf")

    def watch(self, move: Tensor, noise: Tensor, at: Star) -> None:
        """Some nodes have taken another look.

        Args:
            move: How far the result moved, [R, A]; NaN: there is none.
            noise: What of that may be rounding, [R, A].
        """
        nodes = slice(None) if at.nodes is None else at.nodes
        self.count[nodes] += 1
        due = self.count[nodes] % WINDOW == 0
        peak, before = torch.maximum(self.peak[:, nodes], move), self.before[:, nodes]
        share, failures = self.share[:, nodes], self.failures[:, nodes]

        grew = ~(peak < before) & ~(peak <= noise)  # written so that NaN counts as growth
        score = self.score[:, nodes] + torch.where(due, torch.where(grew, 1.0, -1.0), 0.0)
        patience = -STRIKES * (2.0**failures).clamp(2.0, 2.0**30)
        down = due & (score >= STRIKES)
        up = due & (score <= patience) & (share < 1.0)
        share = torch.where(down, 0.5 * share, torch.where(up, 2.0 * share, share))

        self.share[:, nodes] = share.clamp_min(FLOOR)
        self.failures[:, nodes] = failures + down.to(failures.dtype)
        self.score[:, nodes] = torch.where(down | up, 0.0, score.maximum(patience))
        self.before[:, nodes] = torch.where(due, peak, before)
        self.peak[:, nodes] = torch.where(due, 0.0, peak)
