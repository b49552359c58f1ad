r"""Counting: how many are we?

**Data.** 50 undirected chains of 1, 2, …, 50 nodes; features are the one-hot degree, [n, 3]. Every
node predicts the number of nodes n. Other families and sizes of graphs test generalisation. Degrees
from ``max_degree`` on share the last column.

**Protocol.** 10 folds of five graphs. **Loss** mean squared error over all nodes: a graph of n
nodes has n rows, so large graphs weigh more. **Metric** :math:`\mathrm{RMSE} / \bar y` over the
nodes of the test graphs (:func:`~hogwild.metrics.relative_rmse`).

The constant predictor errs by 35 % on all graphs, by about 40 % as a mean over folds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.utils import degree

from hogwild.errors import ConfigError, require_one_of, require_positive
from hogwild.metrics import MSE, RELATIVE_ERROR
from hogwild.tasks.base import Task
from hogwild.tasks.families import FAMILIES, edges

MAX_DEGREE = {"chain": 2, "tree": 8, "grid": 4, "rgg": 16}


class Counting(Task):
    """The number of nodes.

    Args:
        sizes: Number of nodes of each graph.
        graphs: ``"chain"``, ``"tree"``, ``"grid"`` or ``"rgg"``.
        max_degree: Degrees 0, …, ``max_degree`` (or more) have a column each; default: 2 for
            chains, 4 for grids, 8 for trees, 16 for rgg.
        seed: The seed of the random families.
    """

    name = "counting"
    minimised, reported = MSE, RELATIVE_ERROR
    out_channels = 1

    def __init__(
        self,
        sizes: Sequence[int] = range(1, 51),
        *,
        graphs: str = "chain",
        max_degree: int | None = None,
        seed: int = 0,
    ) -> None:
        require_one_of(FAMILIES, graphs=graphs)
        if not len(sizes):
            raise ConfigError("sizes is empty; expected the number of nodes of each graph")
        for n in sizes:
            require_positive("sizes", n)
        top = MAX_DEGREE[graphs] if max_degree is None else max_degree
        require_positive("max_degree", top)
        self.in_channels = top + 1
        self.graphs = []
        for g, n in enumerate(sizes):
            edge_index = edges(graphs, n, np.random.default_rng([seed, g]))
            column = degree(edge_index[1], n, dtype=torch.long).clamp(max=top)
            x = F.one_hot(column, top + 1).float()
            self.graphs.append(Data(x=x, edge_index=edge_index, y=torch.full((n, 1), float(n))))
