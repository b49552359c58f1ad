r"""Chains: carry one bit from end to end.

**Data.** p undirected chains of l nodes; chain k has the features :math:`X_{1,k} = 1` and zeros
elsewhere: only the first node knows the class. Every node predicts the class of its chain.

**Protocol.** The paper has p = 2 and l = 100: two graphs in all, and every node is trained on and
tested. There are no folds (one split: train = val = test = all), only seeds of the parameters. A
GCN of five layers errs on exactly 47.0 % of the nodes: six of 100 nodes hear the label, the others
guess.

**Loss** binary cross-entropy (one logit) for two classes, cross-entropy (p logits) for more.
**Metric** the share of nodes classified wrongly.

``variant="ignn"`` is the protocol of Gu et al. (*Implicit Graph Neural Networks*, 2020) under the
same name: 20 *directed* chains a class, of whose nodes 5 % are for training, 10 % for validation
and 85 % for testing. Splits are made of graphs, so the set of chains appears three times, each time
with other nodes that count.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import ConfigError, require_integer, require_one_of, require_positive
from hogwild.metrics import CROSS_ENTROPY, ERROR
from hogwild.tasks.base import Task
from hogwild.tasks.families import edges
from hogwild.tasks.splits import Split, published

VARIANTS = ("paper", "ignn")


class Chains(Task):
    """The class of a chain, known to its first node.

    Args:
        classes: p; x is [l, p].
        length: l.
        variant: ``"paper"`` or ``"ignn"``.
        copies: Chains a class, with ``variant="ignn"`` (default 20).
        seed: The seed of the choice of nodes, with ``variant="ignn"``.
    """

    name = "chains"
    minimised, reported = CROSS_ENTROPY, ERROR

    def __init__(
        self,
        classes: int = 2,
        length: int = 100,
        *,
        variant: str = "paper",
        copies: int | None = None,
        seed: int = 0,
    ) -> None:
        require_positive("length", length)
        require_integer("classes", classes, 2, " to tell apart")
        require_one_of(VARIANTS, variant=variant)
        if variant == "paper" and copies is not None:
            raise ConfigError(
                f"copies={copies!r} with variant='paper', which has one chain a class; expected "
                f"None, or variant='ignn'"
            )
        self.in_channels = classes
        self.out_channels = 1 if classes == 2 else classes
        if variant == "paper":
            everyone = torch.ones(classes, length, dtype=torch.bool)
            self.graphs = [self._chain(k, everyone[k], directed=False) for k in range(classes)]
            all_graphs = torch.arange(classes)
            self.fixed = Split(all_graphs, all_graphs, all_graphs)
            return
        copies = 20 if copies is None else copies
        require_positive("copies", copies)
        count = copies * classes
        order = torch.from_numpy(np.random.default_rng(seed).permutation(count * length))
        train, val = round(0.05 * len(order)), round(0.1 * len(order))
        self.graphs = []
        for chosen in order.split([train, val, len(order) - train - val]):
            counts = torch.zeros(count * length, dtype=torch.bool)
            counts[chosen] = True
            self.graphs += [
                self._chain(g % classes, counted, directed=True)
                for g, counted in enumerate(counts.view(count, length))
            ]
        self.fixed = published([count] * 3)

    def _chain(self, k: int, counted: Tensor, directed: bool) -> Data:
        length = len(counted)
        edge_index = edges("chain", length, np.random.default_rng())
        if directed:
            edge_index = edge_index[:, edge_index[0] < edge_index[1]]
        x = torch.zeros(length, self.in_channels)
        x[0, k] = 1.0
        y = torch.full((length,), k)
        return Data(x=x, edge_index=edge_index, y=y, counted=counted)
