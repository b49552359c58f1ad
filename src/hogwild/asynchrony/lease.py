"""Leases: how long a node counts on a neighbour that it no longer hears.

Without word from a neighbour a node cannot know whether the neighbour is gone or only slow. It
keeps the neighbour for a *lease*, with the last packet and the last features that it has, and
computes the answer of the graph that it believes in. This module turns true frames into the frames
that nodes believe in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.scenario import Frame, Scenario

Ends = tuple[int, int]


@dataclass
class _Ghost:
    """An edge that has gone: until when its receiver counts on it, and its last features."""

    until: int
    features: dict[str, Tensor]


class Beliefs:
    """The frames that nodes believe in, one after the other: edges (and nodes) that have gone stay,
    silent, for ``lease`` ticks. Nodes that are there come first, in the order of the true frame.

    Attributes:
        due: When nodes next give up somebody who is gone; ``None``: nobody is waited for.
    """

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.due: int | None = None
        self._last: dict[int, tuple[Frame, int]] = {}  # where the features of each node last were
        self._ghosts: dict[Ends, _Ghost] = {}
        self._known: dict[Ends, dict[str, Tensor]] = {}
        self._now: Frame | None = None

    def see(self, frame: Frame) -> Frame:
        """The frame that nodes believe in when the graph changes to this one."""
        if not self.lease:
            return frame
        self._now = frame
        self._last |= {int(i): (frame, row) for row, i in enumerate(frame.ids.tolist())}
        edges = _edges(frame)
        for ends, features in self._known.items():
            if ends not in edges:
                self._ghosts[ends] = _Ghost(frame.time + self.lease, features)
        self._known = edges
        return self.at(frame.time)

    def at(self, time: int) -> Frame:
        """The frame that nodes believe in at this tick, if the graph has not changed since."""
        assert self._now is not None
        kept = self._ghosts.items()
        self._ghosts = {e: g for e, g in kept if e not in self._known and g.until > time}
        self.due = min((ghost.until for ghost in self._ghosts.values()), default=None)
        return _frame(time, self._now, self._ghosts, self._last)


def believed(scenario: Scenario, lease: int) -> list[Frame]:
    """The frames of a scenario that nodes believe in (:class:`Beliefs`)."""
    beliefs = Beliefs(lease)
    out: list[Frame] = []
    for frame, end in zip(scenario, [*scenario.times[1:], scenario.length], strict=True):
        out.append(beliefs.see(frame))
        while beliefs.due is not None and beliefs.due < end:
            out.append(beliefs.at(beliefs.due))
    return out


def _edges(frame: Frame) -> dict[Ends, dict[str, Tensor]]:
    """The edges of a frame by the identities of their ends, with their features."""
    data, ids = frame.data, frame.ids.tolist()
    names = [name for name in ("edge_attr", "edge_weight") if data.get(name) is not None]
    return {
        (ids[j], ids[i]): {name: data[name][e] for name in names}
        for e, (j, i) in enumerate(data.edge_index.T.tolist())
    }


def _frame(
    time: int, now: Frame, ghosts: dict[Ends, _Ghost], last: dict[int, tuple[Frame, int]]
) -> Frame:
    if not ghosts:
        return Frame(time, now.data, now.ids)
    here = now.ids.tolist()
    missing = sorted({i for ends in ghosts for i in ends} - set(here))
    row = {i: place for place, i in enumerate([*here, *missing])}
    parts: dict[str, Any] = {}
    data = now.data
    for name in data.keys():  # noqa: SIM118 (a method of PyG's)
        value = data[name]
        if isinstance(value, Tensor) and name not in ("edge_index", "y", "node_id"):
            if name in ("edge_attr", "edge_weight"):
                more = [ghost.features[name] for ghost in ghosts.values()]
            elif value.dim() and value.size(0) == len(here) and data.is_node_attr(name):
                more = [last[i][0].data[name][last[i][1]] for i in missing]
            else:
                continue
            parts[name] = torch.cat([value, *(each.unsqueeze(0) for each in more)])
    ends = torch.tensor([[row[j], row[i]] for j, i in ghosts]).T
    edges = torch.cat([data.edge_index, ends.to(data.edge_index)], 1)
    silent = torch.arange(edges.size(1)) >= data.edge_index.size(1)
    ids = torch.cat([now.ids, torch.tensor(missing, dtype=torch.long)])
    return Frame(time, Data(edge_index=edges, **parts), ids, silent, len(missing))
