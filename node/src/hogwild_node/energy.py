r"""The energy GNN as a node computes it: local energy, gradients and quadratic models.

.. math::
    e^i(h_i, h_{N(i)}) = u(m_i, h_i, x_i) + \tfrac\beta2 \|h_i\|^2, \qquad
    m_i = \sum_{j \in N(i)} \omega_{ij}\, m(h_i, h_j, x_i, x_j, e_{ij})
        + \omega_{ii}\, m_\circ(h_i, x_i)

*Graph signal denoising* as a node computes it:

.. math::
    e^i = \gamma \|h_i - g(x_i)\|^2 + \frac\beta2 \sum_{j \in N(i)} w_{ij}
        \Bigl\| \frac{h_i}{\sqrt{d_i}} - \frac{h_j}{\sqrt{d_j}} \Bigr\|^2,

with the degrees :math:`d` in the *whole* graph, which a node knows of itself and its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.local import LocalEnergy
from hogwild_node.ops import Array, namespace
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.round import Round, RoundTape
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, over


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


@dataclass(frozen=True)
class GSD(LocalEnergy):
    """Local energies of graph signal denoising."""

    target: Array = over(NODES)  # [R, k, N] g(x)
    root: Array = over(NODES)  # [N] 1/√d of the node
    sender_root: Array = over(EDGES)  # [E] 1/√d of each edge's sender
    weight: Array = over(EDGES)  # [E] w
    gamma: float = over(FIXED)
    beta: float = over(FIXED)
    dominated = True  # with v = √d
    pairwise = True

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        here = self.at(at)
        pull = self.beta * here.weight
        slope = pull * (at.spread(here.root * h) - here.sender_root * inbox)
        own = 2.0 * self.gamma * (h - here.target) + here.root * at.collect(slope)
        return own, -here.sender_root * slope

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        """The energies themselves, which are quadratic."""
        own, toward = self.local(h, inbox, at)
        xp, here = namespace(h), self.at(at)
        r, k = h.shape[:2]
        pull, there = self.beta * here.weight, here.sender_root
        eye = xp.broadcast_to(xp.identity(k, h)[:, :, None], (r, k, k, 1))
        b = 2.0 * self.gamma + here.root**2 * at.collect(pull)
        x = -pull * here.root[at.slot] * there
        uncoupled = xp.filled((r, 0, k, at.degree), 0.0, h), xp.filled((r, 0, 0, at.size), 0.0, h)
        return LocalQuadratic(
            own, toward, eye * b, eye * x, eye * (pull * there**2), *uncoupled, at
        )

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        xp, here = namespace(self.target), self.at(at)
        anywhere = xp.zeros_like(here.target)
        inbox = xp.filled((*anywhere.shape[:2], at.degree), 0.0, anywhere)
        return self.quadratic(anywhere, inbox, at).row_sums()
