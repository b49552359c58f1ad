"""The rules for layers (:mod:`hogwild_node.rules`), on a problem of layers."""

from __future__ import annotations

from hogwild.errors import AsynchronyError
from hogwild.models.layers import LayeredProblem
from hogwild_node.rules import (
    CachingRule,
    OverwritingRule,
    ResendingRule,
    Rule,
    WaitingRule,
)

LAYERED: dict[str, type[OverwritingRule | WaitingRule | ResendingRule | CachingRule]] = {
    "caching": CachingRule,
    "overwriting": OverwritingRule,
    "waiting": WaitingRule,
    "resending": ResendingRule,
}
"""The rules for layers. The first one, ``rule="auto"``, ends at the synchronous answer on every
graph, for layers of any widths and with losses."""


def layered_rule(problem: LayeredProblem, name: str) -> Rule:
    """The rule of this name, where it can run on the problem.

    Raises:
        AsynchronyError: ``"overwriting"`` on layers of several widths, or ``"resending"`` on a
            graph with an edge that has no reverse.
    """
    if name == "overwriting" and len(set(problem.widths)) > 1:
        raise AsynchronyError(
            f"rule='overwriting' was asked of layers whose values have the widths "
            f"{', '.join(map(str, problem.widths))} (the last is what the last layer gives); a "
            f"node that overwrites has one value, which its neighbours read at whatever layer "
            f"they are, so expected one width. Use rule='caching', which is exact for any widths"
        )
    if name == "resending":
        problem.graph.require_reverse_links(
            "rule='resending' needs an acknowledgement for every value; rule='caching' needs none"
        )
    return LAYERED[name](problem.node, problem.graph.everyone, problem.channels)
