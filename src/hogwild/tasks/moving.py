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

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.metrics import MSE, RMSE
from hogwild.tasks.base import Task
from hogwild.tasks.coordinates import PATIENCE, Coordinates
from hogwild.tasks.splits import Split, cross_validation
from hogwild.tasks.trajectories import circling, near, radius_of, readings, waypoints


class Sequences(Task):
    """A task whose graphs are the moments of sequences, one sequence after the other."""

    moments: int

    def sequence(self, number: int) -> list[Data]:
        """The moments of a sequence, in order."""
        count = len(self.graphs) // self.moments
        if not 0 <= number < count:
            raise ConfigError(f"sequence {number} was asked for; expected 0 to {count - 1}")
        return self.graphs[number * self.moments : (number + 1) * self.moments]

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = False
    ) -> list[Split]:
        """Folds of whole sequences; the arguments are those of :meth:`Task.splits`."""
        count = len(self.graphs) // self.moments
        found = cross_validation(
            count, 10 if folds is None else folds, seed, validation=validation, name=self.name
        )
        here = torch.arange(self.moments)
        return [
            Split(*((self.moments * part[:, None] + here).flatten() for part in parts))
            for parts in ((split.train, split.val, split.test) for split in found)
        ]


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
            for x, y in readings(place, circling(moments - 1, random, turns), noise, random):
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
        self.radius, self.connected = radius, True
        self.graphs = [
            graph
            for s in range(sequences)
            for graph in self._sequence(np.random.default_rng([seed, s]), speed, noise)
        ]

    def _sequence(self, random: np.random.Generator, speed: float, noise: float) -> list[Data]:
        for _ in range(PATIENCE):
            path = waypoints(self.in_channels, self.moments - 1, speed, random)
            distances = [squareform(pdist(place)) for place in path]
            if all(connected_components(d <= self.radius)[0] == 1 for d in distances):
                pairs = zip(path, distances, strict=True)
                return [self._data(place, d, _noisy(d, noise, random)) for place, d in pairs]
        raise ConfigError(
            f"{PATIENCE} draws of {self.in_channels} robots with radius={self.radius} gave no "
            f"sequence of connected graphs; expected a larger radius or more robots"
        )


def _noisy(distance: np.ndarray, noise: float, random: np.random.Generator) -> np.ndarray:
    """Measured distances [n, n], wrong alike at both ends."""
    wrong = np.triu(noise * random.standard_normal(distance.shape), 1)
    return distance + wrong + wrong.T
