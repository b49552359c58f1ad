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

from torch import Tensor

from hogwild.analysis.certificate import Certificate, Rate, compare, wrong_packets
from hogwild.errors import AsynchronyError
from hogwild.executors.simulation import Settings
from hogwild.linalg.spectrum import LARGEST, jacobi, matrices, perron
from hogwild.models.base import Kind
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules import rule_for
from hogwild.rules.balls import BallsRule, reached


def certify_fixed_point(
    problem: FixedPoint, settings: Settings, answer: Callable[[], Tensor], letters: bool = True
) -> Certificate:
    """What is proved of a fixed point. ``answer()`` computes its solution, and is called only where
    a bound is compared with it."""
    found, rate = Certificate(Kind.FIXED_POINT, False, ""), None
    if problem.monotone:
        reason = (
            "its updates are monotone and idempotent (a maximum over decreasing paths): every "
            "order, delay, repetition or loss that lets each packet through eventually ends, "
            "after finitely many updates, at the same answer. Not a contraction, so there is no "
            "rate"
        )
    else:
        modulus = problem.modulus()
        if modulus is None:
            return replace(
                found,
                reason="nothing is proved: no bound on the modulus of its map is known "
                "(FixedPoint.modulus). For a ScarselliGNN model.penalty(h, data) is zero only "
                "where the map contracts, near one point, in the norm that matters.",
            )
        found.constants["modulus"] = worst = float(modulus.max())
        if not worst < 1.0:
            return replace(found, reason="the bound on the contraction modulus is not below one")
        reason = (
            "the map contracts in a weighted maximum norm over the nodes, so every order and every "
            "bounded delay leads to its one fixed point (and so does unbounded delay, without a "
            "rate)"
        )
        if settings.bounds is not None:
            rate = Rate.of(worst, sum(settings.bounds), settings.bounds[0])
    if settings.error:
        return _near(problem, settings, found, answer)
    return found.proved(settings, reason, rate)


def _near(
    problem: FixedPoint, settings: Settings, found: Certificate, answer: Callable[[], Tensor]
) -> Certificate:
    """What is left of a proof where packets are wrong."""
    found.constants["packet_error"] = settings.error
    moved = problem.displacement(settings.error)
    limit = math.inf if moved is None else float(moved.max())
    wrong = wrong_packets(settings.error)
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
    reason = f"{wrong} end near the synchronous answer and not at it{surely}"
    return replace(found, reason=reason + compare(found, limit, answer), near=limit)


def follow(
    found: Certificate,
    problem: FixedPoint,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float,
) -> Certificate:
    r"""The certificate with a bound on the distance from a fixed point that moves by at most d in a
    tick, entry by entry, in the end: with the norm :math:`\max_i \|h_i\| / v_i` of the modulus κ,
    and packets wrong by at most δ,

    .. math::
        \frac{\max_i v_i}{\min_i v_i} \|\mathbf 1\| \,
        \frac{d\, (S + \kappa D) + \kappa \delta}{1 - \kappa}.
    """
    kappa, v = problem.modulus(), problem.weights()
    if settings.bounds is None or found.near is None or kappa is None or v is None:
        return found
    stagger, delay = settings.bounds
    ones = v.new_ones(1, problem.channels, problem.graph.num_nodes)
    unit = problem.graph.max(problem.lengths(ones))  # [1, G]
    spread = problem.graph.max(v) * problem.graph.max(1.0 / v)  # [G]
    moved = drift * (stagger + kappa * delay) + kappa * settings.error
    limit = float((unit * spread * moved / (1.0 - kappa)).max())
    return replace(found, tracking=limit, reason=found.reason + compare(found, limit, answer))


def certify_balls(
    problem: Problem, settings: Settings, answer: Callable[[], Tensor], letters: bool = True
) -> Certificate:
    r"""What is proved of solves of balls.

    *The radius reaches every node.* Information crosses a hop in at most S + D ticks, so every
    answer is exact after hops · (S + D) ticks, where no packet is lost.

    *A smaller radius r*, and a map that contracts with ρ < 1 in a weighted maximum norm, or a
    quadratic energy with scaled diagonal dominance :math:`\sum_{b \ne a} |H_{ab}| v_b \le \rho
    H_{aa} v_a`, v > 0: a solve leaves at most :math:`\rho^m` times the error of the rim,
    :math:`m = \lceil (r + 1) / c \rceil`, and the rim that a node uses is at most
    :math:`(r + c)(S + D)` ticks old. The proof is in the documentation ("Asynchrony").
    """
    kind = Kind.FIXED_POINT if isinstance(problem, FixedPoint) else Kind.OPTIMISATION
    found = Certificate(kind, False, "")
    try:
        rule = rule_for(problem, settings.rule, radius=settings.radius)
    except AsynchronyError as error:
        return replace(found, reason=f"it cannot run under this rule: {error}")
    assert isinstance(rule, BallsRule)
    if settings.error:
        return replace(found, reason="nothing is proved about balls with packets that are wrong")
    # Where packets are lost, news is sent again after a while that counts turns and not ticks.
    bounds = None if any(i.stage == 3 for i in settings.impairments) else settings.bounds
    hops = len(list(reached(problem.graph, rule.radius + rule.couples))) - 1
    if hops <= rule.radius:
        found.constants["hops"] = float(hops)
        if bounds is not None:
            found.constants["ticks_to_whole"] = float(hops * sum(bounds))
        reason = (
            "a node that has heard of all nodes solves the whole problem, so its answer is the "
            "synchronous one as soon as information has crossed the graph"
        )
        return found.proved(settings, reason)
    name, ratio = _ratio(problem)
    if math.isfinite(ratio):
        found.constants[name] = ratio
    if not ratio < 1.0:
        reason = (
            f"balls of radius {rule.radius} are observed to converge; nothing is proved, since no "
            f"contraction in a weighted maximum norm is known here. A radius that reaches every "
            f"node is exact"
        )
        return replace(found, reason=reason)
    reason = (
        "a solve brings a node nearer to the answer than the worst of its rim, by a fixed factor "
        "in a weighted maximum norm, whatever the delays"
    )
    rate = None
    if bounds is not None:
        stagger = bounds[0]
        period = int(rule.radius + rule.couples) * sum(bounds) + stagger
        rate = Rate.of(ratio ** math.ceil((rule.radius + 1) / rule.couples), period, stagger)
    return found.proved(settings, reason, rate)


def _ratio(problem: Problem) -> tuple[str, float]:
    """ρ and its name; infinite where it is not known."""
    if isinstance(problem, FixedPoint):
        modulus = problem.modulus()
        return "modulus", math.inf if modulus is None else float(modulus.max())
    assert isinstance(problem, Objective)
    h = problem.start()
    if not problem.is_quadratic or h[0].numel() > LARGEST:
        return "dominance", math.inf
    found = matrices(problem.evaluate(h).hessian())
    return "dominance", max(perron(jacobi(matrix)) for matrix in found)
