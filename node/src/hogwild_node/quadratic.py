"""Quadratic models of local energies."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star


@dataclass
class LocalQuadratic:
    r"""Quadratic models of the local energies :math:`e^i` of some nodes, in displacements of the
    node's own embedding and those of its neighbours: gradients, and the curvature

    .. math:: \tfrac12 d_i^\top B_i d_i + \sum_e d_i^\top X_e d_e + \tfrac12 d_e^\top C_e d_e
              + \tfrac12 \bigl(\textstyle\sum_e J_e d_e\bigr)^\top U_i
                \bigl(\textstyle\sum_e J_e d_e\bigr),

    with sums over the edges into i. Two neighbours are coupled through the channels of the messages
    only.
    """

    own: Array  # [R, k, A] gradient with respect to h_i
    toward: Array  # [R, k, E'] gradient with respect to the sender's embedding
    b: Array  # [R, k, k, A]
    x: Array  # [R, k, k, E'] rows i, columns j
    c: Array  # [R, k, k, E']
    j: Array  # [R, C, k, E']
    u: Array  # [R, C, C, A]
    at: Star

    def through(self) -> Array:
        r""":math:`U_i J_e`, [R, C, k, E']."""
        return namespace(self.j).mtm(self.at.spread(self.u), self.j)

    def toward_curvature(self) -> Array:
        r"""Each neighbour's own block, :math:`C_e + J_e^\top U_i J_e`, [R, k, k, E']."""
        return self.c + namespace(self.j).mtm(self.j, self.through())

    def row_sums(self) -> tuple[Array, Array]:
        """Bounds on the absolute row sums of the models' Hessians: for the rows of the nodes' own
        embeddings [R, k, A], and for the rows of each neighbour's embedding [R, k, E']."""
        xp, x, j = namespace(self.j), abs(self.x), abs(self.j)
        own = abs(self.b).sum(2) + self.at.collect(x.sum(2))
        through = xp.mv(abs(self.u), self.at.collect(j.sum(2)))  # |U| Σ |J| 1, [R, C, A]
        return own, x.sum(1) + abs(self.c).sum(2) + xp.mtv(j, self.at.spread(through))
