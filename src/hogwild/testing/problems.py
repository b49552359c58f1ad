r"""Problems with exactly known answers, for tests of solvers.

* :class:`Quadratic`: :math:`E(H) = \tfrac12 \sum_i h_i^\top Q h_i
  + \tfrac{c}{2} \sum_{(i,j)} \|h_i - h_j\|^2 - \sum_i b_i^\top h_i`, an energy on the graph whose
  minimiser solves a linear system.
* :class:`Affine`: :math:`F(H) = \kappa\, W H \tilde A^\top + B` with :math:`\|W\|_\infty = 1`, a
  contraction with factor κ in the maximum norm, which is not symmetric.

``answer()`` solves a dense linear system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.linalg.operator import Hessian
from hogwild.ops import gather, mv, scatter
from hogwild.problems.base import Evaluation, FixedPoint, Objective
from hogwild_node.local import LocalEnergy, LocalMap, LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.tree import FIXED, NODES, SHARED, over


def random_graph(
    sizes: list[int], *, extra: float = 0.5, seed: int = 0, device: str = "cpu"
) -> Graph:
    """A batch of random connected undirected graphs with these numbers of nodes.

    Each graph is a random tree plus at most ``extra`` · n random edges.
    """
    rng = torch.Generator().manual_seed(seed)
    edges, batch, offset = [], [], 0
    for g, n in enumerate(sizes):
        pairs = {(int(torch.randint(i, (1,), generator=rng)), i) for i in range(1, n)}
        for _ in range(int(extra * n) if n > 1 else 0):
            i, j = sorted(torch.randint(n, (2,), generator=rng).tolist())
            if i != j:
                pairs.add((i, j))
        for i, j in sorted(pairs):
            edges += [(i + offset, j + offset), (j + offset, i + offset)]
        batch += [g] * n
        offset += n
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T.contiguous().to(device)
    return Graph.of(edge_index, offset, torch.tensor(batch, device=device))


@dataclass
class _QuadraticHessian(Hessian):
    graph: Graph
    problem: Quadratic
    has_blocks = True

    def apply(self, v: Tensor) -> Tensor:
        p, g = self.problem, self.graph
        flow = gather(v, g.dst) - gather(v, g.src)
        pull = scatter(flow, g.dst, g.num_nodes) - scatter(flow, g.src, g.num_nodes)
        return mv(p.q.unsqueeze(-1), v) + p.coupling * pull

    def blocks(self) -> tuple[Tensor, Tensor]:
        p, g = self.problem, self.graph
        eye = torch.eye(p.channels, dtype=p.q.dtype, device=p.q.device)
        # bincount synchronises with the device, which CUDA graphs do not allow.
        one = p.q.new_ones(1, 1, g.num_edges)
        degree = scatter(one, g.dst, g.num_nodes) + scatter(one, g.src, g.num_nodes)
        diagonal = p.q.unsqueeze(-1) + p.coupling * eye.unsqueeze(-1) * degree
        pattern = g.pattern
        off = p.q.new_zeros(p.replicas, p.channels, p.channels, pattern.rows.numel())
        off[..., : g.num_edges] = -p.coupling * eye.unsqueeze(-1)
        return diagonal, off

    def diagonal(self) -> Tensor:
        return self.blocks()[0]


@dataclass
class _QuadraticEvaluation(Evaluation):
    problem: Quadratic
    h: Tensor

    @property
    def value(self) -> Tensor:
        p = self.problem
        return p.graph.dot(0.5 * self.hessian().apply(self.h) - p.b, self.h)

    @property
    def noise(self) -> Tensor:
        return 64.0 * torch.finfo(self.h.dtype).eps * self.value.abs()

    @property
    def gradient(self) -> Tensor:
        return self.hessian().apply(self.h) - self.problem.b

    @property
    def scale(self) -> Tensor:
        return self.problem.graph.norm(self.problem.b)

    def hessian(self) -> _QuadraticHessian:
        return _QuadraticHessian(self.problem.graph, self.problem)


def _drawn(
    graph: Graph, replicas: int = 1, channels: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """A random matrix [R, k, k] and a random vector [R, k, N]; every device draws the same."""
    rng = torch.Generator().manual_seed(seed)
    shapes = (replicas, channels, channels), (replicas, channels, graph.num_nodes)
    a, b = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    return a.to(graph.batch.device), b.to(graph.batch.device)


class _Sized:
    """Sizes of a problem whose vector is ``b`` [R, k, N]."""

    b: Tensor

    @property
    def replicas(self) -> int:
        return self.b.size(0)

    @property
    def channels(self) -> int:
        return self.b.size(1)


@dataclass
class Quadratic(_Sized, Objective):
    """A strongly convex quadratic energy. The graph must not have self-loops."""

    graph: Graph = over(FIXED)
    q: Tensor = over(SHARED)  # [R, k, k] symmetric positive definite
    b: Tensor = over(NODES)  # [R, k, N]
    coupling: float = over(FIXED)
    has_blocks = True
    is_quadratic = True

    @classmethod
    def random(cls, graph: Graph, *, coupling: float = 1.0, **sizes: int) -> Quadratic:
        """A random energy; ``sizes`` are ``replicas``, ``channels`` and ``seed``."""
        a, b = _drawn(graph, **sizes)
        q = a @ a.mT / a.size(-1) + 0.1 * torch.eye(a.size(-1)).to(a)
        return cls(graph, q, b, coupling)

    def evaluate(self, h: Tensor) -> _QuadraticEvaluation:
        return _QuadraticEvaluation(self, h)

    @property
    def node(self) -> LocalEnergy:
        return _QuadraticNode(self)

    def convexity(self) -> Tensor:
        return torch.linalg.eigvalsh(self.q)[:, :1].expand(-1, self.graph.num_graphs)

    def row_bounds(self) -> Tensor:
        g = self.graph
        degree = (g.in_degree + torch.bincount(g.src, minlength=g.num_nodes)).to(self.q.dtype)
        return self.q.abs().sum(-1).unsqueeze(-1) + 2.0 * self.coupling * degree

    def answer(self) -> Tensor:
        """The minimiser [R, k, N], from a dense linear system."""
        matrix = _columns(self.evaluate(self.b).hessian().apply, self.b)
        return torch.linalg.solve(matrix, self.b.flatten(1)).view_as(self.b)


@dataclass
class _QuadraticNode(LocalEnergy):
    """The local energies of a :class:`Quadratic`."""

    problem: Quadratic

    def local(self, h: Array, inbox: Array, at: Star) -> tuple[Array, Array]:
        p, xp = self.problem, namespace(h)
        flow = p.coupling * (at.spread(h) - inbox)
        return xp.mv(p.q[..., None], h) - at.at_nodes(p.b) + at.collect(flow), -flow

    def quadratic(self, h: Array, inbox: Array, at: Star, majorise: float = 0.0) -> LocalQuadratic:
        p, xp, (r, k) = self.problem, namespace(h), h.shape[:2]
        own, toward = self.local(h, inbox, at)
        eye = xp.broadcast_to(xp.identity(k, h)[:, :, None], (r, k, k, 1))
        b = p.q[..., None] + p.coupling * eye * at.collect(xp.filled((at.degree,), 1.0, h))
        c = xp.broadcast_to(p.coupling * eye, (r, k, k, at.degree))
        none = xp.filled((r, 0, k, at.degree), 0.0, h), xp.filled((r, 0, 0, at.size), 0.0, h)
        return LocalQuadratic(own, toward, b, -c, c, *none, at)

    def row_bounds(self, at: Star) -> tuple[Array, Array]:
        xp, here = namespace(self.problem.b), at.at_nodes(self.problem.b)
        inbox = xp.filled((*here.shape[:2], at.degree), 0.0, here)
        return self.quadratic(xp.zeros_like(here), inbox, at).row_sums()


@dataclass
class Affine(_Sized, FixedPoint, LocalMap):
    """The fixed point of an affine contraction, which is not symmetric."""

    graph: Graph = over(FIXED)
    w: Tensor = over(SHARED)  # [R, k, k] with maximum row sum of absolute values one
    b: Tensor = over(NODES)  # [R, k, N]
    share: Tensor = over(NODES)  # [N] one over the number of neighbours
    kappa: float = over(FIXED)

    @classmethod
    def random(cls, graph: Graph, *, kappa: float = 0.9, **sizes: int) -> Affine:
        """A random contraction; ``sizes`` are ``replicas``, ``channels`` and ``seed``."""
        w, b = _drawn(graph, **sizes)
        w = w / w.abs().sum(-1).amax(-1)[:, None, None]
        return cls(graph, w, b, graph.in_degree.clamp_min(1).to(w.dtype).reciprocal(), kappa)

    def update(self, h: Array, inbox: Array, at: Star) -> Array:
        heard = at.collect(inbox) * at.at_nodes(self.share)
        return self.kappa * (self.w @ heard) + at.at_nodes(self.b)

    def answer(self) -> Tensor:
        """The fixed point [R, k, N], from a dense linear system."""
        zero = torch.zeros_like(self.b)
        columns = _columns(lambda v: v - self.step(v) + self.step(zero), zero)
        return torch.linalg.solve(columns, self.b.flatten(1)).view_as(self.b)


def _columns(apply: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The dense matrix [R, kN, kN] of a linear map on [R, k, N]."""
    size = like[0].numel()
    eye = torch.eye(size, dtype=like.dtype, device=like.device).view(size, *like.shape[1:])
    images = [apply(e.expand_as(like)).flatten(1) for e in eye]
    return torch.stack(images, -1)
