r"""Gaussian elimination inside a node's cluster: from what it heard to what it passes on.

The local energy :math:`e^i` lives on the *cluster* of i, its own embedding and those of its
distinct neighbours; two neighbouring clusters i and j share the *separator* :math:`(h_i, h_j)`.
Node i adds to a quadratic model of :math:`e^i` the quadratic messages
:math:`\mu_{l \to i}(h_l, h_i)` it heard and eliminates all but one separator:

.. math::
    \mu_{i \to j}(h_i, h_j) = \min_{h_l,\; l \in N(i) \setminus j}
    \hat e^i + \sum_{l \in N(i) \setminus j} \mu_{l \to i}.

Sums and partial minima of convex functions are convex: messages stay positive semidefinite, on any
graph. On a tree the clusters satisfy running intersection and this is exact elimination of the
models, hence of the energies where these are quadratic.

**How.** With displacements :math:`d` from the point where the model was taken, neighbours are
coupled to each other through :math:`Z = \sum_l J_l d_l` alone (:class:`LocalQuadratic`). Let
:math:`K_l = C_l + \mu^{ll}_l`, :math:`Y_l = X_l + \mu^{il}_l` and :math:`\gamma_l` the gradient in
:math:`h_l`. Minimising over the :math:`d_l` for given :math:`d_i` and :math:`d_j` leaves

.. math::
    \tfrac12 d_i^\top (B - T) d_i - \sigma^\top d_i + \tfrac12 Z_0^\top G Z_0, \qquad
    Z_0 = J_j d_j - V d_i - w, \qquad G = (I + U W)^{-1} U,

.. math::
    W = \sum_l J_l K_l^{-1} J_l^\top, \;
    V = \sum_l J_l K_l^{-1} Y_l^\top, \;
    T = \sum_l Y_l K_l^{-1} Y_l^\top, \;
    w = \sum_l J_l K_l^{-1} \gamma_l, \;
    \sigma = \sum_l Y_l K_l^{-1} \gamma_l,

beside the terms of i and j themselves. The sums over all neighbours but j are the sums over all
less j's term, so the work is linear in the degree, and nothing larger than k × k and C × C is ever
factorised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph, Star
from hogwild.problems.base import LocalQuadratic


def rows(x: Tensor) -> Tensor:
    """The solver's layout to that of batched matrices: [R, …, n] -> [R, n, …]."""
    return x.movedim(-1, 1)


def columns(x: Tensor) -> Tensor:
    """And back: [R, n, …] -> [R, …, n]."""
    return x.movedim(1, -1)


def times(matrix: Tensor, x: Tensor) -> Tensor:
    """Matrices [..., a, b] times vectors [..., b]."""
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)


class Clusters:
    """Some nodes, each with its V' *distinct* neighbours: the variables of their local energies.

    Parallel edges carry one variable, and a self-loop the node's own; in a simple graph edges and
    variables are the same thing.
    """

    def __init__(self, graph: Graph, at: Star) -> None:
        self.graph, self.at, self.slot = graph, at, at.slot
        self.of_edge: Tensor | None = None  # [E'] variable of each edge; V' + slot: the node's own
        if graph.self_loops is None and graph.parallel is None:
            return
        src, dst = at.at_edges(graph.src), at.at_edges(graph.dst)
        pairs, number = torch.unique(dst * graph.num_nodes + src, return_inverse=True)
        slot = torch.empty_like(pairs).scatter_(0, number, at.slot)
        proper = torch.div(pairs, graph.num_nodes, rounding_mode="floor") != pairs % graph.num_nodes
        count = int(proper.sum())
        place = torch.where(proper, proper.cumsum(0) - 1, count + slot)
        self.slot, self.of_edge = slot[proper], place[number]
        self.share = torch.bincount(self.of_edge, minlength=count + at.size).clamp_min(1)[:count]

    @property
    def size(self) -> int:
        """V'."""
        return self.slot.numel()

    def to_edges(self, near: Tensor, own: Tensor) -> Tensor:
        """Values of the variables [R, V', …] and of the nodes [R, A, …] as edges see them."""
        return near if self.of_edge is None else torch.cat([near, own], 1)[:, self.of_edge]

    def merge(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Sums of edges' values [R, E', …] over each variable, and over each node's self-loops."""
        if self.of_edge is None:
            return x, None
        out = x.new_zeros(x.size(0), self.size + self.at.size, *x.shape[2:])
        out.index_add_(1, self.of_edge, x)
        return out[:, : self.size], out[:, self.size :]

    def average(self, x: Tensor) -> Tensor:
        """Means of edges' values [R, E', …] over each variable."""
        if self.of_edge is None:
            return x
        return self.merge(x)[0] / self.share.view(-1, *[1] * (x.dim() - 2))

    def collect(self, x: Tensor) -> Tensor:
        """Sum over the neighbours of each node: [R, V', …] -> [R, A, …]."""
        return x.new_zeros(x.size(0), self.at.size, *x.shape[2:]).index_add_(1, self.slot, x)

    def largest(self, x: Point) -> Tensor:
        """Largest absolute entry of each cluster, [R, A]; NaN stays NaN."""
        near = x.near.abs().amax(-1)
        return x.own.abs().amax(-1).scatter_reduce(1, self.slot.expand_as(near), near, "amax")

    def part(self, some: Tensor) -> tuple[Clusters, Tensor]:
        """The clusters of some of the nodes (a mask [A]), and which variables are theirs [V']."""
        return Clusters(self.graph, self.at.part(some)[0]), some[self.slot]


