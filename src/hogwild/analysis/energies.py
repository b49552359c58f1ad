r"""What is proved about energies: gradient steps of certified size, and messages."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from scipy.sparse import coo_matrix, diags
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from hogwild.analysis.certificate import (
    HOPELESS,
    Certificate,
    updates_needed,
    worth,
    wrong_packets,
)
from hogwild.analysis.descent import Descent
from hogwild.executors.settings import Settings
from hogwild.graph import Graph
from hogwild.linalg.spectrum import Extremes, matrices, spectrum
from hogwild.models.base import Kind
from hogwild.problems.base import Objective
from hogwild.rules.steps import certified_steps


def certify_energy(
    problem: Objective, h: Tensor, settings: Settings, drift: float | None = None
) -> Certificate:
    """What is proved of an energy, whose minimiser is ``h`` [R, k, N]. With a ``drift`` the energy
    changes in a tick as :meth:`Descent.tracking` says."""
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
        "condition_number_everywhere": float((top / beta).max()),
    }
    facts = Certificate(Kind.OPTIMISATION, False, "", constants)
    if settings.bounds is not None:
        age = settings.content_age(settings.bounds)
        constants["content_age"] = float(age)
        facts.step = certified_steps(problem, age)
    if settings.error:
        constants["packet_error"] = settings.error
    if not isinstance(settings.step, str):
        facts.own_step = _where(float(settings.step), facts.step, high)
    if settings.rule == "messages":
        local = problem.is_quadratic and all(
            (m - diags(m.diagonal())).max() <= 0.0 for m in hessians
        )
        return _messages(facts, settings, local and _is_forest(problem.graph))
    return _gradient(facts, settings, problem, h, drift)


def _gradient(
    facts: Certificate,
    settings: Settings,
    problem: Objective,
    h: Tensor,
    drift: float | None = None,
) -> Certificate:
    """What is proved of gradient steps."""
    step, certified = settings.step, facts.step
    if settings.bounds is None or certified is None:
        reason = (
            "the impairments given leave the staleness unbounded (unlimited loss, for instance), "
            "and a step of gradient descent is certified for a bound on it: bound them (burst=...)"
        )
        return replace(facts, reason=reason)
    if step == "auto":
        reason = (
            "steps of step='auto' are observed to converge; nothing is proved about them. "
            "step='certified' is proved"
        )
        return replace(facts, reason=reason)
    steps = certified if isinstance(step, str) else float(step)
    if float(torch.as_tensor(steps - certified).max()) > 0.0:
        reason = (
            f"the step {step:.3g} is larger than the smallest certified one, "
            f"{float(certified.min()):.3g}: nothing is proved about it. step='certified' is proved"
        )
        return replace(facts, reason=reason)
    stagger, age = settings.bounds[0], settings.content_age(settings.bounds)
    descent = Descent(problem.row_bounds(), problem.convexity(), steps, age, stagger, problem.graph)
    if settings.error:
        near = descent.near(settings.error)
        facts.constants["largest_entry"], remark = worth(near, h)
        reason = (
            f"{wrong_packets(settings.error)} end near the synchronous answer and not at it. The "
            f"bound on the distance is cautious: it takes every curvature at its largest{remark}"
        )
        return replace(facts, reason=reason, near=near)
    shrink, period = descent.shrink(), stagger + age
    proved = replace(
        facts,
        guaranteed=True,
        reason="the energy is strongly convex with a bounded Hessian, and gradient steps of at "
        "most the certified size keep the sum of all changes finite under every schedule with "
        "these bounds",
        rate=1.0 / (1.0 + shrink),
        period=period,
        updates=updates_needed(-math.log1p(shrink), period, stagger),
    )
    if drift is not None:
        limit = descent.tracking(drift)
        proved.constants["largest_entry"], remark = worth(limit, h)
        proved = replace(proved, tracking=limit, reason=proved.reason + remark)
    return proved.under(settings)


def _messages(facts: Certificate, settings: Settings, exact: bool) -> Certificate:
    """What is proved of messages, which are ``exact`` on forests for some quadratic energies."""
    if settings.hopeless:
        return replace(facts, reason=HOPELESS)
    if exact and not settings.error:
        reason = (
            "the graph has no cycles and the energy is quadratic with nonpositive couplings: "
            "messages are exact elimination, and arrive under every order that lets each message "
            "through"
        )
        return replace(facts, guaranteed=True, reason=reason).under(settings)
    reason = (
        "messages are observed to converge; a proof holds only for quadratic energies with "
        "nonpositive couplings (GSDGNN), on graphs without cycles, and for packets that are "
        "not wrong"
    )
    if facts.step is not None:
        reason += ". rule='gradient' with step='certified' is proved"
    return replace(facts, reason=reason)


def _is_forest(graph: Graph) -> bool:
    """Whether no cycle joins nodes; self-loops and parallel edges are none."""
    ends = torch.stack([graph.src, graph.dst]).sort(0).values[:, graph.src != graph.dst]
    pairs = ends.unique(dim=1).cpu()
    n = graph.num_nodes
    ones = torch.ones(pairs.size(1)).numpy()
    joined = coo_matrix((ones, tuple(pairs.numpy())), shape=(n, n))
    trees, _ = connected_components(joined, directed=False)
    return bool(pairs.size(1) == n - trees)


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
