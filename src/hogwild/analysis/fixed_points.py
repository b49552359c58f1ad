"""What is proved about fixed points: contractions in a maximum norm, and monotone maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from hogwild.analysis.certificate import (
    HOPELESS,
    Certificate,
    updates_needed,
    worth,
    wrong_packets,
)
from hogwild.executors.simulation import Settings
from hogwild.models.base import Kind
from hogwild.problems.base import FixedPoint


def certify_fixed_point(
    problem: FixedPoint,
    settings: Settings,
    answer: Callable[[], Tensor],
    drift: float | None = None,
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
