r"""Gaussian elimination in a node's cluster, which turns messages heard into messages to send.

The local energy :math:`e^i` is a function on the *cluster* of i: its own embedding and those of its
distinct neighbours. Two neighbouring clusters i and j share the *separator* :math:`(h_i, h_j)`.
Node i adds the quadratic messages :math:`\mu_{l \to i}(h_l, h_i)` that it heard to a quadratic
model of :math:`e^i` and eliminates all variables except one separator:

.. math::
    \mu_{i \to j}(h_i, h_j) = \min_{h_l,\; l \in N(i) \setminus j}
    \hat e^i + \sum_{l \in N(i) \setminus j} \mu_{l \to i}.

Sums and partial minima of convex functions are convex. Messages are therefore positive semidefinite
on any graph. On a tree the clusters have the running intersection property, and the elimination is
exact for quadratic energies.

**Computation.** Let :math:`d` be displacements from the point of the model. Neighbours are coupled
to each other only through :math:`Z = \sum_l J_l d_l` (:class:`LocalQuadratic`). Let
:math:`K_l = C_l + \mu^{ll}_l`, :math:`Y_l = X_l + \mu^{il}_l` and :math:`\gamma_l` the gradient in
:math:`h_l`. The minimum over the :math:`d_l` for given :math:`d_i` and :math:`d_j` is

.. math::
    \tfrac12 d_i^\top (B - T) d_i - \sigma^\top d_i + \tfrac12 Z_0^\top G Z_0, \qquad
    Z_0 = J_j d_j - V d_i - w, \qquad G = (I + U W)^{-1} U,

.. math::
    W = \sum_l J_l K_l^{-1} J_l^\top, \;
    V = \sum_l J_l K_l^{-1} Y_l^\top, \;
    T = \sum_l Y_l K_l^{-1} Y_l^\top, \;
    w = \sum_l J_l K_l^{-1} \gamma_l, \;
    \sigma = \sum_l Y_l K_l^{-1} \gamma_l,

plus the terms of i and j themselves. The sums over all neighbours except j are the sums over all
neighbours minus the term of j. The work is therefore linear in the degree, and all factorised
matrices are k × k or C × C.

Arrays in this file have the layout of batched matrices, [R, n, …]; :func:`rows` and
:func:`columns` convert them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hogwild_node.local import LocalQuadratic
from hogwild_node.ops import Array, namespace
from hogwild_node.star import Star


def rows(x: Array) -> Array:
    """Move the last dimension to the second place: [R, …, n] -> [R, n, …]."""
    return namespace(x).moveaxis(x, -1, 1)


def columns(x: Array) -> Array:
    """Move the second dimension to the last place: [R, n, …] -> [R, …, n]."""
    return namespace(x).moveaxis(x, 1, -1)


def times(matrix: Array, x: Array) -> Array:
    """Matrices [..., a, b] times vectors [..., b]."""
    return (matrix @ x[..., None])[..., 0]


class Clusters:
    """Some nodes with their *distinct* neighbours, V' in all: the variables of the local energies.

    Parallel edges share one variable, and a self-loop has the variable of its node. In a simple
    graph every edge has its own variable.
    """

    def __init__(self, at: Star) -> None:
        self.at, self.slot = at, at.slot
        self.of_edge: Array | None = None  # [E'] variable of each edge; V' + slot for self-loops
        if at.senders is None:
            return
        xp = namespace(at.senders)
        _, sender = xp.unique(at.senders, return_inverse=True)
        many = at.degree + 1
        pairs, number = xp.unique(at.slot * many + sender, return_inverse=True)
        slot = pairs // many
        loops = xp.collect(xp.as_numbers(at.loops, number), number, pairs.shape[0]) > 0
        place = xp.where(loops, 0, xp.cumsum(~loops, 0) - 1)
        count = int((~loops).sum())
        self.slot, self.of_edge = slot[~loops], xp.where(loops, count + slot, place)[number]
        one = xp.as_numbers(self.of_edge >= 0, self.of_edge)
        self.share = xp.collect(one, self.of_edge, count + at.size)[:count]

    @property
    def size(self) -> int:
        """V', the number of variables."""
        return int(self.slot.shape[0])

    def to_edges(self, near: Array, own: Array) -> Array:
        """The value of each edge's variable [R, E', …], from the values of the neighbours
        [R, V', …] and of the nodes [R, A, …]."""
        if self.of_edge is None:
            return near
        return namespace(near).concat([near, own], axis=1)[:, self.of_edge]

    def merge(self, x: Array) -> tuple[Array, Array | None]:
        """Sums of edges' values [R, E', …] over each variable, and over each node's self-loops."""
        if self.of_edge is None:
            return x, None
        out = namespace(x).collect(columns(x), self.of_edge, self.size + self.at.size)
        return rows(out[..., : self.size]), rows(out[..., self.size :])

    def average(self, x: Array) -> Array:
        """Means of edges' values [R, E', …] over each variable."""
        return x if self.of_edge is None else rows(columns(self.merge(x)[0]) / self.share)

    def collect(self, x: Array) -> Array:
        """Sum over the neighbours of each node: [R, V', …] -> [R, A, …]."""
        return rows(namespace(x).collect(columns(x), self.slot, self.at.size))

    def largest(self, x: Point) -> Array:
        """Largest absolute entry of each cluster, [R, A]; NaN stays NaN."""
        xp = namespace(x.own)
        own, near = xp.max(abs(x.own), axis=-1), xp.max(abs(x.near), axis=-1)
        return xp.largest(own, self.slot, near)


