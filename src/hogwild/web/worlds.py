r"""The worlds of the page: points in a square, who is near whom, what they measure, and what every
node should find out.

==============  ==================================================================================
``rumour``      One node is told one of two answers; every node should find it out.
``field``       Every node measures a smooth field with noise; it should say the true value.
``average``     Every node measures a number; all should find out the mean of all numbers.
==============  ==================================================================================

A world is a function of its task, its size and its seed. Points lie on a square grid, each moved at
random within its cell; points within a radius are neighbours. When a point is moved, its edges and
(in ``field``) its reading follow. A :class:`UserWorld` is a graph and a model of the user's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, shortest_path
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_one_of
from hogwild.models.base import Model
from hogwild.tasks.synthetic import near

REACH = 1.45
"""Radius within which points are neighbours, in cells of the grid."""
JITTER = 0.36
"""How far a point may lie from the middle of its cell, in cells."""
NOISE = 0.25
"""Standard deviation of a reading of the field, whose values are of size 1."""
LEAST, MOST = 4, 2000
"""Sizes of a world."""


@dataclass(frozen=True)
class About:
    """What the page says of a task: what nodes should find out, what the colours mean, and the
    answers at both ends of the colours. ``classes``: answers are probabilities."""

    title: str
    question: str
    answer: str
    low: float
    high: float
    classes: bool = False


TASKS: dict[str, About] = {
    "rumour": About(
        "Rumour", "One node (ringed) was told yes or no. Every node must find out which.",
        "probability of yes", 0.0, 1.0, True,
    ),
    "field": About(
        "Noisy field",
        "Every node has one noisy reading of a smooth field. Every node must say the true value.",
        "value of the field", -1.3, 1.3,
    ),
    "average": About(
        "Average",
        "Every node has a number of its own. Every node must say the mean of all numbers.",
        "mean of all numbers", -1.0, 1.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """Points, edges and features at one moment.

    Attributes:
        task: One of :data:`TASKS`.
        seed: Of the points and the features.
        round: How often the features were drawn anew.
        position: Where the points are, [n, 2], in the unit square.
        radius: Points at most this far apart are neighbours.
        told: The node that was told the answer; ``None``: the task has none.
    """

    task: str
    seed: int
    round: int
    position: np.ndarray
    radius: float
    told: int | None

    @classmethod
    def make(cls, task: str, nodes: int, seed: int = 0) -> World:
        """A world of so many nodes."""
        require_one_of(tuple(TASKS), task=task)
        if not LEAST <= nodes <= MOST:
            raise ConfigError(f"nodes={nodes}; expected {LEAST} to {MOST}")
        random = np.random.default_rng([seed, nodes])
        side = math.ceil(math.sqrt(nodes))
        cells = np.sort(random.permutation(side * side)[:nodes])
        middle = np.stack([cells % side, cells // side], 1) + 0.5
        position = (middle + random.uniform(-JITTER, JITTER, (nodes, 2))) / side
        told = int(random.integers(nodes)) if task == "rumour" else None
        radius = REACH / side
        while connected_components(_matrix(near(position, radius).numpy(), nodes))[0] > 1:
            radius *= 1.05
        return cls(task, seed, 0, position, radius, told)

    @property
    def nodes(self) -> int:
        """Number of points."""
        return len(self.position)

    @property
    def about(self) -> About:
        """What the page says of the task."""
        return TASKS[self.task]

    @property
    def classes(self) -> bool:
        """Whether answers are probabilities."""
        return self.about.classes

    def move(self, node: int, x: float, y: float) -> World:
        """The world with a point at another place."""
        position = self.position.copy()
        position[node] = np.clip((x, y), 0.0, 1.0)
        return replace(self, position=position)

    def again(self) -> World:
        """The world with other features: another field, other numbers, the opposite answer."""
        return replace(self, round=self.round + 1)

    def data(self, alive: np.ndarray | None = None) -> Data:
        """The graph of the living nodes (a mask [n]; all by default), in float64. ``node_id`` are
        their numbers, ``pos`` their places, ``y`` what they should say."""
        here = np.arange(self.nodes) if alive is None else np.flatnonzero(alive)
        x, y = self._features(here)
        return Data(
            x=torch.from_numpy(x),
            y=torch.from_numpy(y),
            edge_index=near(self.position[here], self.radius),
            pos=torch.from_numpy(self.position[here]),
            node_id=torch.from_numpy(here),
        )

    def _features(self, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features [m, p] and targets of the nodes ``here``."""
        random = np.random.default_rng([self.seed, self.nodes, self.round + 1])
        if self.task == "rumour":
            first = int(np.random.default_rng([self.seed, 7]).integers(2))
            answer = (first + self.round) % 2
            x = np.zeros((self.nodes, 2))
            x[self.told, answer] = 1.0
            return x[here], np.full(len(here), answer)
        if self.task == "average":
            drawn = random.standard_normal() * 0.5 + random.standard_normal((self.nodes, 1))
            return drawn[here], np.full((len(here), 1), drawn[here].mean())
        centre, width = random.random((5, 2)), random.uniform(0.15, 0.35, 5)
        height = random.choice([-1.0, 1.0], 5) * random.uniform(0.7, 1.3, 5)
        apart = np.linalg.norm(self.position[here][:, None] - centre, axis=-1)
        true = (height * np.exp(-((apart / width) ** 2))).sum(1, keepdims=True)
        noise = NOISE * random.standard_normal((self.nodes, 1))[here]
        return true + noise, true


