r"""Bounds on the error of every node *now*, from its gradient and those of other nodes.

``error_bounds(model, data, h)`` bounds :math:`|h - h^*|`, entry by entry, for embeddings of any
run. The gradient at h is the only thing that is measured; nobody needs the answer. There are two
bounds:

*The inverse* (``"central"``). :math:`e = |H^{-1} g| + |H^{-1}| R(e)\, e`, where :math:`R(e)` bounds
the change of the Hessian H in the box of the claim e
(:meth:`hogwild_node.local.LocalEnergy.variation`):

.. math:: |\nabla^2 E(h') - \nabla^2 E(h)| \le R(e) \quad\text{for all}\quad |h'_a - h_a| \le e_a.

It is nearly exact close to the answer.

*Convexity* (``"convexity"``). :math:`\|g\|_2 / \beta` for all entries of a graph. It always holds.

Proofs are in the documentation ("The mathematics", "The error now"). Unknowns are ordered node by
node: entry a is channel a mod k of node a div k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.graph.inputs import Inputs
from hogwild.linalg.spectrum import matrices, of_blocks
from hogwild.models.base import Conv
from hogwild.models.validation import evaluating, uncompiled
from hogwild.models.wrapped import runnable
from hogwild.ops import as_field
from hogwild.problems.base import Objective
from hogwild_node.local import LocalQuadratic

LARGEST = 3000
"""With more unknowns than this the inverse is not computed."""
PASSES = 12
"""Claims that are tried before a bound is given up."""
ROUNDING = 1e-12
"""Share of a bound that is added for rounding errors, and of the terms of the gradient and of R
likewise."""


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
def error_bounds(model: nn.Module, data: Data | Batch, h: Tensor) -> ErrorBounds:
    """Bounds on the distance of the embeddings ``h`` from the exact ones: by the inverse where that
    holds, else by convexity.

    Args:
        model: A model whose embeddings minimise one energy, in float64.
        data: Its graph or graphs.
        h: Embeddings of all nodes, [N, k] or [R, N, k]: ``run.h[0]`` of a simulated run.

    Raises:
        ConfigError: The model has no energy, or ``h`` does not fit.
    """
    found = uncompiled(model)
    found = found if isinstance(found, Conv) else runnable(found)
    with evaluating(found):
        try:
            problem = found.problem(Inputs.of(data))
        except AsynchronyError as error:
            raise ConfigError(f"the model has no local energies: {error}") from error
    if not isinstance(problem, Objective):
        raise ConfigError(
            f"error_bounds was given a {type(model).__name__}; expected a model whose embeddings "
            f"minimise one energy, such as EnergyGNN or GSDGNN with num_layers=1"
        )
    problem = problem.detach()
    field, (r, k, n) = as_field(h, torch.float64), problem.start().shape
    if field.shape != (r, k, n):
        raise ConfigError(
            f"h has the shape {list(h.shape)}; expected [{n}, {k}] or [{r}, {n}, {k}]"
        )
    return bounds_of(problem, field)


def bounds_of(problem: Objective, h: Tensor) -> ErrorBounds:
    """:func:`error_bounds` of a problem at ``h`` [R, k, N]."""
    here = problem.evaluate(h)
    noise = ROUNDING * problem.graph.wide(here.scale)
    found = _central(problem, h, here.gradient, noise)
    if found is not None:
        return ErrorBounds(found, "central")
    square = (here.gradient.abs() + noise).square().sum(1)
    length = problem.graph.sum(square).sqrt() / problem.convexity()
    return ErrorBounds(problem.graph.wide(length).expand_as(h).clone(), "convexity")


def _central(problem: Objective, h: Tensor, gradient: Tensor, noise: Tensor) -> Tensor | None:
    if h[0].numel() > LARGEST or variation(problem, h, torch.zeros_like(h)) is None:
        return None
    hessians = matrices(problem.evaluate(h).hessian())
    inverses = [np.linalg.inv(matrix.toarray()) for matrix in hessians]
    both = zip(inverses, flat(gradient), flat(noise.expand_as(h)), strict=True)
    first = np.stack([np.abs(m @ x) + np.abs(m) @ y for m, x, y in both]) * (1.0 + ROUNDING)
    claim = 2.0 * first
    for _ in range(PASSES):
        bound = []
        changes = variation(problem, h, unflat(claim, h))
        assert changes is not None
        for matrix, change, start in zip(inverses, changes, first, strict=True):
            # (I - K)^-1 s >= 0 with K >= 0 and s > 0 shows that the spectral radius is below one.
            echo = np.abs(matrix) @ change.toarray()
            found = np.linalg.solve(np.eye(len(start)) - echo, start + 1e-300)
            if not (np.isfinite(found).all() and (found >= start).all()):
                return None
            bound.append(found)
        now = np.stack(bound)
        if (now <= claim).all():
            return unflat(now, h)
        claim = np.maximum(2.0 * now, claim)
    return None


def variation(problem: Objective, h: Tensor, reach: Tensor) -> list[csr_matrix] | None:
    """R(s) for each replica, [N k, N k], in the box of size ``reach`` around ``h`` [R, k, N];
    ``None`` where it is not known."""
    if problem.is_quadratic:
        return [csr_matrix((h[0].numel(), h[0].numel())) for _ in h]
    everyone = problem.graph.everyone
    views = everyone.current(h), everyone.current(reach)
    found = problem.node.variation(h, views[0], everyone, (reach, views[1]))
    if found is None:
        return None
    upper, lower = (_assemble(model, problem) for model in found)
    return [abs(a - b) + ROUNDING * a for a, b in zip(upper, lower, strict=True)]


def _assemble(model: LocalQuadratic, problem: Objective) -> list[csr_matrix]:
    """The sum of the absolute Hessians of all nodes' models, [N k, N k], for each replica."""
    graph = problem.graph
    src, dst, nodes = graph.src, graph.dst, torch.arange(graph.num_nodes, device=graph.src.device)
    pattern, through = graph.pattern, model.through()
    wedges = torch.einsum(
        "rcaw,rcbw->rabw", model.j[..., pattern.left], through[..., pattern.right]
    )
    blocks = [
        (nodes, nodes, model.b),
        (dst, src, model.x),
        (src, dst, model.x.transpose(1, 2)),
        (src, src, model.toward_curvature()),
        (src[pattern.left], src[pattern.right], wedges),
        (src[pattern.right], src[pattern.left], wedges.transpose(1, 2)),
    ]
    rows, cols, values = zip(*blocks, strict=True)
    found = torch.cat([block.double() for block in values], -1).movedim(-1, 1).abs()
    ends = (torch.cat(x).cpu().numpy() for x in (rows, cols))
    i, j = ends
    k = model.b.size(1)
    return [csr_matrix(of_blocks(i, j, x, graph.num_nodes, k)) for x in found.cpu().numpy()]


def flat(x: Tensor) -> np.ndarray:
    """Entries node by node: [R, k, N] -> [R, N k]."""
    found: np.ndarray = x.detach().cpu().double().movedim(-1, 1).flatten(1).numpy()
    return found


def unflat(x: np.ndarray, like: Tensor) -> Tensor:
    """The inverse of :func:`flat`, on the device of ``like`` [R, k, N]."""
    r, k, n = like.shape
    return torch.as_tensor(x).reshape(r, n, k).movedim(1, -1).to(like)
