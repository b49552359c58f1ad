"""Nodes whose networks have the same features: several runs of one graph are copies of it.

Compiled updates read the features' part of a node's networks in every update. Where nodes are
alike, all of them read the rows of the first one, which then stay in the processor's cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1 << 14
"""Rows that are hashed or compared at a time."""


def alike(nodes: Tensor, edges: Tensor, begin: Tensor) -> Tensor | None:
    """The first node that has the same rows as each node, [N]; ``None`` if few nodes are alike.

    Args:
        nodes: Rows of the nodes, [R, N, ·].
        edges: Rows of the edges by receiver, [R, E, ·].
        begin: Where the edges into each node begin, [N + 1].
    """
    count = nodes.shape[1]
    found = _hash(nodes)
    if 2 * found.unique().numel() > count:
        return None
    degree = begin[1:] - begin[:-1]
    receiver = torch.repeat_interleave(degree)
    place = torch.arange(receiver.numel()) - begin[receiver]
    found = found.index_add(0, receiver, _hash(edges) * (2 * place + 3)) * 31 + degree
    _, group = found.unique(return_inverse=True)
    numbers = torch.arange(count)
    first = torch.full((count,), count).scatter_reduce(0, group, numbers, "amin")[group]
    # A hash may lie: a node whose rows differ from those of the first one keeps its own.
    ours = torch.zeros(count, dtype=torch.bool)
    ours[~_equal(nodes, numbers, first)] = True
    ours |= degree != degree[first]
    other = torch.where(
        ours[receiver], torch.arange(receiver.numel()), begin[first][receiver] + place
    )
    ours[receiver[~_equal(edges, torch.arange(receiver.numel()), other)]] = True
    first = torch.where(ours, numbers, first)
    return first if 2 * first.unique().numel() <= count else None


def _hash(rows: Tensor) -> Tensor:
    """A number for each row, over all replicas, [n]."""
    replicas, count, width = rows.shape
    found = torch.zeros(count, dtype=torch.long)
    odd = (2 * torch.arange(replicas * width) + 1) * 0x9E3779B97F4A7C1
    for r in range(replicas):
        scale = odd[r * width : (r + 1) * width]
        for at in range(0, count, BLOCK):
            bits = rows[r, at : at + BLOCK].view(torch.long)
            found[at : at + BLOCK] += ((bits ^ (bits >> 29)) * scale).sum(1)
    return found


def _equal(rows: Tensor, some: Tensor, others: Tensor) -> Tensor:
    """Whether the rows ``some`` are those of ``others`` in all replicas, [n]."""
    found = torch.ones(some.numel(), dtype=torch.bool)
    for r in range(rows.shape[0]):
        for at in range(0, some.numel(), BLOCK):
            here = slice(at, at + BLOCK)
            same = rows[r, some[here]].view(torch.long) == rows[r, others[here]].view(torch.long)
            found[here] &= same.all(1)
    return found