@dataclass(frozen=True)
class Point:
    """A point of the clusters: the nodes' own embeddings and their neighbours'."""

    own: Tensor  # [R, A, k]
    near: Tensor  # [R, V', k]

    def move(self, clusters: Clusters, t: Tensor, d: Point) -> Point:
        """This point plus ``t`` [R, A] times a displacement."""
        t = t.unsqueeze(-1)
        return Point(self.own + t * d.own, self.near + t[:, clusters.slot] * d.near)

    def where(self, clusters: Clusters, mask: Tensor, other: Point) -> Point:
        """This point where ``mask`` [R, A] holds, and the other elsewhere."""
        mask = mask.unsqueeze(-1)
        return Point(
            torch.where(mask, self.own, other.own),
            torch.where(mask[:, clusters.slot], self.near, other.near),
        )


@dataclass(frozen=True)
class Messages:
    r"""Quadratics :math:`\tfrac12 y^\top \Lambda y - \eta^\top y` on the separators y = (sender,
    receiver), in absolute embeddings: a late message is as true as when it was sent."""

    precision: Tensor  # [R, V', 2k, 2k]
    linear: Tensor  # [R, V', 2k]

    @staticmethod
    def width(channels: int) -> int:
        """Numbers in a message: an upper triangle and a vector."""
        return channels * (2 * channels + 1) + 2 * channels

    def pack(self) -> Tensor:
        """[R, width, V'], as it is sent."""
        i, j = torch.triu_indices(*self.precision.shape[-2:], device=self.linear.device)
        return columns(torch.cat([self.precision[..., i, j], self.linear], -1))

    @classmethod
    def unpack(cls, mail: Tensor, channels: int) -> Messages:
        size = 2 * channels
        i, j = torch.triu_indices(size, size, device=mail.device)
        values, linear = rows(mail).split([i.numel(), size], -1)
        precision = values.new_zeros(*values.shape[:-1], size, size)
        precision[..., i, j] = values
        precision[..., j, i] = values
        return cls(precision, linear)

    def gradient(self, sender: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
        """At these embeddings [R, V', k], with respect to the sender's and the receiver's."""
        g = times(self.precision, torch.cat([sender, receiver], -1)) - self.linear
        k = sender.size(-1)
        return g[..., :k], g[..., k:]


@dataclass(frozen=True)
class Anchor:
    r"""Quadratics :math:`\tfrac12 \sum_c \rho_{ic} (h_{ic} - a_{ic})^2`: nodes that hold on to
    where they are before an update."""

    at: Tensor  # [R, A, k] a
    hold: Tensor  # [R, A, k] ρ


class Elimination:
    """Quadratic models of some clusters at ``z``, with the messages their nodes heard, held by
    ``anchor``."""

    def __init__(
        self,
        clusters: Clusters,
        model: LocalQuadratic,
        z: Point,
        heard: Messages,
        anchor: Anchor | None = None,
    ) -> None:
        self.clusters, self.z = clusters, z
        k, slot = z.own.size(-1), clusters.slot
        self.b, self.u, self.own = rows(model.b), rows(model.u), rows(model.own)
        merged = [clusters.merge(rows(x)) for x in (model.x, model.c, model.j, model.toward)]
        self.x, self.c, self.j, self.toward = (near for near, _ in merged)
        loops = [loop for _, loop in merged]
        self.loop = loops[2]  # Jacobian of Z in the node's own embedding
        if loops[0] is not None and loops[1] is not None and loops[3] is not None:
            self.b = self.b + loops[0] + loops[0].mT + loops[1]
            self.own = self.own + loops[3]
        if anchor is not None:
            self.b = self.b + torch.diag_embed(anchor.hold)
            self.own = self.own + anchor.hold * (z.own - anchor.at)

        lam = heard.precision
        self.heard_ii = lam[..., k:, k:]
        from_near, self.heard_i = heard.gradient(z.near, z.own[:, slot])
        self.near = self.toward + from_near
        self.y = self.x + lam[..., k:, :k]
        self.inverse = torch.linalg.inv_ex(self.c + lam[..., :k, :k])[0]
        jk, yk = self.j @ self.inverse, self.y @ self.inverse
        self.terms = (
            jk @ self.j.mT,
            jk @ self.y.mT,
            yk @ self.y.mT - self.heard_ii,
            times(jk, self.near),
            times(yk, self.near) - self.heard_i,
        )
        self.sums = tuple(clusters.collect(x) for x in self.terms)

    def _reduce(
        self, sums: tuple[Tensor, ...], b: Tensor, u: Tensor, own: Tensor, loop: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The elimination: curvature and gradient in :math:`d_i`, then V, G and w."""
        w2, v, t, w, s = sums
        v = v if loop is None else v - loop
        eye = torch.eye(u.size(-1), dtype=u.dtype, device=u.device)
        g = torch.linalg.solve_ex(eye + u @ w2, u)[0]
        g = 0.5 * (g + g.mT)
        return b - t + v.mT @ g @ v, own - s + times(v.mT @ g, w), v, g, w

    def solve(self) -> tuple[Point, Tensor]:
        """The displacement to the minimiser of model and messages, and the slope along it (half of
        it is the predicted decrease), [R, A]."""
        slot = self.clusters.slot
        a, grad, v, g, w = self._reduce(self.sums, self.b, self.u, self.own, self.loop)
        own = -torch.linalg.solve_ex(a, grad)[0]
        tension = -times(g, times(v, own) + w)[:, slot]
        pull = self.near + times(self.y.mT, own[:, slot]) + times(self.j.mT, tension)
        d = Point(own, -times(self.inverse, pull))
        return d, self.slope(d)

    def slope(self, d: Point) -> Tensor:
        """Directional derivative of model and messages at ``z`` along ``d``, [R, A]."""
        own = self.own + self.clusters.collect(self.heard_i)
        along = self.clusters.collect((self.near * d.near).sum(-1))
        return (own * d.own).sum(-1) + along

    def messages(self) -> Messages:
        """What each node sends to each of its neighbours: all but that separator eliminated."""
        slot = self.clusters.slot
        others = tuple(s[:, slot] - x for s, x in zip(self.sums, self.terms, strict=True))
        loop = None if self.loop is None else self.loop[:, slot]
        a, grad, v, g, w = self._reduce(
            others, self.b[:, slot], self.u[:, slot], self.own[:, slot], loop
        )
        gj = g @ self.j
        cross = self.x - v.mT @ gj
        precision = _symmetric(a, cross, self.c + self.j.mT @ gj)
        gradient = torch.cat([grad, self.toward - times(gj.mT, w)], -1)
        return Messages(precision, self._absolute(precision, gradient))

    def _absolute(self, precision: Tensor, gradient: Tensor) -> Tensor:
        """The linear term whose gradient at ``z`` is this."""
        at = torch.cat([self.z.own[:, self.clusters.slot], self.z.near], -1)
        return times(precision, at) - gradient


def _symmetric(ii: Tensor, ij: Tensor, jj: Tensor) -> Tensor:
    whole = torch.cat([torch.cat([ii, ij], -1), torch.cat([ij.mT, jj], -1)], -2)
    return 0.5 * (whole + whole.mT)
