r"""Adjacency matrices of spectral radius one, graph by graph.

Both kinds come with a positive vector v such that :math:`\tilde A v \le v`. The vector v certifies
that :math:`\tilde A` does not expand the norm :math:`\max_i |x_i| / v_i`. The matrix of a graph
does not depend on the other graphs of its batch.

*Renormalised*: :math:`\tilde A = D^{-1/2} (A + I) D^{-1/2}`, where D holds the row sums of
:math:`A + I`. This matrix is similar to the row-stochastic :math:`D^{-1} (A + I)`. Its
Perron–Frobenius eigenvalue is therefore exactly one on every graph, also on directed and weighted
graphs, with :math:`v = D^{1/2} 1`. Nodes only need to know their neighbours' degrees.

*Scaled*: :math:`\tilde A = A / \lambda_{pf}(A)`, computed by the power method. The bound
:math:`\lambda_{pf} \le \max_i (A v)_i / v_i` (Collatz & Wielandt) holds for every v > 0, even
before the method has converged. The eigenvalue is a constant of the whole graph, so the nodes must
receive it before a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from hogwild.errors import UnsupportedError
from hogwild.graph import Graph, kept
from hogwild.ops import gather, scatter
from hogwild_node.tree import EDGES, NODES, OnGraph, over

POWER_ITERATIONS = 1000
"""Most power iterations. Each of them at most halves an entry of v, so no entry underflows."""
POWER_TOLERANCE = 1e-12
STRIDE = 8
"""Iterations between two tests of convergence, which wait for the device.
"""
TIE = 1e-9
"""Relative difference of two components' eigenvalues below which the components tie."""


@dataclass(frozen=True)
class Adjacency(OnGraph):
    r"""A nonnegative matrix :math:`\tilde A` whose rows are receivers and columns are senders."""

    edge: Tensor = over(EDGES)  # [E] weight of each edge
    loop: Tensor | None = over(NODES)  # [N] weight of each node's own embedding; None: zero
    perron: Tensor = over(NODES)  # [N] v > 0

    def apply(self, x: Tensor, graph: Graph) -> Tensor:
        r""":math:`\tilde A x` for x [..., N]."""
        out = scatter(gather(x, graph.src) * self.edge, graph.dst, graph.num_nodes)
        return out if self.loop is None else out + self.loop * x

    def transpose(self, x: Tensor, graph: Graph) -> Tensor:
        r""":math:`\tilde A^\top x` for x [..., N]."""
        out = scatter(gather(x, graph.dst) * self.edge, graph.src, graph.num_nodes)
        return out if self.loop is None else out + self.loop * x

    def growth(self, graph: Graph) -> Tensor:
        r""":math:`\max_i (\tilde A v)_i / v_i` [G]. :math:`\tilde A` increases the norm
        :math:`\max_i |x_i| / v_i` at most by this factor."""
        return graph.max(self.apply(self.perron, graph) / self.perron)


def adjacency(
    graph: Graph, weight: Tensor | None, dtype: torch.dtype, *, normalize: bool
) -> Adjacency:
    """The renormalised or the scaled adjacency. Without weights it is cached on the graph."""
    if weight is None:
        return _unweighted(graph, dtype, normalize)
    make = renormalised if normalize else scaled
    return make(graph, weight.to(torch.float64)).map(lambda x: x.to(dtype))


@kept
def _unweighted(graph: Graph, dtype: torch.dtype, normalize: bool) -> Adjacency:
    ones = torch.ones(graph.num_edges, dtype=torch.float64, device=graph.src.device)
    return adjacency(graph, ones, dtype, normalize=normalize)


def renormalised(graph: Graph, weight: Tensor) -> Adjacency:
    r""":math:`D^{-1/2} (A + I) D^{-1/2}` of weights [E]."""
    degree = 1.0 + graph.received(weight)
    root = degree.rsqrt()
    edge = weight * root[graph.dst] * root[graph.src]
    return Adjacency(edge, degree.reciprocal(), degree.sqrt().detach())


