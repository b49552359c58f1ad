"""Predictions of a model for a batch, always with a dimension for replicas."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.data import Batch

from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.gnn import ConvGNN


def inputs_of(model: ConvGNN, data: Batch) -> Inputs:
    """What a model reads, from a batch that the library made: nothing is checked."""
    attr = None if model.edge_dim is None else data.edge_attr
    weight, count = data.get("edge_weight"), data.num_graphs
    return Inputs(data.x, data.edge_index, attr, data.batch, edge_weight=weight, batch_size=count)


def predict(model: ConvGNN, data: Batch, h0: Tensor | None = None) -> tuple[Tensor, Solution]:
    """Predictions [R, …] and embeddings [R, N, k], R = 1 for a model without replicas. Solves begin
    at ``h0`` [R, N, k]."""
    many = model.replicas is not None
    if h0 is not None and not many:
        h0 = h0[0]
    inputs = inputs_of(model, data)
    found = model.embed(inputs, h0)
    out = model.read(found.value, inputs)
    if many:
        return out, found
    parts = (found.value, found.status, found.iterations, found.residual)
    return out.unsqueeze(0), Solution(*(t.unsqueeze(0) for t in parts))
