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
    "overwriting": OverwritingRule,
    "waiting": WaitingRule,
    "resending": ResendingRule,
    "caching": CachingRule,
}


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
    missing = problem.graph.missing_reverse_links() if name == "resending" else None
    if missing is not None and missing.numel():
        j, i = missing[:, 0].tolist()
        raise AsynchronyError(
            f"rule='resending' needs an acknowledgement for every value, and {missing.size(1)} of "
            f"{problem.graph.num_edges} edges have no reverse link for it (first: {j} -> {i}). "
            f"Expected an undirected communication graph (torch_geometric.utils.to_undirected), "
            f"or rule='caching', which needs none"
        )
    return LAYERED[name](problem.node, problem.graph.everyone, problem.channels)
