"""What a node's rule asks of a model: local energies to minimise, or a map to apply."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hogwild_node.ops import Array
from hogwild_node.quadratic import LocalQuadratic
from hogwild_node.star import Star
from hogwild_node.tree import OnGraph


class LocalEnergy(OnGraph, ABC):
    r"""Local energies :math:`e^i(h_i, h_{N(i)})`, whose sum a network of nodes minimises.

    All methods take the nodes' own embeddings ``h`` [R, k, A], what these nodes last heard on each
    edge, ``inbox`` [R, k, E'], and the nodes and edges, ``at``.
    """

    @abstractmethod
    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        r"""Gradients of the local energies, from what the nodes know.

        Returns:
            :math:`g_{ii} = \partial e^i / \partial h_i` [R, k, A], and for every edge j → i
            :math:`g_{ij} = \partial e^i / \partial h_j` [R, k, E'], which i sends to j.
        """

    @abstractmethod
    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        """Quadratic models of the same energies.

        Args:
            majorise: 0 for the true curvature here, 1 for curvatures that bound the energies'
                growth from here, or a mixture.
        """

    def bounding(
        self, h: Array, inbox: Array, at: Star, far: tuple[Array, Array]
    ) -> LocalQuadratic:
        """Quadratic models whose curvatures bound the energies' growth from here as far as ``far``
        (h, inbox): the true curvature where that is here, ``majorise=1`` where it is anywhere.

        By default the latter, which is the same for quadratic energies.
        """
        return self.quadratic(h, inbox, at, majorise=1.0)

    @abstractmethod
    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        r"""What the local energies add to bounds on the absolute row sums of the whole Hessian,
        :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`, as far as the
        features that the nodes know tell.

        Returns:
            Their part in :math:`r_i` [R, k, A], and for every edge j → i their part in
            :math:`r_j` [R, k, E'], which i sends to j.
        """


class LocalMap(OnGraph, ABC):
    r"""A map :math:`F_i(h_i, h_{N(i)})`, whose fixed point a network of nodes finds."""

    @abstractmethod
    def update(self, h: Array, inbox: Array, at: Star) -> Array:
        """F at some nodes: their new embeddings, [R, k, A].

        Args:
            h: Their own embeddings, [R, k, A].
            inbox: The neighbours' embeddings as last heard on each edge, [R, k, E'].
            at: The nodes and edges.
        """
