r"""Synthetic tasks: carry a bit, count, add up, agree on a mean; and the graphs of other tasks.

Carrying, counting and adding take chains; counting and sums also take other families of connected
graphs of any size, which test generalisation:

===========  =====================================================================================
``chain``    node i joined to i + 1
``tree``     a random recursive tree: each node joined to a uniformly drawn earlier one
``grid``     the first n cells of a square grid, row by row, joined to their four neighbours
``rgg``      n uniform points in the unit square, joined within a radius of mean degree about 6, or
             the least radius that makes the graph connected (the longest edge of the minimum
             spanning tree) if that is larger
===========  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist, squareform
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import degree

from hogwild.errors import ConfigError, require_integer, require_one_of, require_positive
from hogwild.metrics import CROSS_ENTROPY, ERROR, MSE, RELATIVE_ERROR, RMSE
from hogwild.tasks.base import Split, Task, published

FAMILIES = ("chain", "tree", "grid", "rgg")
MAX_DEGREE = {"chain": 2, "tree": 8, "grid": 4, "rgg": 16}
PATIENCE = 1000
"""How often points are drawn anew until their graphs are connected."""


def undirected(i: np.ndarray, j: np.ndarray) -> Tensor:
    """Pairs, each named once, as ``edge_index`` with both directions, sorted by receiver."""
    both = np.stack([np.concatenate([i, j]), np.concatenate([j, i])])
    return torch.from_numpy(both[:, np.lexsort(both)].astype(np.int64))


def edges(family: str, n: int, random: np.random.Generator) -> Tensor:
    """``edge_index`` [2, E] of one connected graph of n nodes."""
    require_one_of(FAMILIES, graphs=family)
    node = np.arange(n)
    if family == "chain":
        return undirected(node[:-1], node[1:])
    if family == "tree":
        return undirected(random.integers(0, node[1:]), node[1:])
    if family == "grid":
        width = math.isqrt(max(n - 1, 0)) + 1  # the least square that holds n cells
        right = node[(node % width < width - 1) & (node + 1 < n)]
        down = node[node + width < n]
        return undirected(np.concatenate([right, down]), np.concatenate([right + 1, down + width]))
    distance = squareform(pdist(random.random((n, 2))))
    radius = math.sqrt(6 / (math.pi * n))
    radius = max(radius, minimum_spanning_tree(distance).max()) if n > 1 else radius
    i, j = np.nonzero(np.triu(distance <= radius, 1))
    return undirected(i, j)


def radius_of(position: np.ndarray, degree: float) -> float:
    """The radius within which points [..., n, 2] have this many neighbours on average."""
    n = position.shape[-2]
    if not 0 < degree <= n - 1:
        raise ConfigError(f"degree={degree!r}; expected a number from 0 to {n - 1}")
    some = position.reshape(-1, n, 2)
    some = some[:: max(len(some) // 20, 1)]
    return float(np.quantile(np.concatenate([pdist(each) for each in some]), degree / (n - 1)))


def near(position: np.ndarray, radius: float) -> Tensor:
    """``edge_index`` of the points [n, 2] that are at most ``radius`` apart, both directions."""
    pairs = cKDTree(position).query_pairs(radius, output_type="ndarray")
    return undirected(pairs[:, 0], pairs[:, 1])


def connected(draw: Callable[[], Any], radius: Callable[[np.ndarray], float]) -> np.ndarray:
    """Points at some moments [T, n, 2], drawn until their graphs within a radius are connected."""
    for _ in range(PATIENCE):
        path = draw()
        near = (squareform(pdist(position)) <= radius(path) for position in path)
        if all(connected_components(each)[0] == 1 for each in near):
            return path
    raise ConfigError(
        f"{PATIENCE} draws of {path.shape[1]} points within radius={radius(path):.3g} gave no "
        f"connected graph; expected a larger radius or degree, or more points"
    )


class Chains(Task):
    r"""The class of a chain, known to its first node.

    **Data.** p undirected chains of l nodes; chain k has the features :math:`X_{1,k} = 1` and zeros
    elsewhere. Every node predicts the class of its chain.

    **Protocol.** The paper has p = 2 and l = 100. Every node is trained on and tested (one split),
    and only the seeds of the parameters vary. A GCN of five layers errs on exactly 47.0 % of the
    nodes: six of 100 nodes hear the label, the others guess. **Loss** binary cross-entropy (one
    logit) for two classes, cross-entropy (p logits) for more. **Metric** the share of nodes
    classified wrongly.

    Args:
        classes: p; x is [l, p].
        length: l.
    """

    name = "chains"
    minimised, reported = CROSS_ENTROPY, ERROR

    def __init__(self, classes: int = 2, length: int = 100) -> None:
        require_positive("length", length)
        require_integer("classes", classes, 2, " to tell apart")
        self.in_channels = classes
        self.out_channels = 1 if classes == 2 else classes
        edge_index = edges("chain", length, np.random.default_rng())
        self.graphs = []
        for k in range(classes):
            x = torch.zeros(length, classes)
            x[0, k] = 1.0
            self.graphs.append(Data(x=x, edge_index=edge_index, y=torch.full((length,), k)))
        everything = torch.arange(classes)
        self.fixed = Split(everything, everything, everything)


class Counting(Task):
    r"""The number of nodes.

    **Data.** 50 undirected chains of 1, 2, …, 50 nodes; features are the one-hot degree, [n, 3].
    Every node predicts the number of nodes n.

    **Protocol.** 10 folds of five graphs. **Loss** mean squared error over all nodes: a graph of n
    nodes has n rows, so large graphs weigh more. **Metric** :math:`\mathrm{RMSE} / \bar y` over the
    nodes of the test graphs. The constant predictor errs by 35 % on all graphs, by about 40 % as a
    mean over folds.

    Args:
        sizes: Number of nodes of each graph.
        graphs: ``"chain"``, ``"tree"``, ``"grid"`` or ``"rgg"``.
        max_degree: Degrees 0, …, ``max_degree`` (or more) have a column each; by default
            :data:`MAX_DEGREE` of the family.
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


