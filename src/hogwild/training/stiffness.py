r"""A penalty on stiffness: the updates that an energy is predicted to need, from its slowest
direction.

Close to the answer, synchronous updates (:mod:`hogwild.executors.descent`) reduce an error
along the slowest direction v by the factor :math:`1 - \omega\lambda`, with

.. math:: \lambda = \min_v \frac{v^\top \nabla^2 E\, v}{v^\top D\, v}.

An error is within a share ε after about :math:`\log(1/\varepsilon) / \omega\lambda` updates. The
penalty is :math:`\max(0, \log(\text{updates} / \text{deadline}))`: nothing, once the deadline is
met. The direction v comes from power iterations without gradients; then
:math:`\nabla^2 E\, v` is a difference of two gradients, which torch differentiates.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from hogwild.executors.descent import blocks, inverse
from hogwild.ops import mv
from hogwild.problems.base import Objective
from hogwild_node.rules.gradient import DAMPING

POWERS = 30
"""Power iterations."""
SHARE = 0.05
"""ε, the share of an error that may be left at the deadline."""
APART = 1e-3
"""Distance of the two gradients, relative to the embeddings; float64 leaves six digits."""


def stiffness(problem: Objective, h: Tensor, deadline: int) -> Tensor:
    """The penalty of every replica and graph, [R, G], at the answers ``h`` [R, k, N]."""
    h = h.detach()
    v = _slowest(problem.detach(), h)
    reach = APART * (1.0 + h.abs().amax()) / v.abs().amax()
    ahead, behind = (problem.evaluate(h + s * reach * v).gradient for s in (1.0, -1.0))
    _, block = blocks(problem, h)
    graph = problem.graph
    curved = graph.dot(v, (ahead - behind) / (2.0 * reach))
    scale = graph.dot(v, mv(block, v))
    updates = -math.log(SHARE) * scale / (DAMPING * curved)
    return (updates / deadline).log().clamp_min(0.0)


@torch.no_grad()
def _slowest(problem: Objective, h: Tensor) -> Tensor:
    """The direction along which updates converge slowest on each graph, [R, k, N]."""
    hessian = problem.evaluate(h).hessian()
    scale = DAMPING * inverse(blocks(problem, h)[1])
    v = _first(h.shape, h.dtype, h.device)
    for _ in range(POWERS):
        v = v - mv(scale, hessian.apply(v))
        v = v / problem.graph.wide(problem.graph.norm(v).clamp_min(1e-300))
    return v


@lru_cache(maxsize=16)
def _first(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The direction that power iterations start with, the same on every device."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=random, dtype=dtype).to(device)
