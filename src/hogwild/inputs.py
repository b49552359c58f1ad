"""PyG's data as models take it: the tensors of one graph, a batch, or a list of graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import InputError


@dataclass
class Inputs:
    """The tensors of a PyG ``Data``, ``Batch`` or list of graphs, as models take them."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    edge_weight: Tensor | None
    batch: Tensor
    num_graphs: int

    @classmethod
    def of(cls, data: Data | Batch | Iterable[Data]) -> Inputs:
        if not isinstance(data, Data):
            graphs = list(data) if isinstance(data, Iterable) else []
            if not graphs or not all(isinstance(graph, Data) for graph in graphs):
                raise InputError(
                    f"data is a {type(data).__name__}; expected a torch_geometric.data.Data, a "
                    f"Batch, or a non-empty list of Data"
                )
            data = Batch.from_data_list(graphs)
        if data.x is None or data.edge_index is None:
            raise InputError("data lacks x or edge_index; expected node features and edges")
        if data.x.dim() < 2:
            raise InputError(
                f"data.x has shape {list(data.x.shape)}; expected [nodes, channels]: a single "
                f"feature is a column, x.unsqueeze(1)"
            )
        batch = data.batch
        if batch is None:
            batch = torch.zeros(data.x.size(-2), dtype=torch.long, device=data.x.device)
        count = int(batch.max()) + 1 if batch.numel() else 0
        return cls(data.x, data.edge_index, data.edge_attr, data.get("edge_weight"), batch, count)

    def repeat(self, runs: int) -> Inputs:
        """``runs`` disjoint copies."""
        n = self.x.size(-2)
        offset = torch.arange(runs, device=self.x.device)
        edges = self.edge_index.unsqueeze(1) + n * offset.view(1, -1, 1)
        batch = self.batch.unsqueeze(0) + self.num_graphs * offset.view(-1, 1)
        return Inputs(
            self.x.repeat(*[1] * (self.x.dim() - 2), runs, 1),  # [N, p], or a replica each
            edges.flatten(1),
            None if self.edge_attr is None else self.edge_attr.repeat(runs, 1),
            None if self.edge_weight is None else self.edge_weight.repeat(runs),
            batch.flatten(),
            runs * self.num_graphs,
        )

    def arguments(self) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """As a model is called."""
        return (
            (self.x, self.edge_index, self.edge_attr, self.batch),
            {"edge_weight": self.edge_weight, "batch_size": self.num_graphs},
        )
