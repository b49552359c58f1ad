r"""What a task is: graphs, a loss, a metric and the splits they are reported over.

Predictions and targets belong to *rows*: nodes, graphs, or pairs of nodes. A loss or metric is a
mean over the rows that count, :math:`\sum_r w_r \ell_r / \sum_r w_r` with :math:`w_r \in \{0, 1\}`,
for every replica with its own :math:`w`: the folds of an ensemble are trained together, on one
batch of all graphs, each replica counting its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, FeatureError, InputError, is_integer


@dataclass(frozen=True)
class Split:
    """Graph numbers to train on, to choose by and to report on; each sorted, [n] long."""

    train: Tensor
    val: Tensor
    test: Tensor


class Task(ABC):
    """Graphs with a loss and a metric.

    A subclass sets the attributes below and ``graphs``, and says what one row's loss is.
    """

    name: str
    metric_name: str
    higher_is_better: bool
    pool: str | None = None
    """What the model is built with: ``None`` for a prediction a node, ``"mean"`` a graph."""

    in_channels: int
    out_channels: int
    edge_dim: int | None = None
    graphs: list[Data]
    fixed: Split | None = None
    """The only split there is, where one was published or folds make no sense."""
    strata: Tensor | None = None
    """[G] classes that every fold holds in equal shares; ``None``: folds are drawn blindly."""

    def splits(
        self, folds: int | None = None, seed: int = 0, *, validation: bool = False
    ) -> list[Split]:
        """The protocol: the fixed split, or k-fold cross-validation, every graph tested once.

        Args:
            folds: Number of folds; ``None`` is the paper's 10.
            seed: Which graphs lie in which fold.
            validation: Hold one more fold out of the training graphs as ``val``. The paper names no
                validation set, so by default nothing is held out and ``val`` *is* ``train``:
                an epoch chosen by it has seen nothing of the test graphs.
        """
        if self.fixed is not None:
            if folds is not None or validation:
                raise ConfigError(
                    f"folds={folds!r}, validation={validation!r} were asked of {self.name!r}, "
                    f"which has one fixed split; expected neither"
                )
            return [self.fixed]
        count = len(self.graphs)
        k = 10 if folds is None else folds
        if not is_integer(k) or not 2 + validation <= k <= count:
            raise ConfigError(
                f"folds={k!r} for {count} graphs of {self.name!r}; expected an integer from "
                f"{2 + validation} to {count}"
            )
        order = np.random.default_rng(seed).permutation(count)
        if self.strata is not None:  # class after class, dealt out like cards
            order = order[np.argsort(self.strata.numpy()[order], kind="stable")]
        fold = torch.empty(count, dtype=torch.long)
        fold[torch.from_numpy(order)] = torch.arange(count) % k
        out = []
        for test in range(k):
            val = fold == (test + 1) % k if validation else fold != test
            train = (fold != test) & ~val if validation else val
            out.append(Split(*(m.nonzero()[:, 0] for m in (train, val, fold == test))))
        return out

    def loss(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """What training minimises.

        Args:
            out: Predictions [N, c] ([G, c] with ``pool``), or [R, N, c] ([R, G, c]).
            data: A batch of (some of) :attr:`graphs`.
            mask: Which graphs count: bool [G], or [R, G] for every replica its own.

        Returns:
            The mean over the rows of the graphs that count: a scalar, or [R]. Where nothing
            counts there is no mean: NaN.
        """
        return self._loss(out, data, self._counted(out, data, mask))

    def metric(self, out: Tensor, data: Batch, mask: Tensor | None = None) -> Tensor:
        """What is reported; arguments and result as in :meth:`loss`."""
        return self._metric(out, data, self._counted(out, data, mask))

    def constant(self, train: Batch, test: Batch) -> float:
        """Metric on ``test`` of the best prediction that looks at no graph, learned on ``train``:
        a model that is no better has learned nothing."""
        value = self._constant(train)
        rows = test.num_nodes if self.pool is None else test.num_graphs
        return float(self.metric(value.repeat(rows // len(value), 1), test))

    @abstractmethod
    def _loss(self, out: Tensor, data: Batch, keep: Tensor | None) -> Tensor:
        """The loss over the rows ``keep``, [n] or [R, n]; ``None``: all."""

    @abstractmethod
    def _metric(self, out: Tensor, data: Batch, keep: Tensor | None) -> Tensor:
        """The metric over the rows ``keep``."""

    @abstractmethod
    def _constant(self, train: Batch) -> Tensor:
        """The best constant prediction [1, c], or [n, c] for graphs of n numbered nodes."""

    def _owner(self, data: Batch) -> Tensor | None:
        """The graph of every row, [n]; ``None``: the rows are the graphs."""
        return data.batch if self.pool is None else None

    def _counted(self, out: Tensor, data: Batch, mask: Tensor | None) -> Tensor | None:
        """The mask of graphs as a mask of rows, after checking shapes."""
        rows, kind = (data.num_nodes, "node") if self.pool is None else (data.num_graphs, "graph")
        c = self.out_channels
        if out.dim() not in (2, 3) or tuple(out.shape[-2:]) != (rows, c):
            raise FeatureError(
                f"out has shape {tuple(out.shape)}; expected [{rows}, {c}] or [R, {rows}, {c}], a "
                f"prediction for every {kind} of the batch"
            )
        if mask is None:
            return None
        lead = tuple(mask.shape[:-1])
        if (
            mask.dtype != torch.bool
            or mask.dim() not in (1, 2)
            or mask.size(-1) != data.num_graphs
            or (lead and out.dim() == 3 and lead != (out.size(0),))
        ):
            replicas = out.size(0) if out.dim() == 3 else "R"
            raise InputError(
                f"mask is {mask.dtype} of shape {tuple(mask.shape)}; expected bool "
                f"[{data.num_graphs}] or [{replicas}, {data.num_graphs}]: which graphs count"
            )
        owner = self._owner(data)
        return mask if owner is None else mask[..., owner]


def published(sizes: Sequence[int]) -> Split:
    """Graphs stored as training, validation and test graphs, in this order and these many."""
    return Split(*torch.arange(sum(sizes)).split(list(sizes)))
