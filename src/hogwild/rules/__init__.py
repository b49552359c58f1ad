"""What a node does when it is its turn: one file a rule, each written over inboxes."""

from __future__ import annotations

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.models.layered import LayeredProblem
from hogwild.rules.base import Rule
from hogwild.rules.fixed_point import FixedPointRule
from hogwild.rules.gradient import GradientRule
from hogwild.rules.layered import LayeredRule, WaitingRule
from hogwild.rules.messages import MessageRule
from hogwild.solvers.problem import FixedPoint, Objective, Problem

RULES = ("gradient", "messages")


def rule_for(
    problem: Problem | LayeredProblem,
    rule: str = "gradient",
    step: str | float = "auto",
    age: int | None = None,
) -> Rule:
    """The rule a node follows on this problem.

    Args:
        rule: For optimisation-based models, one of ``RULES``; the others have one rule each.
        step: For gradient steps, see :class:`GradientRule`.
        age: Largest age of an embedding inside a packet; ``None``: unbounded.
    """
    if rule not in RULES:
        raise ConfigError(f"rule={rule!r}; expected one of {', '.join(RULES)}")
    if isinstance(problem, LayeredProblem):
        return WaitingRule(problem) if problem.waits else LayeredRule(problem)
    if isinstance(problem, FixedPoint):
        return FixedPointRule(problem)
    if isinstance(problem, Objective):
        kind = {"gradient": GradientRule, "messages": MessageRule}[rule]
        return kind(problem, step, age=age)
    raise AsynchronyError(f"no rule is known for a {type(problem).__name__}")


__all__ = [
    "FixedPointRule",
    "GradientRule",
    "LayeredRule",
    "MessageRule",
    "Rule",
    "WaitingRule",
    "rule_for",
]