def _matrix(edge_index: np.ndarray, nodes: int) -> csr_matrix:
    i, j = edge_index
    return csr_matrix((np.ones(len(i)), (i, j)), shape=(nodes, nodes))


@dataclass
class UserWorld:
    """A graph and a trained model of the user's own.

    Attributes:
        model: The model.
        graph: One graph, [n] nodes.
        title: What to call the task.
        classes: Whether the model's output is the logit of one class.
        rules: Two rules to begin with.
    """

    model: Model
    graph: Data
    title: str
    classes: bool = False
    rules: tuple[str, str] = ("auto", "auto")
    task: str = "given"
    seed: int = 0
    told: int | None = None
    about: About = field(init=False)

    def __post_init__(self) -> None:
        n = int(self.graph.num_nodes or 0)
        if not 2 <= n <= MOST:
            raise ConfigError(
                f"the graph has {n} nodes; expected 2 to {MOST}, which a page can draw: cut out a "
                f"part (torch_geometric.utils.k_hop_subgraph)"
            )
        what = "probability of class 1" if self.classes else "first output"
        question = f"Your model on a graph of {n} nodes ({self.title})."
        self.about = About(self.title, question, what, 0.0, float(self.classes), self.classes)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.graph.num_nodes or 0)

    @cached_property
    def position(self) -> np.ndarray:
        """Where to draw the nodes, [n, 2]."""
        pos = self.graph.get("pos")
        if pos is not None and pos.dim() == 2 and pos.size(1) >= 2:
            return fitted(pos[:, :2].double().cpu().numpy())
        return layout(self.graph.edge_index.cpu().numpy(), self.nodes)

    def data(self, alive: np.ndarray | None = None) -> Data:
        """The graph of the living nodes (a mask [n]; all by default)."""
        out = self.graph.clone()
        out.node_id = torch.arange(self.nodes)
        if alive is None or bool(alive.all()):
            return out
        return out.subgraph(torch.from_numpy(alive))


def fitted(place: np.ndarray) -> np.ndarray:
    """Places [n, 2] moved and scaled into the unit square, with a margin."""
    low, high = place.min(0), place.max(0)
    size = max(float((high - low).max()), 1e-12)
    return 0.5 + 0.92 * (place - (low + high) / 2.0) / size


def layout(edge_index: np.ndarray, n: int) -> np.ndarray:
    """Places [n, 2] for the nodes of a graph: classical multidimensional scaling of the number of
    hops, which shows chains as lines and grids as grids."""
    if n < 2:
        return np.full((n, 2), 0.5)
    hops = shortest_path(_matrix(edge_index, n), unweighted=True)
    far = hops[np.isfinite(hops)].max(initial=1.0)
    square = np.where(np.isfinite(hops), hops, 1.3 * far) ** 2
    centred = -0.5 * (square - square.mean(0) - square.mean(1, keepdims=True) + square.mean())
    values, vectors = np.linalg.eigh(0.5 * (centred + centred.T))
    place = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12))
    if values[-2] < 1e-3 * values[-1]:  # a line: fold it into an arc, or a spiral if it is long
        turn = (place[:, -1] - place[:, -1].min()) / max(np.ptp(place[:, -1]), 1e-12)
        radius = np.sqrt(0.1 + 0.9 * turn)  # equal distances along the line
        angle = 2.0 * np.pi * min(2.2, n / 20) * (radius - radius.min()) / np.ptp(radius)
        place = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return fitted(place)
