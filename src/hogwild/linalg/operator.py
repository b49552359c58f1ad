r"""Linear maps on node vectors [R, k, N], block diagonal over graphs, and their structure.

:class:`NormalEquations` are those of a fixed point's tangent: :math:`M^\top M` with :math:`M = I -
J`. Row i of M couples i with its neighbours, so :math:`\|M v\|^2` is a sum of one-hop quadratics,
and its Hessian has the pattern of an energy's: the same factorisation serves both. Squaring the
condition number is harmless here: in the norm in which F contracts with modulus κ it is at most
:math:`(1 + \kappa) / (1 - \kappa)`, 39 for κ = 0.95.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.ops import gather, mtm, scatter

if TYPE_CHECKING:
    from hogwild.linalg.direct import Factor


class Posed(Protocol):
    """A problem, as linear algebra sees it."""

    graph: Graph

    @property
    def has_blocks(self) -> bool: ...

    @property
    def replicas(self) -> int: ...

    @property
    def channels(self) -> int: ...


class Hessian(ABC):
    """A symmetric positive definite linear map on [R, k, N], block diagonal over graphs."""

    graph: Graph

    @property
    def has_blocks(self) -> bool:
        """Whether the map couples only nodes that the graph's pattern joins (one-hop energies)."""
        return False

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        """``H v``."""

    @abstractmethod
    def diagonal(self) -> Tensor | None:
        """The k × k diagonal blocks [R, k, k, N] for a preconditioner, or ``None``."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        """Diagonal [R, k, k, N] and off-diagonal [R, k, k, M] blocks in the order of the graph's
        :class:`~hogwild.graph.Pattern`; only where :attr:`has_blocks`."""
        raise NotImplementedError(f"{type(self).__name__} reaches beyond the graph's pattern")

    def entries(self) -> tuple[Tensor, Tensor] | None:
        """Where all channels and replicas share the same matrix of the edges: its diagonal [N], and
        what every edge adds to the two entries of its ends, [E]; otherwise ``None``."""
        return None


class Tangent(ABC):
    r"""The linear map :math:`I - J`, J the Jacobian of a fixed-point map at one point.

    Newton's method solves with it, the adjoint with its transpose. On [R, k, N], block diagonal
    over graphs; not symmetric in general.
    """

    graph: Graph

    @property
    def has_blocks(self) -> bool:
        """Whether the map joins only nodes that an edge joins, and :meth:`blocks` gives its
        entries."""
        return False

    @cached_property
    def factors(self) -> dict[str, Factor | None]:
        """Factors of the normal equations by the kind of linear solver, kept by solvers; ``None``:
        iterations are cheaper."""
        return {}

    @abstractmethod
    def apply(self, v: Tensor) -> Tensor:
        r""":math:`(I - J) v`."""

    @abstractmethod
    def transpose(self, v: Tensor) -> Tensor:
        r""":math:`(I - J)^\top v`."""

    def blocks(self) -> tuple[Tensor, Tensor]:
        r""":math:`\partial r_i / \partial h_i` [R, k, k, N] and, for every edge j → i,
        :math:`\partial r_i / \partial h_j` [R, k, k, E], where :math:`r = h - F(h)`; only where
        :attr:`has_blocks`."""
        raise NotImplementedError(f"{type(self).__name__} has no blocks")


@dataclass
class NormalEquations(Hessian):
    """:math:`M^\\top M` of a tangent; it has blocks where the tangent has."""

    graph: Graph
    tangent: Tangent

    @property
    def has_blocks(self) -> bool:
        return self.tangent.has_blocks

    def apply(self, v: Tensor) -> Tensor:
        return self.tangent.transpose(self.tangent.apply(v))

    def diagonal(self) -> Tensor:
        return self.blocks()[0]

    def blocks(self) -> tuple[Tensor, Tensor]:
        graph, pattern = self.graph, self.graph.pattern
        own, other = self.tangent.blocks()  # [R, k, k, N], [R, k, k, E]
        diagonal = mtm(own, own) + scatter(mtm(other, other), graph.src, graph.num_nodes)
        here = mtm(gather(own, graph.dst), other)
        wedge = mtm(other[..., pattern.left], other[..., pattern.right])
        return pattern.folded(diagonal, torch.cat([here, wedge], -1))
