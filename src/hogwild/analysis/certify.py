r"""What is proved about a model under asynchrony, with the constants of this model on this graph.

``certify(model, data, ...)`` speaks of ``simulate(model, data, ...)`` with the same arguments.

All proofs are in the documentation ("Asynchrony" and "The mathematics"), and each theorem stands
beside the function that computes its constants: certified gradient steps and messages of energies
(:mod:`hogwild.analysis.energies`), contractions and solves of balls
(:mod:`hogwild.analysis.contractions`), and layers. Which of them holds for a rule, the rule says
(:class:`hogwild.rules.base.About`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.analysis.certificate import HOPELESS, NO_RATE, Certificate
from hogwild.analysis.contractions import certify_balls, certify_fixed_point, follow
from hogwild.analysis.energies import certify_messages, certify_steps
from hogwild.errors import AsynchronyError, ConfigError, is_number
from hogwild.executors.simulate import Case
from hogwild.executors.simulation import Settings
from hogwild.models.base import Conv, Kind
from hogwild.models.program import LayeredProblem, StackProblem
from hogwild.models.validation import evaluating, uncompiled
from hogwild.models.wrapped import runnable
from hogwild.ops import as_field
from hogwild.problems.base import FixedPoint, Problem
from hogwild.rules import about, choose, rule_for, sends_letters


def certify(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    stagger: int = 5,
    delay: int = 2,
    *,
    drift: float | None = None,
    **options: Any,
) -> Certificate:
    """What is proved of :func:`hogwild.simulate` with the same arguments: the constants, the
    certified step and rate, and where your own step lies.

    ``model``, ``data``, ``stagger`` and ``delay`` are as in :func:`hogwild.simulate`.

    Args:
        drift: How far any entry of the exact answer moves in a tick, at most, while features change
            (:attr:`hogwild.Track.drift` measures it). The certificate of a contraction then has a
            bound on the distance at which nodes follow.
        options: ``rule``, ``step`` and ``impairments`` of :func:`hogwild.simulate`.
            For energies ``rule="auto"`` means messages, and for soft ones whose condition number
            is at most 100 gradient steps. More is proved of these with ``step="certified"``.
    """
    found = uncompiled(model)
    found = found if isinstance(found, Conv) else runnable(found)  # a layer needs no readout
    if drift is not None and not (is_number(drift) and 0.0 <= drift < math.inf):
        raise ConfigError(f"drift={drift!r}; expected a nonnegative number: a move in a tick")
    return certified(Case(found, data), Settings(stagger, delay, **options), drift)


@torch.no_grad()
def certified(case: Case, settings: Settings, drift: float | None = None) -> Certificate:
    """What is proved of a model on graphs with these settings."""
    model = case.model
    with evaluating(model):
        try:
            problem = case.problem
        except AsynchronyError as error:
            reason = f"it cannot run asynchronously at all: {error}"
            return Certificate(model.kind, False, reason)
        rule = choose(problem, settings.rule, settings.step)
        settings = replace(settings, rule=rule)
        if about(rule).proof is None:
            reason = f"{rule} is a rule of your own, about which nothing is proved here"
            found = Certificate(model.kind, False, reason)
        elif settings.may_lose_forever:
            found = Certificate(model.kind, False, HOPELESS)
        elif isinstance(problem, StackProblem):
            found = _stack(case, problem, settings)
        elif isinstance(problem, LayeredProblem):
            found = _layers(problem, settings)
        else:
            answer = partial(getattr, case, "answer")
            found = _alone(problem, settings, answer, sends_letters(problem, rule))
            contracts = about(rule).proof == "contraction"
            if contracts and drift is not None and isinstance(problem, FixedPoint):
                found = follow(found, problem, settings, answer, drift)
    if drift is not None:
        found.constants["drift"] = drift
    return replace(found, rule=rule, levels=tuple(replace(x, rule=rule) for x in found.levels))


Proof = Callable[[Any, Settings, Callable[[], Tensor], bool], Certificate]
PROOFS: dict[str, Proof] = {
    "descent": certify_steps,
    "messages": certify_messages,
    "contraction": certify_fixed_point,
    "balls": certify_balls,
}
"""What is proved, by theorem: functions of the problem, the settings, the problem's solution, and
whether neighbours send gradients."""


def _alone(
    problem: Problem, settings: Settings, answer: Callable[[], Tensor], letters: bool = True
) -> Certificate:
    """What is proved of an energy or a fixed point; ``answer()`` is its solution."""
    proof = about(settings.rule).proof
    if callable(proof):
        found = proof(problem, settings, answer)
        assert isinstance(found, Certificate), "what a rule of your own proves is a Certificate"
        return found
    assert proof is not None
    return PROOFS[proof](problem, settings, answer, letters)


def _layers(problem: LayeredProblem, settings: Settings) -> Certificate:
    rule, constants = about(settings.rule), {"layers": float(problem.depth)}
    facts = Certificate(Kind.EXPLICIT, False, rule.reason, constants)
    try:
        rule_for(problem, settings.rule)
    except AsynchronyError as error:  # no link back for acknowledgements, for instance
        return replace(facts, reason=f"it cannot run under this rule: {error}")
    if not rule.exact:
        return facts
    if settings.error:
        why = ". Here packets are wrong by a little, and nothing bounds how layers enlarge that"
        return replace(facts, reason=facts.reason + why)
    if rule.timed and settings.bounds is not None:
        constants["ticks_to_answer"] = float(problem.depth * sum(settings.bounds))
    return facts.proved(settings, rule.reason)


def _stack(case: Case, stack: StackProblem, settings: Settings) -> Certificate:
    """Level by level, with the levels below at their answers."""
    kind: Kind = case.model.kind
    if not about(settings.rule).moves:
        reason = "it cannot run under this rule, which needs a problem that does not move"
        return Certificate(kind, False, reason)
    solved = [level.value for level in case.solution.levels]
    settled = stack.problems([as_field(h, h.dtype) for h in solved])
    levels = tuple(
        replace(_alone(problem, settings, h.detach), since=0, **NO_RATE)
        for problem, h in zip(settled, solved, strict=True)
    )
    found = Certificate(kind, False, "", levels=levels)
    weak = [number for number, level in enumerate(levels, 1) if not level.guaranteed]
    if not weak:
        reason = (
            "every level converges once the levels below stand still, and its problem is "
            "continuous in their embeddings: level by level all converge. No rate is computed"
        )
        return found.proved(settings, reason)
    which = f"level {weak[0]}" if len(weak) == 1 else f"levels {', '.join(map(str, weak))}"
    reason = f"a stack converges where every level does, which is not proved of {which}"
    if all(levels[number - 1].near is not None for number in weak):
        reason = (
            "packets are wrong, so that every level ends near its answer and passes its error on "
            "to the next; no bound on the sum is computed"
        )
    return replace(found, reason=reason)
