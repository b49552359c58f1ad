r"""Tasks: graphs, a loss, a metric and splits.

Predictions and targets belong to *rows*: nodes, graphs, or pairs of nodes. A loss or metric is a
mean over the rows that count, :math:`\sum_r w_r \ell_r / \sum_r w_r` with :math:`w_r \in \{0, 1\}`.
Every replica has its own :math:`w`: the folds of an ensemble are trained together, on one batch of
all graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, FeatureError, InputError, is_integer
from hogwild.metrics import Metric


@dataclass(frozen=True)
class Split:
    """Numbers of the training, validation and test graphs; each sorted, [n] of int64."""

    train: Tensor
    val: Tensor
    test: Tensor


def shuffled(count: int, seed: int, strata: Tensor | None = None) -> Tensor:
    """The numbers 0, …, count − 1 in an order that is a function of the seed, [count]. With classes
    ``strata`` [count] one class comes after the other: taking every m-th number gives all classes
    in equal shares."""
    order = np.random.default_rng(seed).permutation(count)
    if strata is not None:
        order = order[np.argsort(strata.numpy()[order], kind="stable")]
    return torch.from_numpy(order)


def cross_validation(
    count: int,
    folds: int,
    seed: int,
    strata: Tensor | None = None,
    *,
    validation: bool = True,
    name: str = "own data",
) -> list[Split]:
    """One split for each of ``folds`` folds, in which this fold is tested.

    Args:
        count: Number of graphs.
        folds: Number of folds, of equal sizes up to one graph.
        seed: Which graphs lie in which fold.
        strata: [count] classes that every fold holds in equal shares; ``None``: ignore classes.
        validation: Hold the next fold out of the training graphs as ``val``; otherwise ``val``
            equals ``train``.
        name: The name of the task, for errors.
    """
    if not is_integer(folds) or not 2 + validation <= folds <= count:
        raise ConfigError(
            f"folds={folds!r} for {count} graphs of {name!r}; expected an integer from "
            f"{2 + validation} to {count}"
        )
    fold = torch.empty(count, dtype=torch.long)
    fold[shuffled(count, seed, strata)] = torch.arange(count) % folds
    out = []
    for test in range(folds):
        val = fold == (test + 1) % folds if validation else fold != test
        train = (fold != test) & ~val if validation else val
        out.append(Split(*(m.nonzero()[:, 0] for m in (train, val, fold == test))))
    return out


def shares(count: int, seed: int, strata: Tensor | None = None) -> Split:
    """80 % of at least three graphs for training, 10 % for validation and the rest for testing, at
    least one of each. ``strata`` [count] are classes that all parts hold in equal shares."""
    order = shuffled(count, seed, strata)
    if strata is not None:
        order = torch.cat([order[hand::10] for hand in range(10)])
    train, val = max(1, round(0.8 * count)), max(1, round(0.1 * count))
    train = min(train, count - 2)
    val = min(val, count - train - 1)
    return Split(*(p.sort().values for p in order.split([train, val, count - train - val])))


def published(sizes: Sequence[int]) -> Split:
    """A split of graphs that are stored in the order training, validation, test; their numbers."""
    return Split(*torch.arange(sum(sizes)).split(list(sizes)))


class Task:
    """Graphs with a loss and a metric. A subclass sets the attributes below.

    :func:`hogwild.train` takes any object with ``name``, ``in_channels``, ``out_channels``,
    ``edge_dim``, ``pool``, ``metric_name``, ``higher_is_better``, ``graphs``, :meth:`splits`,
    :meth:`loss` and :meth:`metric`. The object may have ``defaults`` for options of
    :class:`~hogwild.training.Config` that are not given: batch_size, dtype, validate_every,
    log_every. The option ``validation`` needs the argument ``validation`` of :meth:`splits`.

    Graphs may have a mask ``counted`` [n] of the rows that count.
    """

    name: str
    minimised: Metric
    """The loss."""
    reported: Metric
    """The metric; the next two attributes are taken from it."""
    metric_name: str
    higher_is_better: bool
    pool: str | None = None
    """``None``: the model predicts for every node; ``"mean"``: for every graph."""

    in_channels: int
    out_channels: int
    edge_dim: int | None = None
    graphs: list[Data]
    fixed: Split | None = None
    """The only split, where one was published or folds make no sense."""
    moments: int = 1
    """Graphs in a sequence; every fold holds whole sequences, which follow one another."""
    strata: Tensor | None = None
    """[G] classes that every fold holds in equal shares; ``None``: folds ignore classes."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "reported"):
            cls.metric_name = cls.reported.name
            cls.higher_is_better = cls.reported.higher_is_better

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = False
    ) -> list[Split]:
        """The fixed split, or k-fold cross-validation in which every graph is tested once.

        Args:
            folds: Number of folds; ``None`` is the paper's 10.
            seed: Which graphs lie in which fold.
            validation: Hold one more fold out of the training graphs as ``val``. The paper names no
                validation set, so by default ``val`` equals ``train``.
        """
        if self.fixed is not None:
            if folds is not None or validation:
                raise ConfigError(
                    f"folds={folds!r}, validation={validation!r} were asked of {self.name!r}, "
                    f"which has one fixed split; expected neither"
                )
            return [self.fixed]
        count, here = len(self.graphs) // self.moments, torch.arange(self.moments)
        found = cross_validation(
            count, 10 if folds is None else folds, seed, self.strata,
            validation=validation, name=self.name,
        )  # fmt: skip
        parts = ((split.train, split.val, split.test) for split in found)
        return [
            Split(*((self.moments * part[:, None] + here).flatten() for part in each))
            for each in parts
        ]

    def loss(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The loss that training minimises.

        Args:
            out: Predictions [N, c] ([G, c] with ``pool``), or [R, N, c] ([R, G, c]).
            data: A batch of (some of) :attr:`graphs`.
            mask: Which graphs count: bool [G], or [R, G] for every replica its own.

        Returns:
            The mean over the rows of the graphs that count, a scalar or [R]; NaN where no row
            counts.
        """
        return self._measure(self.minimised, out, data, mask)

    def metric(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """The metric that is reported; arguments and result as in :meth:`loss`."""
        return self._measure(self.reported, out, data, mask)

    def constant(self, train: Batch, test: Batch) -> float:
        """Metric on ``test`` of the best constant prediction for ``train``. No constant prediction
        is better than ``constant(test, test)``: a model that is no better has learned nothing."""
        value = self._constant(train)
        rows = test.num_nodes if self.pool is None else test.num_graphs
        return float(self.metric(value.repeat(rows // len(value), 1), test))

    def _measure(self, metric: Metric, out: Tensor, data: Batch, mask: Tensor | None) -> Tensor:
        self._check(out, data, mask)
        keep: Tensor | None = data.get("counted")
        if mask is not None:
            owner = self._owner(data)
            rows = mask if owner is None else mask[..., owner]
            keep = rows if keep is None else keep & rows
        return metric(self._rows(out, data), self._targets(data), keep)

    def _targets(self, data: Batch) -> Tensor:
        """Classes [n] or numbers [n, …]."""
        y: Tensor = data.y
        return y

    def _rows(self, out: Tensor, data: Batch) -> Tensor:
        """The rows that targets belong to, from predictions for nodes (or graphs)."""
        return out

    def _constant(self, train: Batch) -> Tensor:
        """The best constant prediction [1, c], or [n, c] for graphs of n numbered nodes."""
        y, counted = self._targets(train), train.get("counted")
        if self.reported.constant is None:
            raise ConfigError(
                f"the best constant prediction for the metric {self.reported.name!r} is unknown; "
                f"expected a Metric with a function constant=..."
            )
        return self.reported.constant(y if counted is None else y[counted], self.out_channels)

    def _owner(self, data: Batch) -> Tensor | None:
        """The graph of every row, [n]; ``None``: the rows are the graphs."""
        return data.batch if self.pool is None else None

    def _check(self, out: Tensor, data: Batch, mask: Tensor | None) -> None:
        """Raise unless predictions and mask have the right shapes."""
        rows, kind = (data.num_nodes, "node") if self.pool is None else (data.num_graphs, "graph")
        c = self.out_channels
        if out.dim() not in (2, 3) or tuple(out.shape[-2:]) != (rows, c):
            raise FeatureError(
                f"out has shape {tuple(out.shape)}; expected [{rows}, {c}] or [R, {rows}, {c}], a "
                f"prediction for every {kind} of the batch"
            )
        replicas = out.size(0) if out.dim() == 3 else None
        allowed = {(data.num_graphs,), (replicas, data.num_graphs)}
        if mask is not None and replicas is None and mask.dim() == 2:
            allowed.add((mask.size(0), data.num_graphs))
        if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in allowed):
            raise InputError(
                f"mask is {mask.dtype} of shape {tuple(mask.shape)}; expected bool "
                f"[{data.num_graphs}] or [{replicas or 'R'}, {data.num_graphs}]: which graphs count"
            )
