r"""Bounds on the error of every node *now*, from its gradient and those of other nodes.

``error_bounds(model, data, h)`` bounds :math:`|h - h^*|`, entry by entry, for embeddings of any
run. The gradient at h is the only thing that is measured; nobody needs the answer. There are three
bounds. Let e be a claim, :math:`R(e)` the change of the Hessian H(h) in the box of the claim
(:mod:`hogwild.analysis.nearby`), d the least diagonals there and P the largest couplings.

*Neighbours* (``"local"``). Each node repeats

.. math:: e_a \leftarrow \frac{|g_a| + \sum_{b \ne a} P_{ab}(e)\, e_b}{d_a(e)}, \qquad
          P_{ab} = \sum_j |\nabla^2_{ab} e^j| + R^j_{ab}.

Node j computes its own terms of the sums from the claims of its neighbours, and sends them to node
a, as it sends gradients. If the first claims are fulfilled (no claim grows), claims only shrink,
and each of them is a bound at any time, in any order and with any delay. Such claims exist where
scaled diagonal dominance holds. This is what the nodes of a network can know.

*The inverse* (``"central"``). :math:`e = |H^{-1} g| + |H^{-1}| R(e)\, e`, for somebody who sees the
whole graph. It needs no dominance, and is nearly exact close to the answer.

*Convexity* (``"convexity"``). :math:`\|g\|_2 / \beta` for all entries of a graph. It always holds.

Proofs are in the documentation ("The mathematics", "The error now").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.nearby import Nearby, dominance, flat, split, unflat
from hogwild.errors import AsynchronyError, ConfigError, require_one_of
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Conv
from hogwild.models.check import runnable
from hogwild.models.mode import evaluating, uncompiled
from hogwild.ops import as_field
from hogwild.problems.base import Objective

METHODS = ("auto", "local", "central", "convexity")
LARGEST = 3000
"""With more unknowns than this the inverse is not computed."""
PASSES = 12
"""Claims that are tried before a bound is given up."""
ROUNDING = 1e-12
"""Share of a bound that is added for rounding errors, and of the gradient's terms likewise."""


@dataclass(frozen=True)
class ErrorBounds:
    """Proved bounds on the distance of embeddings from the answer, for one replica or several.

    Attributes:
        entries: Bounds on every entry, [R, k, N].
        method: Which bound was used: ``"local"``, ``"central"`` or ``"convexity"``.
        rounds: Exchanges with neighbours after which the local bound was reached; 0 for the others.
    """

    entries: Tensor
    method: str
    rounds: int = 0

    @property
    def nodes(self) -> Tensor:
        """Bounds on the largest entry of every node, [R, N]."""
        return self.entries.amax(1)


@torch.no_grad()
def error_bounds(
    model: nn.Module, data: Data | Batch, h: Tensor, method: str = "auto"
) -> ErrorBounds:
    """Bounds on the distance of the embeddings ``h`` from the exact ones.

    Args:
        model: A model whose embeddings minimise one energy, in float64.
        data: Its graph or graphs.
        h: Embeddings of all nodes, [N, k] or [R, N, k]: ``run.h[0]`` of a simulated run.
        method: ``"local"``, ``"central"``, ``"convexity"``, or ``"auto"``: the first of ``central``
            and ``convexity`` that holds.

    Raises:
        ConfigError: The model has no energy, ``h`` does not fit, or the method does not hold here.
    """
    require_one_of(METHODS, method=method)
    found = uncompiled(model)
    found = found if isinstance(found, Conv) else runnable(found)
    inputs = Inputs.of(data)
    with evaluating(found):
        try:
            problem = found.problem(inputs)
        except AsynchronyError as error:
            raise ConfigError(f"the model has no local energies: {error}") from error
    if not isinstance(problem, Objective):
        raise ConfigError(
            f"error_bounds was given a {type(model).__name__}; expected a model whose embeddings "
            f"minimise one energy, such as EnergyGNN or GSDGNN with num_layers=1"
        )
    problem = problem.detach()
    field, like = as_field(h, torch.float64), problem.start()
    if field.shape != like.shape:
        r, k, n = like.shape
        raise ConfigError(
            f"h has the shape {list(h.shape)}; expected [{n}, {k}] or [{r}, {n}, {k}]"
        )
    return bounds_of(problem, field, method)


