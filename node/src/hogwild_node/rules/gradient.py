r"""The rule ``"gradient"``: a gradient step from what a node last heard (the paper's Algorithm 1).

Node i keeps :math:`h_i` and the gradient :math:`g_{ii}` of its own energy. The packet from j to i
holds :math:`(h_j, g_{ji})`. An update is

.. math::
    h_i &\leftarrow h_i - A_i \Bigl(g_{ii} + \sum_{j \in N(i)} g_{ji}(\tau^i_j)\Bigr) \\
    g_{ij} &\leftarrow \frac{\partial e^i}{\partial h_j}\bigl(h_i, \{h_l(\tau^i_l)\}\bigr),
    \qquad j \in N(i) \cup \{i\}.

**Pairwise energies** (:attr:`~hogwild_node.local.LocalEnergy.pairwise`). A node computes both sides
of its edges (:class:`~hogwild_node.local.BothSides`). The packet from j to i holds :math:`h_j`
alone, and an update is :math:`h_i \leftarrow h_i - A_i \nabla_i E(h_i, \{h_j(\tau^i_j)\})`: all
that it reads is the present embedding of the node, and embeddings one packet old. The block below
is then computed by the node, once: its curvatures hold everywhere.

The step :math:`A_i` is one of three:

* a number for all nodes, as in the paper, or one for each node;
* :math:`a / r_i`, where :math:`r_i` bounds the absolute row sums of the Hessian
  (``step="certified"`` of ``hogwild.simulate``, which chooses a such that convergence is proved).
  If the model changes during a run, so does :math:`r_i`. Every neighbour j then adds its part of
  :math:`r_i`, k numbers, to the letter;
* ``"auto"``: the damped inverse of the node's block of the Hessian. Every neighbour j adds its
  k × k block :math:`\partial^2 e^j / \partial h_i^2` to the letter. The blocks use majorising
  curvatures, because the true curvature is almost zero where an activation is nearly linear. The
  largest eigenvalue of the Hessian scaled by these blocks is at most the largest degree plus one,
  and 2 to 3 in practice, so that one damping works for all models. If the gradient of a node
  reverses and grows, the node halves its damping, which then recovers slowly. Convergence is
  observed, but not proved.
"""

from __future__ import annotations

from dataclasses import replace

from hogwild_node.local import BothSides, LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.rules.base import Rule, to_self
from hogwild_node.star import Star

DAMPING = 0.6
"""Largest damping of the ``"auto"`` step. With more, delays make eigenvalues of 3 oscillate."""


