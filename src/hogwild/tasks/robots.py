r"""Robots: agree on the mean of all readings.

**Data.** 12 robots, uniform in the unit square; robots at most a radius apart are neighbours, and
the graph is connected. On average a robot has ``degree`` neighbours. Every robot has one noisy
reading :math:`x_i \sim \mathcal N(0, 1)`, [12, 1], and predicts the mean of all readings,
:math:`\bar x`.

**Protocol.** One split: 80 % of the graphs for training, 10 % for validation, 10 % for testing.
**Loss** mean squared error over nodes. **Metric** its root. The constant predictor errs by
:math:`1/\sqrt{12} = 0.289`.

The task is small and asks every node for all others, so that what asynchrony and deadlines cost
shows quickly; ``docs/deadlines.md`` has it under losses.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_integer
from hogwild.metrics import MSE, RMSE
from hogwild.tasks.base import Task, published
from hogwild.tasks.moving import near, radius_of

PATIENCE = 1000
"""Draws until a graph must be connected."""


class Robots(Task):
    """The mean of noisy readings.

    Args:
        num_graphs: Number of graphs, at least 10.
        num_nodes: Robots of a graph.
        degree: Mean number of neighbours.
        seed: Graph g is a function of (``seed``, g) alone.

    The graphs also hold ``pos`` [n, 2], where the robots are.
    """

    name = "robots"
    minimised, reported = MSE, RMSE
    in_channels = 1
    out_channels = 1

    def __init__(
        self, num_graphs: int = 400, num_nodes: int = 12, *, degree: float = 4.0, seed: int = 0
    ) -> None:
        require_integer("num_graphs", num_graphs, 10, ": to train, to choose and to test")
        require_integer("num_nodes", num_nodes, 2, ": a robot and a neighbour")
        self.graphs = [
            self._graph(np.random.default_rng([seed, g]), num_nodes, degree)
            for g in range(num_graphs)
        ]
        held = max(1, num_graphs // 10)
        self.fixed = published([num_graphs - 2 * held, held, held])

    def _graph(self, random: np.random.Generator, n: int, degree: float) -> Data:
        for _ in range(PATIENCE):
            place = random.random((n, 2))
            edges = near(place, radius_of(place, degree))
            joined = np.zeros((n, n), dtype=bool)
            joined[tuple(edges.numpy())] = True
            if connected_components(joined)[0] == 1:
                x = torch.from_numpy(random.standard_normal((n, 1))).float()
                pos = torch.from_numpy(place).float()
                return Data(x=x, edge_index=edges, y=x.mean().expand(n, 1).clone(), pos=pos)
        raise ConfigError(
            f"{PATIENCE} draws of {n} robots with degree={degree!r} gave no connected graph; "
            f"expected a larger degree"
        )