def bounds_of(problem: Objective, h: Tensor, method: str = "auto") -> ErrorBounds:
    """:func:`error_bounds` of a problem at ``h`` [R, k, N]."""
    here = problem.evaluate(h)
    noise = ROUNDING * problem.graph.wide(here.scale)
    size = here.gradient.abs() + noise
    if method in ("auto", "central"):
        found = _central(problem, h, here.gradient, noise)
        if found is not None:
            return ErrorBounds(found, "central")
    if method == "local":
        near = _local(problem, h, size)
        if near is not None:
            return near
    if method in ("local", "central"):
        raise ConfigError(
            f"method={method!r} does not hold at these embeddings: they are too far from the "
            f"answer, or (local) couplings outweigh the curvature of single entries; "
            f"method='convexity' always holds"
        )
    length = problem.graph.sum(size.square().sum(1)).sqrt() / problem.convexity()
    return ErrorBounds(problem.graph.wide(length).expand_as(h).clone(), "convexity")


def _central(problem: Objective, h: Tensor, gradient: Tensor, noise: Tensor) -> Tensor | None:
    near, g = Nearby(problem, h), flat(gradient)
    if not near.known or h[0].numel() > LARGEST:
        return None
    inverses = [np.linalg.inv(matrix.toarray()) for matrix in near.hessians()[0]]
    extra = flat(noise.expand_as(h))
    both = zip(inverses, g, extra, strict=True)
    first = np.stack([np.abs(m @ x) + np.abs(m) @ y for m, x, y in both]) * (1.0 + ROUNDING)
    claim = 2.0 * first
    for _ in range(PASSES):
        bound = []
        for matrix, change, start in zip(
            inverses, near.variation(unflat(claim, h)), first, strict=True
        ):
            echo = np.abs(matrix) @ change.toarray()
            # (I - K)^-1 s >= 0 with K >= 0 and s > 0 shows that the spectral radius is below one.
            found = np.linalg.solve(np.eye(len(start)) - echo, start + 1e-300)
            if not (np.isfinite(found).all() and (found >= start).all()):
                return None
            bound.append(found)
        now = np.stack(bound)
        if (now <= claim).all():
            return unflat(now, h)
        claim = np.maximum(2.0 * now, claim)
    return None


def _local(problem: Objective, h: Tensor, size: Tensor) -> ErrorBounds | None:
    exchange = Exchange.of(problem, h, size)
    if exchange is None:
        return None
    rounds = 0
    while exchange.step():
        rounds += 1
    return ErrorBounds(exchange.claims, "local", rounds)


class Exchange:
    """Claims of all nodes about their errors, which shrink from round to round.

    Attributes:
        claims: The claims, [R, k, N]. Every one of them is a proved bound, after any number of
            rounds.
    """

    def __init__(self, problem: Objective, h: Tensor, size: Tensor, claims: Tensor) -> None:
        self.near, self.size, self.claims = Nearby(problem, h), size, claims
        self.hessians = self.near.hessians()

    @classmethod
    def of(cls, problem: Objective, h: Tensor, size: Tensor) -> Exchange | None:
        """The first claims: multiples of the weights of dominance that are fulfilled; ``None``:
        none were found. ``size`` is the gradients' absolute value, [R, k, N]."""
        made = cls(problem, h, size, torch.zeros_like(h))
        if not made.near.known:
            return None
        scaled = []
        for matrix, most, g in zip(*made.hessians, flat(size), strict=True):
            found = dominance(matrix.diagonal(), split(most)[1])
            if not found.holds:
                return None
            slack = matrix.diagonal() * found.weights - split(most)[1] @ found.weights
            scaled.append(found.weights * float((g / slack).max()))
        first = unflat(np.stack(scaled), h)
        for power in range(1, PASSES):
            made.claims = first * 2.0 ** (power / 2)
            answer = made.answer()
            if bool((answer <= made.claims).all()):
                return made
        return None

    def answer(self) -> Tensor:
        """What the claims of one round imply for the next, [R, k, N]; infinite where a diagonal is
        not known to be positive."""
        change = self.near.variation(self.claims)
        out = []
        for matrix, most, r, e, g in zip(
            *self.hessians, change, flat(self.claims), flat(self.size), strict=True
        ):
            least = matrix.diagonal() - r.diagonal()
            couplings = csr_matrix(split(most)[1] + split(r)[1])
            with np.errstate(divide="ignore"):
                found = (g + couplings @ e) / np.where(least > 0.0, least, 0.0)
            out.append(found * (1.0 + ROUNDING))
        return unflat(np.stack(out), self.claims)

    def step(self, who: Tensor | None = None, enough: float = 1e-3) -> bool:
        """One round, of all nodes or of those in a mask [N]; returns whether any claim shrank by
        more than the share ``enough``."""
        new = torch.minimum(self.answer(), self.claims)
        new = new if who is None else torch.where(who, new, self.claims)
        moved = bool((new < (1.0 - enough) * self.claims).any())
        self.claims = new
        return moved
