"""A user's own graphs as a task: checks, masks of nodes, the loss and the metric."""

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
from hogwild.metrics import (
    ACCURACY,
    Constant,
    Measure,
    Metric,
    Score,
    average,
    median,
    name_of,
    one_by_one,
)
from hogwild.tasks.base import Split, Task, cross_validation, shares

BATCH = 16
"""Graphs in a mini-batch by default; ``experiments/README.md`` compares 16 with 32 (the trials
``own-batch-16`` and ``own-batch-32``)."""


def parts(count: int, folds: int | None, seed: int, strata: Tensor | None = None) -> list[Split]:
    """Splits of ``count`` graphs: 80 % for training, 10 % for validation and the rest for testing;
    or ``folds``, each the test set once, with the next one for validation. With fewer than three
    graphs all are trained on and tested. ``strata`` [count] are classes that all parts hold in
    equal shares."""
    everything = torch.arange(count)
    if count < 3:
        return [Split(everything, everything[:0], everything)]
    if folds is None:
        return [shares(count, seed, strata)]
    return cross_validation(count, folds, seed, strata)


CONSTANTS: dict[Score, Constant] = {F.mse_loss: average, F.l1_loss: median}
"""The best constant prediction for some losses."""


class OwnTask(Task):
    """A user's own graphs, with their loss, as a task.

    Args:
        graphs: PyG ``Data`` with x, edge_index, y, optionally edge_attr; a list or a dataset. Where
            y has a row for every node, predictions are for nodes, otherwise for graphs. All graphs,
            or none, may have train_mask, val_mask and test_mask [N]; masks [N, F] have a column for
            each of F folds. Without a test_mask, nodes in neither of the others are tested.
        loss: A function of (predictions [n, c], targets [n, …]), such as
            ``torch.nn.functional.cross_entropy``; by default that one for integers and the mean
            squared error for floats. Targets [n] of floats meet predictions [n].
        metric: A function of the same arguments; by default the accuracy for integers and the loss
            for floats.
        higher_is_better: Only with a metric: whether higher values are better.
        out_channels: Width of the predictions; by default the number of classes, or of columns.
        name: The name in reports.
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
        given: list[Data] = []
        for each in graphs_of(graphs):
            given += each.to_data_list() if isinstance(each, Batch) else [each]
        check_graphs(given)
        first = given[0]
        self.name = name
        self.in_channels = first.x.size(-1)
        self.edge_dim = edge_dim(first)
        self.pool = None if per_node(given) else "mean"
        self.graphs = given
        self._splits: list[Split] | None = None
        if first.get("train_mask") is not None:
            self.graphs, self._splits = views(given)
        elif len(given) < 3:
            warnings.warn(
                f"{len(given)} graph{'s' if len(given) > 1 else ''} and no masks of nodes: the "
                f"model is trained and tested on the same nodes, so the test metric says nothing "
                f"about new graphs; expected at least three graphs, or train_mask, val_mask and "
                f"test_mask",
                stacklevel=2,
            )
        classes = not first.y.is_floating_point()
        if classes and all(g.y.numel() == 1 for g in given):
            self.strata = torch.stack([g.y.reshape(()).cpu() for g in given])
        if loss is None:
            check_targets(self.graphs, classes)
        if out_channels is None:
            if classes:
                out_channels = 1 + max(int(g.y.max()) for g in self.graphs)
            else:
                out_channels = first.y.size(-1) if first.y.dim() == 2 else 1
        self.out_channels = require_positive("out_channels", out_channels)
        for what, function in (("loss", loss), ("metric", metric)):
            if function is not None and not callable(function):
                raise ConfigError(
                    f"{what}={function!r}; expected a function of (predictions, targets), such as "
                    f"torch.nn.functional.l1_loss"
                )
        minimised = loss or (F.cross_entropy if classes else F.mse_loss)
        self.minimised = Metric("loss", _measure(minimised), constant=CONSTANTS.get(minimised))
        self.reported = ACCURACY if classes else self.minimised
        if metric is not None:
            self.reported = Metric(name_of(metric), _measure(metric), bool(higher_is_better))
        elif higher_is_better is not None:
            raise ConfigError(
                f"higher_is_better={higher_is_better!r} was given without a metric; expected it "
                f"with a function only: the direction of {self.reported.name!r} is known"
            )
        self.metric_name = self.reported.name
        self.higher_is_better = self.reported.higher_is_better
        dtype = "float32" if first.x.dtype == torch.float32 else "float64"
        self.defaults = {
            "batch_size": BATCH, "dtype": dtype, "validate_every": 1, "log_every": 1,
        }  # fmt: skip

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = True
    ) -> list[Split]:
        """Splits by the masks, if there are any. Otherwise 80 % for training, 10 % for validation,
        10 % for testing; or folds. Validation graphs are always held out."""
        if self._splits is None:
            return parts(len(self.graphs), folds, seed, self.strata)
        if folds not in (None, len(self._splits)):
            raise ConfigError(
                f"folds={folds} were asked of graphs whose masks have {len(self._splits)}; "
                f"expected none"
            )
        return self._splits

    def baseline(self, split: Split) -> float | None:
        """The best metric on the test rows of a split that any constant prediction can have: that
        of their own most frequent class, or of their own mean. A constant chosen on training rows
        can be far below it: the training classes of citation graphs are equally frequent. ``None``
        with a loss or metric whose best constant is unknown, or with fewer than two rows."""
        if self.reported.constant is None or not len(split.test):
            return None
        test = Batch.from_data_list([self.graphs[i] for i in split.test.tolist()])
        counted = test.get("counted")
        rows = len(self._targets(test)) if counted is None else int(counted.sum())
        return self.constant(test, test) if rows > 1 else None

    def _targets(self, data: Batch) -> Tensor:
        y = super()._targets(data)
        if y.is_floating_point():
            return y
        return y.long().squeeze(-1) if y.dim() == 2 and y.size(1) == 1 else y.long()

    def _check(self, out: Tensor, data: Batch, mask: Tensor | None) -> None:
        """Do nothing: a user's loss may take predictions of any width."""


