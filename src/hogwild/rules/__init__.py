"""Which rules there are, and which fit which problem. A rule says about itself what others ask
(:class:`~hogwild.rules.base.About`); the rules are in :mod:`hogwild_node.rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.models.program import LayeredProblem, StackProblem
from hogwild.problems.base import Objective, Problem
from hogwild.rules.balls import BALLS, BallsRule
from hogwild.rules.base import GRADIENT, MESSAGES, About, gradient_rule, message_rule
from hogwild.rules.levels import (
    CACHING,
    FIXED,
    OVERWRITING,
    RESENDING,
    StackRule,
    fixed_point_rule,
)
from hogwild_node.rules import Rule

AnyProblem = Problem | LayeredProblem | StackProblem

RULES: dict[str, About] = {
    "messages": MESSAGES,
    "gradient": GRADIENT,
    "fixed-point": FIXED,
    "balls": BALLS,
    "caching": CACHING,
    "overwriting": OVERWRITING,
    "resending": RESENDING,
}
"""The library's rules by name; beside them ``"auto"``, the first of :func:`fitting`."""

_OWN: dict[str, About] = {}


def register(
    name: str,
    make: Callable[[Any], Rule],
    kind: type[Problem] = Objective,
    *,
    proof: Callable[..., Any] | None = None,
) -> None:
    """Let ``rule=name`` mean a rule of your own, in :func:`hogwild.simulate` and everywhere else.

    :func:`hogwild.testing.check_rule` tests it.

    Args:
        name: The name, which no rule of the library has. A name that was registered before gets the
            new rule.
        make: Called as ``make(problem)``; returns the rule.
        kind: The problems that the rule fits: :class:`~hogwild.problems.Objective` (energies) or
            :class:`~hogwild.problems.FixedPoint`.
        proof: What :func:`hogwild.certify` says of it: called as ``proof(problem, settings,
            answer)``, where ``answer()`` is the solution; returns a ``Certificate`` of
            :mod:`hogwild.analysis.certificate`.
            ``None``: nothing is proved.
    """
    if not isinstance(name, str) or not name or name in ("auto", *RULES):
        taken = ", ".join(("auto", *RULES))
        raise ConfigError(f"name={name!r}; expected a name other than {taken}")
    if not callable(make):
        raise ConfigError(f"make={make!r}; expected a function that makes a rule of a problem")
    if not (isinstance(kind, type) and issubclass(kind, Problem)):
        raise ConfigError(f"kind={kind!r}; expected hogwild.problems.Objective or FixedPoint")
    # It takes the problem alone, whatever else its parameters are called.
    _OWN[name] = About(fits=kind, make=lambda problem: make(problem), proof=proof)


def about(name: str) -> About:
    """What a rule says about itself."""
    known = RULES | _OWN
    if name not in known:
        raise ConfigError(f"rule={name!r}; expected one of {', '.join(('auto', *known))}")
    return known[name]


def sooner(rule: str) -> str:
    """Rules that are in time earlier and why, in words."""
    return "; ".join(f"rule={name!r}{about(name).gain}" for name in about(rule).better)


def fitting(problem: AnyProblem) -> dict[str, About]:
    """The rules that fit a problem, by name; ``"auto"`` is the first.

    * *Energies*: ``"messages"``, the paper's gradient steps, ``"gradient"``, or solves of
      balls, ``"balls"``. Gradient steps come first where the condition number is known beforehand
      and at most :data:`~hogwild_node.soft.QUICK`.
    * *Fixed points*: ``"fixed-point"``, or ``"balls"``.
    * *Layers*: ``"caching"``, which ends at the synchronous answer on every graph, for layers of
      any widths and with losses; ``"overwriting"`` (the paper's semantics), or ``"resending"``.
    * *Stacks*: those of their levels.

    Rules of your own (:func:`register`) come last.
    """
    if isinstance(problem, StackProblem):
        return fitting(problem.first)
    found = {n: rule for n, rule in (RULES | _OWN).items() if isinstance(problem, rule.fits)}
    if not found:
        raise AsynchronyError(f"no rule is known for a {type(problem).__name__}")
    order = sorted(found, key=lambda n: not ((first := found[n].first) and first(problem)))
    return {name: found[name] for name in order}


def choose(problem: AnyProblem, rule: str = "auto", step: str | float = "auto") -> str:
    """The name of a rule that fits the problem.

    ``"auto"`` with a step (a number or ``"certified"``) means gradient steps: messages take such
    steps only where a node cannot minimise its own energy.
    """
    known = fitting(problem)
    if rule == "auto":
        usable = [name for name, found in known.items() if step == "auto" or found.stepping]
        rule = [*usable, *known][0]
    found = about(rule)
    if rule not in known:
        raise ConfigError(
            f"rule={rule!r} does not fit this model; expected one of auto, {', '.join(known)}"
        )
    if not found.takes(step):
        raise ConfigError(
            f"step={step!r} was given with rule={rule!r}, which has no step size; expected "
            f"step='auto'"
        )
    return rule


def sends_letters(problem: AnyProblem, rule: str, step: str | float = "auto") -> bool:
    """Whether packets of energies hold gradients: not where nodes compute both sides of the edges
    of a pairwise energy."""
    if not isinstance(problem, Objective):
        return True
    return not (problem.node.pairwise and about(choose(problem, rule, step)).both_sides)


def check_radius(rule: str, radius: int | None) -> None:
    """Raise if a radius was given with a rule that has none."""
    with_radius = [name for name, found in RULES.items() if "radius" in found.options]
    if radius is not None and rule not in with_radius:
        expected = " or ".join(f"rule={name!r}" for name in with_radius)
        raise ConfigError(f"radius={radius} was given with rule={rule!r}; expected {expected}")


def rule_for(
    problem: AnyProblem,
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
        step: For gradient steps, see :mod:`hogwild.rules.base`; messages take such steps where
            a node cannot minimise its own energy.
        age: Largest age of an embedding inside a packet; ``None``: no bound.
        moving: Whether the problem may change during a run, as in a stack above its first level.
        radius: Of balls; ``None``: the usual one.
    """
    name = choose(problem, rule, step)
    if isinstance(problem, StackProblem):
        begun = enumerate(problem.problems())
        rules = [rule_for(level, name, step, age, moving=s > 0) for s, level in begun]
        return StackRule(problem, rules)
    found = about(name)
    if moving and not found.moves:
        raise ConfigError(
            f"rule={name!r} was given for a stack of several layers, whose problems move; expected "
            f"another rule, such as 'messages' or 'gradient', or a model with num_layers=1"
        )
    given = {"step": step, "age": age, "moving": moving, "radius": radius}
    return found.make(problem, **{name: given[name] for name in found.options})


__all__ = [
    "RULES", "About", "AnyProblem", "BallsRule", "StackRule", "about", "check_radius", "choose",
    "fitting", "fixed_point_rule", "gradient_rule", "message_rule", "register", "rule_for",
    "sends_letters", "sooner",
]  # fmt: skip
