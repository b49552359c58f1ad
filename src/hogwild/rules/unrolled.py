r"""Messages with gradients, for training through asynchronous updates.

A node finds the mode :math:`z_i` of its cluster by Newton's method
(:mod:`hogwild_node.rules.mode`). The derivative of a minimiser does not need the path to it: with
:math:`\nabla f(z; \theta) = 0`,

.. math:: \frac{\partial z}{\partial \theta} = -(\nabla^2 f)^{-1} \frac{\partial \nabla f}{\partial
          \theta},

and this is the derivative of *one* Newton step :math:`z - (\nabla^2 f)^{-1} \nabla f(z; \theta)`
that begins at z. So the search runs without gradients, and z gets the gradient of one more step.
Its value stays, so that training sees the answers that nodes give.

Trust, retreats and the decision whether a search was successful are piecewise constant, and have no
gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Star
from hogwild_node.local import LocalEnergy, LocalQuadratic
from hogwild_node.rules import MessageRule
from hogwild_node.rules.elimination import Anchor, Clusters, Elimination, Messages, Point


class UnrolledMessages(MessageRule):
    """Messages that torch differentiates where gradients are enabled; elsewhere
    :class:`MessageRule`."""

    _still: tuple[LocalEnergy, LocalEnergy] | None = None

    @property
    def model(self) -> LocalEnergy:
        """The energy; without gradients where they are not enabled. (What an energy prepares
        without gradients, it keeps, and would use it again where gradients are enabled.)"""
        model = self.gradient.model
        if torch.is_grad_enabled():
            return model
        if self._still is None or self._still[0] is not model:
            self._still = (model, model.map(Tensor.detach))
        return self._still[1]

    def _mode(
        self, clusters: Clusters, before: Point, heard: Messages, anchor: Anchor
    ) -> tuple[Point, Tensor]:
        with torch.no_grad():
            z, sound = super()._mode(clusters, before, heard, anchor)
        if not torch.is_grad_enabled():
            return z, sound
        # Where the search failed, the node takes a gradient step: its z has no gradient.
        model = self.model.quadratic(*self._views(clusters, z), clusters.at)
        d, slope = Elimination(clusters, model, z, heard, anchor).solve()
        sound = sound & torch.isfinite(slope)
        still = Point(d.own - d.own.detach(), d.near - d.near.detach())  # zero, with a gradient
        moved = z.move(clusters, torch.ones_like(slope), still)
        return moved.where(clusters, sound, z), sound

    def _model(self, clusters: Clusters, z: Point, majorise: float = 0.0) -> LocalQuadratic:
        if torch.is_grad_enabled():  # a model that was made without gradients must not come back
            return self.model.quadratic(*self._views(clusters, z), clusters.at, majorise=majorise)
        return super()._model(clusters, z, majorise)

    @torch.no_grad()
    def _watch(
        self,
        before: Tensor,
        after: Tensor,
        sound: Tensor,
        awake: Tensor,
        astray: Tensor,
        at: Star,
    ) -> None:
        super()._watch(before.detach(), after.detach(), sound, awake, astray, at)
