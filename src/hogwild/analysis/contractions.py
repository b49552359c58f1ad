r"""What is proved about contractions in a maximum norm: fixed points, and solves of balls.

Fixed-point models converge where the map contracts in a weighted *maximum* norm over the nodes: the
error shrinks by a factor κ every S + D ticks. A contraction in another norm, as in the paper's
Proposition 1, is not enough: 0.98 times a rotation by 2.25 rad contracts in the Euclidean norm, and
diverges when its two coordinates are updated in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from hogwild.analysis.certificate import (
    HOPELESS,
    Certificate,
    Local,
    updates_needed,
    worth,
    wrong_packets,
)
from hogwild.analysis.nearby import Nearby, dominance, split
from hogwild.errors import AsynchronyError
from hogwild.executors.simulation import Settings
from hogwild.linalg.spectrum import LARGEST
from hogwild.models.base import Kind
from hogwild.ops import as_field
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules import rule_for
from hogwild.rules.balls import BallsRule, reached


def certify_fixed_point(
    problem: FixedPoint,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    """What is proved of a fixed point. ``answer()`` computes its solution, and is called only where
    a bound is compared with it. With a ``drift`` the fixed point moves by at most this in a tick,
    entry by entry."""
    found = Certificate(Kind.FIXED_POINT, False, HOPELESS)
    if settings.hopeless:
        return found
    if problem.monotone:
        reason = (
            "its updates are monotone and idempotent (a maximum over decreasing paths): every "
            "order, delay, repetition or loss that lets each packet through eventually ends, "
            "after finitely many updates, at the same answer. Not a contraction, so there is no "
            "rate"
        )
        return _near(problem, settings, replace(found, guaranteed=True, reason=reason), answer)
    modulus = problem.modulus()
    if modulus is None:
        return replace(
            found,
            reason="nothing is proved: no bound on the modulus of its map is known "
            "(FixedPoint.modulus). For a ScarselliGNN model.penalty(h, data) is zero only where "
            "the map contracts, near one point, in the norm that matters.",
        )
    worst = float(modulus.max())
    found.constants["modulus"] = worst
    if not worst < 1.0:
        return replace(found, reason="the bound on the contraction modulus is not below one")
    reason = (
        "the map contracts in a weighted maximum norm over the nodes, so every order and every "
        "bounded delay leads to its one fixed point (and so does unbounded delay, without a rate)"
    )
    proved = replace(found, guaranteed=True, reason=reason)
    if settings.bounds is not None:
        stagger, delay = settings.bounds
        period = stagger + delay
        rate = math.log(worst) if worst > 0 else math.log(1e-6)
        proved = replace(
            proved, rate=worst, period=period, updates=updates_needed(rate, period, stagger)
        )
    proved = _near(problem, settings, proved, answer)
    if drift is None or settings.bounds is None:
        return proved
    limit = _tracking(problem, settings, drift)
    if limit is None:
        return proved
    proved.constants["largest_entry"], remark = worth(limit, answer())
    return replace(proved, tracking=limit, reason=proved.reason + remark)


def _tracking(problem: FixedPoint, settings: Settings, drift: float) -> float | None:
    r"""How far runs are from a fixed point that moves by at most d in a tick, in the end: with the
    norm :math:`\max_i \|h_i\| / v_i` of the modulus κ, and packets wrong by at most δ,

    .. math::
        \frac{\max_i v_i}{\min_i v_i} \|\mathbf 1\| \,
        \frac{d\, (S + \kappa D) + \kappa \delta}{1 - \kappa}.
    """
    kappa, v = problem.modulus(), problem.weights()
    assert settings.bounds is not None
    if kappa is None or v is None:
        return None
    stagger, delay = settings.bounds
    ones = v.new_ones(1, problem.channels, problem.graph.num_nodes)
    unit = problem.graph.max(problem.lengths(ones))  # [1, G]
    spread = problem.graph.max(v) * problem.graph.max(1.0 / v)  # [G]
    moved = drift * (stagger + kappa * delay) + kappa * settings.error
    return float((unit * spread * moved / (1.0 - kappa)).max())


def _near(
    problem: FixedPoint, settings: Settings, proved: Certificate, answer: Callable[[], Tensor]
) -> Certificate:
    """What is left of a proof where packets are wrong."""
    if not settings.error:
        return proved.under(settings)
    moved = problem.displacement(settings.error)
    limit = math.inf if moved is None else float(moved.max())
    wrong = wrong_packets(settings.error)
    constants = proved.constants | {"packet_error": settings.error}
    found = Certificate(proved.kind, False, "", constants)
    if math.isinf(limit):
        reason = f"{wrong} need not end at the synchronous answer; no bound on the distance is "
        reason += "proved"
        if problem.monotone:
            reason += (
                ". A bound is proved where packets are wrong by less than the decrease along every "
                "edge: with larger errors a value may grow on its way round a cycle"
            )
        return replace(found, reason=reason)
    surely = "" if settings.bounds is not None else ", with probability one"
    constants["largest_entry"], remark = worth(limit, answer())
    reason = f"{wrong} end near the synchronous answer and not at it{surely}{remark}"
    return replace(found, reason=reason, near=limit)


# -- balls -----------------------------------------------------------------------------------------


def certify_balls(
    problem: Problem,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    r"""What is proved of solves of balls. ``answer()`` is the solution [N, k] or [R, N, k], and is
    called only where the Hessian at it matters; nothing is proved about answers that move.

    *The radius reaches every node.* Information crosses a hop in at most S + D ticks, so every
    answer is exact after hops · (S + D) ticks.

    *A smaller radius r, and scaled diagonal dominance* :math:`\sum_{b \ne a} |H_{ab}| v_b \le \rho
    H_{aa} v_a`, with ρ < 1 and v > 0 (or a map that contracts with ρ in a weighted maximum norm): a
    solve leaves at most :math:`\rho^m` times the error of the rim, :math:`m = \lceil (r + 1) / c
    \rceil`, and the rim that a node uses is at most :math:`(r + c)(S + D)` ticks old. The proof is
    in the documentation ("Asynchrony").
    """
    kind = Kind.FIXED_POINT if isinstance(problem, FixedPoint) else Kind.OPTIMISATION
    found = Certificate(kind, False, HOPELESS)
    if settings.hopeless:
        return found
    try:
        rule = rule_for(problem, settings.rule, radius=settings.radius)
    except AsynchronyError as error:
        return replace(found, reason=f"it cannot run under this rule: {error}")
    assert isinstance(rule, BallsRule)
    hops = len(list(reached(problem.graph, rule.radius + rule.couples))) - 1
    # Where packets are lost, news is sent again after a while that counts turns and not ticks.
    bounds = None if any(i.stage == 3 for i in settings.impairments) else settings.bounds
    if hops <= rule.radius:
        return _whole(found, settings, hops, bounds)
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
    if bounds is not None:
        stagger = bounds[0]
        period = (rule.radius + rule.couples) * sum(bounds) + stagger
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


def _whole(
    found: Certificate, settings: Settings, hops: int, bounds: tuple[int, int] | None
) -> Certificate:
    """The radius reaches every node."""
    if settings.error:
        reason = "nothing is proved about balls whose packets are held back or rounded"
        return replace(found, reason=reason)
    found.constants["hops"] = float(hops)
    if bounds is not None:
        found.constants["ticks_to_whole"] = float(hops * sum(bounds))
    reason = (
        "a node that has heard of all nodes solves the whole problem, so its answer is the "
        "synchronous one as soon as information has crossed the graph"
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
