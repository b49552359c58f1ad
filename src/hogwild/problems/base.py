r"""Problems: what there is to solve.

A *problem* is a batch of independent problems: one for each replica r and graph g, stacked along
the node dimension. Every vector is ``[R, k, N]``, every per-problem number ``[R, G]``. An
:class:`Objective` is minimised, a :class:`FixedPoint` is found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.linalg.operator import Hessian, Tangent
from hogwild_node.local import LocalEnergy, LocalMap


class Evaluation(ABC):
    """An objective at one point; what is not asked for is not computed."""

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """[R, G]"""

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """[R, G]: rounding error to expect in the value; a line search must not believe less."""

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
        """A positive definite map with curvatures that bound the objective's growth from here as
        far as ``reach`` [R, G], in the units of whatever bends: the Hessian where the reach is
        zero. By default the Hessian for any reach, which is exact for quadratic objectives."""
        return self.hessian()


class Problem(ABC):
    """Independent problems on R replicas × G graphs."""

    graph: Graph
    replicas: int
    channels: int

    @abstractmethod
    def select(self, replicas: Tensor, graphs: Tensor) -> tuple[Self, Tensor]:
        """The problem on these replicas and graphs, and its node indices."""

    @property
    @abstractmethod
    def node(self) -> LocalEnergy | LocalMap:
        """The same problem as nodes compute it, from what they heard."""

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

    @abstractmethod
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same problem with every tensor it is made of transformed."""

    def detach(self) -> Self:
        """The same problem cut off from autograd: what the solver works on."""
        return self.map(Tensor.detach)

    def start(self) -> Tensor:
        """Where asynchronous nodes begin, [R, k, N]: at zero unless a subclass knows better."""
        floating: list[Tensor] = []

        def note(t: Tensor) -> Tensor:
            floating.extend([t] if t.is_floating_point() else [])
            return t

        self.map(note)  # the precision the problem was posed in
        return self.zeros(floating[0].dtype, floating[0].device)

    def zeros(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(
            self.replicas, self.channels, self.graph.num_nodes, dtype=dtype, device=device
        )


class Objective(Problem):
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
    def evaluate(self, h: Tensor) -> Evaluation: ...

    @abstractmethod
    def convexity(self) -> Tensor:
        """A bound [R, G] on the smallest eigenvalue of the Hessian from below, valid everywhere."""

    @abstractmethod
    def row_bounds(self) -> Tensor:
        r"""Bounds [R, k, N] on the absolute row sums of the Hessian, entry by entry and valid
        everywhere: :math:`r_a \ge \sum_b \sup_h |\partial^2 E / \partial h_a \partial h_b|`."""

    def lipschitz(self) -> Tensor:
        """A bound [R, G] on the largest eigenvalue of the Hessian, valid everywhere."""
        return self.graph.norm(self.row_bounds())

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


class FixedPoint(Problem):
    r"""Find :math:`h = F(h)` on each graph, F a contraction."""

    monotone: bool = False
    r"""Whether :math:`h \le h'` entails :math:`F(h) \le F(h')` and every cycle of influence loses:
    updates in any order, late or repeated, then reach the one fixed point in finite time, although
    F need not contract."""
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
        r""":math:`(\partial F / \partial h)^\top v`, for the adjoint; by autograd unless a
        subclass knows better."""
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            (out,) = torch.autograd.grad(self.step(h), h, v, materialize_grads=True)
        return out

    def adjoint(self, h: Tensor, grad: Tensor) -> Tensor | None:
        r"""The :math:`\lambda` with :math:`(\partial F / \partial h - I)^\top \lambda` = ``grad``,
        where it is known in closed form; ``None``: a Krylov method finds it."""
        return None

    def linearise(self, h: Tensor) -> Tangent:
        r""":math:`I - \partial F / \partial h`; by autograd unless a subclass knows better."""
        return _AutogradTangent(self.graph, self, h)

    def modulus(self) -> Tensor | None:
        r"""A proved bound [R, G] on the contraction modulus of F in a weighted block-maximum norm
        :math:`\max_i \|h_i\| / v_i`, v > 0; ``None``: nothing is proved.

        A bound below one guarantees convergence to the one fixed point under *any* order of
        updates and any bounded delays. A contraction in another norm, the Euclidean one for
        instance, guarantees nothing of the kind.
        """
        return None

    def drift(self, error: float) -> Tensor | None:
        """A proved bound [R, G] on how far, in the largest entry, asynchronous updates end from the
        fixed point when every number heard is wrong by at most ``error``; infinite where there is
        none, ``None``: nothing is proved."""
        return None


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
