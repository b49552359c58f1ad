r"""Coordinates: relative localisation from distances to neighbours.

**Data.** 1,500 graphs of 20 points, uniform in the unit square, joined where they are at most 0.5
apart. Features are one-hot ids [20, 20], the distance is the edge's feature [E, 1]. Every node
predicts a position in the plane. The paper does not say that graphs are connected. Distances
between separate parts of a graph cannot be known, so graphs are redrawn until they are connected.

**Loss** :math:`\frac{1}{P} \sum_{i<j} (\|z_i - z_j\| - d_{ij})^2` over all pairs of nodes of all
graphs, also those that no edge joins: any rotation of the positions is right. **Metric** the root
of the loss over the mean distance (:func:`~hogwild.metrics.relative_rmse`). **Protocol** 10 folds.

The constant predictor puts node i at the same place in every graph: the layout that fits the mean
distances best, found by majorisation (SMACOF; de Leeuw, 1977) from points on a spiral.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.metrics import MSE, RELATIVE_ERROR
from hogwild.tasks.base import Task
from hogwild.tasks.synthetic import connected, undirected

EPSILON = 1e-12
"""Added to a predicted squared distance, so that its square root has a derivative at zero."""


class Coordinates(Task):
    """Positions whose pairwise distances are the true ones.

    Args:
        num_graphs: Number of graphs.
        num_nodes: Points in each graph; x is the identity of this size.
        radius: Points at most this far apart are neighbours.
        seed: Graph g is a function of (``seed``, g) alone.
    """

    name = "coordinates"
    minimised, reported = MSE, RELATIVE_ERROR
    out_channels = 2
    edge_dim = 1

    def __init__(
        self,
        num_graphs: int = 1500,
        num_nodes: int = 20,
        radius: float = 0.5,
        *,
        seed: int = 0,
    ) -> None:
        require_positive("num_graphs", num_graphs)
        require_integer("num_nodes", num_nodes, 2, ": the loss is on pairs")
        if not radius > 0:
            raise ConfigError(f"radius={radius!r}; expected a positive number")
        self.in_channels, self.radius = num_nodes, radius
        self.graphs = [self._graph(np.random.default_rng([seed, g])) for g in range(num_graphs)]

    def _graph(self, random: np.random.Generator) -> Data:
        (position,) = connected(
            lambda: random.random((1, self.in_channels, 2)), lambda _: self.radius
        )
        distance = squareform(pdist(position))
        return self._data(position, distance, distance)

    def _data(self, position: np.ndarray, distance: np.ndarray, measured: np.ndarray) -> Data:
        """Points [n, 2] with their distances [n, n], and with measured ones for the edges."""
        n = self.in_channels
        i, j = np.triu_indices(n, 1)
        edge_index = undirected(*np.nonzero(np.triu(distance <= self.radius, 1)))
        d, seen = torch.from_numpy(distance).float(), torch.from_numpy(measured).float()
        return Data(
            x=torch.eye(n),
            edge_index=edge_index,
            edge_attr=seen[edge_index[0], edge_index[1]][:, None],
            pos=torch.from_numpy(position).float(),
            pair_index=torch.from_numpy(np.stack([i, j])),  # "index": batching shifts it
            y=d[i, j],
        )

    def _owner(self, data: Batch) -> Tensor:
        return data.batch[data.pair_index[0]]

    def _rows(self, out: Tensor, data: Batch) -> Tensor:
        """Predicted distance of every pair, [..., P, 1]."""
        i, j = data.pair_index
        gap = (out[..., i, :] - out[..., j, :]).square().sum(-1, keepdim=True)
        return (gap + EPSILON).sqrt()

    def _constant(self, train: Batch) -> Tensor:
        n = self.in_channels
        target = squareform(train.y.double().view(train.num_graphs, -1).mean(0).cpu().numpy())
        spiral = np.sqrt(np.arange(n) + 0.5) * np.exp(
            1j * math.pi * (3 - math.sqrt(5)) * np.arange(n)
        )
        z = np.stack([spiral.real, spiral.imag], -1) * target.mean() / math.sqrt(n)
        for _ in range(500):  # Guttman's transform never increases the stress
            pull = -target / (squareform(pdist(z)) + np.eye(n))
            np.fill_diagonal(pull, -pull.sum(1))
            z = pull @ z / n
        return torch.from_numpy(z).float().to(train.y.device)
