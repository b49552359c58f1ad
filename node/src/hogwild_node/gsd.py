r"""Graph signal denoising as a node computes it.

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
from hogwild_node.star import Star
from hogwild_node.tree import EDGES, FIXED, NODES, over


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
