r"""Problems: what a model asks on a graph.

A *problem* is a batch of independent problems: one for each replica r and graph g, stacked along
the node dimension. Every vector is ``[R, k, N]``, every number per problem ``[R, G]``. An
:class:`Objective` is minimised, a :class:`FixedPoint` is found.

A problem answers three kinds of questions, each in an interface of its own:

* :class:`Solvable`: what a solver needs,
* :class:`Distributed`: what the nodes of a network need to solve the problem themselves,
* a certificate needs bounds: :class:`CertifiedObjective` and :class:`CertifiedMap`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild_node.local import LocalEnergy, LocalMap
from hogwild_node.ops import Array
from hogwild_node.star import Star
from hogwild_node.tree import OnGraph, arrays


class Evaluation(ABC):
    """An objective at one point; only what is asked for is computed."""

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """[R, G]"""

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """[R, G]: the rounding error of the value; a line search ignores smaller differences."""

    @property
    @abstractmethod
    def gradient(self) -> Tensor:
        """[R, k, N]"""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """[R, G]: size of the terms that cancel in the gradient, for relative tolerances."""

    @abstractmethod
    def hessian(self) -> Hessian:
        """The Hessian here, cut off from autograd."""

    def secant(self, reach: Tensor) -> Hessian:
        """A positive definite map whose curvatures bound the objective's growth from here as far as
        ``reach`` [R, G]; with a reach of zero it is the Hessian.

        By default it is the Hessian for any reach, which is exact for quadratic objectives.
        """
        return self.hessian()


class Solvable(OnGraph, ABC):
    """What a solver needs: independent problems on R replicas × G graphs.

    A subclass is a dataclass whose fields say what their tensors count
    (:func:`hogwild_node.tree.over`). Detaching, copying and selecting follow from these fields.
    """

    graph: Graph

    @property
    @abstractmethod
    def replicas(self) -> int:
        """R, the number of replicas."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """k, the width of an embedding."""

    @abstractmethod
    def step(self, h: Tensor) -> Tensor:
        r"""The problem's fixed-point map :math:`F(h)`, whose fixed point is the solution."""

    @abstractmethod
    def residual(self, h: Tensor) -> Tensor:
        """What vanishes at the solution, [R, k, N], as a differentiable function of everything the
        problem was made from."""

    @abstractmethod
    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the residual at ``h``, given ``image`` = F(h)."""

    @abstractmethod
    def size(self, h: Tensor, image: Tensor) -> Tensor:
        """Size [R, G] of the terms that cancel in the residual at ``h``."""

    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        """The problem on these replicas and graphs (sorted indices), and its nodes' indices."""
        graph, nodes, edges = self.graph, None, None
        if graphs.numel() < graph.num_graphs:
            graph, nodes, edges = graph.select(graphs)
        some = None if replicas.numel() == self.replicas else replicas
        changes: dict[str, Any] = {"graph": graph}
        sub = replace(self.cut(self.replicas, some, nodes, edges), **changes)  # type: ignore[type-var]
        if nodes is None:
            nodes = torch.arange(graph.num_nodes, device=graph.batch.device)
        return sub, nodes

    def detach(self) -> Self:
        """The same problem cut off from autograd: what the solver works on."""
        return self.map(Tensor.detach)

    def start(self) -> Tensor:
        """Where asynchronous nodes begin, [R, k, N]: at zero unless a subclass says otherwise."""
        like = next(x for x, _ in arrays(self) if x.is_floating_point())
        return torch.zeros(
            self.replicas, self.channels, self.graph.num_nodes, dtype=like.dtype, device=like.device
        )


@dataclass(frozen=True)
class Part:
    """Some nodes of a problem with the edges into them, as one robot or one machine holds them.

    Attributes:
        local: What these nodes compute. Its arrays cover these nodes and edges only; degrees,
            normalisations and other constants are those of the whole graph.
        star: The nodes, numbered 0, …, A − 1, and the edges into them.
        nodes: The nodes' places in the whole graph, [A].
        senders: The places in the whole graph of the edges' senders, [E'].
        edges: The edges' places in the whole graph, [E'].
    """

    local: LocalEnergy | LocalMap
    star: Star
    nodes: Tensor
    senders: Array
    edges: Array


class Distributed(Solvable):
    """What the nodes of a network need to solve the problem themselves."""

    @property
    @abstractmethod
    def node(self) -> LocalEnergy | LocalMap:
        """The same problem as nodes compute it, from what they heard."""

    def part(self, nodes: Tensor) -> Part:
        """Some nodes of the problem, with the constants of the *whole* graph.

        A problem that is posed on the subgraph of these nodes is another problem: there the nodes
        at the rim have fewer neighbours, hence other degrees and normalisations.

        Args:
            nodes: Indices of the nodes, [A].
        """
        at = self.graph.star(nodes)
        star = Star(at.size, at.slot, senders=at.senders, labels=at.labels)
        return Part(self.node.at(at), star, nodes, self.graph.src[at.edges], at.edges)


Problem = Distributed
"""A problem of a model of this library: a solver can solve it, and so can the nodes."""


