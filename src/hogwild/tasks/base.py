r"""What a task is: graphs, a loss, a metric and the splits they are reported over.

Predictions and targets belong to *rows*: nodes, graphs, or pairs of nodes. A loss or metric is a
mean over the rows that count, :math:`\sum_r w_r \ell_r / \sum_r w_r` with :math:`w_r \in \{0, 1\}`,
for every replica with its own :math:`w`: the folds of an ensemble are trained together, on one
batch of all graphs, each replica counting its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import ConfigError, FeatureError, InputError
from hogwild.metrics import Metric
from hogwild.tasks.splits import Split, cross_validation


class Task(ABC):
    """Graphs with a loss and a metric.

    A subclass sets the attributes below and ``graphs``, and says what one row's loss is.
    """

    name: str
    reported: Metric
    """What :meth:`metric` computes; the next two are of it."""
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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "reported"):
            cls.metric_name = cls.reported.name
            cls.higher_is_better = cls.reported.higher_is_better

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
        return cross_validation(
            len(self.graphs),
            10 if folds is None else folds,
            seed,
            self.strata,
            validation=validation,
            name=self.name,
        )

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

    def _metric(self, out: Tensor, data: Batch, keep: Tensor | None) -> Tensor:
        """The metric over the rows ``keep``."""
        return self.reported(out, data.y, keep)

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
