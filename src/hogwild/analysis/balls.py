r"""What is proved about solves of balls (:mod:`hogwild.rules.balls`).

* *The radius reaches every node.* A node that has heard of all nodes solves the whole problem. A
  word crosses a hop in at most S + D ticks, so every answer is exact after hops · (S + D) ticks.
* *A smaller radius, and scaled diagonal dominance.* Let the Hessian H satisfy
  :math:`\sum_{b \ne a} |H_{ab}| v_b \le \rho H_{aa} v_a` everywhere, with ρ < 1 and v > 0. For the
  solve z of a ball A with the rim held at :math:`h_B`, and the mean H of the Hessian between
  :math:`(z, h_B)` and the answer :math:`h^*`, the rows of A say
  :math:`H_{AA} (z - h^*_A) = -H_{AB} (h_B - h^*_B)`. In the norm :math:`\max_a |e_a| / v_a` every
  entry's error is therefore at most ρ times the largest error among the entries that it is
  coupled with, and that of an entry next to the rim at most ρ times the largest error of ball and
  rim together, so at most ρ times that of the rim. From the node in the middle the rim is
  :math:`m = \lceil (r + 1) / c \rceil` couplings away: its error is at most :math:`\rho^m` times
  that of the rim. An embedding of the rim that a node uses is at most :math:`(r + c)(S + D)` ticks
  old. This is a contraction in a weighted maximum norm, which converges under any delays
  (Bertsekas & Tsitsiklis 1989, section 6.2), and whichever nodes the ball has.
* *A smaller radius, and a map that contracts with ρ in a weighted maximum norm*: the same, c = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hogwild.analysis.certificate import HOPELESS, Certificate, Local, updates_needed
from hogwild.analysis.nearby import Nearby, dominance, split
from hogwild.errors import AsynchronyError
from hogwild.executors.settings import Settings
from hogwild.linalg.spectrum import LARGEST
from hogwild.models.base import Kind
from hogwild.ops import as_field
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules import rule_for
from hogwild.rules.balls import BallsRule


def certify_balls(
    problem: Problem, settings: Settings, answer: Callable[[], Tensor]
) -> Certificate:
    """What is proved of solves of balls; ``answer()`` is the solution [N, k] or [R, N, k], asked
    for where the Hessian at it matters."""
    kind = Kind.FIXED_POINT if isinstance(problem, FixedPoint) else Kind.OPTIMISATION
    found = Certificate(kind, False, HOPELESS)
    if settings.hopeless:
        return found
    try:
        rule = rule_for(problem, "balls", radius=settings.radius)
    except AsynchronyError as error:
        return replace(found, reason=f"it cannot run under this rule: {error}")
    assert isinstance(rule, BallsRule)
    hops = int(rule.around.eccentricity.max()) if problem.graph.num_nodes else 0
    if bool(rule.inner.all()):
        return _whole(found, settings, hops)
    if settings.error:
        reason = "nothing is proved about balls with packets that are wrong"
        return replace(found, reason=reason)
    ratio, everywhere = _ratio(problem, answer)
    if ratio is not None and ratio < math.inf:
        found.constants["modulus" if isinstance(problem, FixedPoint) else "dominance"] = ratio
    if ratio is None or not ratio < 1.0:
        reason = (
            f"balls of radius {rule.radius} are observed to converge; nothing is proved, since no "
            f"contraction in a weighted maximum norm is known here. A radius that reaches every "
            f"node is exact"
        )
        return replace(found, reason=reason)
    rate = ratio ** math.ceil((rule.radius + 1) / rule.couples)
    period, updates = None, None
    if settings.bounds is not None:
        stagger = settings.bounds[0]
        period = (rule.radius + rule.couples) * sum(settings.bounds) + stagger
        updates = updates_needed(math.log(max(rate, 1e-6)), period, stagger)
    if not everywhere:
        if period is not None and updates is not None:
            found.local = Local("dominance", rate, period, updates)
        reason = (
            f"from near the answer (how near is not computed) balls of radius {rule.radius} are "
            f"proved to converge, since the Hessian there is scaled diagonally dominant; from far "
            f"away they are observed to"
        )
        return replace(found, reason=reason)
    reason = (
        "a solve brings a node nearer to the answer than the worst of its rim, by a fixed factor "
        "in a weighted maximum norm, whatever the delays"
    )
    proved = replace(found, guaranteed=True, reason=reason, rate=rate, period=period,
                     updates=updates)  # fmt: skip
    return proved.under(settings)


def _whole(found: Certificate, settings: Settings, hops: int) -> Certificate:
    """The radius reaches every node."""
    if settings.error:
        reason = "nothing is proved about tables whose packets are held back or rounded"
        return replace(found, reason=reason)
    found.constants["hops"] = float(hops)
    if settings.bounds is not None:
        found.constants["ticks_to_whole"] = float(hops * sum(settings.bounds))
    reason = (
        "a node that has heard of all nodes solves the whole problem, so its answer is the "
        "synchronous one as soon as word has crossed the graph"
    )
    return replace(found, guaranteed=True, reason=reason).under(settings)


def _ratio(problem: Problem, answer: Callable[[], Tensor]) -> tuple[float | None, bool]:
    """ρ, and whether it holds everywhere or only at the answer; ``None``: it is not known."""
    if isinstance(problem, FixedPoint):
        modulus = problem.modulus()
        return (None if modulus is None else float(modulus.max())), True
    assert isinstance(problem, Objective)
    value = answer()
    h = as_field(value, torch.float64)
    if h[0].numel() > LARGEST:
        return None, False
    hessians, _ = Nearby(problem, h).hessians()
    ratios = [dominance(d, abs(rest)).ratio for d, rest in map(split, hessians)]
    return max(ratios), problem.is_quadratic
