r"""What rules say about themselves, and how the library's rules are made of a problem.

The step sizes of gradient steps, by name:

* A number: the same for all nodes, as in the paper.
* ``"certified"``: :math:`a / r_i` with :math:`r_i` a bound on the absolute row sums of the Hessian
  and :math:`a = \theta / (\tfrac12 + D')`, :math:`D'` the age of the oldest embedding inside any
  gradient used. Where nodes compute both sides of their edges, :math:`\theta' / (\tfrac12 r_i + D
  q_i)` with other bounds (:meth:`~hogwild.problems.Objective.block_bounds`).
  Convergence is proved in the documentation ("Asynchrony", "The mathematics").
* ``"auto"``: the inverse of the node's own curvature block, damped
  (:mod:`hogwild_node.rules.gradient`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

from torch import Tensor

from hogwild.errors import ConfigError, is_number
from hogwild.problems.base import Objective
from hogwild_node.local import BothSides, LocalEnergy
from hogwild_node.rules import GradientRule, MessageRule, Rule
from hogwild_node.soft import QUICK


@dataclass(frozen=True, kw_only=True)
class About:
    """What a rule says about itself. Nobody asks for a rule's name to know more about the rule.

    The sentences are advice. They go on where the caller's sentence ends.

    Attributes:
        fits: The problems that it fits: :class:`~hogwild.problems.Objective` (energies),
            :class:`~hogwild.problems.FixedPoint`, layers, or several of them.
        make: Called as ``make(problem, **options)``; returns the rule.
        first: Called as ``first(problem)``: whether ``"auto"`` prefers it to rules before it.
        stepping: Whether its updates are steps of a size; otherwise at most where nodes do no
            better.
        moves: Whether its problem may change during a run, as in a stack above the first level.
        both_sides: Whether nodes compute both sides of the edges of pairwise energies, so that
            packets hold no gradients.
        differentiable: Whether torch can differentiate its updates.
        proof: What is proved of it: a theorem of :mod:`hogwild.analysis.certify` by name, or a
            function (problem, settings, answer) → ``Certificate`` of
            :mod:`hogwild.analysis.certificate`.
        exact: Of layers: whether the answer is the synchronous one, under losses, too.
        timed: Of layers: whether the answer is exact after L (S + D) ticks.
        reason: Of layers: why.
        better: Names of rules that are in time earlier.
        gain: Why this rule is in time earlier than one whose ``better`` has it.
        tuning: What else would help.
        safer: The name of a rule that arrives in more cases.
        remedy: What to do, where no further update helps.
    """

    fits: type | tuple[type, ...]
    make: Callable[..., Rule]
    first: Callable[[Any], bool] | None = None
    stepping: bool = False
    moves: bool = True
    both_sides: bool = False
    differentiable: bool = False
    proof: str | Callable[..., Any] | None = None
    exact: bool = False
    timed: bool = False
    reason: str = ""
    better: tuple[str, ...] = ()
    gain: str = ""
    tuning: str = "fewer layers, or smaller S and D"
    safer: str | None = None
    remedy: str = ""

    @cached_property
    def options(self) -> list[str]:
        """What ``make`` takes of ``step``, ``age``, ``moving`` and ``radius``."""
        taken = signature(self.make).parameters
        return [name for name in ("step", "age", "moving", "radius") if name in taken]

    def takes(self, step: str | float) -> bool:
        """Whether it has a use for this step."""
        return step == "auto" or "step" in self.options


THETA = 0.95
"""Share of the largest certified step that is taken: at 1 the proof's margin vanishes."""
ONE_HOP = 0.7
"""The same where nodes compute both sides of their edges. With S = 5 and D = 2 the proved rate is
five times that of 0.95, and runs need a third more updates."""

NAMED = ("auto", "certified")


def certified_bounds(problem: Objective, letters: bool) -> tuple[Tensor, Tensor]:
    """The r and the q of certified steps, [R, k, N] each; r and r where neighbours send gradients
    (``letters``)."""
    rows = problem.row_bounds()
    found = (rows, rows) if letters else problem.block_bounds()
    return found[0].expand_as(rows), found[1].expand_as(rows)


def certified_steps(problem: Objective, age: int, letters: bool = True) -> Tensor:
    r"""Steps :math:`\theta / (\tfrac12 r_i + D' q_i)` [R, k, N] for embeddings up to ``age``
    old."""
    rows, apart = certified_bounds(problem, letters)
    return (THETA if letters else ONE_HOP) / (0.5 * rows + age * apart)


def check_step(step: object) -> None:
    """Raise unless this is a step size, or the name of a way to choose one."""
    named = isinstance(step, str) and step in NAMED
    if not named and not (is_number(step) and 0 < step < math.inf):
        raise ConfigError(
            f"step={step!r}; expected a positive number, or one of {', '.join(NAMED)}"
        )


def gradient_rule(
    problem: Objective,
    step: str | float = "auto",
    *,
    age: int | None = None,
    moving: bool = False,
    letters: bool = False,
) -> GradientRule:
    """Gradient steps on a problem.

    Args:
        problem: The energy.
        step: A positive number, ``"certified"`` or ``"auto"``.
        age: D', needed by the certified step; ``None`` where no bound holds.
        moving: Whether the problem may change (:meth:`~hogwild_node.Rule.set_model`): the
            neighbours then send their shares of the bounds, too.
        letters: Whether neighbours send gradients even if the energy is pairwise. A problem that
            moves is posed to each node by what the node heard, so that only this node knows it.
    """
    check_step(step)
    graph, everyone = problem.graph, problem.graph.everyone
    node: LocalEnergy | BothSides = problem.node
    if problem.node.pairwise and not (moving or letters):
        node = BothSides(problem.node, graph.src, graph.reverse)
    rate: Tensor | float | None = None
    bounded = False
    if step == "certified":
        if age is None:
            raise ConfigError(
                "step='certified' needs a bound on the staleness, and the impairments given have "
                "none (unlimited loss, for instance): bound them (burst=...), or use step='auto'"
            )
        bounded = moving
        one_hop = isinstance(node, BothSides)
        rate = THETA / (0.5 + age) if moving else certified_steps(problem, age, not one_hop)
    elif not isinstance(step, str):
        rate = float(step)
    return GradientRule(node, everyone, problem.channels, rate=rate, bounded=bounded)


def message_rule(
    problem: Objective,
    step: str | float = "auto",
    *,
    age: int | None = None,
    moving: bool = False,
) -> MessageRule:
    """Messages, with :func:`gradient_rule` where a node cannot minimise its own energy."""
    return MessageRule(gradient_rule(problem, step, age=age, moving=moving, letters=True))


def _is_quick(problem: Objective) -> bool:
    """Whether gradient steps are known beforehand to need few updates."""
    return problem.condition is not None and problem.condition <= QUICK


CONVEX = "training with a larger beta (of a soft energy: a smaller condition or reach)"
GRADIENT = About(
    fits=Objective,
    make=gradient_rule,
    first=_is_quick,
    stepping=True,
    both_sides=True,
    differentiable=True,
    proof="descent",
    better=("messages", "balls"),
    tuning=CONVEX,
)
MESSAGES = About(
    fits=Objective,
    make=message_rule,
    proof="messages",
    better=("balls",),
    gain=", which needs fewer updates as a rule, in larger packets",
    tuning=CONVEX,
    safer="gradient",
)
