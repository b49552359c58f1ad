"""Ready-made scenarios: every one is a function of its arguments and its seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.moving import Scenario
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.tasks.moving import waypoints
from hogwild.tasks.synthetic import near, radius_of


def swarm(
    nodes: int = 50,
    *,
    degree: float = 6.0,
    changes: int = 20,
    every: int = 300,
    speed: float = 0.02,
    channels: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Scenario:
    """A swarm that moves by random waypoints. Robots within a radius of each other are neighbours.

    Every robot measures ``channels`` random numbers, which stay with the robot; ``y`` is their mean
    over the swarm.

    Args:
        nodes: Number of robots.
        degree: Mean number of neighbours, which determines the radius.
        changes: Number of changes: the robots move, and with them the edges.
        every: Ticks between two changes.
        speed: How far a robot goes between two changes, relative to the side of the square.
    """
    random = np.random.default_rng(seed)
    position = waypoints(nodes, changes, speed, random)
    x = torch.from_numpy(random.standard_normal((nodes, channels))).to(dtype)
    y, radius = x.mean(0, keepdim=True).expand(nodes, -1), radius_of(position, degree)
    frames = [
        Data(x=x, edge_index=near(place, radius), pos=torch.from_numpy(place).to(dtype), y=y)
        for place in position
    ]
    return _scenario(frames, every, "swarm")


def drifting(
    data: Data,
    *,
    changes: int = 50,
    every: int = 20,
    size: float = 0.1,
    seed: int = 0,
) -> Scenario:
    """The features of a graph drift: in every change each feature takes a random step of ``size``
    times its standard deviation, and is drawn back to where it was. ``y`` stays as it is."""
    random = torch.Generator().manual_seed(seed)
    x = data.x.cpu()
    scale = x.std(0, correction=0, keepdim=True)
    away, frames = torch.zeros_like(x), [data.clone()]
    for _ in range(changes):
        pushed = torch.randn(x.shape, generator=random, dtype=x.dtype)
        away = 0.98 * away + size * scale * pushed
        frame = data.clone()
        frame.x = (x + away).to(data.x)
        frames.append(frame)
    return _scenario(frames, every, "drifting features")


def join_and_leave(
    data: Data,
    *,
    changes: int = 20,
    every: int = 100,
    share: float = 0.1,
    seed: int = 0,
) -> Scenario:
    """Nodes of a graph leave and come back: in every change about a ``share`` of the nodes that are
    there leaves, and half of those that are away come back. The first frame is the whole graph."""
    if not 0.0 <= share < 1.0:
        raise ConfigError(f"share={share!r}; expected a share of the nodes, from 0 to below 1")
    random = np.random.default_rng(seed)
    n = data.x.size(0)
    there = np.ones(n, dtype=bool)
    frames = [_part(data, torch.from_numpy(there))]
    for _ in range(changes):
        flip = random.random(n)
        there = np.where(there, flip >= share, flip < 0.5)
        if not there.any():
            there[int(random.integers(n))] = True
        frames.append(_part(data, torch.from_numpy(there)))
    return _scenario(frames, every, "join and leave")


def partition(
    data: Data,
    *,
    breaks: int = 200,
    heals: int = 400,
    length: int = 600,
) -> Scenario:
    """A graph falls into two parts and heals: edges between the parts are not there from tick
    ``breaks`` until tick ``heals``. One part is the half of the nodes that a search from node 0
    reaches first."""
    require_integer("breaks", breaks, 1)
    require_integer("heals", heals, breaks + 1)
    edges = data.edge_index.cpu()
    side = _nearest_half(edges, data.x.size(0))
    within = (side[edges[0]] == side[edges[1]]).to(data.edge_index.device)
    broken = data.edge_subgraph(within)
    frames = [data.clone(), broken, data.clone()]
    return Scenario(frames, [0, breaks, heals], length=length, name="partition")


ON_GRAPHS: dict[str, Callable[..., Scenario]] = {
    "drift": drifting,
    "join-leave": join_and_leave,
    "partition": partition,
}
"""The scenarios that change a given graph, by their names on the command line."""


# -- helpers --------------------------------------------------------------------------------------


def _scenario(frames: Sequence[Data], every: int, name: str) -> Scenario:
    require_positive("every", every)
    times = [every * i for i in range(len(frames))]
    return Scenario(frames, times, length=every * len(frames), name=name)


def _part(data: Data, there: Tensor) -> Data:
    """The nodes that are there, with the edges between them, and their identities."""
    ids = data.get("node_id")
    out = data.subgraph(there.to(data.x.device))
    out.node_id = (torch.arange(len(there)) if ids is None else torch.as_tensor(ids))[there]
    return out


def _nearest_half(edges: Tensor, n: int) -> Tensor:
    """The half of the nodes that a search from node 0 reaches first."""
    side = torch.zeros(n, dtype=torch.bool)
    side[0] = True
    while int(side.sum()) < (n + 1) // 2:
        reached = side.clone()
        reached[edges[1][side[edges[0]]]] = True
        new = (reached & ~side).nonzero()[:, 0]
        if not new.numel():  # another component
            new = (~side).nonzero()[:, 0]
        side[new[: (n + 1) // 2 - int(side.sum())]] = True
    return side
