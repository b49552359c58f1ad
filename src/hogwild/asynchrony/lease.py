"""Leases: how long a node counts on a neighbour that it no longer hears.

Without word from a neighbour a node cannot know whether the neighbour is gone or only slow. It
keeps the neighbour for a *lease*, with the last packet and the last features that it has, and
computes the answer of the graph that it believes in. This module turns the frames of a scenario
into the frames that nodes believe in.
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


def believed(scenario: Scenario, lease: int) -> list[Frame]:
    """The frames that nodes believe in: edges (and nodes) that have gone stay, silent, for
    ``lease`` ticks. Nodes that are there come first, in the order of the scenario's frame."""
    if not lease:
        return list(scenario.frames)
    last: dict[int, tuple[Frame, int]] = {}  # where the features of each node last were
    ghosts: dict[Ends, _Ghost] = {}
    out: list[Frame] = []
    moments = {frame.time: frame for frame in scenario.frames}
    known: dict[Ends, dict[str, Tensor]] = {}
    now = scenario.frames[0]
    pending = sorted(moments)
    while pending:
        time = pending.pop(0)
        if time in moments:
            now = moments[time]
            last |= {int(i): (now, row) for row, i in enumerate(now.ids.tolist())}
            edges = _edges(now)
            for ends, features in known.items():
                if ends not in edges:
                    ghosts[ends] = _Ghost(time + lease, features)
                    if time + lease < scenario.length:
                        pending = sorted({*pending, time + lease})
            known = edges
        ghosts = {e: g for e, g in ghosts.items() if e not in known and g.until > time}
        out.append(_frame(time, now, ghosts, last))
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
