"""What changes from one frame of a scenario to the next, and what stays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.asynchrony.scenario import Frame, Numbering, edge_keys
from hogwild.asynchrony.schedule import Names
from hogwild_node.rules.base import Kept, Pairs


class Register:
    """Numbers for the nodes and edges of a scenario: each keeps its number through all frames."""

    def __init__(self) -> None:
        self.of_nodes, self.of_edges = Numbering(), Numbering()

    def names(self, frame: Frame) -> Names:
        """The numbers of a frame's nodes and edges."""
        nodes = self.of_nodes(frame.ids)
        return Names(nodes, self.of_edges(edge_keys(nodes, frame.data.edge_index)))


@dataclass(frozen=True)
class Change:
    """The change from one frame to the next.

    Attributes:
        kept: What stays.
        hello: Which nodes [N] tell their neighbours about themselves: those that are new, and those
            whose features or neighbours have changed.
        fresh: Which edges are new, [E].
    """

    kept: Kept
    hello: Tensor
    fresh: Tensor

    @property
    def nothing(self) -> bool:
        """Whether nothing has changed for anybody."""
        nodes, same = self.kept.nodes[0], self.kept.same[0]
        return same.numel() == nodes.numel() == self.hello.numel() and not bool(self.fresh.any())

    def repeat(self, runs: int, before: Frame, after: Frame) -> Kept:
        """What stays on ``runs`` disjoint copies of both graphs."""
        nodes = after.ids.numel(), before.ids.numel()
        edges = after.data.edge_index.size(1), before.data.edge_index.size(1)
        return Kept(
            _copies(self.kept.nodes, runs, nodes),
            _copies(self.kept.edges, runs, edges),
            _copies(self.kept.same, runs, nodes),
        )

    @classmethod
    def between(cls, before: Frame, after: Frame, names: tuple[Names, Names]) -> Change:
        """The change between two frames, whose nodes and edges have these ``names``."""
        old, new = names
        nodes, edges = _pairs(new.nodes, old.nodes), _pairs(new.edges, old.edges)
        stays = _mask(nodes[0], new.nodes.numel())
        n, m = after.ids.numel(), before.ids.numel()
        dst, src = after.data.edge_index[1].cpu(), after.data.edge_index[0].cpu()
        degree = torch.bincount(dst, minlength=n)
        was = torch.bincount(before.data.edge_index[1].cpu(), minlength=m)
        # A node's own affairs: its features, and how many edges lead to it.
        own = torch.zeros(n, dtype=torch.bool)
        own[nodes[0]] = _equal(after, before, "x", nodes) & (degree[nodes[0]] == was[nodes[1]])
        held = _mask(edges[0], new.edges.numel())
        fine = held.clone()
        for name in ("edge_attr", "edge_weight"):
            fine[edges[0]] &= _equal(after, before, name, edges)
        bad = torch.zeros(n, dtype=torch.long)
        bad.index_add_(0, dst, (~(fine & own[src])).long())
        # The same number of edges, and all of them were there before: none has gone either.
        same = own & (bad == 0)
        strange = torch.zeros(n, dtype=torch.long).index_add_(0, dst, (~held).long())
        met = stays & own & (strange == 0)
        chosen = same[nodes[0]]
        kept = Kept(nodes, edges, (nodes[0][chosen], nodes[1][chosen]))
        return cls(kept, ~met, ~held)


def _pairs(now: Tensor, before: Tensor) -> Pairs:
    """Where the numbers that are in both lists lie in the first, and where in the second."""
    order = before.argsort()
    place = torch.searchsorted(before[order], now).clamp_max(max(before.numel() - 1, 0))
    if not before.numel():
        return now[:0], now[:0]
    there = order[place]
    here = (before[there] == now).nonzero()[:, 0]
    return here, there[here]


def _mask(index: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, dtype=torch.bool)
    out[index] = True
    return out


def _equal(after: Frame, before: Frame, name: str, pairs: Pairs) -> Tensor:
    """Which rows are equal in both frames."""
    now, then = after.data.get(name), before.data.get(name)
    if now is None or then is None:
        return torch.ones(pairs[0].numel(), dtype=torch.bool)
    same = now.cpu()[pairs[0]] == then.cpu()[pairs[1]]
    return same.flatten(1).all(1) if same.dim() > 1 else same


def _copies(pairs: Pairs, runs: int, sizes: tuple[int, int]) -> Pairs:
    run = torch.arange(runs)[:, None]
    here, there = ((x + size * run).flatten() for x, size in zip(pairs, sizes, strict=True))
    return here, there
