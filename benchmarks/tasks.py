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

The first four are the paper's (section 5.1). Edges are undirected and sorted by receiver, which
lets every contender declare that its segment sums are sorted. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

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


def _sorted(edge_index: np.ndarray) -> Tensor:
    """Undirected pairs [2, P], each named once, as edges both ways, sorted by receiver."""
    both = np.concatenate([edge_index, edge_index[::-1]], 1)
    return torch.from_numpy(np.ascontiguousarray(both[:, np.lexsort(both)], dtype=np.int64))


def _paths(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Chains of these numbers of nodes: edges, and the graph of each node."""
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    nodes = (batch[:-1] == batch[1:]).nonzero()[:, 0].numpy()  # all but the last of each chain
    return _sorted(np.stack([nodes, nodes + 1])), batch


def _dense(rows: Tensor, classes: int) -> Tensor:
    return F.one_hot(rows, classes).double()


def lattice(side: int) -> Tensor:
    """Edges of a square grid."""
    at = np.arange(side * side).reshape(side, side)
    right = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()])
    return _sorted(np.concatenate([right, np.stack([at[:-1].ravel(), at[1:].ravel()])], 1))


def chains(length: int = 100) -> Task:
    edge_index, batch = _paths([length, length])
    x = torch.zeros(2 * length, 2, dtype=torch.float64)
    x[0, 0] = x[length, 1] = 1.0
    return Task(x, edge_index, None, batch, "classification", batch.double()[:, None])


def counting(largest: int = 50) -> Task:
    edge_index, batch = _paths(list(range(1, largest + 1)))
    degree = torch.bincount(edge_index[1], minlength=len(batch))
    target = (batch + 1).double()[:, None]
    return Task(_dense(degree, 3), edge_index, None, batch, "regression", target)


def sums(graphs: int, length: int = 50, seed: int = 0) -> Task:
    edge_index, batch = _paths([length] * graphs)
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(2, (graphs, length), generator=random).double()
    target = x.sum(-1, keepdim=True).expand_as(x).reshape(-1, 1)
    return Task(x.reshape(-1, 1), edge_index, None, batch, "regression", target)


def coordinates(graphs: int, nodes: int = 20, radius: float = 0.5, seed: int = 0) -> Task:
    position = np.random.default_rng(seed).random((graphs, nodes, 2))
    distance = np.linalg.norm(position[:, :, None] - position[:, None], axis=-1)
    upper = np.triu(np.ones((nodes, nodes), bool), 1)
    offset = np.arange(graphs) * nodes

    def joined(mask: np.ndarray) -> np.ndarray:
        g, i, j = np.nonzero(mask & upper)
        return np.stack([offset[g] + i, offset[g] + j])

    edge_index = _sorted(joined(distance < radius))
    pairs = torch.from_numpy(joined(np.ones_like(distance, bool)))

    def length(ends: Tensor) -> Tensor:
        i, j = ends.numpy()
        return torch.from_numpy(distance[i // nodes, i % nodes, j % nodes])

    x = _dense(torch.arange(nodes), nodes).repeat(graphs, 1)
    batch = torch.arange(graphs).repeat_interleave(nodes)
    attr = length(edge_index)[:, None]
    return Task(x, edge_index, attr, batch, "pairs", length(pairs), pairs)


def rgg(nodes: int = 100_000, degree: float = 6.0, seed: int = 0, averagings: int = 10) -> Task:
    random = np.random.default_rng(seed)
    radius = math.sqrt(degree / (math.pi * nodes))
    tree = cKDTree(random.random((nodes, 2)))
    edge_index = _sorted(tree.query_pairs(radius, output_type="ndarray").T)
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
