"""The local energies of some nodes to second order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hogwild.fields import gather, mtm, mtv, mv
from hogwild.graph import Star


@dataclass
class LocalQuadratic:
    r"""Quadratic models of the local energies :math:`e^i` of some nodes, each in the node's own
    embedding and its neighbours': gradients and curvature of

    .. math:: \tfrac12 d_i^\top B_i d_i + \sum_e d_i^\top X_e d_e + \tfrac12 d_e^\top C_e d_e
              + \tfrac12 \bigl(\textstyle\sum_e J_e d_e\bigr)^\top U_i
                \bigl(\textstyle\sum_e J_e d_e\bigr),

    the sums over the edges into i. Two neighbours are coupled through the messages' channels only.
    """

    own: Tensor  # [R, k, A] gradient with respect to h_i
    toward: Tensor  # [R, k, E'] and to the sender's embedding
    b: Tensor  # [R, k, k, A]
    x: Tensor  # [R, k, k, E'] rows i, columns j
    c: Tensor  # [R, k, k, E']
    j: Tensor  # [R, C, k, E']
    u: Tensor  # [R, C, C, A]
    at: Star

    def toward_curvature(self) -> Tensor:
        """Each neighbour's own block, :math:`C_e + J_e^\top U_i J_e`, [R, k, k, E']."""
        u = gather(self.u.flatten(1, 2), self.at.slot).unflatten(1, self.u.shape[1:3])
        return self.c + mtm(self.j, mtm(u, self.j))

    def row_sums(self) -> tuple[Tensor, Tensor]:
        """Bounds on the absolute row sums of the models' Hessians: of the rows of the nodes' own
        embeddings [R, k, A], and of the rows of each neighbour's [R, k, E']."""
        x, j = self.x.abs(), self.j.abs()
        own = self.b.abs().sum(2) + self.at.collect(x.sum(2))
        through = mv(self.u.abs(), self.at.collect(j.sum(2)))  # |U| Σ |J| 1, [R, C, A]
        return own, x.sum(1) + self.c.abs().sum(2) + mtv(j, gather(through, self.at.slot))
