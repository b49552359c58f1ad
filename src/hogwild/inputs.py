"""PyG's data as models take it: the tensors of one graph, a batch, or a list of graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import InputError


@dataclass
class Inputs:
    """The tensors of a PyG ``Data``, ``Batch`` or list of graphs, as models take them.

    Attributes:
        batched: Whether the data came with a batch vector.
        nodes: What else has a row for each node, by name, which trained models may ask for.
        edges: What else has a row for each edge.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    edge_weight: Tensor | None
    batch: Tensor
    num_graphs: int
    batched: bool = True
    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Tensor] = field(default_factory=dict)

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
        batch, batched = data.batch, data.batch is not None
        if batch is None:
            batch = torch.zeros(data.x.size(-2), dtype=torch.long, device=data.x.device)
        count = int(batch.max()) + 1 if batch.numel() else 0
        return cls(
            data.x, data.edge_index, data.edge_attr, data.get("edge_weight"), batch, count, batched,
            *_others(data),
        )  # fmt: skip

    def repeat(self, runs: int) -> Inputs:
        """``runs`` disjoint copies."""
        n = self.x.size(-2)
        offset = torch.arange(runs, device=self.x.device)
        edges = self.edge_index.unsqueeze(1) + n * offset.view(1, -1, 1)
        batch = self.batch.unsqueeze(0) + self.num_graphs * offset.view(-1, 1)
        return Inputs(
            self.x.repeat(*[1] * (self.x.dim() - 2), runs, 1),  # [N, p], or a replica each
            edges.flatten(1),
            None if self.edge_attr is None else torch.cat([self.edge_attr] * runs),
            None if self.edge_weight is None else self.edge_weight.repeat(runs),
            batch.flatten(),
            runs * self.num_graphs,
            self.batched or runs > 1,
            {name: torch.cat([value] * runs) for name, value in self.nodes.items()},
            {name: torch.cat([value] * runs) for name, value in self.edges.items()},
        )

    def arguments(self) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """As a model is called."""
        return (
            (self.x, self.edge_index, self.edge_attr, self.batch),
            {"edge_weight": self.edge_weight, "batch_size": self.num_graphs},
        )


def _others(data: Data) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What else has a row for each node, or for each edge."""
    nodes: dict[str, Tensor] = {}
    edges: dict[str, Tensor] = {}
    for name in data.keys():  # noqa: SIM118 (a method of PyG's)
        value = data[name]
        if name in ("x", "edge_index", "edge_attr", "edge_weight", "batch", "ptr"):
            continue
        if not isinstance(value, Tensor) or not value.dim():
            continue
        if value.size(0) == data.x.size(-2) and data.is_node_attr(name):
            nodes[name] = value
        elif value.size(0) == data.edge_index.size(1) and data.is_edge_attr(name):
            edges[name] = value
    return nodes, edges
