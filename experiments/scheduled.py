r"""GCN and GAT trained under random schedules, as a baseline for energies.

.. math:: \min_\theta\; \mathbb E_{\text{schedule}}\; \ell\bigl(\hat y_\theta(\text{schedule}),
          y\bigr)

Every training step draws a schedule (S = 5, D = 2) from torch's random state, which a checkpoint
holds. Epochs are chosen, and replicas are compared, under schedule 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from experiments.experiment import Work
from hogwild.errors import ConfigError, among
from hogwild.executors.gradients import asynchronous_embed
from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models import GAT, GCN
from hogwild.models.layered import LayeredGNN
from hogwild.training import Result
from hogwild.training.registry import MODELS, Entry

REPLICAS = 10
"""The largest number of replicas: a schedule takes as long as dozens of synchronous passes."""
HASTE = 4
"""``--quick`` divides its number of epochs by this, for the same reason."""


class Scheduled(LayeredGNN):
    """A layered model whose embeddings are those of a random schedule."""

    def embed(self, inputs: Inputs, h0: Tensor | None = None) -> Solution:
        """Embeddings under a fresh schedule in training, and under schedule 0 otherwise."""
        seed = int(torch.randint(1, 2**31, ())) if self.training else 0
        inputs = replace(inputs, edge_attr=None) if self.edge_dim is None else inputs
        h = asynchronous_embed(self, inputs, seed=seed)
        return Solution.exact(h, inputs.num_graphs, self.conv.num_layers)


class ScheduledGCN(Scheduled, GCN):
    """A GCN under schedules."""


class ScheduledGAT(Scheduled, GAT):
    """A GAT under schedules."""


CLASSES = {"gcn": ScheduledGCN, "gat": ScheduledGAT}
MODELS |= {
    f"{name}-scheduled": Entry(cls, edges=MODELS[name].edges) for name, cls in CLASSES.items()
}


def trained(work: Work, column: str, model: str) -> Result:
    """A model trained under schedules by the protocol of the column; its ``config`` names the
    plain model, so that ``result.replica(r)`` is one."""
    if model not in CLASSES:
        raise ConfigError(f"{model!r} is not trained under schedules; {among(CLASSES, model)}")
    config = work.config(column, model)
    config = replace(config, replicas=min(config.replicas, REPLICAS))
    if work.quick:
        (factor, every), epochs = config.decay, max(1, config.epochs // HASTE)
        config = replace(config, epochs=epochs, decay=(factor, max(1, every // HASTE)))
    name = f"{model}-scheduled"
    result = work.fit(replace(config, model=name), work.training(column, name))
    return replace(result, config=config)
