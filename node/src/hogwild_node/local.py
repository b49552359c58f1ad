"""The interfaces between rules and models: local energies to minimise, or a map to apply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star
from hogwild_node.tree import OnGraph


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


class LocalEnergy(OnGraph, ABC):
    r"""Local energies :math:`e^i(h_i, h_{N(i)})`; a network of nodes minimises their sum.

    The methods take the nodes' own embeddings ``h`` [R, k, A], the ``inbox`` [R, k, E'] with what
    these nodes last heard on each edge, and the nodes and edges ``at``.
    """

    dominated: bool = False
    r"""Whether the energies are sums of squares of single embeddings and of pairs of embeddings,
    channel by channel, and their Hessian is scaled diagonally dominant term by term: each pair
    adds :math:`\tfrac12 (a h_i^2 - 2 c h_i h_j + a' h_j^2)` with :math:`a v_i \ge |c| v_j` and
    :math:`a' v_j \ge |c| v_i` for one v > 0, and each node adds :math:`\tfrac12 s_i h_i^2`,
    :math:`s_i > 0`. Messages then converge on every graph, which is proved, and nodes need no
    safeguard."""
    pairwise: bool = False
    r"""Whether the energies are sums of terms of single nodes and of terms of single edges,
    :math:`e^i = \psi_i(h_i) + \sum_{j \in N(i)} \varphi_{ij}(h_i, h_j)`. A node can then compute
    both sides of its edges (:class:`BothSides`)."""

    @abstractmethod
    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        r"""Gradients of the local energies.

        Returns:
            :math:`g_{ii} = \partial e^i / \partial h_i` [R, k, A], and for every edge j → i
            :math:`g_{ij} = \partial e^i / \partial h_j` [R, k, E'], which i sends to j.
        """

    @abstractmethod
    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        """Quadratic models of the local energies.

        Args:
            majorise: 0 for the true curvature, 1 for curvatures that bound the growth of the
                energies everywhere, or a number between for a mixture.
        """

    def bounding(
        self, h: Array, inbox: Array, at: Star, far: tuple[Array, Array]
    ) -> LocalQuadratic:
        """Quadratic models whose curvatures bound the growth of the energies up to the point
        ``far`` (h, inbox).

        The default is ``majorise=1``, which is exact for quadratic energies.
        """
        return self.quadratic(h, inbox, at, majorise=1.0)

    def secant(self, h: Array, inbox: Array, at: Star, reach: float) -> LocalQuadratic:
        """Quadratic models whose curvatures bound the growth of the energies as far as ``reach`` in
        the units of the pre-activations.

        The default is the true curvature, which is exact for quadratic energies.
        """
        return self.quadratic(h, inbox, at)

    @abstractmethod
    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        r"""Contributions of the local energies to bounds on the absolute row sums of the whole
        Hessian, :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`.

        Returns:
            The contribution to :math:`r_i` [R, k, A], and for every edge j → i the contribution to
            :math:`r_j` [R, k, E'], which i sends to j.
        """

    def variation(
        self, h: Array, inbox: Array, at: Star, reach: tuple[Array, Array]
    ) -> tuple[LocalQuadratic, LocalQuadratic] | None:
        r"""How much the Hessians of the local energies can change near a point.

        Args:
            reach: How far embeddings [R, k, A] and what was heard [R, k, E'] may be from the point,
                entry by entry.

        Returns:
            Two models with nonnegative curvatures. The difference of their Hessians bounds
            :math:`|\nabla^2 e^i(h') - \nabla^2 e^i(h)|` entry by entry. ``None``: no bound is
            known.
        """
        return None


@dataclass(frozen=True)
class BothSides:
    r"""A :attr:`~LocalEnergy.pairwise` energy, both sides of whose edges each node computes:

    .. math:: \frac{\partial E}{\partial h_i} = \psi_i'(h_i) + \sum_{j \in N(i)}
        \frac{\partial \varphi_{ij}(h_i, h_j)}{\partial h_i}
        + \frac{\partial \varphi_{ji}(h_j, h_i)}{\partial h_i},

    at the node's own embedding and those that it last heard. Every edge needs an edge the other
    way. What :math:`\varphi_{ji}` reads of features and degrees the node knows, too, so that no
    neighbour has to send a gradient.

    Attributes:
        energy: The local energies of all nodes; or those of the nodes and edges of
            :meth:`Star.with_senders`, for a node alone.
        senders: The sender of each edge, [E]; ``None`` for a node alone.
        reverse: The edge the other way of each edge, [E]; ``None`` for a node alone.
    """

    energy: LocalEnergy
    senders: Array | None = None
    reverse: Array | None = None

    def gradient(self, h: Array, inbox: Array, at: Star) -> Array:
        """The gradients of the whole energy, [R, k, A], from the nodes' own embeddings ``h``
        [R, k, A] and what they heard, ``inbox`` [R, k, E']."""
        return _gathered(*self.energy.local(*self._around(h, inbox, at)), at)

    def block(self, like: Array, at: Star) -> Array:
        """The nodes' blocks of the Hessian in curvatures that bound the growth of the energy
        everywhere, [R, k, k, A]; ``like`` are embeddings of this shape and type, [R, k, A]."""
        xp = namespace(like)
        h, inbox = xp.zeros_like(like), xp.filled((*like.shape[:2], at.degree), 0.0, like)
        found = self.energy.quadratic(*self._around(h, inbox, at), majorise=1.0)
        return _gathered(found.b, found.toward_curvature(), at)

    def _around(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array, Star]:
        xp, both = namespace(h), at.with_senders(self.senders, self.reverse)
        return xp.concat([h, inbox], axis=-1), xp.concat([inbox, at.spread(h)], axis=-1), both


def _gathered(own: Array, toward: Array, at: Star) -> Array:
    """What the nodes in ``at`` have of their own energies [..., A + E'], and of the energies of
    their neighbours [..., 2E']: [..., A]."""
    total: Array = own[..., : at.size] + at.collect(toward[..., at.degree :])
    return total


class LocalMap(OnGraph, ABC):
    r"""A map :math:`F_i(h_i, h_{N(i)})`; a network of nodes finds its fixed point."""

    @abstractmethod
    def update(self, h: Array, inbox: Array, at: Star) -> Array:
        """Apply F at some nodes; returns their new embeddings, [R, k, A].

        Args:
            h: The nodes' own embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard on each edge, [R, k, E'].
            at: The nodes and edges.
        """
