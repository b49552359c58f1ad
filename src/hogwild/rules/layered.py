"""The rules that apply a map or layers: they have no step."""

from __future__ import annotations

from functools import partial

from hogwild.errors import AsynchronyError
from hogwild.models.program import LayeredProblem
from hogwild.problems.base import FixedPoint
from hogwild.rules.base import About
from hogwild_node.rules import (
    CachingRule,
    FixedPointRule,
    OverwritingRule,
    ResendingRule,
    Rule,
)
from hogwild_node.rules.layered import LayersRule

REMEDY = (
    "rule='caching' gives the synchronous answer in any order and with losses, in packets of all "
    "layers; rule='resending' in smaller packets that are acknowledged"
)
EXACT = "rule='caching' or rule='resending', which end at the synchronous answer"


def fixed_point_rule(problem: FixedPoint) -> FixedPointRule:
    """The rule that applies a map."""
    return FixedPointRule(problem.node, problem.graph.everyone, problem.channels)


def _layers(problem: LayeredProblem, rule: type[LayersRule]) -> Rule:
    return rule(problem.node, problem.graph.everyone, problem.channels)


def overwriting_rule(problem: LayeredProblem) -> Rule:
    """The paper's rule for layers.

    Raises:
        AsynchronyError: The layers have several widths.
    """
    if len(set(problem.widths)) > 1:
        raise AsynchronyError(
            f"rule='overwriting' was asked of layers whose values have the widths "
            f"{', '.join(map(str, problem.widths))} (the last is what the last layer gives); a "
            f"node that overwrites has one value, which its neighbours read at whatever layer "
            f"they are, so expected one width. Use rule='caching', which is exact for any widths"
        )
    return _layers(problem, OverwritingRule)


def resending_rule(problem: LayeredProblem) -> Rule:
    """Layers whose values are acknowledged.

    Raises:
        AsynchronyError: The graph has an edge without a reverse.
    """
    problem.graph.require_reverse_links(
        "rule='resending' needs an acknowledgement for every value; rule='caching' needs none"
    )
    return _layers(problem, ResendingRule)


FIXED = About(
    fits=FixedPoint,
    make=fixed_point_rule,
    differentiable=True,
    proof="contraction",
    better=("balls",),
    tuning="training with a smaller kappa or modulus of contraction",
)
CACHING = About(
    fits=LayeredProblem,
    make=partial(_layers, rule=CachingRule),
    proof="layers",
    exact=True,
    timed=True,
    reason="a node recomputes all layers from its neighbours' newest values of all of them: values "
    "of layer l + 1 are right once those of layer l are and have been heard, so the answer is the "
    "synchronous one after L (S + D) ticks, and under any loss or delay as soon as values have "
    "crossed L hops",
    gain=", in which nobody waits, in larger packets",
)
OVERWRITING = About(
    fits=LayeredProblem,
    make=overwriting_rule,
    proof="layers",
    reason="a node applies its layers to the values that its neighbours last sent, of whichever "
    "layer: the result depends on the schedule, and no further update mends it",
    late=EXACT,
    failing="{degrades}: predictions move by up to {distance} of the largest{effect}, since a node "
    f"applies its layers to whichever layer's values it last heard. What to do: {REMEDY}.",
)
RESENDING = About(
    fits=LayeredProblem,
    make=resending_rule,
    proof="layers",
    exact=True,
    reason="nodes wait for the layer that they need, and every value is sent until it is "
    "acknowledged: the answer is the synchronous one as soon as every node has had its layers, "
    "with any delay and loss that lets a packet through now and then",
    better=("caching",),
    tuning="",
)
