"""A user's own graphs as a task."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, require_positive
from hogwild.graph.inputs import graphs_of
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
from hogwild.tasks.base import Task
from hogwild.tasks.splits import Split, cross_validation, shares
from hogwild.training.checks import check_graphs, check_targets, edge_dim, per_node
from hogwild.training.shelf import views

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
