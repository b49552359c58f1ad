"""The synchronous executor: all nodes update together, with their neighbours' current values.

Other executors are compared with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.graph import Graph
from hogwild_node.rules.base import Rule


@torch.no_grad()
def synchronous(rule: Rule, graph: Graph, h: Tensor, updates: int) -> Tensor:
    """The embeddings [R, k, N] after so many updates of all nodes, which begin at ``h`` [R, k, N].
    A rule with letters needs a reverse edge for every edge."""
    everyone = graph.everyone
    letters = rule.begin(h, everyone.current(h))
    for _ in range(updates):
        inbox = everyone.current(rule.broadcast(h, everyone))
        mail = None if letters is None else letters[..., graph.reverse]
        h, letters = rule.update(h, inbox, mail, everyone)
    return h