@dataclass(frozen=True)
class Point:
    """A point in the variables of the clusters: embeddings of the nodes and of their neighbours."""

    own: Array  # [R, A, k]
    near: Array  # [R, V', k]

    def move(self, clusters: Clusters, t: Array, d: Point) -> Point:
        """This point plus ``t`` [R, A] times a displacement."""
        t = t[..., None]
        return Point(self.own + t * d.own, self.near + t[:, clusters.slot] * d.near)

    def where(self, clusters: Clusters, mask: Array, other: Point) -> Point:
        """This point where ``mask`` [R, A] holds, and the other elsewhere."""
        xp, mask = namespace(self.own), mask[..., None]
        return Point(
            xp.where(mask, self.own, other.own),
            xp.where(mask[:, clusters.slot], self.near, other.near),
        )


@dataclass(frozen=True)
class Messages:
    r"""Quadratic messages :math:`\tfrac12 y^\top \Lambda y - \eta^\top y` on the separators
    y = (sender, receiver). They are functions of embeddings, not of displacements, so a late
    message keeps its meaning."""

    precision: Array  # [R, V', 2k, 2k]
    linear: Array  # [R, V', 2k]

    @staticmethod
    def width(channels: int) -> int:
        """Number of numbers in a message: an upper triangle and a vector."""
        return channels * (2 * channels + 1) + 2 * channels

    def pack(self) -> Array:
        """The messages as one array [R, width, V'], for packets."""
        xp, size = namespace(self.linear), self.linear.shape[-1]
        flat = xp.reshape(self.precision, (*self.precision.shape[:-2], size * size))
        upper = flat[..., xp.positions(_upper(size), flat)]
        return columns(xp.concat([upper, self.linear], axis=-1))

    @classmethod
    def unpack(cls, mail: Array, channels: int) -> Messages:
        """The inverse of :meth:`pack`."""
        xp, size = namespace(mail), 2 * channels
        mail = rows(mail)
        precision = mail[..., xp.positions(_mirrored(size), mail)]
        precision = xp.reshape(precision, (*mail.shape[:-1], size, size))
        return cls(precision, mail[..., len(_upper(size)) :])

    def gradient(self, sender: Array, receiver: Array) -> tuple[Array, Array]:
        """The gradients with respect to the sender's and the receiver's embedding, at these
        embeddings [R, V', k]."""
        xp, k = namespace(sender), sender.shape[-1]
        g = times(self.precision, xp.concat([sender, receiver], axis=-1)) - self.linear
        return g[..., :k], g[..., k:]


@cache
def _upper(size: int) -> tuple[int, ...]:
    """Indices of the upper triangle in a flattened matrix, row by row."""
    return tuple(i * size + j for i in range(size) for j in range(i, size))


@cache
def _mirrored(size: int) -> tuple[int, ...]:
    """For every entry of a flattened symmetric matrix, its index in the upper triangle."""
    place = {at: n for n, at in enumerate(_upper(size))}
    return tuple(place[min(a, b) * size + max(a, b)] for a in range(size) for b in range(size))


def diagonal(x: Array) -> Array:
    """Diagonals of matrices: [..., k, k] -> [..., k]."""
    xp, k = namespace(x), x.shape[-1]
    flat = xp.reshape(x, (*x.shape[:-2], k * k))
    return flat[..., :: k + 1]


def diagonal_matrix(x: Array) -> Array:
    """Diagonal matrices: [..., k] -> [..., k, k]."""
    return x[..., None] * namespace(x).identity(x.shape[-1], x)


