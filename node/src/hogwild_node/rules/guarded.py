r"""The rule ``"guarded"``: messages, and gradient steps of certified size for good if messages do
not converge. With ``step="momentum"`` it guards gradient steps with momentum instead of messages.

Nodes send messages (:mod:`hogwild_node.rules.messages`), or take steps with momentum
(:mod:`hogwild_node.rules.momentum`), and check that these converge. The *merit*
of an update is how far the node's embedding moves, plus how far a certified gradient step would
move it. A node counts its updates in *epochs*, each twice as long as the one before. It *fails* an
epoch if its largest merit is more than half of that of the epoch before, and more than rounding.
After ``PATIENCE`` failures the node *falls back*: from then on it takes gradient steps of certified
size, and says so in every packet. A node that hears this falls back, too.

**Why every run converges**, for every strongly convex energy, every graph and every schedule with
bounds on the staleness. If some node falls back, all nodes of its connected graph do after a while,
and asynchronous gradient descent with certified steps converges from anywhere. If no node falls
back, every node fails fewer than ``PATIENCE`` epochs, so that the merits of all nodes vanish. Then
embeddings that nodes heard, which are of the last few ticks, agree with the present ones in the
limit; gradients that nodes heard sum up to the present gradient in the limit, and this sum
vanishes. By strong convexity, so does the distance from the answer. The documentation ("The
mathematics") has the theorem.

A run in which messages halve their error within about a thousand updates does not fall back.
"""

from __future__ import annotations

from typing import Any

from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, Rule, carry
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.rules.messages import MessageRule
from hogwild_node.star import Star

FIRST = 16.0
"""Updates until the end of the first epoch; doubled from epoch to epoch."""
PATIENCE = 8.0
"""Failed epochs after which a node falls back."""


class GuardedRule(Rule):
    """A rule that is watched.

    Args:
        watched: The messages, or the steps with momentum.
        rate: Steps [R, k, N] of certified size.
    """

    def __init__(self, watched: MessageRule | GradientRule, rate: Array) -> None:
        self.watched, self.rate = watched, rate
        self.everyone, self.channels = watched.everyone, watched.channels
        self.letter = watched.letter + 1
        self.steps = watched.gradient if isinstance(watched, MessageRule) else watched
        self.width = watched.letter - self.steps.letter  # of a message

    def begin(self, h: Array, inbox: Array) -> Array:
        xp, (r, _, n) = namespace(h), h.shape
        letters = self.watched.begin(h, inbox)
        assert letters is not None, "rules that are watched send letters"
        self.start = 1.0 * h  # a copy
        self.count, self.failures, self.fallen, self.peak = (
            xp.filled((r, n), 0.0, h) for _ in range(4)
        )
        self.end = xp.filled((r, n), FIRST, h)
        self.before = xp.filled((r, n), float("inf"), h)
        return xp.concat([letters, xp.zeros_like(letters[:, :1])], axis=1)

    def forget(self, nodes: Array) -> None:
        self.watched.forget(nodes)
        for memory in (self.count, self.failures, self.fallen, self.peak):
            memory[:, nodes] = 0.0
        self.end[:, nodes], self.before[:, nodes] = FIRST, float("inf")

    def keep(self, before: GuardedRule, kept: Kept) -> None:
        inner: Any = before.watched
        self.watched.keep(inner, kept)
        self.start = carry(self.start, before.start, kept.nodes)
        for name in ("count", "failures", "fallen", "peak", "end", "before"):
            setattr(self, name, carry(getattr(self, name), getattr(before, name), kept.nodes))

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array:
        return self._flagged(self.watched.refresh(h, inbox, at), at)

    def gradient_at(self, mail: Array, at: Star) -> Array:
        return self.watched.gradient_at(mail[:, :-1], at)

    def update(self, h: Array, inbox: Array, mail: Array | None, at: Star) -> tuple[Array, Array]:
        assert mail is not None, "the neighbours' letters"
        xp = namespace(h)
        called = at.collect(mail[:, -1]) > 0.0
        fallen = (at.at_nodes(self.fallen) > 0.0) | called
        step = at.at_nodes(self.rate) * self.gradient_at(mail, at)
        letters = mail[:, :-1]
        new = h
        if not bool(fallen.all()):
            new, letters = self.watched.update(h, inbox, letters, at)
        if bool(fallen.any()):
            # Messages that diverged may have left numbers that are not finite.
            mine = xp.where(xp.isfinite(h), h, at.at_nodes(self.start))
            mine = mine - xp.where(xp.isfinite(step), step, 0.0)
            new = xp.where(fallen[:, None], mine, new)
            sent = xp.where(fallen[:, at.slot][:, None], 0.0, letters[:, : self.width])
            rest = self.steps.refresh(new, inbox, at)
            letters = xp.concat([sent, rest], axis=1)
        self._judge(h, new, inbox, step, fallen, at)
        return new, self._flagged(letters, at)

    def _flagged(self, letters: Array, at: Star) -> Array:
        """Letters with the mark of nodes that have fallen back."""
        mark = at.at_nodes(self.fallen)[:, at.slot][:, None]
        return namespace(letters).concat([letters, mark], axis=1)

    def _judge(
        self, h: Array, new: Array, inbox: Array, step: Array, fallen: Array, at: Star
    ) -> None:
        """Count an update, and decide at the end of an epoch."""
        xp = namespace(h)
        merit = xp.max(abs(new - h), axis=1) + xp.max(abs(step), axis=1)
        own = xp.max(xp.maximum(abs(h), abs(new)), axis=1)
        size = xp.largest(own, at.slot, xp.max(abs(inbox), axis=1))
        noise = 1e3 * float(xp.finfo(h.dtype).eps) * size
        count, end = at.at_nodes(self.count) + 1.0, at.at_nodes(self.end)
        peak = xp.maximum(at.at_nodes(self.peak), merit)  # NaN stays NaN
        due, before = count >= end, at.at_nodes(self.before)
        failed = due & ~(peak <= xp.maximum(0.5 * before, noise))
        failures = at.at_nodes(self.failures) + xp.as_numbers(failed, merit)
        fallen = fallen | (failures >= PATIENCE)
        new_memory = {
            "count": count,
            "end": xp.where(due, 2.0 * end, end),
            "before": xp.where(due & ~xp.isnan(peak), peak, before),
            "peak": xp.where(due, 0.0, peak),
            "failures": failures,
            "fallen": xp.as_numbers(fallen, merit),
        }
        for name, value in new_memory.items():
            setattr(self, name, at.put(getattr(self, name), value))
