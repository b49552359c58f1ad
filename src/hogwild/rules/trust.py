"""How far a node trusts a computation of its own that need not converge.

The node watches one number, how much the computation moved at each of its updates, and compares
the largest of every ``WINDOW`` updates with that of the window before: growth is a point against
it, the contrary a point for it. It is a sign test: what diverges collects points against it at
every window, a limit cycle at random, and what converges, however slowly, few. At half of
``STRIKES`` points the node is in doubt and no longer acts on the result, until that moves by much
less than it differs from what the node did instead. At ``STRIKES`` points it halves its share of
trust; points in favour raise it again, but four times as many after each failure. Below ``FLOOR``
it has given up for good.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star

WINDOW = 3
"""Updates in a window."""
STRIKES = 4
"""Points at which trust is halved."""
FLOOR = 1 / 16
"""Least share of trust."""
CALM = 0.02
"""A result is believed again when it moves by less than this share of what it would change."""


class Trust:
    """The trust of N nodes and R replicas, all of it at first."""

    def __init__(self, like: Tensor, nodes: int) -> None:
        shape = (like.size(0), nodes)
        self.count = torch.zeros(nodes, dtype=torch.long, device=like.device)
        self.share = like.new_ones(shape)
        self.acting = torch.ones(shape, dtype=torch.bool, device=like.device)
        self.score, self.failures, self.peak = (like.new_zeros(shape) for _ in range(3))
        self.before = like.new_full(shape, float("inf"))

    def forget(self, nodes: Tensor) -> None:
        """These nodes start again."""
        self.count[nodes] = 0
        self.share[:, nodes], self.acting[:, nodes] = 1.0, True
        self.score[:, nodes] = self.failures[:, nodes] = self.peak[:, nodes] = 0.0
        self.before[:, nodes] = float("inf")

    def watch(self, move: Tensor, noise: Tensor, change: Tensor, at: Star) -> tuple[Tensor, Tensor]:
        """Some nodes have taken another look.

        Args:
            move: How far the result moved, [R, A]; NaN: there is no result to act on.
            noise: What of that may be rounding, [R, A].
            change: How far it is from what the node does now, [R, A].

        Returns:
            Whether each node acts on the result, and whether it has just ceased to, [R, A].
        """
        nodes = slice(None) if at.nodes is None else at.nodes
        self.count[nodes] += 1
        due = self.count[nodes] % WINDOW == 0
        peak, before = torch.maximum(self.peak[:, nodes], move), self.before[:, nodes]
        share, failures = self.share[:, nodes], self.failures[:, nodes]
        alive = share >= FLOOR

        grew = ~(peak < before) & ~(peak <= noise)  # written so that NaN counts as growth
        score = self.score[:, nodes] + torch.where(due, torch.where(grew, 1.0, -1.0), 0.0)
        patience = -STRIKES * (4.0**failures).clamp_min(2.0)
        down = due & alive & (score >= STRIKES)
        up = due & alive & (score <= patience) & (share < 1.0)
        share = torch.where(down, 0.5 * share, torch.where(up, 2.0 * share, share))

        before = torch.where(due, peak, before)
        calm = torch.maximum(before, peak) <= CALM * change
        was = self.acting[:, nodes]
        acts = torch.where(was, score < STRIKES / 2, calm & (score < STRIKES / 2))
        acts = acts & (share >= FLOOR) & ~move.isnan()

        self.share[:, nodes] = share
        self.failures[:, nodes] = failures + down.to(failures.dtype)
        self.score[:, nodes] = torch.where(down | up, 0.0, score.maximum(patience))
        self.before[:, nodes] = before
        self.peak[:, nodes] = torch.where(due, 0.0, peak)
        self.acting[:, nodes] = acts
        return acts, was & ~acts
