r"""Sums: add up the bits of all nodes.

**Data.** 2,000 undirected chains of 50 nodes, an independent fair bit :math:`x_i \in \{0, 1\}` a
node, [50, 1]. Every node predicts :math:`\sum_i x_i`. Other families and sizes of graphs test
generalisation.

**Protocol.** 10 folds. **Loss** mean squared error over nodes. **Metric**
:math:`\mathrm{RMSE} / \bar y` (:func:`~hogwild.metrics.relative_rmse`). The constant
predictor errs by :math:`\sqrt{12.5} / 25 = 14.1\,\%`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_one_of, require_positive
from hogwild.metrics import MSE, RELATIVE_ERROR
from hogwild.tasks.base import Task
from hogwild.tasks.families import FAMILIES, edges


class Sums(Task):
    """The sum of random bits.

    Args:
        num_graphs: Number of graphs.
        sizes: Number of nodes, or several that the graphs take in turn.
        graphs: ``"chain"``, ``"tree"``, ``"grid"`` or ``"rgg"``.
        seed: Graph g is a function of (``seed``, g) alone.
    """

    name = "sums"
    minimised, reported = MSE, RELATIVE_ERROR
    in_channels = 1
    out_channels = 1

    def __init__(
        self,
        num_graphs: int = 2000,
        sizes: int | Sequence[int] = 50,
        *,
        graphs: str = "chain",
        seed: int = 0,
    ) -> None:
        require_one_of(FAMILIES, graphs=graphs)
        require_positive("num_graphs", num_graphs)
        sizes = list(sizes) if isinstance(sizes, Iterable) else [sizes]
        if not sizes:
            raise ConfigError("sizes is empty; expected a number of nodes, or several")
        for n in sizes:
            require_positive("sizes", n)
        self.graphs = []
        for g in range(num_graphs):
            random, n = np.random.default_rng([seed, g]), sizes[g % len(sizes)]
            edge_index = edges(graphs, n, random)
            x = torch.from_numpy(random.integers(0, 2, (n, 1))).float()
            y = x.sum().expand(n, 1).clone()
            self.graphs.append(Data(x=x, edge_index=edge_index, y=y))