@dataclass(frozen=True)
class Anchor:
    r"""Terms :math:`\tfrac12 \sum_c \rho_{ic} (h_{ic} - a_{ic})^2` that hold nodes near their
    embeddings before an update."""

    at: Array  # [R, A, k] a
    hold: Array  # [R, A, k] ρ


class Elimination:
    """The elimination in some clusters, for quadratic models at ``z``, the messages heard and an
    optional anchor."""

    def __init__(
        self,
        clusters: Clusters,
        model: LocalQuadratic,
        z: Point,
        heard: Messages,
        anchor: Anchor | None = None,
    ) -> None:
        self.clusters, self.z = clusters, z
        k, slot = z.own.shape[-1], clusters.slot
        self.b, self.u, self.own = rows(model.b), rows(model.u), rows(model.own)
        merged = [clusters.merge(rows(x)) for x in (model.x, model.c, model.j, model.toward)]
        self.x, self.c, self.j, self.toward = (near for near, _ in merged)
        loops = [loop for _, loop in merged]
        self.loop = loops[2]  # Jacobian of Z in the node's own embedding
        if loops[0] is not None:
            self.b = self.b + loops[0] + loops[0].mT + loops[1]
            self.own = self.own + loops[3]
        if anchor is not None:
            self.b = self.b + diagonal_matrix(anchor.hold)
            self.own = self.own + anchor.hold * (z.own - anchor.at)

        lam = heard.precision
        self.heard_ii = lam[..., k:, k:]
        from_near, self.heard_i = heard.gradient(z.near, z.own[:, slot])
        self.near = self.toward + from_near
        self.y = self.x + lam[..., k:, :k]
        self.inverse = namespace(lam).inverse(self.c + lam[..., :k, :k])
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
        self, sums: tuple[Array, ...], b: Array, u: Array, own: Array, loop: Array | None
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Eliminate the neighbours: curvature and gradient in :math:`d_i`, then V, G and w."""
        xp, (w2, v, t, w, s) = namespace(u), sums
        v = v if loop is None else v - loop
        g = xp.solve(xp.identity(u.shape[-1], u) + u @ w2, u)
        g = 0.5 * (g + g.mT)
        return b - t + v.mT @ g @ v, own - s + times(v.mT @ g, w), v, g, w

    def solve(self) -> tuple[Point, Array]:
        """The displacement to the minimiser of model and messages, and the slope along it, [R, A].
        The predicted decrease is half of the slope's absolute value."""
        slot = self.clusters.slot
        a, grad, v, g, w = self._reduce(self.sums, self.b, self.u, self.own, self.loop)
        own = -namespace(a).solve(a, grad[..., None])[..., 0]
        tension = -times(g, times(v, own) + w)[:, slot]
        pull = self.near + times(self.y.mT, own[:, slot]) + times(self.j.mT, tension)
        d = Point(own, -times(self.inverse, pull))
        return d, self.slope(d)

    def slope(self, d: Point) -> Array:
        """Directional derivative of model and messages at ``z`` along ``d``, [R, A]."""
        own = self.own + self.clusters.collect(self.heard_i)
        along = self.clusters.collect((self.near * d.near).sum(-1))
        return (own * d.own).sum(-1) + along

    def messages(self) -> Messages:
        """The message from each node to each of its neighbours."""
        slot = self.clusters.slot
        others = tuple(s[:, slot] - x for s, x in zip(self.sums, self.terms, strict=True))
        loop = None if self.loop is None else self.loop[:, slot]
        a, grad, v, g, w = self._reduce(
            others, self.b[:, slot], self.u[:, slot], self.own[:, slot], loop
        )
        gj = g @ self.j
        cross = self.x - v.mT @ gj
        precision = _symmetric(a, cross, self.c + self.j.mT @ gj)
        xp = namespace(grad)
        gradient = xp.concat([grad, self.toward - times(gj.mT, w)], axis=-1)
        # The linear term that gives this gradient at z.
        at = xp.concat([self.z.own[:, slot], self.z.near], axis=-1)
        return Messages(precision, times(precision, at) - gradient)


def _symmetric(ii: Array, ij: Array, jj: Array) -> Array:
    xp = namespace(ii)
    upper, lower = xp.concat([ii, ij], axis=-1), xp.concat([ij.mT, jj], axis=-1)
    whole = xp.concat([upper, lower], axis=-2)
    return 0.5 * (whole + whole.mT)
