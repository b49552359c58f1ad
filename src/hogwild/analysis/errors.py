r"""Bounds on the error of every node *now*, from its gradient and those of other nodes.

``error_bounds(model, data, h)`` bounds :math:`|h - h^*|`, entry by entry, for embeddings of any
run. The gradient at h is the only thing that is measured; nobody needs the answer. There are two
bounds:

*The inverse* (``"central"``). :math:`e = |H^{-1} g| + |H^{-1}| R(e)\, e`, where :math:`R(e)` is the
change of the Hessian H(h) in the box of the claim e (:mod:`hogwild.analysis.nearby`). It is nearly
exact close to the answer.

*Convexity* (``"convexity"``). :math:`\|g\|_2 / \beta` for all entries of a graph. It always holds.

Proofs are in the documentation ("The mathematics", "The error now").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.nearby import Nearby, flat, unflat
from hogwild.errors import AsynchronyError, ConfigError, require_one_of
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Conv
from hogwild.models.mode import evaluating, uncompiled
from hogwild.models.wrapped import runnable
from hogwild.ops import as_field
from hogwild.problems.base import Objective

METHODS = ("auto", "central", "convexity")
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
        method: Which bound was used: ``"central"`` or ``"convexity"``.
    """

    entries: Tensor
    method: str

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
        method: ``"central"``, ``"convexity"``, or ``"auto"``: the first of both that holds.

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
    if method == "central":
        raise ConfigError(
            "method='central' does not hold at these embeddings, which are too far from the "
            "answer; method='convexity' always holds"
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
