"""All nodes together, each with its neighbours' current values: a rule with a clock.

The simplest executor of all. With it a rule can be watched without any delay, and every other
executor is compared with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild_node.rules.base import Rule


@torch.no_grad()
def synchronous(rule: Rule, graph: Graph, h: Tensor, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many updates of all nodes.

    Args:
        rule: What a node does.
        graph: Who hears whom. A rule with letters needs a link back along every edge.
        h: Where the nodes begin, [R, k, N].
        updates: Updates of every node.
    """
    everyone = graph.everyone
    letters = rule.begin(h, everyone.current(h))
    for _ in range(updates):
        inbox = everyone.current(rule.broadcast(h, everyone))
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = rule.update(h, inbox, mail, everyone)
    return h
