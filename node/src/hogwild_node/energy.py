r"""The energy GNN as a node computes it: local energy, gradients and quadratic models.

.. math::
    e^i(h_i, h_{N(i)}) = u(m_i, h_i, x_i) + \tfrac\beta2 \|h_i\|^2, \qquad
    m_i = \sum_{j \in N(i)} \omega_{ij}\, m(h_i, h_j, x_i, x_j, e_{ij})
        + \omega_{ii}\, m_\circ(h_i, x_i)
"""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.local import LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.round import Round, RoundTape
from hogwild_node.star import Star
from hogwild_node.tree import FIXED, NODES, over


@dataclass(frozen=True)
class Energy(LocalEnergy):
    """Local energies of one round of messages."""

    round: Round
    beta: float = over(FIXED)
    begin: Array | None = over(NODES, default=None)  # [R, k, A] where a node starts; None: at zero

    def pass_at(self, h: Array, inbox: Array | None, at: Star) -> RoundTape:
        """Evaluate the networks at ``h`` [R, k, A] and the inbox [R, k, E']."""
        return self.round.at(at).forward(h, inbox, at)

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        back = self.pass_at(h, inbox, at).pullback()
        return back.own + self.beta * h, back.toward

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        tape = self.pass_at(h, inbox, at)
        return self._model(tape.majorised(majorise) if majorise else tape, h)

    def bounding(
        self, h: Array, inbox: Array, at: Star, far: tuple[Array, Array]
    ) -> LocalQuadratic:
        return self._model(self.pass_at(h, inbox, at).as_far_as(self.pass_at(*far, at)), h)

    def secant(self, h: Array, inbox: Array, at: Star, reach: float) -> LocalQuadratic:
        reaches = namespace(h).filled((h.shape[0], 1, at.size), reach, h)
        return self._model(self.pass_at(h, inbox, at).reaching(reaches), h)

    def variation(
        self, h: Array, inbox: Array, at: Star, reach: tuple[Array, Array]
    ) -> tuple[LocalQuadratic, LocalQuadratic]:
        upper, lower = self.pass_at(h, inbox, at).ranged(*reach)
        return self._curved(upper), self._curved(lower)

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        return self._curved(self.round.at(at).bound(at)).row_sums()

    def _curved(self, tape: RoundTape) -> LocalQuadratic:
        """The model of a pass without the gradient of the β term."""
        back = tape.pullback()
        return tape.linearise(back).quadratic(back.own, back.toward, self.beta)

    def _model(self, tape: RoundTape, h: Array) -> LocalQuadratic:
        back = tape.pullback()
        return tape.linearise(back).quadratic(back.own + self.beta * h, back.toward, self.beta)
