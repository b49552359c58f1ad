r"""Rumours: one node is told one of two answers, and all nodes must find it out.

**Data.** Random geometric graphs of 12 to 16 nodes and diameter 4 or 5, so that five layers reach
from every node to every other. One node has a one-hot feature [n, 2], the answer; the features of
all others are zero. Every node predicts the answer. Every graph appears twice, once with each
answer, so that guessing errs on one half.

**Protocol.** One split of the graphs. **Loss** binary cross-entropy. **Metric** the share of nodes
that are wrong.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import pdist, squareform
from torch_geometric.data import Data

from hogwild.errors import ConfigError
from hogwild.metrics import CROSS_ENTROPY, ERROR
from hogwild.tasks.base import Task, published
from hogwild.tasks.synthetic import undirected

NODES = (12, 16)
DIAMETER = (4, 5)
"""Smallest and largest diameter."""
DEGREE = 4.5
"""Mean degree of an infinite graph with the same radius."""


def geometric(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Places [n, 2] in the unit square and hops [n, n] of a graph of the right diameter."""
    while True:
        n = int(random.integers(NODES[0], NODES[1] + 1))
        pos = random.random((n, 2))
        apart = squareform(pdist(pos))
        joined = (apart <= math.sqrt(DEGREE / (math.pi * n))) & ~np.eye(n, dtype=bool)
        hops = shortest_path(joined, unweighted=True)
        if DIAMETER[0] <= hops.max() <= DIAMETER[1]:
            return pos, hops


class Rumour(Task):
    """The answer that one node was told.

    Args:
        pairs: Number of graphs, each with both answers; an eighth of them are for validation and an
            eighth for testing.
        seed: Graph g is a function of (``seed``, g) alone.

    The graphs also hold ``pos`` [n, 2], where to draw the nodes, and ``hops`` [n], how far each
    node is from the one that was told.
    """

    name = "rumour"
    minimised, reported = CROSS_ENTROPY, ERROR
    in_channels = 2
    out_channels = 1

    def __init__(self, pairs: int = 24, *, seed: int = 0) -> None:
        if pairs < 3:
            raise ConfigError(f"pairs={pairs!r}; expected at least 3: to train, to choose, to test")
        self.graphs = []
        for g in range(pairs):
            random = np.random.default_rng([seed, g])
            pos, hops = geometric(random)
            told = int(random.integers(len(pos)))
            edge_index = undirected(*np.nonzero(np.triu(hops == 1)))
            for answer in range(2):
                x = torch.zeros(len(pos), 2, dtype=torch.float64)
                x[told, answer] = 1.0
                self.graphs.append(
                    Data(
                        x=x,
                        edge_index=edge_index,
                        y=torch.full((len(pos),), answer),
                        pos=torch.from_numpy(pos),
                        hops=torch.from_numpy(hops[told]).long(),
                    )
                )
        held = max(1, pairs // 8)
        self.fixed = published([2 * (pairs - 2 * held), 2 * held, 2 * held])