class CertifiedObjective(ABC):
    """What a certificate needs of an energy: bounds that hold everywhere."""

    graph: Graph

    @abstractmethod
    def convexity(self) -> Tensor:
        """A lower bound [R, G] on the smallest eigenvalue of the Hessian."""

    @abstractmethod
    def row_bounds(self) -> Tensor:
        r"""Bounds [R, k, N] on the absolute row sums of the Hessian, entry by entry:
        :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`."""

    def lipschitz(self) -> Tensor:
        """An upper bound [R, G] on the largest eigenvalue of the Hessian."""
        return self.graph.norm(self.row_bounds())


class CertifiedMap:
    """What a certificate needs of a fixed-point map; by default nothing is proved."""

    monotone: bool = False
    r"""Whether :math:`h \le h'` implies :math:`F(h) \le F(h')` and every cycle of influence loses.
    Updates in any order, late or repeated, then reach the one fixed point in finite time, although
    F need not contract."""

    def modulus(self) -> Tensor | None:
        r"""A proved bound [R, G] on the contraction modulus of F in a weighted block-maximum norm
        :math:`\max_i \|h_i\| / v_i`, v > 0; ``None``: nothing is proved.

        A bound below one guarantees convergence to the one fixed point under *any* order of
        updates and any bounded delays. A contraction in another norm, for instance the Euclidean
        one, guarantees nothing of the kind.
        """
        return None

    def drift(self, error: float) -> Tensor | None:
        """A proved bound [R, G] on how far, in the largest entry, asynchronous updates end from the
        fixed point when every number heard is wrong by at most ``error``; infinite where there is
        no bound, ``None``: nothing is proved."""
        return None


class Objective(Distributed, CertifiedObjective):
    """Minimise a strongly convex function on each graph."""

    has_blocks: bool = False
    """Whether the Hessian couples only nodes that the graph's pattern joins."""
    is_quadratic: bool = False
    """Whether the Hessian is the same at every point."""

    @property
    def signature(self) -> tuple[object, ...]:
        """All that, beside tensors and their shapes, decides what :meth:`evaluate` computes."""
        return (self.replicas, self.channels)

    @property
    @abstractmethod
    def node(self) -> LocalEnergy:
        """The same energy as nodes compute it, from what they heard.

        Raises:
            AsynchronyError: A node would have to hear from further than one hop.
        """

    @abstractmethod
    def evaluate(self, h: Tensor) -> Evaluation:
        """The energy at ``h`` [R, k, N]."""

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`\nabla E(h)`."""
        return self.evaluate(h).gradient

    @cached_property
    def _bound(self) -> Tensor:
        return self.lipschitz()

    def step(self, h: Tensor) -> Tensor:
        r"""Gradient step :math:`h - \nabla E(h) / K` with the global bound K."""
        return h - self.evaluate(h).gradient / self.graph.wide(self._bound)

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self._bound * self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.evaluate(h).scale


class FixedPoint(Distributed, CertifiedMap):
    r"""Find :math:`h = F(h)` on each graph, F a contraction."""

    has_blocks: bool = False
    """Whether its tangents have blocks."""
    has_inverse: bool = False
    """Whether its tangents have an inverse in closed form."""

    @property
    @abstractmethod
    def node(self) -> LocalMap:
        """The same map as nodes apply it, to what they heard."""

    def step(self, h: Tensor) -> Tensor:
        everyone = self.graph.everyone
        moved: Tensor = self.node.update(h, everyone.current(h), everyone)
        return moved

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`F(h) - h`."""
        return self.step(h) - h

    def distance(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image - h)

    def size(self, h: Tensor, image: Tensor) -> Tensor:
        return self.graph.norm(image) + self.graph.norm(h)

    def pullback(self, h: Tensor, v: Tensor) -> Tensor:
        r""":math:`(\partial F / \partial h)^\top v`, for the adjoint; by autograd by default."""
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            (out,) = torch.autograd.grad(self.step(h), h, v, materialize_grads=True)
        return out

    def adjoint(self, h: Tensor, grad: Tensor) -> Tensor | None:
        r"""The :math:`\lambda` with :math:`(\partial F / \partial h - I)^\top \lambda` = ``grad``,
        where it is known in closed form; ``None``: a Krylov method finds it."""
        return None

    def linearise(self, h: Tensor) -> Tangent:
        r""":math:`I - \partial F / \partial h`; by autograd by default."""
        return _AutogradTangent(self.graph, self, h)


@dataclass
class _AutogradTangent(Tangent):
    graph: Graph
    problem: FixedPoint
    h: Tensor

    def apply(self, v: Tensor) -> Tensor:
        # J v as the derivative of u ↦ ⟨Jᵀu, v⟩, which is linear in u.
        with torch.enable_grad():
            h = self.h.detach().requires_grad_()
            u = torch.zeros_like(v, requires_grad=True)
            (pulled,) = torch.autograd.grad(
                self.problem.step(h), h, u, create_graph=True, materialize_grads=True
            )
            if not pulled.requires_grad:  # F does not depend on h
                return v
            (out,) = torch.autograd.grad(pulled, u, v, materialize_grads=True)
        return v - out

    def transpose(self, v: Tensor) -> Tensor:
        return v - self.problem.pullback(self.h, v)