def scaled(graph: Graph, weight: Tensor) -> Adjacency:
    r""":math:`A / \lambda_{pf}(A)` of weights [E], differentiable in the weights.

    A graph without a directed cycle has :math:`\lambda_{pf} = 0`. It is scaled by its largest
    weight instead.

    The connected component with the largest eigenvalue determines :math:`\lambda_{pf}` and receives
    its gradient. If several components tie, the eigenvalue has no derivative. The gradient is then
    the mean of the components' gradients, weighted by :math:`u^\top v` of their eigenvectors, which
    does not depend on the order of the nodes.
    """
    graph.require_whole("the adjacency divided by its largest eigenvalue (normalize=False)")
    owner = graph.batch[graph.dst]
    raw = Adjacency(weight.detach(), None, torch.ones_like(graph.batch, dtype=weight.dtype))
    upper, right = perron(graph, raw)
    bound = graph.max(upper)
    largest = weight.new_zeros(graph.num_graphs).scatter_reduce(0, owner, weight, "amax")
    if weight.requires_grad:
        # dλ = uᵀ dA v / uᵀv with the left and right eigenvectors of the leading component.
        _, left = perron(graph, raw, transpose=True)
        leading = upper >= (1.0 - TIE) * bound[graph.batch]
        left = torch.where(leading, left, 0.0)
        norm = graph.sum(left * right).clamp_min(torch.finfo(weight.dtype).tiny)
        share = left[graph.dst] * right[graph.src] / norm[owner]
        moved = torch.zeros_like(bound).scatter_add(0, owner, share * _Once.apply(weight))
        bound = bound + (moved - moved.detach())
    _, _, cyclic = _components(graph)
    scale = torch.where(cyclic, bound, largest)
    scale = torch.where(scale > 0, scale, 1.0)  # no edges, or all of weight zero
    return Adjacency(weight / scale[owner], None, right)


class _Once(torch.autograd.Function):
    """The identity on weights whose second derivatives would lack those of the eigenvectors."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        found: Tensor = _Never.apply(grad, *ctx.saved_tensors)
        return found


class _Never(torch.autograd.Function):
    """A gradient that nobody may differentiate."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> None:
        raise UnsupportedError(
            "the largest eigenvalue of a weighted graph (normalize=False) has no second "
            "derivatives in edge_weight; expected normalize=True, or edge_weight.detach()"
        )


def perron(graph: Graph, a: Adjacency, *, transpose: bool = False) -> tuple[Tensor, Tensor]:
    r"""The power method: an upper bound [N] on :math:`\lambda_{pf}` of each node's connected
    component, and v [N].

    The matrix is shifted so that the method also converges on bipartite graphs. The bound never
    grows. A component stops when its lower bound :math:`\min_i (A v)_i / v_i` meets its upper
    bound.
    """
    apply = a.transpose if transpose else a.apply
    label, count, _ = _components(graph)

    def largest(x: Tensor, at: Tensor = label) -> Tensor:
        return x.new_zeros(count).scatter_reduce(0, at, x, "amax")

    v = torch.ones_like(a.perron)
    heaviest = largest(a.edge, label[graph.dst])
    for i in range(POWER_ITERATIONS):
        image = apply(v, graph)
        ratio = image / v
        upper = largest(ratio)
        moving = largest(upper[label] - ratio) > POWER_TOLERANCE * upper
        if i % STRIDE == 0 and not bool(moving.any()):
            break
        # The shift is at least the heaviest edge, so that no entry of v shrinks by more than half.
        new = image + torch.maximum(upper, heaviest)[label] * v
        v = torch.where(moving[label], new / largest(new)[label], v)
    return upper[label], v


@kept
def _components(graph: Graph) -> tuple[Tensor, int, Tensor]:
    """The connected component of each node [N], the number of components, and whether a graph has a
    directed cycle [G]; computed on the CPU."""
    n = graph.num_nodes
    ends = (graph.dst.cpu().numpy(), graph.src.cpu().numpy())
    joined = csr_matrix((np.ones(graph.num_edges), ends), shape=(n, n))
    count, label = connected_components(joined, directed=False)
    _, strong = connected_components(joined, directed=True, connection="strong")
    # Every edge within a strong component lies on a cycle, and so does every self-loop.
    back = graph.batch.cpu().numpy()[ends[0][strong[ends[0]] == strong[ends[1]]]]
    cyclic = np.bincount(back, minlength=graph.num_graphs) > 0
    return (
        torch.from_numpy(label.astype(np.int64)).to(graph.src.device),
        int(count),
        torch.from_numpy(cyclic).to(graph.src.device),
    )
