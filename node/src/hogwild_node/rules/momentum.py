r"""The rule ``"gradient"`` with ``step="momentum"``: gradient steps that keep their pace.

The slow directions of a trained energy are few, and in them all nodes move the same way for many
updates. A node therefore keeps part of its last move. With :math:`g_i` the gradient of the whole
energy at node i, as far as word has come, and :math:`B_i` the node's block of the Hessian in
majorising curvatures (both as in :mod:`hogwild_node.rules.gradient`), an update is

.. math::
    p_i &\leftarrow \beta_i\, p_i \;\text{ if } g_i^\top p_i \le 0, \text{ else } 0, \\
    p_i &\leftarrow p_i - \omega_i B_i^{-1} g_i, \qquad h_i \leftarrow h_i + p_i.

This is heavy-ball momentum with the restart of O'Donoghue and Candès (2015), node by node: a node
that would climb drops its pace. The node's own part of :math:`g_i` is computed anew at its turn,
from the present inbox, and not after its last step as in the ``"auto"`` step: an old part makes
pace unstable.

**Oscillations.** Word is late, so that too much pace lets nodes swing around the answer for ever. A
swing ends with a restart. Its height is the largest :math:`g_i^\top B_i^{-1} g_i` since the restart
before. If a swing is higher than ``SHRINK`` times the swing before it, the node's *trust*
:math:`s_i` falls by the factor ``FALL``; at every other update it rises by ``RISE``, up to 1. The
damping is :math:`\omega_i = s_i` ``LARGEST``, and :math:`\beta_i = s_i` ``PACE``: with little trust
the steps are like those of ``"auto"``.

A packet is that of the ``"auto"`` step; where it holds a letter, an update costs one more gradient
of the node's own energy.

Convergence is observed, but not proved.
"""

from __future__ import annotations

from hogwild_node.local import BothSides, LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, carry, to_self
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.star import Star

PACE = 0.8
"""Largest β, the share of its last move that a node keeps."""
LARGEST = 0.8
"""Largest damping ω."""
FALL, RISE = 0.7, 1.04
"""Factors on the trust of a node after a swing that is too high, and at other updates."""
SHRINK = 0.7
"""A swing should be at most so many times as high as the one before it."""
LEAST = 1e-3
"""The least trust."""


class MomentumRule(GradientRule):
    """Makes one gradient step with momentum at each update.

    Args:
        model: The energy.
        everyone: The star of all nodes.
        channels: Width k of an embedding.

    Attributes:
        largest_pace: The largest β; together with the damping this sets how much pace nodes gather.
        fall: The factor on a node's trust after a swing that is too high.
    """

    largest_pace: float = PACE
    fall: float = FALL

    def __init__(self, model: LocalEnergy | BothSides, everyone: Star, channels: int) -> None:
        super().__init__(model, everyone, channels, damping=LARGEST)

    # -- private memory: the damping, the pace, the heights of the last two swings -----------------

    def begin(self, h: Array, inbox: Array) -> Array | None:
        xp, (r, _, n) = namespace(h), h.shape
        self.pace = xp.zeros_like(h)
        self.peak = xp.filled((r, 1, n), 0.0, h)
        self.before = xp.filled((r, 1, n), float("inf"), h)
        return super().begin(h, inbox)

    def forget(self, nodes: Array) -> None:
        super().forget(nodes)
        self.pace[..., nodes] = 0.0
        self.peak[..., nodes], self.before[..., nodes] = 0.0, float("inf")

    def keep(self, before: GradientRule, kept: Kept) -> None:
        # A node whose energy has changed stops first, and does not compare swings across a change.
        assert isinstance(before, MomentumRule)
        super().keep(before, kept)
        for name in ("pace", "peak", "before"):
            setattr(self, name, carry(getattr(self, name), getattr(before, name), kept.same))

    # -- the rule ----------------------------------------------------------------------------------

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        if self.both is not None:
            self.refresh(h, inbox, at)
            return self.moved(h, at.at_nodes(self.own), 0.0, at), None
        own, _ = to_self(*self.model.local(h, at.own_view(h, inbox), at), at)
        part, curvature = self.told(mail, at)
        new = self.moved(h, own + part, curvature, at)
        return new, self.refresh(new, inbox, at)

    def moved(self, h: Array, g: Array, curvature: Array | float, at: Star) -> Array:
        """The new embeddings [R, k, A], from the gradients g [R, k, A] and the sums of the
        curvatures in the neighbours' letters [R, k², A]; changes the memory."""
        xp, step = namespace(h), self.solved(g, curvature, at)
        height = (g * step).sum(1)[:, None]
        pace, peak, before = (at.at_nodes(x) for x in (self.pace, self.peak, self.before))
        climbs = (g * pace).sum(1)[:, None] > 0.0
        high = climbs & (peak > SHRINK * before)
        trust = at.at_nodes(self.trust)
        trust = xp.where(high, self.fall * trust, RISE * trust)
        trust = xp.clip(trust, LEAST * self.damping, self.damping)
        kept = self.largest_pace / self.damping * trust * pace
        pace = xp.where(climbs, self.restarted(kept), kept) - trust * step
        self.trust, self.pace = at.put(self.trust, trust), at.put(self.pace, pace)
        self.before = at.put(self.before, xp.where(climbs, peak, before))
        self.peak = at.put(self.peak, xp.where(climbs, height, xp.maximum(peak, height)))
        return h + pace

    def restarted(self, kept: Array) -> Array | float:
        """What a restart leaves of the moves that would be kept."""
        return 0.0
