"""Whether a recorded schedule is partially asynchronous."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.asynchrony.trace import Trace
from hogwild.graph import Graph


@dataclass
class Assumptions:
    """Whether a trace is partially asynchronous with bound B, and what was seen."""

    bound: int
    longest_gap: int  # (a) ticks between two updates of a node
    oldest_view: int  # (b) age of a view when it was used
    updates: bool  # (a) holds
    staleness: bool  # (b) holds
    own_state: bool  # (c) holds

    @property
    def hold(self) -> bool:
        return self.updates and self.staleness and self.own_state


def check_trace(trace: Trace, graph: Graph, bound: int) -> Assumptions:
    """Check (a), (b) and (c) on a trace, independently of what drew it.

    Plain Python over the recorded integers: every node's update times, every view's age. (c), that
    a node knows its own state, needs no view: views on self-loops are not counted. The check is
    that no node hears the future.
    """
    last = {node: 0 for node in range(graph.num_nodes)}
    source, target = graph.src.tolist(), graph.dst.tolist()
    gap = age = 0
    own = True
    end = max((tick.time for tick in trace.ticks), default=0)
    for tick in trace.ticks:
        for node in tick.nodes.tolist():
            gap = max(gap, tick.time - last[node])
            last[node] = tick.time
        for edge, view in zip(tick.edges.tolist(), tick.view.tolist(), strict=True):
            own &= view <= tick.time
            if source[edge] != target[edge]:
                age = max(age, tick.time - view)
    gap = max([gap, *(end - time for time in last.values())])
    return Assumptions(bound, gap, age, gap <= bound, age < bound, own)