class GradientRule(Rule):
    """Makes one gradient step at each update.

    Args:
        model: The energy; with :class:`BothSides` packets hold embeddings only.
        everyone: The star of all nodes.
        channels: Width k of an embedding.
        rate: The step, a number or an array [R, k, N]; ``None`` for the ``"auto"`` step.
        bounded: Whether the rate is divided by the bounds r_i, whose parts the neighbours send.
    """

    fits = LocalEnergy
    both_sides = curves = model_may_change = True

    def __init__(
        self,
        model: LocalEnergy | BothSides,
        everyone: Star,
        channels: int,
        *,
        rate: Array | float | None = None,
        bounded: bool = False,
    ) -> None:
        self.both = model if isinstance(model, BothSides) else None
        self.model: LocalEnergy = model.energy if isinstance(model, BothSides) else model
        self.everyone, self.channels = everyone, channels
        self.rate, self.bounded = rate, bounded
        self.auto = rate is None
        extra = channels if self.auto else 1 if bounded else 0
        self.letter_width = 0 if self.both else channels * (1 + extra)
        # A node whose energy has changed computes its gradient and block anew, and does not take
        # the jump of its gradient for a step that was too large.
        self.carried = {"own": "same"}
        if self.auto:
            self.carried |= {"last": "same", "trust": "nodes"}
        if self.auto and self.both is None:
            self.carried["block"] = "same"
        if bounded:
            self.carried["rows"] = "same"

    def set_model(self, model: LocalEnergy) -> None:
        self.model = model
        if self.both is not None:
            self.both = replace(self.both, energy=model)
            self._bound(self.own)

    # -- private memory, one column a node ---------------------------------------------------------

    def begin(self, h: Array, inbox: Array) -> Array | None:
        xp, (r, k, n) = namespace(h), h.shape
        self.own = xp.zeros_like(h)
        if self.auto:
            self.block = xp.filled((r, k * k, n), 0.0, h)
            self.trust = xp.filled((r, 1, n), DAMPING, h)
            self.last = xp.zeros_like(h)
        if self.bounded:
            self.rows = xp.zeros_like(h)
        self._bound(h)
        return self.refresh(h, inbox, self.everyone)

    def _bound(self, h: Array) -> None:
        """Compute the blocks of nodes that know both sides of their edges, once and for all."""
        if self.both is not None and self.auto:
            block = self.both.block(h, self.everyone)
            self.block = namespace(h).reshape(block, (h.shape[0], -1, h.shape[2]))

    def forget(self, nodes: Array) -> None:
        self.own[..., nodes] = 0.0
        if self.auto:
            self.trust[..., nodes] = DAMPING
            self.last[..., nodes] = 0.0

    # -- the rule ----------------------------------------------------------------------------------

    def refresh(self, h: Array, inbox: Array, at: Star) -> Array | None:
        """Recompute the gradients and blocks of the nodes' energies; returns the letters."""
        xp = namespace(h)
        inbox = at.own_view(h, inbox)
        if self.both is not None:
            self.own = at.put(self.own, self.both.gradient(h, inbox, at))
            return None
        blocks: Array | None = None
        if self.auto:
            model = self.model.quadratic(h, inbox, at, majorise=1.0)
            own, letters = model.own, model.toward
            r, k = h.shape[:2]
            block, blocks = (
                xp.reshape(x, (r, k * k, x.shape[-1])) for x in (model.b, model.toward_curvature())
            )
            block, blocks = to_self(block, blocks, at)
            self.block = at.put(self.block, block)
        else:
            own, letters = self.model.local(h, inbox, at)
        own, letters = to_self(own, letters, at)
        self.own = at.put(self.own, own)
        if self.bounded:
            rows, blocks = to_self(*self.model.row_bounds(at), at)
            self.rows = at.put(self.rows, rows)
        return letters if blocks is None else xp.concat([letters, blocks], axis=1)

    def update(
        self, h: Array, inbox: Array, mail: Array | None, at: Star
    ) -> tuple[Array, Array | None]:
        if not self.letter_width:
            self.refresh(h, inbox, at)
        h = self.step(h, mail, at)
        return h, self.refresh(h, inbox, at) if self.letter_width else None

    def gradient_at(self, mail: Array | None, at: Star) -> Array:
        return at.at_nodes(self.own) + self.told(mail, at)[0]

    def told(self, mail: Array | None, at: Star) -> tuple[Array | float, Array | float]:
        """The parts of the neighbours: of the gradients [R, k, A], and of blocks or bounds; zeros
        where packets hold embeddings only."""
        if not self.letter_width:
            return 0.0, 0.0
        heard = at.collect(mail)
        return heard[:, : self.channels], heard[:, self.channels :]

    def step(self, h: Array, mail: Array | None, at: Star, who: Array | None = None) -> Array:
        """The new embeddings [R, k, A]. Only the nodes in ``who`` (a mask [R, A]; ``None``: all)
        store the step in their memory."""
        part, rest = self.told(mail, at)
        g = at.at_nodes(self.own) + part
        if self.rate is None:
            return h - self._scaled(g, rest, at, who)
        if self.bounded:
            return h - self.rate * g / (at.at_nodes(self.rows) + rest)
        return h - (self.rate if isinstance(self.rate, float) else at.at_nodes(self.rate)) * g

    def _scaled(self, g: Array, blocks: Array | float, at: Star, who: Array | None) -> Array:
        """The ``"auto"`` step times the gradient; updates the damping of each node."""
        xp = namespace(g)
        last, before = at.at_nodes(self.last), at.at_nodes(self.trust)

        def dot(x: Array, y: Array) -> Array:
            return (x * y).sum(1)[:, None]

        # Neighbours may make a gradient grow, but if it also reverses, the step was too large.
        overshot = (dot(g, last) < 0.0) & (dot(g, g) > dot(last, last))
        trust = xp.where(overshot, 0.5 * before, 1.1 * before)
        trust = xp.clip(trust, 1e-3 * DAMPING, DAMPING)
        if who is None:
            self.trust, self.last = at.put(self.trust, trust), at.put(self.last, g)
        else:
            mine = who[:, None]
            self.trust = at.put(self.trust, xp.where(mine, trust, before))
            self.last = at.put(self.last, xp.where(mine, g, last))
        return trust * self.solved(g, blocks, at)

    def solved(self, g: Array, blocks: Array | float, at: Star) -> Array:
        """The inverse of the nodes' blocks, whose neighbours' parts are ``blocks`` [R, k², A],
        times the gradients."""
        xp, k = namespace(g), self.channels
        block = at.at_nodes(self.block) + blocks
        block = xp.moveaxis(xp.reshape(block, (block.shape[0], k, k, at.size)), -1, 1)
        found: Array = xp.solve(block, g.mT[..., None])[..., 0].mT
        return found