class Sums(Task):
    r"""The sum of random bits.

    **Data.** 2,000 undirected chains of 50 nodes, an independent fair bit a node, [50, 1]. Every
    node predicts the sum of all bits. **Protocol.** 10 folds. **Loss** mean squared error over
    nodes. **Metric** :math:`\mathrm{RMSE} / \bar y`; the constant predictor errs by
    :math:`\sqrt{12.5} / 25 = 14.1\,\%`.

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


class Robots(Task):
    r"""Robots agree on the mean of all readings.

    **Data.** 12 robots, uniform in the unit square; robots at most a radius apart are neighbours,
    and the graph is connected. On average a robot has ``degree`` neighbours. Every robot has one
    noisy reading :math:`x_i \sim \mathcal N(0, 1)`, [12, 1], and predicts the mean of all readings,
    :math:`\bar x`. The graphs also hold ``pos`` [12, 2], where the robots are.

    **Protocol.** One split: 80 % of the graphs for training, 10 % for validation, 10 % for testing.
    **Loss** mean squared error over nodes. **Metric** its root. The constant predictor errs by
    :math:`1/\sqrt{12} = 0.289`.

    The task is small and asks every node for all others, so that what asynchrony and deadlines cost
    shows quickly; ``docs/deadlines.md`` has it under losses.

    Args:
        num_graphs: Number of graphs, at least 10.
        num_nodes: Robots of a graph.
        degree: Mean number of neighbours.
        seed: Graph g is a function of (``seed``, g) alone.
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
        self.graphs = []
        for g in range(num_graphs):
            random, n = np.random.default_rng([seed, g]), num_nodes
            within = partial(radius_of, degree=degree)
            (place,) = connected(partial(random.random, (1, n, 2)), within)
            x = torch.from_numpy(random.standard_normal((n, 1))).float()
            y, pos = x.mean().expand(n, 1).clone(), torch.from_numpy(place).float()
            self.graphs.append(Data(x=x, edge_index=near(place, within(place)), y=y, pos=pos))
        held = max(1, num_graphs // 10)
        self.fixed = published([num_graphs - 2 * held, held, held])
