r"""The line search: how far to go along a direction of descent, on every graph by itself.

A step ``t d`` is accepted by Armijo's condition :math:`E(h + t d) \le E(h) + 10^{-4} t s`, with the
slope :math:`s = \nabla E(h)^\top d < 0`. Where the decrease drowns in the rounding of the energy,
the slope at the new point decides (Hager & Zhang's approximate Wolfe condition). A refused step is
shortened by the parabola through the two values and the slope.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild.problems.base import Evaluation, Objective


class Step(NamedTuple):
    """Where a line search ended."""

    h: Tensor  # [R, k, N]
    at: Evaluation  # the objective there
    t: Tensor  # [R, G] step lengths; 0 where a graph stays where it was
    refused: Tensor  # [R, G] graphs on which no step was accepted


def search(
    problem: Objective,
    h: Tensor,
    now: Evaluation,
    d: Tensor,
    slope: Tensor,
    t: Tensor,
    active: Tensor,
    max_backtracks: int,
) -> Step:
    """Shorten the steps ``t`` [R, G] along ``d`` [R, k, N] until every active graph accepts its
    own.

    Args:
        problem: What is minimised.
        h: Where to start, [R, k, N].
        now: The objective at ``h``.
        d: The direction; zero on graphs that are not active.
        slope: The derivative along ``d`` at ``h``, [R, G].
        t: The step lengths to try first.
        active: Graphs that move, [R, G].
        max_backtracks: Trials after which a graph stays at ``h``.
    """
    graph = problem.graph
    for _ in range(max_backtracks):
        trial = h + graph.wide(t) * d
        at = problem.evaluate(trial)
        refused = active & ~accepted(at, now, graph, d, t, slope)
        if not bool(refused.any()):
            return Step(trial, at, t, refused)
        t = torch.where(refused, shortened(at, now, t, slope), t)
    t = t.masked_fill(refused, 0.0)
    h = torch.where(graph.wide(refused), h, h + graph.wide(t) * d)  # d may be infinite
    return Step(h, problem.evaluate(h), t, refused)


def accepted(
    at: Evaluation, before: Evaluation, graph: Graph, d: Tensor, t: Tensor, slope: Tensor
) -> Tensor:
    """Whether each graph accepts the step ``t d`` from ``before`` to ``at``, [R, G]. NaN fails both
    conditions."""
    armijo = at.value <= before.value + 1e-4 * t * slope
    if not armijo.is_cuda and bool(armijo.all()):  # on a GPU looking costs more than computing
        return armijo
    turned = graph.dot(at.gradient, d) > 0.8 * slope.abs()
    return armijo | ((at.value <= before.value + before.noise) & ~turned)


def shortened(at: Evaluation, before: Evaluation, t: Tensor, slope: Tensor) -> Tensor:
    """A shorter step [R, G] after ``t`` was refused at ``at``: the parabola's minimiser, between a
    tenth and a half of ``t``."""
    excess = at.value - before.value - slope * t  # > 0 for a convex function
    share = torch.nan_to_num(-0.5 * slope * t / excess, nan=0.1, posinf=0.5, neginf=0.1)
    return t * share.clamp(0.1, 0.5)
