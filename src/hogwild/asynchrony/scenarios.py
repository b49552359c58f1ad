"""Ready-made scenarios: every one is a function of its arguments and its seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.asynchrony.moving import Scenario
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.tasks.moving import (
    circling,
    mote_positions,
    read_positions,
    readings,
    waypoints,
)
from hogwild.tasks.synthetic import near, radius_of

Features = Callable[[np.ndarray, int], np.ndarray]
"""From positions [n, 2] and the number of a frame to features [n, p]."""


def swarm(
    nodes: int = 50,
    *,
    degree: float = 6.0,
    changes: int = 20,
    every: int = 300,
    speed: float = 0.02,
    channels: int = 1,
    distances: bool = False,
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
        distances: Give edges their length as a feature.
    """
    random = np.random.default_rng(seed)
    position = waypoints(nodes, changes, speed, random)
    x = torch.from_numpy(random.standard_normal((nodes, channels))).to(dtype)
    y, radius = x.mean(0, keepdim=True).expand(nodes, -1), radius_of(position, degree)
    frames = [_placed(place, radius, x, dtype, distances, y=y) for place in position]
    return _scenario(frames, every, "swarm")


def moving_source(
    nodes: int = 50,
    *,
    degree: float = 6.0,
    changes: int = 50,
    every: int = 20,
    turns: float = 1.0,
    noise: float = 0.05,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    position: np.ndarray | None = None,
) -> Scenario:
    """Sensors that stand still and measure a source that moves.

    A sensor's features are its noisy reading and its position, [n, 3]; ``y`` [n, 2] is the position
    of the source, for every sensor.

    Args:
        turns: How often the source goes round.
        noise: Standard deviation of the readings, whose largest value is 1.
        position: The sensors' positions [n, 2]; by default uniform in the unit square.
    """
    random = np.random.default_rng(seed)
    place = random.random((nodes, 2)) if position is None else np.asarray(position, float)
    source, radius = circling(changes, random, turns), radius_of(place, degree)
    seen = readings(place, source, noise, random, dtype)
    frames = [_placed(place, radius, x, dtype, y=y) for x, y in seen]
    return _scenario(frames, every, "moving source")


def motes(**options: object) -> Scenario:
    """The motes of the Intel Berkeley lab, in their real positions, with a source that moves over
    them; ``options`` are those of :func:`moving_source`. The positions are read from
    ``$HOGWILD_DATA/sensor``."""
    found = moving_source(**{"position": mote_positions(), **options})  # type: ignore[arg-type]
    found.name = "motes"
    return found


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
    half: Tensor | None = None,
) -> Scenario:
    """A graph falls into two parts and heals: edges between the parts are not there from tick
    ``breaks`` until tick ``heals``.

    Args:
        half: One of the parts, a mask [N]; by default the nodes that a search from node 0 reaches
            first.
    """
    require_integer("breaks", breaks, 1)
    require_integer("heals", heals, breaks + 1)
    edges, n = data.edge_index.cpu(), data.x.size(0)
    side = _nearest_half(edges, n) if half is None else torch.as_tensor(half).cpu().bool()
    if side.shape != (n,):
        raise ConfigError(f"half has shape {list(side.shape)}; expected a mask [{n}] of the nodes")
    within = (side[edges[0]] == side[edges[1]]).to(data.edge_index.device)
    broken = data.clone()
    for name in ("edge_attr", "edge_weight"):
        if data.get(name) is not None:
            broken[name] = data[name][within]
    broken.edge_index = data.edge_index[:, within]
    frames = [data.clone(), broken, data.clone()]
    return Scenario(frames, [0, breaks, heals], length=length, name="partition")


def from_positions(
    path: str | Path,
    *,
    radius: float | None = None,
    degree: float = 6.0,
    every: int = 20,
    features: Features | None = None,
    distances: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Scenario:
    """A scenario from positions over time in a file: a CSV with the columns time, id, x, y, or an
    NPZ with arrays of these names. Every time is a frame; nodes come and go with their lines.

    Args:
        radius: Nodes at most this far apart are neighbours; by default such that nodes have
            ``degree`` neighbours on average.
        every: Ticks of one unit of time in the file.
        features: Features [n, p] from positions [n, 2] and the number of the frame; by default the
            positions.
        distances: Give edges their length as a feature.
    """
    time, ids, position = read_positions(path)
    require_positive("every", every)
    moments = np.unique(time)
    if radius is None:
        many = position[time == moments[0]]
        radius = radius_of(many, min(degree, len(many) - 1)) if len(many) > 1 else 1.0
    frames, times = [], []
    for number, moment in enumerate(moments):
        here = time == moment
        place = position[here]
        x = place if features is None else np.asarray(features(place, number), float)
        frame = _placed(place, radius, torch.from_numpy(x).to(dtype), dtype, distances)
        frame.node_id = torch.from_numpy(ids[here])
        frames.append(frame)
        times.append(round(float(moment - moments[0]) * every))
    length = None if len(frames) > 1 else every
    return Scenario(frames, times, length=length, name=Path(path).name)


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


def _placed(
    place: np.ndarray,
    radius: float,
    x: Tensor,
    dtype: torch.dtype,
    distances: bool = False,
    **more: Tensor,
) -> Data:
    """Points with edges between those that are near each other."""
    edge_index, pos = near(place, radius), torch.from_numpy(place).to(dtype)
    data = Data(x=x, edge_index=edge_index, pos=pos, **more)
    if distances:
        gap = pos[edge_index[0]] - pos[edge_index[1]]
        data.edge_attr = gap.norm(dim=-1, keepdim=True)
    return data


def _part(data: Data, there: Tensor) -> Data:
    """The nodes that are there, with the edges between them, and their identities."""
    there = there.to(data.x.device)
    n = data.x.size(0)
    ids = data.get("node_id")
    out = data.subgraph(there) if isinstance(there, Tensor) else data
    out.node_id = (torch.arange(n) if ids is None else torch.as_tensor(ids))[there.cpu()]
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
