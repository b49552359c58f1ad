r"""Synchronous updates with gradients: what all nodes together reach after some updates.

The cheap stand-in for an asynchronous run in training. No schedule is drawn, and all nodes update
together. For an energy these are gradient updates with the ``"auto"`` step of
:mod:`hogwild_node.rules.gradient`, without delays (damped block-Jacobi),

.. math:: h \leftarrow h - \omega\, D^{-1} \nabla E(h),

with :math:`D` the nodes' own blocks of the Hessian in majorising curvatures. The blocks are
computed anew at updates 0, 1, 4, 16, 64, …: embeddings move most at first, and blocks cost four
times a gradient. For a fixed point an update applies the map.

:func:`synchronous` follows a rule instead, without gradients: other executors are compared with
it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.ops import mv, scatter
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild_node.rules.base import Rule
from hogwild_node.rules.gradient import DAMPING

ANEW = frozenset(4**i for i in range(16))
"""Updates at which the blocks are computed anew."""


def blocks(problem: Objective, h: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [R, k, N], and the nodes' blocks of the Hessian in majorising curvatures
    [R, k, k, N], at ``h``; differentiable."""
    everyone, n = problem.graph.everyone, problem.graph.num_nodes
    model = problem.node.quadratic(h, everyone.current(h), everyone, majorise=1.0)
    source = problem.graph.src
    gradient = model.own + scatter(model.toward, source, n)
    return gradient, model.b + scatter(model.toward_curvature(), source, n)


def inverse(block: Tensor) -> Tensor:
    """The inverses of positive definite blocks [R, k, k, N]. Two channels have a formula, which
    needs no call of a library for each block, and which a CUDA graph can hold."""
    k = block.size(1)
    if k == 1:
        return 1.0 / block
    if k > 2:
        return torch.linalg.inv_ex(block.movedim(-1, 1))[0].movedim(1, -1)
    (a, b), (c, d) = (row.unbind(1) for row in block.unbind(1))
    one = 1.0 / (a * d - b * c)
    return torch.stack(
        [torch.stack([d * one, -b * one], 1), torch.stack([-c * one, a * one], 1)], 1
    )


def descended(problem: Problem, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many synchronous updates from the start; differentiable."""
    h = problem.start()
    if isinstance(problem, FixedPoint):
        for _ in range(updates):
            h = problem.step(h)
        return h
    assert isinstance(problem, Objective)
    scale: Tensor | None = None
    for turn in range(updates):
        if scale is None or turn in ANEW:
            gradient, block = blocks(problem, h)
            scale = DAMPING * inverse(block)
        else:
            gradient = problem.evaluate(h).gradient
        h = h - mv(scale, gradient)
    return h


@torch.no_grad()
def synchronous(rule: Rule, graph: Graph, h: Tensor, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many updates of all nodes, which begin at ``h`` [R, k, N].
    A rule with letters needs a reverse edge for every edge."""
    everyone = graph.everyone
    letters = rule.begin(h, everyone.current(h))
    for _ in range(updates):
        inbox = everyone.current(rule.broadcast(h, everyone))
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = rule.update(h, inbox, mail, everyone)
    return h
