r"""The tasks of the benchmarks: a few tensors and a loss each, all functions of a seed.

==============  ================================================================  ==============
task            graphs and features                                               prediction
==============  ================================================================  ==============
``chains``      2 chains of 100 nodes, the class one-hot on the first node only   the class
``counting``    50 chains of 1 to 50 nodes, degree one-hot (0, 1, 2)              the node count
``sums``        G chains of 50 nodes, one random bit per node                     the sum
``coordinates`` G random geometric graphs, 20 nodes in the unit square, radius    positions that
                0.5, ids one-hot, distances as ``edge_attr``                      keep distances
``rgg``         one random geometric graph of n nodes with mean degree 6, two     features after
                standard normal features per node                                 10 averagings
==============  ================================================================  ==============

The first four are the paper's (section 5.1), as :mod:`hogwild.tasks` makes them. Edges are
undirected and sorted by receiver, which lets every contender declare that its segment sums are
sorted. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch

from hogwild import tasks
from hogwild.tasks.synthetic import edges, near

EPSILON = 1e-12
"""Added under the square root of a predicted squared distance: the root has a slope at zero."""


@dataclass(frozen=True)
class Task:
    """Disjoint graphs in PyG's conventions, with the targets of the loss."""

    x: Tensor  # [N, p]
    edge_index: Tensor  # [2, E], senders then receivers, sorted by receiver
    edge_attr: Tensor | None  # [E, r]
    batch: Tensor  # [N]
    kind: str  # "classification", "regression" or "pairs"
    target: Tensor  # [N, 1], or the distance of each pair [P]
    pairs: Tensor | None = None  # [2, P]

    @property
    def out_channels(self) -> int:
        return 1 if self.pairs is None else 2

    @property
    def edge_dim(self) -> int | None:
        return None if self.edge_attr is None else self.edge_attr.size(-1)

    def loss(self, prediction: Tensor) -> Tensor:
        """Mean loss of each replica: [R, N, out] -> [R]."""
        if self.pairs is not None:
            i, j = self.pairs
            gap = prediction[:, i] - prediction[:, j]
            distance = (gap.square().sum(-1) + EPSILON).sqrt()
            return (distance - self.target).square().mean(-1)
        target = self.target.expand_as(prediction)
        if self.kind == "classification":
            loss = F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
        else:
            loss = (prediction - target).square()
        return loss.mean((-2, -1))

    def to(self, device: str | torch.device) -> Task:
        moved: dict[str, Any] = {
            name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)
        }
        return replace(self, **moved)


def lattice(side: int) -> Tensor:
    """Edges of a square grid."""
    return edges("grid", side * side, np.random.default_rng())


def _of(task: tasks.Task, kind: str) -> Task:
    """All graphs of a task of the library."""
    data = Batch.from_data_list(task.graphs)
    attr = None if data.edge_attr is None else data.edge_attr.double()
    pairs = data.get("pair_index")
    target = data.y.double() if pairs is not None else data.y.double().reshape(-1, 1)
    return Task(data.x.double(), data.edge_index, attr, data.batch, kind, target, pairs)


def chains(length: int = 100) -> Task:
    return _of(tasks.Chains(length=length), "classification")


def counting(largest: int = 50) -> Task:
    return _of(tasks.Counting(range(1, largest + 1)), "regression")


def sums(graphs: int, length: int = 50) -> Task:
    return _of(tasks.Sums(graphs, length), "regression")


def coordinates(graphs: int) -> Task:
    return _of(tasks.Coordinates(graphs), "pairs")


def rgg(nodes: int = 100_000, degree: float = 6.0, seed: int = 0, averagings: int = 10) -> Task:
    random = np.random.default_rng(seed)
    radius = math.sqrt(degree / (math.pi * nodes))
    edge_index = near(random.random((nodes, 2)), radius)
    x = torch.from_numpy(random.standard_normal((nodes, 2)))
    # The target: one feature, repeatedly averaged over neighbourhoods, at unit variance.
    target, (src, dst) = x[:, 0], edge_index
    share = 1.0 / (1.0 + torch.bincount(dst, minlength=nodes))
    for _ in range(averagings):
        target = share * target.index_add(0, dst, target[src])
    target = (target / target.std())[:, None]
    batch = torch.zeros(nodes, dtype=torch.long)
    return Task(x, edge_index, None, batch, "regression", target)


TASKS: dict[str, Callable[..., Task]] = {
    "chains": chains,
    "counting": counting,
    "sums": sums,
    "coordinates": coordinates,
    "rgg": rgg,
}
