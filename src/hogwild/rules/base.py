"""What a rule says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hogwild.errors import is_number
from hogwild_node.rules import Rule

STEPS = ("a number", "certified")
"""Kinds of steps beside ``"auto"``."""
CONVEX = "training with a larger beta (of a soft energy: a smaller condition or reach)"
MORE = "more ticks, if runs still come nearer"
SOLVE = (
    " on a model of one layer: exact once information has crossed the graph, if every node may "
    "know and solve the whole graph"
)
"""What solves of balls are."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What a rule says about itself. Nobody asks for a rule's name to know more about the rule.

    The sentences are advice. They go on where the caller's sentence ends.

    Attributes:
        fits: The problems that it fits: :class:`~hogwild.problems.Objective` (energies),
            :class:`~hogwild.problems.FixedPoint`, layers, or several of them.
        make: Called as ``make(problem, **options)``; returns the rule.
        options: What ``make`` takes of ``step``, ``age``, ``moving`` and ``radius``.
        own: Whether it is a user's own.
        first: Called as ``first(problem)``: whether ``"auto"`` prefers it to rules before it.
        steps: The :data:`STEPS` that it takes; ``None``: it takes any step and does not use it.
        stepping: Whether its updates are such steps; otherwise at most where nodes do no better.
        stepless: Why it refuses other steps, and what is expected.
        moves: Whether its problem may change during a run, as in a stack above the first level.
        both_sides: Whether nodes compute both sides of the edges of pairwise energies, so that
            packets hold no gradients.
        differentiable: Whether torch can differentiate its updates.
        proof: What is proved of it: a theorem of :mod:`hogwild.analysis.certify` by name, or a
            function (problem, settings, answer) → :class:`hogwild.Certificate`.
        exact: Of layers: whether the answer is the synchronous one, under losses, too.
        timed: Of layers: whether the answer is exact after L (S + D) ticks.
        reason: Of layers: why.
        better: Names of rules that are in time earlier.
        gain: Why this rule is in time earlier than one whose ``better`` has it.
        tuning: What else would help.
        late: What would help where no run comes near the answer.
        slow: What would help where runs have not arrived yet.
        stuck: What would help where runs come no nearer.
        coarse: What would help where rounded packets are too coarse.
        failing: What happened, where runs have not arrived; holds ``{effect}``, ``{distance}`` and
            ``{degrades}``.
    """

    fits: type | tuple[type, ...]
    make: Callable[..., Rule]
    options: tuple[str, ...] = ()
    own: bool = False
    first: Callable[[Any], bool] | None = None
    steps: tuple[str, ...] | None = ()
    stepping: bool = False
    stepless: str = "which has no step size; expected step='auto'"
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
    late: str = MORE
    slow: str = ""
    stuck: str = ""
    coarse: str = ""
    failing: str = ""

    def takes(self, step: str | float) -> bool:
        """Whether it has a use for this step."""
        kind = STEPS[0] if is_number(step) else step
        return step == "auto" or self.steps is None or kind in self.steps
