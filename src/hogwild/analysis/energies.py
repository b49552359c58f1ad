r"""What is proved about energies: gradient steps of certified size, and messages."""

from __future__ import annotations

import math
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
from hogwild.analysis.descent import Descent
from hogwild.analysis.echoes import Echoes
from hogwild.analysis.nearby import Nearby, dominance, flat, split
from hogwild.executors.settings import Settings
from hogwild.linalg.spectrum import LARGEST, Extremes, matrices, spectrum
from hogwild.models.base import Kind
from hogwild.problems.base import Objective
from hogwild.rules.steps import certified_bounds, certified_steps


def certify_energy(
    problem: Objective,
    h: Tensor,
    settings: Settings,
    drift: float | None = None,
    letters: bool = True,
) -> Certificate:
    """What is proved of an energy, whose minimiser is ``h`` [R, k, N]. With a ``drift`` the energy
    changes in a tick as :meth:`Descent.tracking` says; ``letters`` says whether neighbours send
    gradients."""
    rows = problem.row_bounds()
    beta, top = problem.convexity(), problem.graph.norm(rows)  # [R, G]
    hessians = matrices(problem.evaluate(h.to(rows.dtype)).hessian())
    limits = spectrum(hessians, beta, problem.lipschitz())
    high = max(limits, key=lambda found: found.high)
    constants = {
        "strong_convexity": float(beta.min()),
        "largest_row_sum": float(top.max()),
        "smallest_eigenvalue": min(found.low for found in limits),
        "largest_eigenvalue": high.high,
        "condition_number": max(found.high / found.low for found in limits),
        "condition_number_everywhere": float((problem.lipschitz() / beta).max()),
    }
    facts = Certificate(Kind.OPTIMISATION, False, "", constants)
    if settings.bounds is not None:
        age = settings.content_age(settings.bounds, letters)
        constants["content_age"] = float(age)
        facts.step = certified_steps(problem, age, letters)
    if settings.error:
        constants["packet_error"] = settings.error
    if not isinstance(settings.step, str):
        facts.own_step = _where(float(settings.step), facts.step, high)
    if settings.rule in ("messages", "guarded"):
        return _messages(facts, settings, problem, h)
    return _gradient(facts, settings, problem, h, drift, letters)


def _gradient(
    facts: Certificate,
    settings: Settings,
    problem: Objective,
    h: Tensor,
    drift: float | None,
    letters: bool,
) -> Certificate:
    """What is proved of gradient steps."""
    step, certified = settings.step, facts.step
    if settings.bounds is None or certified is None:
        reason = (
            "the impairments given leave the staleness unbounded (unlimited loss, for instance), "
            "and a step of gradient descent is certified for a bound on it: bound them (burst=...)"
        )
        return replace(facts, reason=reason)
    if step in ("auto", "momentum"):
        reason = (
            f"steps of step={step!r} are observed to converge; nothing is proved about them. "
            f"step='certified' is proved"
        )
        if step == "momentum":
            reason += ", and so is rule='guarded' with step='momentum'"
        return replace(facts, reason=reason)
    steps = certified if isinstance(step, str) else float(step)
    stagger, age = settings.bounds[0], settings.content_age(settings.bounds, letters)
    if float(torch.as_tensor(steps - certified).max()) > 0.0:
        reason = (
            f"the step {step:.3g} is larger than the smallest certified one, "
            f"{float(certified.min()):.3g}: nothing is proved about it. step='certified' is proved"
        )
        return replace(facts, reason=reason)
    r, q = certified_bounds(problem, letters)
    descent = Descent(
        r, problem.convexity(), steps, age, stagger, problem.graph, apart=None if letters else q
    )
    if settings.error:
        near = descent.near(settings.error)
        facts.constants["largest_entry"], remark = worth(near, h)
        reason = (
            f"{wrong_packets(settings.error)} end near the synchronous answer and not at it. The "
            f"bound on the distance is cautious: it takes every curvature at its largest{remark}"
        )
        return replace(facts, reason=reason, near=near)
    shrink, period = descent.shrink(), stagger + age
    rate, needed = 1.0 / (1.0 + shrink), updates_needed(-math.log1p(shrink), period, stagger)
    other = dominated_rate(problem, h.to(r.dtype), steps, age, stagger, letters)
    if other is not None and other[2] < needed:
        rate, period, needed = other
    proved = replace(
        facts,
        guaranteed=True,
        reason="the energy is strongly convex with a bounded Hessian, and gradient steps of at "
        "most the certified size keep the sum of all changes finite under every schedule with "
        "these bounds",
        rate=rate,
        period=period,
        updates=needed,
    )
    if drift is not None:
        limit = descent.tracking(drift, problem.row_bounds())
        proved.constants["largest_entry"], remark = worth(limit, h)
        proved = replace(proved, tracking=limit, reason=proved.reason + remark)
    return proved.under(settings)


