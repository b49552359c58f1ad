"""PyG's data as models take it: the tensors of one graph, a batch, or a list of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from hogwild.errors import InputError

SAMPLED = ("n_id", "e_id", "input_id", "num_sampled_nodes", "root_n_id", "node_norm", "edge_norm")
"""Attributes that some samplers of PyG leave on a part of a graph. Other samplers and
``Data.subgraph`` leave none, so their parts look like whole graphs."""


def graphs_of(data: Any) -> list[Data]:
    """A PyG ``Data`` or ``Batch``, or any number of them in a list, dataset or loader, as a list.

    Raises:
        InputError: It is something else, or empty.
    """
    found = [data] if isinstance(data, Data) else []
    if isinstance(data, Iterable) and not isinstance(data, Data | HeteroData | Tensor | Mapping):
        found = list(data)
    for each in (data, *found):
        if isinstance(each, HeteroData):
            raise InputError(
                "data is a HeteroData, with several types of nodes or edges; expected a graph of "
                "one type: data.to_homogeneous() makes one where the features of all types are "
                "equally wide"
            )
    if not found or not all(isinstance(graph, Data) for graph in found):
        within = f" of {type(found[0]).__name__}" if found else ""
        raise InputError(
            f"data is a {type(data).__name__}{within}; expected a torch_geometric.data.Data, a "
            f"Batch, or a non-empty list of Data"
        )
    return found


def require_whole(graph: Data) -> None:
    """Raise on a part of a larger graph, if a sampler marked it (:data:`SAMPLED`): nodes at its rim
    have lost neighbours, and degrees and normalisations would be those of the part."""
    left = [key for key in SAMPLED if graph.get(key) is not None]
    if left:
        raise InputError(
            f"data is a part of a larger graph: a sampler left {', '.join(left)} on it. Nodes at "
            f"its rim lack neighbours, and their degrees and normalisations are not those of the "
            f"whole graph, so the answer would be another one. Expected the whole graph; if this "
            f"is one, remove {', '.join(left)} from it"
        )


@dataclass
class Inputs:
    """The tensors of a PyG ``Data``, ``Batch`` or list of graphs, as models take them.

    Attributes:
        batched: Whether the data came with a batch vector.
        nodes: Other tensors with a row for each node, by name, for trained models that read them.
        edges: Other tensors with a row for each edge.
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
        graphs = graphs_of(data)
        for graph in graphs:
            require_whole(graph)
            if not isinstance(graph.x, Tensor) or not isinstance(graph.edge_index, Tensor):
                raise InputError("data lacks x or edge_index; expected node features and edges")
        data = data if isinstance(data, Data) else Batch.from_data_list(graphs)
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

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for a model."""
        return (
            (self.x, self.edge_index, self.edge_attr, self.batch),
            {"edge_weight": self.edge_weight, "batch_size": self.num_graphs},
        )


def _others(data: Data) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Other tensors with a row for each node, and with a row for each edge."""
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
