"""Which rules fit which problem; the rules themselves are in :mod:`hogwild_node.rules`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.models.levels import LayeredProblem, StackProblem
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.rules.balls import LARGEST, BallsRule, usual_radius
from hogwild.rules.stack import LAYERED, StackRule, layered_rule
from hogwild.rules.steps import gradient_rule
from hogwild_node.rules import FixedPointRule, MessageRule, Rule
from hogwild_node.soft import QUICK

Fitting = dict[str, Callable[..., Rule]]


def fixed_point_rule(problem: FixedPoint) -> FixedPointRule:
    """The rule that applies a map."""
    return FixedPointRule(problem.node, problem.graph.everyone, problem.channels)


def message_rule(problem: Objective, step: str | float = "auto", **options: Any) -> MessageRule:
    """Messages, with :func:`gradient_rule` where a node cannot minimise its own energy."""
    return MessageRule(gradient_rule(problem, step, letters=True, **options))


def balls_rule(problem: Problem, *, moving: bool = False, radius: int | None = None) -> BallsRule:
    """Solves of the ball around each node (:mod:`hogwild.rules.balls`); ``None``: the usual
    radius."""
    if moving:
        raise ConfigError(
            "rule='balls' was given for a stack of several layers, whose problems move; expected "
            "rule='messages' or rule='gradient', or a model with num_layers=1"
        )
    usual = usual_radius(problem)
    if radius is not None and usual is not None and radius > usual:
        warnings.warn(
            f"radius={radius} gives tables of more than {LARGEST} nodes, and a node solves for all "
            f"of its ball whenever it hears of another one: this is slow. Without a radius it is "
            f"{usual} on this graph",
            stacklevel=2,
        )
    return BallsRule(problem, usual if radius is None else radius)


RULES = ("gradient", "messages", "balls", "fixed-point", *LAYERED)
"""The names of the library's rules; beside them ``"auto"``, the first of :func:`fitting`."""

_OWN: dict[str, tuple[type[Problem], Callable[[Any], Rule]]] = {}


def register(name: str, make: Callable[[Any], Rule], kind: type[Problem] = Objective) -> None:
    """Let ``rule=name`` mean a rule of your own, in :func:`hogwild.simulate` and everywhere else.

    Nothing is proved of such a rule: :func:`hogwild.certify` says so.
    :func:`hogwild.testing.check_rule` tests it.

    Args:
        name: The name, which no rule of the library has. A name that was registered before gets the
            new rule.
        make: Called as ``make(problem)``; returns the rule.
        kind: The problems that the rule fits: :class:`~hogwild.problems.Objective` (energies) or
            :class:`~hogwild.problems.FixedPoint`.
    """
    if not isinstance(name, str) or not name or name in ("auto", *RULES):
        taken = ", ".join(("auto", *RULES))
        raise ConfigError(f"name={name!r}; expected a name other than {taken}")
    if not callable(make):
        raise ConfigError(f"make={make!r}; expected a function that makes a rule of a problem")
    if not (isinstance(kind, type) and issubclass(kind, Problem)):
        raise ConfigError(f"kind={kind!r}; expected hogwild.problems.Objective or FixedPoint")
    _OWN[name] = kind, make


def is_own(name: str) -> bool:
    """Whether a rule is a user's own."""
    return name in _OWN


def fitting(problem: Problem | LayeredProblem | StackProblem) -> Fitting:
    """The rules that fit a problem, by name; ``"auto"`` is the first.

    * *Energies*: ``"messages"``, the paper's gradient steps, ``"gradient"`` (``step="momentum"``
      makes them faster), or solves of balls, ``"balls"``. Gradient steps come first where the
      condition number is known beforehand and at most
      :data:`~hogwild_node.soft.QUICK`.
    * *Fixed points*: ``"fixed-point"``, or ``"balls"``.
    * *Layers*: ``"caching"``, ``"overwriting"`` (the paper's semantics), ``"waiting"``, or
      ``"resending"``.
    * *Stacks*: those of their levels.

    Rules of your own (:func:`register`) come last.
    """
    if isinstance(problem, StackProblem):
        return fitting(problem.first)
    if isinstance(problem, LayeredProblem):
        return {name: partial(layered_rule, name=name) for name in LAYERED}
    own = {name: make for name, (kind, make) in _OWN.items() if isinstance(problem, kind)}
    if isinstance(problem, FixedPoint):
        return {"fixed-point": fixed_point_rule, "balls": balls_rule, **own}
    if isinstance(problem, Objective):
        energies: Fitting = {
            "messages": message_rule, "gradient": gradient_rule, "balls": balls_rule,
        }  # fmt: skip
        if problem.condition is not None and problem.condition <= QUICK:
            energies = {"gradient": gradient_rule} | energies
        return energies | own
    raise AsynchronyError(f"no rule is known for a {type(problem).__name__}")


