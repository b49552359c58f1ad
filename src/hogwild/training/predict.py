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
    """The first two of :func:`predict_levels`."""
    out, found, _ = predict_levels(model, data, h0)
    return out, found


def predict_levels(
    model: ConvGNN, data: Batch, h0: Tensor | None = None
) -> tuple[Tensor, Solution, Tensor]:
    """Predictions [R, …], embeddings [R, N, k], and those of all levels side by side [R, N, K];
    R = 1 for a model without replicas. Solves begin at ``h0`` [R, N, K]."""
    many = model.replicas is not None
    if h0 is not None and not many:
        h0 = h0[0]
    inputs = inputs_of(model, data)
    levels = model.solutions(inputs, h0)
    found, h = model.joined(levels), Solution.of_levels(levels, every=True).value.detach()
    out = model.read(found.value, inputs)
    if many:
        return out, found, h
    parts = (found.value, found.status, found.iterations, found.residual)
    return out.unsqueeze(0), Solution(*(t.unsqueeze(0) for t in parts)), h.unsqueeze(0)
