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
from hogwild.ops import gather, mtm, mtv, mv, scatter

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


@dataclass
class OneHopHessian(Hessian):
    r"""The Hessian of a sum of one-hop energies, from their second-order models
    (:class:`~hogwild_node.local.LocalQuadratic`): for each edge :math:`J_e` and :math:`X_e`, for
    each node :math:`U_i`, and :math:`B_i` with the curvatures :math:`C_e` of all edges out of i.

    .. math::
        (s_i; y_i) = \sum_e (J_e; X_e) v_e, \qquad
        (H v)_i = B_i v_i + y_i + \sum_{e\,:\,i \to l} J_e^\top U_l s_l + X_e^\top v_l.
    """

    graph: Graph
    j: Tensor  # [R, C, k, E]
    x: Tensor  # [R, k, k, E]
    u: Tensor  # [R, C, C, N]
    b: Tensor  # [R, k, k, N] B, with the curvatures C of the edges out of each node
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        star, sent = self.graph.everyone, gather(v, self.graph.src)
        back = mtv(self.x, star.spread(v))
        if self.j.size(1):  # pairwise energies have no channels of messages
            back = back + mtv(self.j, star.spread(mv(self.u, star.collect(mv(self.j, sent)))))
        out = mv(self.b, v) + star.collect(mv(self.x, sent))
        return out.scatter_add_(-1, self.graph.src.expand_as(back), back)

    @cached_property
    def _through(self) -> Tensor:
        """U J on the edges, [R, C, k, E]."""
        return mtm(gather(self.u, self.graph.dst), self.j)

    def diagonal(self) -> Tensor:
        # Unlike blocks(), this needs no pairs of neighbours; its cost is linear in the edges.
        graph, seen = self.graph, self._seen()
        if graph.parallel is not None:
            # Parallel edges act as one edge with the sum of their Jacobians: the square of their
            # sum counts, not the sum of their squares.
            number, one = graph.parallel
            sums = [scatter(m, number, one.numel()) for m in (self.j, self._through)]
            seen = scatter(mtm(*sums), graph.src[one], graph.num_nodes)
        if graph.self_loops is not None:
            loops = self.x[..., graph.self_loops]
            loops = loops + loops.transpose(1, 2)
            seen = seen + scatter(loops, graph.src[graph.self_loops], graph.num_nodes)
        return self.b + seen

    def _seen(self) -> Tensor:
        """What the energies of the receivers add to the nodes' own blocks, [R, k, k, N]."""
        return scatter(mtm(self.j, self._through), self.graph.src, self.graph.num_nodes)

    def blocks(self) -> tuple[Tensor, Tensor]:
        pattern = self.graph.pattern
        wedge = mtm(self.j[..., pattern.left], self._through[..., pattern.right])  # [R, k, k, W]
        return pattern.folded(self.b + self._seen(), torch.cat([self.x, wedge], -1))


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
