"""A user's own graphs as a task."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, InputError, require_positive
from hogwild.graph.inputs import graphs_of, require_whole
from hogwild.metrics import ACCURACY, Measure, Score, majority, one_by_one
from hogwild.tasks.splits import Split, cross_validation, shares

BATCH = 16
"""Graphs in a mini-batch where nothing else is asked for."""
MASKS = ("train_mask", "val_mask", "test_mask")
"""What PyG calls the nodes to train on, to choose by and to test."""


def parts(count: int, folds: int | None, seed: int, strata: Tensor | None = None) -> list[Split]:
    """Splits of ``count`` graphs: 80 % for training, 10 % for validation and the rest; or
    ``folds``, each the test set once, with the next one for validation. Fewer than three graphs are
    all trained on and all tested. ``strata`` [count] are classes that all parts hold in equal
    shares."""
    everything = torch.arange(count)
    if count < 3:
        warnings.warn(
            f"{count} graph{'s' if count > 1 else ''} and no masks of nodes: all is trained on and "
            f"all is tested, so the test metric says nothing about new graphs; expected at least "
            f"three graphs, or train_mask, val_mask and test_mask",
            stacklevel=2,
        )
        return [Split(everything, everything[:0], everything)]
    if folds is None:
        return [shares(count, seed, strata)]
    return cross_validation(count, folds, seed, strata)


class OwnTask:
    """A user's own graphs, with their loss, as a task.

    Args:
        graphs: PyG ``Data`` with x, edge_index, y, optionally edge_attr; a list or a dataset. Where
            y has a row for every node, predictions are for nodes, and otherwise for graphs. One
            ``Data``, or all of several, may say by train_mask, val_mask and test_mask [N] which
            nodes count where; masks [N, F] have a column for each of F folds. Without a test_mask,
            nodes in neither of the others are tested.
        loss: A function of (predictions [n, c], targets [n, …]), such as
            ``torch.nn.functional.cross_entropy``; by default that one for integers and the mean
            squared error for floats. Targets [n] of floats meet predictions [n].
        metric: Likewise; by default the accuracy for integers and the loss for floats.
        higher_is_better: Of the metric; by default of the accuracy only.
        out_channels: Width of the predictions; by default the number of classes, or of columns.
        name: What reports call it.

    Attributes:
        defaults: Options of :class:`~hogwild.training.Config` where none are given: mini-batches of
            16, looked at every epoch, in the dtype of the graphs.
    """

    def __init__(
        self,
        graphs: Data | Iterable[Data],
        loss: Score | None = None,
        metric: Score | None = None,
        *,
        higher_is_better: bool | None = None,
        out_channels: int | None = None,
        name: str = "own data",
    ) -> None:
        given = [g for each in graphs_of(graphs) for g in _taken_apart(each)]
        _check(given)
        first = given[0]
        self.name = name
        self.in_channels = first.x.size(-1)
        self.edge_dim = _edge_dim(first)
        nodes = [g.y.dim() > 0 and g.y.size(0) == g.num_nodes for g in given]
        whole = [g.y.dim() == 0 or g.y.size(0) == 1 for g in given]
        if not (all(nodes) or all(whole)):
            fits = whole if whole[0] else nodes
            bad = fits.index(False)
            raise InputError(
                f"graph {bad} has y of shape {list(given[bad].y.shape)} and "
                f"{given[bad].num_nodes} nodes; expected a row for every node, in all "
                f"graphs, or one row for each graph"
            )
        masked = any(g.get("train_mask") is not None for g in given)
        if masked and not all(nodes):
            bad = nodes.index(False)
            raise InputError(
                f"graph {bad} has masks of nodes and y of shape {list(given[bad].y.shape)}; "
                f"expected a row for each of {given[bad].num_nodes} nodes"
            )
        self.pool = None if all(nodes) else "mean"
        self.graphs = given
        self._splits: list[Split] | None = None
        if masked:
            self.graphs, self._splits = views(given)
        classes = not first.y.is_floating_point()
        self._strata: Tensor | None = None
        if classes and all(g.y.numel() == 1 for g in given):
            self._strata = torch.stack([g.y.reshape(()).cpu() for g in given])
        if loss is None:
            _check_targets(self.graphs, classes)
        if out_channels is None:
            if classes:
                out_channels = 1 + max(int(g.y.max()) for g in self.graphs)
            else:
                out_channels = first.y.size(-1) if first.y.dim() == 2 else 1
        require_positive("out_channels", out_channels)
        self.out_channels = out_channels
        loss = loss or (F.cross_entropy if classes else F.mse_loss)
        self._loss = _measure(loss)
        accuracy = metric is None and classes
        self._metric = ACCURACY.measure if accuracy else _measure(metric or loss)
        self.metric_name = ACCURACY.name if accuracy else "loss" if metric is None else "metric"
        self.higher_is_better = accuracy if higher_is_better is None else higher_is_better
        single = first.x.dtype == torch.float32
        self.defaults = {
            "batch_size": BATCH,
            "dtype": "float32" if single else "float64",
            "validate_every": 1,
            "log_every": 1,
        }

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = True
    ) -> list[Split]:
        """By the masks, where there are any. Otherwise 80 % for training, 10 % for validation, 10 %
        for testing; or folds. Validation graphs are held out in any case."""
        if self._splits is None:
            return parts(len(self.graphs), folds, seed, self._strata)
        if folds not in (None, len(self._splits)):
            raise ConfigError(
                f"folds={folds} were asked of graphs whose masks have {len(self._splits)}; "
                f"expected none"
            )
        return self._splits

    def loss(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The user's loss on what counts."""
        return self._loss(out, self._targets(data), self._rows(data, mask))

    def metric(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The user's metric on what counts."""
        return self._metric(out, self._targets(data), self._rows(data, mask))

    def baseline(self, split: Split) -> float | None:
        """The metric on the test graphs of a prediction that looks at no graph: the most frequent
        class, or the mean of the targets, among what is trained on. A model that is no better has
        learned nothing. ``None`` with a metric of the user's, or where nothing is tested."""
        if self.metric_name == "metric" or not len(split.test):
            return None
        batches = [Batch.from_data_list([self.graphs[i] for i in ids.tolist()]) for ids in
                   (split.train, split.test)]  # fmt: skip
        train, test = (self._targets(b)[self._counted(b)] for b in batches)
        if train.is_floating_point():
            row, test = train.double().mean(0).reshape(1, -1), test.double()
        else:
            row = majority(train, self.out_channels).double()
        return float(self._metric(row.expand(len(test), -1), test, None))

    def _targets(self, data: Batch) -> Tensor:
        """Classes [n] or numbers [n, …]."""
        y: Tensor = data.y
        if y.is_floating_point():
            return y
        return y.long().squeeze(-1) if y.dim() == 2 and y.size(1) == 1 else y.long()

    def _counted(self, data: Batch) -> Tensor:
        """The rows that count by masks of nodes, [n]; all, where there are none."""
        rows = data.num_nodes if self.pool is None else data.num_graphs
        counted: Tensor | None = data.get("counted")
        if counted is not None:
            return counted
        return torch.ones(rows, dtype=torch.bool, device=data.y.device)

    def _rows(self, data: Batch, mask: Tensor | None) -> Tensor:
        """The rows that count, [n] or [R, n]."""
        counts = self._counted(data)
        if mask is None:
            return counts
        return counts & (mask[..., data.batch] if self.pool is None else mask)


def _measure(score: Score) -> Measure:
    """A user's function as a measure; targets [n] of floats meet predictions [n]."""

    def flat(out: Tensor, y: Tensor) -> float | Tensor:
        same = y.is_floating_point() and y.dim() == 1 and out.size(-1) == 1
        return score(out.squeeze(-1) if same else out, y)

    return one_by_one(flat)


def views(graphs: Sequence[Data]) -> tuple[list[Data], list[Split]]:
    """Graphs whose nodes are split by masks: each of them once for every part of every fold, with
    what of it counts there as ``counted`` [N]; and which of them belong where."""
    columns = {_columns(g) for g in graphs}
    if len(columns) > 1:
        raise InputError(
            f"the masks of the graphs have {sorted(columns)} columns; expected one for each of as "
            f"many folds in all graphs, or masks [N]"
        )
    out: list[Data] = []
    splits = []
    for fold in range(columns.pop()):
        ids: list[list[int]] = [[], [], []]
        for graph in graphs:
            for part, mask in zip(ids, _masks(graph, fold), strict=True):
                if bool(mask.any()):
                    view = copy.copy(graph)
                    for key in MASKS:
                        if key in view:
                            del view[key]
                    view.counted = mask
                    part.append(len(out))
                    out.append(view)
        if not ids[0]:
            raise InputError(
                f"train_mask names no node (fold {fold}); expected one at least to train on"
            )
        splits.append(Split(*(torch.tensor(part, dtype=torch.long) for part in ids)))
    return out, splits


def _columns(graph: Data) -> int:
    """The number of folds in the masks of a graph."""
    found = [graph.get(key) for key in MASKS if graph.get(key) is not None]
    for mask in found:
        good = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() in (1, 2)
        if not good or mask.size(0) != graph.num_nodes:
            what = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise InputError(
                f"a mask of nodes is {what}; expected bool [{graph.num_nodes}], or a column for "
                f"each of several folds"
            )
    return max(mask.size(1) if mask.dim() == 2 else 1 for mask in found)


def _masks(graph: Data, fold: int) -> list[Tensor]:
    """The nodes to train on, to choose by and to test, bool [N] each, in one fold."""
    found = []
    for key in MASKS:
        mask = graph.get(key)
        if mask is not None and mask.dim() == 2:
            mask = mask[:, fold if mask.size(1) > 1 else 0]
        found.append(mask)
    train, val, test = found
    val = torch.zeros_like(train) if val is None else val
    return [train, val, ~(train | val) if test is None else test]


def _taken_apart(data: Data) -> list[Data]:
    """The graphs of a batch; a graph as it is."""
    return data.to_data_list() if isinstance(data, Batch) else [data]


def _check(graphs: Sequence[Data]) -> None:
    """Refuse graphs that no model could be trained on."""
    masked = [g.get("train_mask") is not None for g in graphs]
    for i, g in enumerate(graphs):
        require_whole(g)
        lacks = [key for key in ("x", "edge_index", "y") if not isinstance(g.get(key), Tensor)]
        if lacks:
            raise InputError(f"graph {i} lacks {' and '.join(lacks)}; expected x, edge_index and y")
        if g.x.dim() != 2:
            raise InputError(
                f"graph {i} has x of shape {list(g.x.shape)}; expected [nodes, features]: a single "
                f"feature is a column, x.unsqueeze(1)"
            )
        if not g.x.is_floating_point():
            raise InputError(
                f"graph {i} has x of dtype {g.x.dtype}; expected floating-point features: "
                f"x.float() for numbers, torch.nn.functional.one_hot for categories"
            )
        unused = [key for key in MASKS[1:] if g.get(key) is not None]
        if unused and not masked[i]:
            raise InputError(
                f"graph {i} has {' and '.join(unused)} and no train_mask, so all of its nodes "
                f"would be trained on; expected a train_mask, or none of the three"
            )
        if masked[i] != masked[0]:
            raise InputError(
                f"graph {i} {'has' if masked[i] else 'lacks'} a train_mask, unlike graph 0; "
                f"expected masks of nodes in all graphs or in none"
            )
        width, edges = g.x.size(-1), _edge_dim(g)
        expected = graphs[0].x.size(-1), _edge_dim(graphs[0])
        if (width, edges) != expected:
            raise InputError(
                f"graph {i} has {width} features a node and edge_attr of width {edges}, "
                f"graph 0 {expected[0]} and {expected[1]}; expected the same in all"
            )


def _check_targets(graphs: Sequence[Data], classes: bool) -> None:
    """Refuse targets that the default losses cannot be computed of."""
    for i, g in enumerate(graphs):
        y = g.y if g.get("counted") is None else g.y[g.counted]
        if classes and y.dim() == 2 and y.size(1) > 1:
            raise InputError(
                f"graph {i} has y of {y.dtype} and shape {list(y.shape)}; expected one class a "
                f"row, or floats and a loss for several labels, such as "
                f"torch.nn.functional.binary_cross_entropy_with_logits"
            )
        if classes and y.numel() and int(y.min()) < 0:
            raise InputError(
                f"graph {i} has the class {int(y.min())} in y; expected classes from 0 on: drop "
                f"what has no label, or leave it out of the masks"
            )
        if not classes and not bool(torch.isfinite(y).all()):
            raise InputError(
                f"graph {i} has NaN or infinite values in y; expected finite numbers: drop what "
                f"has no target, or give a loss that leaves it out"
            )


def _edge_dim(graph: Data) -> int | None:
    """Width of the edge features; ``None``: there are none."""
    attr = graph.edge_attr
    return None if attr is None else 1 if attr.dim() == 1 else int(attr.size(-1))