def dominated_rate(
    problem: Objective,
    h: Tensor,
    steps: Tensor | float,
    age: int,
    stagger: int,
    letters: bool = True,
) -> tuple[float, int, float] | None:
    r"""What dominance proves of gradient steps on a quadratic energy: rate, period and updates;
    ``None`` where it proves nothing.

    Let :math:`w > 0`, let P be the sum of the absolute local Hessians, and d the diagonal of the
    Hessian. With steps :math:`\alpha_a \le 1 / P_{aa}` and

    .. math:: \delta_a = \frac1{w_a} \Bigl(d_a w_a - \sum_{b \ne a} P_{ab} w_b
                         - \alpha_a D' P_{aa} (P w)_a\Bigr) > 0,

    the error :math:`\max_a |h_a - h^*_a| / w_a` shrinks by :math:`1 - \min_a \alpha_a \delta_a`
    every 2D' + S ticks. Where nodes compute both sides of their edges (no ``letters``), their own
    embeddings are not old: the last term vanishes, and D + S ticks are enough. The proof is in the
    documentation ("The mathematics", "Rates of quadratic energies").
    """
    if not problem.is_quadratic or h[0].numel() > LARGEST:
        return None
    late = age if letters else 0  # of what a node used of itself
    alpha = flat(torch.as_tensor(steps, dtype=h.dtype).expand_as(h))
    least, spread = math.inf, 1.0
    for a, matrix, most in zip(alpha, *Nearby(problem, h).hessians(), strict=True):
        found = dominance(matrix.diagonal(), split(most)[1])
        if not found.holds:
            return None
        w, own = found.weights, most.diagonal()
        total = most @ w
        if not (a * own <= 1.0).all():
            return None
        delta = matrix.diagonal() * w - (total - own * w) - a * late * own * total
        least = min(least, float((a * delta / w).min()))
        spread = max(spread, float(w.max() / w.min()))
    if least <= 0.0:
        return None
    period = age + late + stagger
    needed = updates_needed(math.log(1.0 - least), period, stagger)
    return 1.0 - least, period, (1.0 + math.log(spread) / math.log(1e6)) * needed


def _messages(facts: Certificate, settings: Settings, problem: Objective, h: Tensor) -> Certificate:
    """What is proved of messages."""
    if settings.hopeless:
        return replace(facts, reason=HOPELESS)
    if settings.rule == "guarded" and settings.step == "momentum":
        return _guarded(facts, settings)  # echoes and their rate are of messages
    echo = None
    if h[0].numel() <= LARGEST:
        echo = Echoes(problem, h.to(torch.float64)).echo()
    if echo is not None:
        facts.constants["echo"] = echo.radius
        if echo.periods is not None and settings.bounds is not None and not settings.error:
            stagger, period = settings.bounds[0], sum(settings.bounds)
            needed = echo.periods * period / (0.5 * (stagger + 1))
            facts.local = Local("messages", echo.radius, period, needed)
    if settings.rule == "guarded":
        return _guarded(facts, settings)
    weights = problem.weights()
    if problem.node.dominated and weights is not None and not settings.error:
        reason = (
            "every term of the energy is a square of one or two embeddings and scaled diagonally "
            "dominant, so that messages contract on every graph, in every order that lets each "
            "message through"
        )
        proved = replace(facts, guaranteed=True, reason=reason)
        if settings.bounds is not None:
            rate, period = _pairwise_rate(problem, h, weights), sum(settings.bounds)
            needed = updates_needed(math.log(max(rate, 1e-6)), period, settings.bounds[0])
            proved = replace(proved, rate=rate, period=period, updates=needed)
        return proved.under(settings)
    reason = "messages are observed to converge"
    if settings.error:
        reason += "; nothing is proved about packets that are wrong"
    elif echo is None:
        reason += "; nothing is proved"
    elif echo.radius < 1.0:
        reason += (
            ". From near the answer (how near is not computed) they are proved to converge, while "
            "nodes trust them; from far away nothing is proved"
        )
    else:
        reason += (
            "; nothing is proved: messages may answer to messages more strongly than what they "
            "answer to (echo at least 1)"
        )
    if facts.step is not None:
        reason += ". rule='gradient' with step='certified' is proved, and so is rule='guarded'"
    return replace(facts, reason=reason)


def _guarded(facts: Certificate, settings: Settings) -> Certificate:
    """What is proved of messages, or steps with momentum, that fall back to certified steps."""
    if settings.bounds is None or settings.error:
        reason = (
            "the rule falls back to gradient steps of certified size, which need a bound on the "
            "staleness and packets that are not wrong: bound the impairments (burst=...)"
        )
        return replace(facts, reason=reason)
    what = "steps with momentum" if settings.step == "momentum" else "messages"
    reason = (
        f"either {what} bring every node to rest where its gradient vanishes, or all nodes fall "
        f"back to gradient steps of certified size, which converge from anywhere; no rate is proved"
    )
    return replace(facts, guaranteed=True, reason=reason).under(settings)


def _pairwise_rate(problem: Objective, h: Tensor, weights: Tensor) -> float:
    r"""The factor of messages between pairs of embeddings, :math:`\max_i \sum_{j \ne i} |H_{ij}|
    v_j / (H_{ii} v_i)` for the weights v [N]."""
    hessians, _ = Nearby(problem, h.to(torch.float64)).hessians()
    v = flat(weights.to(h).expand_as(h))[0]
    return max(float((abs(split(m)[1]) @ v / (m.diagonal() * v)).max()) for m in hessians)


def _where(own: float, certified: Tensor | None, largest: Extremes) -> str:
    """Where a step of one's own lies."""
    if certified is not None and own <= float(certified.min()):
        return f"{own:.3g} is certified: at most the smallest certified step"
    limit = "" if certified is None else f" (largest certified: {float(certified.min()):.3g})"
    if own < 2.0 / largest.high:
        return (
            f"{own:.3g} is not certified{limit}, but below 2/λ_max = {2.0 / largest.high:.3g} at "
            f"the solution: it may well converge"
        )
    if own <= 2.0 / largest.attained:
        return f"{own:.3g} is not certified{limit}, and about 2/λ_max at the solution"
    return (
        f"{own:.3g} is above 2/λ_max = {2.0 / largest.attained:.3g} at the solution: it diverges "
        f"even synchronously"
    )
