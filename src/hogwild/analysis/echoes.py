r"""How strongly messages answer to messages: their rate near the answer, on any graph.

Let :math:`\gamma_{i \to j}` be the gradient of the message :math:`\mu_{i \to j}` at the answer,
minus its final value. Near the answer, to first order and for nodes that trust their messages,

.. math::
    \gamma_{i \to j} \leftarrow \sum_{l \in N(i) \setminus j} B_{ijl}\, \gamma_{l \to i}, \qquad
    B_{ijl} = \begin{pmatrix} I & -J_{KE} J_{EE}^{-1} \end{pmatrix}_l,

where J is the Hessian of :math:`e^i` plus the precisions of the messages heard from all neighbours
but j, K the separator (i, j) and E the variables that are eliminated. The *echo* is a bound on the
spectral radius of the matrix of norms :math:`\|B_{ijl}\|`. If it is below one, messages converge
from near the answer under every schedule with bounds S and D, and the error shrinks by nearly the
echo every S + D ticks. The proof is in the documentation ("The mathematics", "Messages on graphs
with cycles").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix, identity
from scipy.sparse.linalg import spsolve
from torch import Tensor

from hogwild.linalg.spectrum import perron
from hogwild.problems.base import Objective
from hogwild_node.local import LocalQuadratic
from hogwild_node.rules.elimination import Clusters, Elimination, Messages, Point, rows

PASSES = 5000
"""Most iterations for the final precisions."""
SETTLED = 1e-11
"""Relative change of the precisions at which they are final."""
DEGREE = 64
"""With more neighbours than this at a node the echo is not computed."""
NUMBERS = 3e7
"""With more numbers than this in all B the echo is not computed."""
FLOOR = 1e-6
"""Least eigenvalue of a scaling, relative to its largest."""
LONG = 100_000
"""Most periods that are counted."""
GROWN = 8
"""Scalings that are tried."""


class Echo(NamedTuple):
    """How strongly messages answer to messages.

    Attributes:
        radius: A proved bound on the spectral radius.
        periods: Periods of S + D ticks until 10⁻⁶ of the error of the messages is left, near the
            answer; ``None``: not known.
    """

    radius: float
    periods: int | None


class Echoes:
    """The messages between all nodes of an energy, for the quadratic models at ``h``
    [R, k, N]."""

    def __init__(self, problem: Objective, h: Tensor) -> None:
        everyone = problem.graph.everyone
        self.clusters = Clusters(everyone)
        self.model: LocalQuadratic = problem.node.quadratic(h, everyone.current(h), everyone)
        near = self.clusters.average(rows(everyone.current(h)))
        self.z = Point(rows(h), near)
        slot, n = self.clusters.slot, problem.graph.num_nodes
        if self.clusters.of_edge is None:
            sender = problem.graph.src
        else:
            sender = torch.zeros_like(slot)
            mine = self.clusters.of_edge < len(slot)
            sender[self.clusters.of_edge[mine]] = problem.graph.src[mine]
        key, order = (slot * n + sender).sort()
        self.slot = slot
        self.back = order[torch.searchsorted(key, sender * n + slot)]  # j → i for every i → j

    def passed(self, precision: Tensor, linear: Tensor) -> Messages:
        """What nodes hear after everybody has answered to these messages: precisions
        [R, V, 2k, 2k] and linear terms [R, V, 2k]."""
        heard = Messages(precision, linear)
        out = Elimination(self.clusters, self.model, self.z, heard).messages()
        return Messages(out.precision[:, self.back], out.linear[:, self.back])

    def final(self) -> Tensor | None:
        """The final precisions; ``None`` if they do not settle."""
        r, v, k = self.z.near.shape
        eye = torch.eye(2 * k, dtype=self.z.near.dtype, device=self.z.near.device)
        precision = (1e-6 * float(self.model.b.abs().amax()) * eye).expand(r, v, -1, -1)
        linear = self.z.near.new_zeros(r, v, 2 * k)
        for _ in range(PASSES):
            new = self.passed(precision, linear).precision
            change, precision = (new - precision).abs().amax(), new
            if not bool(torch.isfinite(change)):
                return None
            if float(change) <= SETTLED * float(new.abs().amax()):
                return precision
        return None

    def answers(self, precision: Tensor, place: Tensor) -> Tensor:
        """B [R, V, D, 2k, 2k]: what is heard on V in answer to the message from the D-th neighbour
        of the sender, whose ``place`` [V] is D; zero where there is none."""
        r, v, k = self.z.near.shape
        none = precision.new_zeros(r, v, 2 * k)
        base = self.passed(precision, none).linear
        out = precision.new_zeros(r, v, int(place.max()) + 1, 2 * k, 2 * k)
        for d in range(out.size(2)):
            for c in range(2 * k):
                unit = none.clone()
                unit[:, place == d, c] = 1.0
                found = self.passed(precision, unit).linear - base
                found[:, self.back[place == d]] = 0.0  # that to j does not answer to that from j
                out[:, :, d, :, c] = found
        return out

    def echo(self) -> Echo | None:
        """The echo of the worst replica; ``None`` if it is not known."""
        _, v, k = self.z.near.shape
        if v == 0:
            return Echo(0.0, 1)
        most = int(torch.bincount(self.slot).max())
        if most > DEGREE or self.z.near.numel() * most * 4 * k > NUMBERS:
            return None
        precision = self.final()
        if precision is None:
            return None
        order = self.slot.argsort(stable=True)
        sorted_slot = self.slot[order].contiguous()
        place = torch.empty_like(order)
        place[order] = torch.arange(v, device=order.device) - torch.searchsorted(
            sorted_slot, sorted_slot
        )
        table = torch.full((int(self.slot.max()) + 1, most), -1, device=order.device)
        table[self.slot, place] = torch.arange(v, device=order.device)
        source = table[self.slot[self.back]].cpu().numpy()  # [V, D]: what each message answers to
        b, precisions = (
            x.cpu().double().numpy() for x in (self.answers(precision, place), precision)
        )
        found = [_smallest(some, source, lam) for some, lam in zip(b, precisions, strict=True)]
        periods = [echo.periods for echo in found]
        worst = None if None in periods else max(filter(None, periods))
        return Echo(max(echo.radius for echo in found), worst)


def _smallest(b: np.ndarray, source: np.ndarray, precision: np.ndarray) -> Echo:
    """The least echo of one replica among several scalings: the final precisions, and what
    repeated answers make of them."""
    target, place = np.nonzero(source >= 0)
    origin, blocks = source[target, place], b[target, place]
    best, scaling = Echo(np.inf, None), precision
    for _ in range(GROWN):
        values, vectors = np.linalg.eigh(scaling)
        values = np.maximum(values, FLOOR * values.max(-1, keepdims=True))
        root, inverse = (
            (vectors * values[:, None] ** p) @ vectors.swapaxes(1, 2) for p in (0.5, -0.5)
        )
        norms = np.linalg.norm(inverse[target] @ blocks @ root[origin], 2, axis=(1, 2))
        matrix = csr_matrix((norms, (target, origin)), shape=(len(b), len(b)))
        radius = perron(matrix)
        if radius < best.radius:
            best = Echo(radius, _periods(matrix) if radius < 1.0 else None)
        grown = np.zeros_like(scaling)
        np.add.at(grown, target, blocks @ scaling[origin] @ blocks.swapaxes(1, 2))
        scaling = scaling / np.linalg.norm(scaling) + grown / max(np.linalg.norm(grown), 1e-300)
    return best


def _periods(matrix: csr_matrix) -> int | None:
    r"""The least n with :math:`N^n \bar w \le 10^{-6}`, :math:`\bar w = (I - N)^{-1} \mathbf 1`:
    with :math:`N \bar w \le \bar w`, messages whose errors are at most one have errors of at most
    :math:`N^n \bar w` after n periods of S + D ticks."""
    w = spsolve(csc_matrix(identity(matrix.shape[0]) - matrix), np.ones(matrix.shape[0]))
    if not (np.isfinite(w).all() and (w >= 1.0 - 1e-9).all()):
        return None
    for n in range(1, LONG):
        w = matrix @ w
        if w.max() <= 1e-6:
            return n
    return None
