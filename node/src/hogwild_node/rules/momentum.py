r"""The rule ``"gradient"`` with ``step="momentum"``: gradient steps that keep their pace.

The slow directions of a trained energy are few, and in them all nodes move the same way for many
updates. A node therefore keeps part of its last move. With :math:`g_i` the gradient of the whole
energy at node i, as far as word has come, and :math:`B_i` the node's block of the Hessian in
majorising curvatures (both as in :mod:`hogwild_node.rules.gradient`), an update is

.. math::
    p_i &\leftarrow \beta\, p_i \;\text{ if } g_i^\top p_i \le 0, \text{ else } 0, \\
    p_i &\leftarrow p_i - \omega_i B_i^{-1} g_i, \qquad h_i \leftarrow h_i + p_i.

This is heavy-ball momentum with the restart of O'Donoghue and Candès (2015), node by node: a node
that would climb drops its pace. Two more things differ from the ``"auto"`` step. The node's own
part of :math:`g_i` is computed anew at its turn, from the present inbox, and not after its last
step; an old part makes pace unstable. And the damping :math:`\omega_i` is larger, and falls and
recovers by smaller factors. A packet is that of the ``"auto"`` step; an update costs one more
gradient of the node's own energy.

Without a safeguard convergence is observed, but not proved. ``rule="guarded"`` with this step
watches it, and falls back to steps of certified size (:mod:`hogwild_node.rules.guarded`), which is
proved.
"""

from __future__ import annotations

from hogwild_node.local import LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Kept, carry, to_self
from hogwild_node.rules.gradient import GradientRule
from hogwild_node.star import Star

PACE = 0.8
"""β, the share of its last move that a node keeps."""
LARGEST = 0.8
"""Largest damping ω."""
FALL, RISE = 0.7, 1.2
"""Factors on the damping of a node whose gradient reversed and grew, and of other nodes."""


class MomentumRule(GradientRule):
    """Makes one gradient step with momentum at each update.

    Args:
        model: The energy.
        everyone: The star of all nodes.
        channels: Width k of an embedding.
    """

    fall, rise = FALL, RISE

    def __init__(self, model: LocalEnergy, everyone: Star, channels: int) -> None:
        super().__init__(model, everyone, channels, damping=LARGEST)

    def begin(self, h: Array, inbox: Array) -> Array:
        self.pace = namespace(h).zeros_like(h)
        return super().begin(h, inbox)

    def forget(self, nodes: Array) -> None:
        super().forget(nodes)
        self.pace[..., nodes] = 0.0

    def keep(self, before: GradientRule, kept: Kept) -> None:
        # A node whose energy has changed stops first.
        assert isinstance(before, MomentumRule)
        super().keep(before, kept)
        self.pace = carry(self.pace, before.pace, kept.same)

    def update(self, h: Array, inbox: Array, mail: Array | None, at: Star) -> tuple[Array, Array]:
        assert mail is not None, "the neighbours' letters"
        xp = namespace(h)
        own, _ = to_self(*self.model.local(h, at.own_view(h, inbox), at), at)
        heard = at.collect(mail)
        g = own + heard[:, : self.channels]
        pace = at.at_nodes(self.pace)
        climbs = (g * pace).sum(1)[:, None] > 0.0
        pace = xp.where(climbs, 0.0, PACE * pace)
        pace = pace - self._scaled(g, heard[:, self.channels :], at, None)
        self.pace = at.put(self.pace, pace)
        new = h + pace
        return new, self.refresh(new, inbox, at)