def sends_letters(
    problem: Problem | LayeredProblem | StackProblem, rule: str, step: str | float = "auto"
) -> bool:
    """Whether packets of energies hold gradients: nodes of a pairwise energy that make gradient
    steps compute both sides of their edges."""
    if not isinstance(problem, Objective) or choose(problem, rule, step) != "gradient":
        return True
    return not problem.node.pairwise


def choose(
    problem: Problem | LayeredProblem | StackProblem,
    rule: str = "auto",
    step: str | float = "auto",
) -> str:
    """The name of a rule that fits the problem.

    ``"auto"`` with a step (a number or ``"certified"``) means gradient steps: messages take such
    steps only where a node cannot minimise its own energy.
    """
    known = fitting(problem)
    if "gradient" not in known and step != "auto":
        raise ConfigError(
            f"step={step!r} was given for a model whose rule, {next(iter(known))!r}, has no step "
            f"size; expected step='auto'"
        )
    if rule == "auto":
        return "gradient" if step != "auto" else next(iter(known))
    if rule not in (*RULES, *_OWN):
        raise ConfigError(f"rule={rule!r}; expected one of auto, {', '.join((*RULES, *_OWN))}")
    if rule not in known:
        raise ConfigError(
            f"rule={rule!r} does not fit this model; expected one of auto, {', '.join(known)}"
        )
    if not takes_step(rule, step):
        raise ConfigError(f"step={step!r} was given with rule={rule!r}, {_STEPLESS[rule]}")
    return rule


_STEPLESS = {
    "balls": "whose nodes solve; expected step='auto'",
    "messages": "whose nodes take single steps; expected rule='gradient', or another step",
}


def takes_step(rule: str, step: str | float) -> bool:
    """Whether a rule for energies has a use for a step: balls have for none but ``"auto"``, and
    messages have no momentum."""
    return step == "auto" or not (rule == "balls" or (rule == "messages" and step == "momentum"))


def rule_for(
    problem: Problem | LayeredProblem | StackProblem,
    rule: str = "auto",
    step: str | float = "auto",
    age: int | None = None,
    *,
    moving: bool = False,
    radius: int | None = None,
) -> Rule:
    """The rule a node follows on this problem.

    Args:
        rule: ``"auto"``, or one that is :func:`fitting`.
        step: For gradient steps, see :mod:`hogwild.rules.steps`; messages take such steps where a
            node cannot minimise its own energy.
        age: Largest age of an embedding inside a packet; ``None``: no bound.
        moving: Whether the problem may change during a run, as in a stack above its first level.
        radius: Of balls; ``None``: the usual one.
    """
    name = choose(problem, rule, step)
    if isinstance(problem, StackProblem):
        begun = enumerate(problem.begun)
        rules = [rule_for(level, name, step, age, moving=s > 0) for s, level in begun]
        return StackRule(problem, rules)
    made = fitting(problem)[name]
    if name == "balls":
        return made(problem, moving=moving, radius=radius)
    if isinstance(problem, Objective) and not is_own(name):
        return made(problem, step, age=age, moving=moving)
    return made(problem)


__all__ = [
    "LAYERED", "RULES", "StackRule", "balls_rule", "choose", "fitting", "fixed_point_rule",
    "gradient_rule", "is_own", "layered_rule", "message_rule", "register",
    "rule_for", "sends_letters", "takes_step",
]  # fmt: skip
