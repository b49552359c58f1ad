r"""Tasks on graphs that move: follow a source, and locate a swarm.

A *sequence* is a graph at several moments, in order. Every moment is a graph of its own for
training; folds hold whole sequences, so that no test graph resembles a training graph more than
other sequences do. ``task.sequence(i)`` gives the moments of a sequence, from which
:class:`hogwild.Scenario` makes a scenario for :func:`hogwild.track`.

**moving-source.** Sensors, uniform in the unit square, measure how strong a source is, with noise;
the source moves along a smooth curve. A sensor's features are its reading and its position. Every
sensor says where the source is. Loss: mean squared error. Metric: its root.

**moving-swarm.** Robots move by random waypoints and measure the distances to their neighbours,
with noise. Every robot predicts a position; loss and metric are those of ``coordinates``: the
distances of all pairs, whichever way the swarm is turned.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.metrics import MSE, RMSE
from hogwild.tasks.base import Task
from hogwild.tasks.coordinates import Coordinates
from hogwild.tasks.synthetic import connected, near, radius_of

FALL = 0.2
"""Distance, relative to the side of the square, at which a source is half as strong."""


class Sequences(Task):
    """A task whose graphs are the moments of sequences, one sequence after the other."""

    def sequence(self, number: int) -> list[Data]:
        """The moments of a sequence, in order."""
        count = len(self.graphs) // self.moments
        if not 0 <= number < count:
            raise ConfigError(f"sequence {number} was asked for; expected 0 to {count - 1}")
        return self.graphs[number * self.moments : (number + 1) * self.moments]


class MovingSource(Sequences):
    """Where is the source? From noisy readings of sensors that stand still.

    Args:
        sequences: Number of sequences.
        moments: Graphs in a sequence.
        num_nodes: Sensors.
        degree: Mean number of neighbours.
        noise: Standard deviation of the readings, whose largest value is 1.
        turns: How often the source goes round in a sequence.
        seed: Sequence s is a function of (``seed``, s) alone.
    """

    name = "moving-source"
    minimised, reported = MSE, RMSE
    in_channels, out_channels = 3, 2

    def __init__(
        self,
        sequences: int = 40,
        moments: int = 20,
        num_nodes: int = 30,
        degree: float = 6.0,
        noise: float = 0.05,
        turns: float = 0.5,
        seed: int = 0,
    ) -> None:
        require_positive("sequences", sequences)
        require_integer("num_nodes", num_nodes, 2)
        self.moments = require_positive("moments", moments)
        self.graphs = []
        for s in range(sequences):
            random = np.random.default_rng([seed, s])
            place = random.random((num_nodes, 2))
            edges = near(place, radius_of(place, degree))
            pos = torch.from_numpy(place).float()
            for at in circling(moments - 1, random, turns):
                strength = 1.0 / (1.0 + ((place - at) ** 2).sum(-1) / FALL**2)
                reading = strength + noise * random.standard_normal(num_nodes)
                x = torch.from_numpy(np.concatenate([reading[:, None], place], 1)).float()
                y = torch.from_numpy(at).float().repeat(num_nodes, 1)
                self.graphs.append(Data(x=x, edge_index=edges, pos=pos, y=y))


class MovingSwarm(Sequences, Coordinates):
    """Positions of a swarm that moves, up to a motion of the plane, from noisy distances.

    Args:
        sequences: Number of sequences.
        moments: Graphs in a sequence.
        num_nodes: Robots; x is the identity of this size.
        radius: Robots at most this far apart are neighbours.
        speed: How far a robot goes between two moments.
        noise: Standard deviation of a measured distance, which both ends of an edge share.
        seed: Sequence s is a function of (``seed``, s) alone.
    """

    name = "moving-swarm"

    def __init__(
        self,
        sequences: int = 60,
        moments: int = 20,
        num_nodes: int = 20,
        radius: float = 0.5,
        speed: float = 0.05,
        noise: float = 0.01,
        seed: int = 0,
    ) -> None:
        require_positive("sequences", sequences)
        require_integer("num_nodes", num_nodes, 2, ": the loss is on pairs")
        self.moments, self.in_channels = require_positive("moments", moments), num_nodes
        self.radius = radius
        self.graphs = [
            graph
            for s in range(sequences)
            for graph in self._sequence(np.random.default_rng([seed, s]), speed, noise)
        ]

    def _sequence(self, random: np.random.Generator, speed: float, noise: float) -> list[Data]:
        n, steps = self.in_channels, self.moments - 1
        path = connected(lambda: waypoints(n, steps, speed, random), lambda _: self.radius)
        pairs = [(place, squareform(pdist(place))) for place in path]
        return [self._data(place, d, _noisy(d, noise, random)) for place, d in pairs]


def _noisy(distance: np.ndarray, noise: float, random: np.random.Generator) -> np.ndarray:
    """Measured distances [n, n], wrong alike at both ends."""
    wrong = np.triu(noise * random.standard_normal(distance.shape), 1)
    return distance + wrong + wrong.T


# -- points that move ------------------------------------------------------------------------------


def waypoints(n: int, steps: int, speed: float, random: np.random.Generator) -> np.ndarray:
    """Random waypoints: every point goes straight to a uniform point of the unit square, then to
    another one. Positions [steps + 1, n, 2]; a point goes ``speed`` far in a step. Points gather in
    the middle; they have done so before the first position, which is that of a point on its way."""
    require_integer("steps", steps, 0)
    if not 0.0 <= speed < math.inf:
        raise ConfigError(f"speed={speed!r}; expected a nonnegative number")
    # On its way: a pair of ends is met as often as their distance is long.
    ends = random.random((64, n, 2, 2))
    far = np.linalg.norm(ends[..., 0, :] - ends[..., 1, :], axis=-1)
    chosen = ends[(random.random((64, n)) * math.sqrt(2.0) < far).argmax(0), np.arange(n)]
    share, goal = random.random((n, 1)), chosen[:, 1]
    here = chosen[:, 0] + share * (goal - chosen[:, 0])
    out = [here]
    for _ in range(steps):
        way = goal - here
        far = np.linalg.norm(way, axis=1, keepdims=True)
        arrived = far[:, 0] <= speed
        here = np.where(far <= speed, goal, here + speed * way / np.maximum(far, 1e-12))
        goal = np.where(arrived[:, None], random.random((n, 2)), goal)
        out.append(here)
    return np.stack(out)


def circling(steps: int, random: np.random.Generator, turns: float = 1.0) -> np.ndarray:
    """A source that moves along a smooth random curve in the unit square, [steps + 1, 2]."""
    time = np.linspace(0.0, 2.0 * math.pi * turns, steps + 1)
    phase = random.random((2, 3)) * 2.0 * math.pi
    size = np.array([0.5, 0.3, 0.2])
    waves = size * np.sin(np.outer(time, [1.0, 2.0, 3.0])[None] + phase[:, None])
    return 0.5 + 0.4 * waves.sum(-1).T / size.sum() * 1.2
