"""A user's own graphs as a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, InputError, require_positive
from hogwild.tasks.base import Split

Criterion = Callable[[Tensor, Tensor], Tensor]
"""From predictions [n, c] and targets [n, …] to a number, as torch's losses do."""


def parts(
    count: int, folds: int | None, seed: int, shares: tuple[float, float] = (0.8, 0.1)
) -> list[Split]:
    """Splits of ``count`` graphs: training and validation ``shares`` and the rest; or ``folds``,
    each the test set once, with the next one for validation. Fewer than three graphs are all
    trained on and all tested."""
    everything = torch.arange(count)
    if count < 3:
        return [Split(everything, everything[:0], everything)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if folds is None:
        a, b = max(1, round(shares[0] * count)), max(1, round(shares[1] * count))
        a = min(a, count - 2)
        pieces = order[:a], order[a : a + b], order[a + b :]
        if not pieces[2].numel():  # two graphs are left for two sets
            pieces = order[:a], order[a:-1], order[-1:]
        return [Split(*(p.sort().values for p in pieces))]
    if not 3 <= folds <= count:
        raise ConfigError(f"folds={folds} of {count} graphs; expected between 3 and {count}")
    fold = order.argsort() % folds  # of each graph
    return [
        Split(
            ((fold != f) & (fold != (f + 1) % folds)).nonzero()[:, 0],
            (fold == (f + 1) % folds).nonzero()[:, 0],
            (fold == f).nonzero()[:, 0],
        )
        for f in range(folds)
    ]


class OwnTask:
    """A user's own graphs, with their loss, as a task.

    Args:
        graphs: PyG ``Data`` with x, edge_index, y, optionally edge_attr; a list or a dataset. Where
            y has a row for every node, predictions are for nodes, and otherwise for graphs.
        loss: A function of (predictions [n, c], targets [n, …]), such as
            ``torch.nn.functional.cross_entropy``; by default that one for integers and the mean
            squared error for floats. Targets [n] of floats meet predictions [n].
        metric: Likewise; by default the accuracy for integers and the loss for floats.
        higher_is_better: Of the metric.
        out_channels: Width of the predictions; by default the number of classes, or of columns.
        name: What reports call it.
    """

    def __init__(
        self,
        graphs: Iterable[Data],
        loss: Criterion | None = None,
        metric: Criterion | None = None,
        *,
        higher_is_better: bool | None = None,
        out_channels: int | None = None,
        name: str = "own data",
    ) -> None:
        self.graphs = list(graphs)
        if not self.graphs or not all(isinstance(g, Data) for g in self.graphs):
            raise InputError("expected a non-empty list or dataset of torch_geometric.data.Data")
        for i, g in enumerate(self.graphs):
            if any(g.get(key) is None for key in ("x", "edge_index", "y")):
                raise InputError(f"graph {i} lacks x, edge_index or y")
            if g.x.dim() != 2:
                raise InputError(
                    f"graph {i} has x of shape {list(g.x.shape)}; expected [nodes, features]"
                )
            if g.get("train_mask") is not None:
                raise InputError(
                    f"graph {i} splits its nodes by train_mask; here whole graphs are split. Train "
                    f"with a loop of your own (the README has one)"
                )
        first = self.graphs[0]
        self.name = name
        self.in_channels = first.x.size(-1)
        self.edge_dim = _edge_dim(first)
        for i, g in enumerate(self.graphs):
            width, edges = g.x.size(-1), _edge_dim(g)
            if (width, edges) != (self.in_channels, self.edge_dim):
                raise InputError(
                    f"graph {i} has {width} features a node and edge_attr of width {edges}, "
                    f"graph 0 {self.in_channels} and {self.edge_dim}; expected the same in all"
                )
        nodes = [g.y.dim() > 0 and g.y.size(0) == g.num_nodes for g in self.graphs]
        whole = [g.y.dim() == 0 or g.y.size(0) == 1 for g in self.graphs]
        if not (all(nodes) or all(whole)):
            fits = whole if whole[0] else nodes
            bad = fits.index(False)
            raise InputError(
                f"graph {bad} has y of shape {list(self.graphs[bad].y.shape)} and "
                f"{self.graphs[bad].num_nodes} nodes; expected a row for every node, in all "
                f"graphs, or one row for each graph"
            )
        self.pool = None if all(nodes) else "mean"
        classes = not first.y.is_floating_point()
        if out_channels is None:
            if classes:
                out_channels = 1 + max(int(g.y.max()) for g in self.graphs)
            else:
                out_channels = first.y.size(-1) if first.y.dim() == 2 else 1
        require_positive("out_channels", out_channels)
        self.out_channels = out_channels
        self._loss = loss or (F.cross_entropy if classes else F.mse_loss)
        accuracy = metric is None and classes
        self._metric = _accuracy if accuracy else (metric or self._loss)
        self.metric_name = "accuracy" if accuracy else "loss" if metric is None else "metric"
        self.higher_is_better = accuracy if higher_is_better is None else higher_is_better

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = True
    ) -> list[Split]:
        """80 % for training, 10 % for validation, 10 % for testing; or folds. Validation graphs are
        held out in any case."""
        return parts(len(self.graphs), folds, seed)

    def loss(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The user's loss on what counts."""
        return self._each(self._loss, out, data, mask)

    def metric(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The user's metric on what counts."""
        return self._each(self._metric, out, data, mask)

    def _each(self, fn: Criterion, out: Tensor, data: Batch, mask: Tensor | None) -> Tensor:
        if out.dim() == 2:
            return self._each(fn, out.unsqueeze(0), data, mask)[0]
        y = data.y
        flat = y.is_floating_point() and y.dim() == 1 and out.size(-1) == 1
        out = out.squeeze(-1) if flat else out
        if mask is None:
            return torch.stack([fn(o, y) for o in out])
        counts = mask.expand(out.size(0), data.num_graphs)
        if self.pool is None:
            counts = counts[:, data.batch]
        return torch.stack([fn(o[c], y[c]) for o, c in zip(out, counts, strict=True)])


def _edge_dim(graph: Data) -> int | None:
    """Width of the edge features; ``None``: there are none."""
    attr = graph.edge_attr
    return None if attr is None else 1 if attr.dim() == 1 else int(attr.size(-1))


def _accuracy(out: Tensor, y: Tensor) -> Tensor:
    return (out.argmax(-1) == y).to(out.dtype).mean()
