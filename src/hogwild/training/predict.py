"""Predictions of a model for a batch, always with a dimension for replicas."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch_geometric.data import Batch

from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution


class Predictor(Protocol):
    """A model of this library, as training calls it."""

    @property
    def replicas(self) -> int | None: ...

    def embed(self, *args: Any, **options: Any) -> Solution: ...

    def readout(self, *args: Any, **options: Any) -> Tensor: ...


def arguments(data: Batch, edges: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a model for a batch that the library made: nothing is checked."""
    attr = data.edge_attr if edges else None
    weight = data.get("edge_weight")
    inputs = Inputs(data.x, data.edge_index, attr, weight, data.batch, data.num_graphs)
    return inputs.arguments()


def predict(
    model: Predictor, data: Batch, edges: bool, h0: Tensor | None = None
) -> tuple[Tensor, Solution]:
    """Predictions [R, …] and embeddings [R, N, k], R = 1 for a model without replicas.

    Args:
        model: Any model of this library.
        data: The graphs.
        edges: Whether the model reads edge features.
        h0: Where solves begin, [R, N, k].
    """
    many = model.replicas is not None
    if h0 is not None and not many:
        h0 = h0[0]
    args, options = arguments(data, edges)
    found = model.embed(*args, h0=h0, **options)
    out = model.readout(found.value, data.batch, data.num_graphs)
    if many:
        return out, found
    parts = (found.value, found.status, found.iterations, found.residual)
    return out.unsqueeze(0), Solution(*(t.unsqueeze(0) for t in parts))