def _measure(score: Score) -> Measure:
    """A user's function as a measure; it gets predictions [n] where targets are floats [n]."""

    def flat(out: Tensor, y: Tensor) -> float | Tensor:
        same = y.is_floating_point() and y.dim() == 1 and out.size(-1) == 1
        return score(out.squeeze(-1) if same else out, y)

    return one_by_one(flat)


# -- masks of nodes, as PyG has them ---------------------------------------------------------------

MASKS = ("train_mask", "val_mask", "test_mask")
"""PyG's names for the masks of training, validation and test nodes."""


def views(graphs: Sequence[Data]) -> tuple[list[Data], list[Split]]:
    """Each graph once for every part (training, validation, test) of every fold, with the nodes
    that count there as ``counted`` [N]; and the splits of these graphs."""
    masks = [_masks(graph) for graph in graphs]
    columns = {mask.size(-1) for mask in masks}
    if len(columns) > 1:
        raise InputError(
            f"the masks of the graphs have {sorted(columns)} columns; expected one for each of as "
            f"many folds in all graphs, or masks [N]"
        )
    out: list[Data] = []
    splits = []
    for fold in range(columns.pop()):
        ids: list[list[int]] = [[], [], []]
        for graph, mask in zip(graphs, masks, strict=True):
            for part, counted in zip(ids, mask[..., fold], strict=True):
                if bool(counted.any()):
                    view = copy.copy(graph)
                    for key in MASKS:
                        view.pop(key, None)
                    view.counted = counted
                    part.append(len(out))
                    out.append(view)
        if not ids[0]:
            raise InputError(
                f"train_mask names no node (fold {fold}); expected at least one to train on"
            )
        splits.append(Split(*(torch.tensor(part, dtype=torch.long) for part in ids)))
    return out, splits


def _masks(graph: Data) -> Tensor:
    """The training, validation and test nodes of every fold, bool [3, N, F]."""
    found = {key: graph.get(key) for key in MASKS if graph.get(key) is not None}
    for mask in found.values():
        good = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() in (1, 2)
        if not good or mask.size(0) != graph.num_nodes:
            what = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise InputError(
                f"a mask of nodes is {what}; expected bool [{graph.num_nodes}], or a column for "
                f"each of several folds"
            )
    wide = {key: mask.view(len(mask), -1) for key, mask in found.items()}
    folds = max(mask.size(1) for mask in wide.values())
    wide = {key: mask.expand(-1, folds) for key, mask in wide.items()}
    train = wide["train_mask"]
    val = wide.get("val_mask", torch.zeros_like(train))
    return torch.stack([train, val, wide.get("test_mask", ~(train | val))])


# -- could a model be trained on these graphs? -----------------------------------------------------


def check_graphs(graphs: Sequence[Data]) -> None:
    """Raise on graphs that no model could be trained on."""
    masked = [g.get("train_mask") is not None for g in graphs]
    for i, g in enumerate(graphs):
        require_whole(g)
        for key in ("x", "edge_index", "y"):
            if not isinstance(value := g.get(key), Tensor):
                has = "no" if value is None else f"a {type(value).__name__} as"
                raise InputError(
                    f"graph {i} has {has} {key}; expected tensors x, edge_index and y: "
                    f"torch.as_tensor(...), where an array holds numbers"
                )
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
        if (unused and not masked[i]) or masked[i] != masked[0]:
            has = " and ".join(["train_mask"] * masked[i] + unused) or "no masks of nodes"
            raise InputError(
                f"graph {i} has {has}; expected a train_mask in all graphs, or no masks in any"
            )
        width, edges = g.x.size(-1), edge_dim(g)
        expected = graphs[0].x.size(-1), edge_dim(graphs[0])
        if (width, edges) != expected:
            raise InputError(
                f"graph {i} has {width} features a node and edge_attr of width {edges}, "
                f"graph 0 {expected[0]} and {expected[1]}; expected the same in all"
            )


def per_node(graphs: Sequence[Data]) -> bool:
    """Whether y has a row for every node, in all graphs; otherwise it has one for each graph."""
    nodes = [g.y.dim() > 0 and g.y.size(0) == g.num_nodes for g in graphs]
    whole = [g.y.dim() == 0 or g.y.size(0) == 1 for g in graphs]
    masked = any(g.get("train_mask") is not None for g in graphs)
    if all(nodes) or (all(whole) and not masked):
        return all(nodes)
    bad = (whole if whole[0] and not masked else nodes).index(False)
    raise InputError(
        f"graph {bad} has {'masks of nodes, ' * masked}y of shape {list(graphs[bad].y.shape)} and "
        f"{graphs[bad].num_nodes} nodes; expected a row for every node, in all graphs"
        f"{', or one row for each graph' * (not masked)}"
    )


def check_targets(graphs: Sequence[Data], classes: bool) -> None:
    """Raise on targets that the default losses do not take."""
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


def edge_dim(graph: Data) -> int | None:
    """Width of the edge features; ``None``: there are none."""
    attr = graph.edge_attr
    return None if attr is None else 1 if attr.dim() == 1 else int(attr.size(-1))
