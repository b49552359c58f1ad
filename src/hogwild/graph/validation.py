"""Checks of a graph's tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from hogwild.errors import DeviceError, DTypeError, GraphError


def check_edge_index(edge_index: Tensor, num_nodes: int, validate: bool) -> None:
    """Raise unless this is an ``edge_index`` [2, E]; with ``validate`` its nodes must exist."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise GraphError(
            f"edge_index has shape {tuple(edge_index.shape)}; expected [2, num_edges] with senders "
            f"in row 0 and receivers in row 1"
        )
    if edge_index.dtype != torch.long:
        raise DTypeError(f"edge_index has dtype {edge_index.dtype}; expected torch.int64")
    if num_nodes == 0:
        raise GraphError(
            "the graph has no nodes (x has zero rows); expected at least one node. Remove empty "
            "graphs before batching."
        )
    if validate and edge_index.numel():
        low, high = (int(v) for v in edge_index.aminmax())
        if low < 0 or high >= num_nodes:
            raise GraphError(
                f"edge_index names nodes {low} to {high}; expected 0 to {num_nodes - 1}, since x "
                f"has {num_nodes} rows"
            )


def check_batch(batch: Tensor, edge_index: Tensor, num_nodes: int) -> None:
    """Raise unless this is a batch vector [N] on the edges' device; reads no values."""
    if batch.dim() != 1 or batch.numel() != num_nodes:
        raise GraphError(
            f"batch has shape {tuple(batch.shape)}; expected [{num_nodes}], one graph number for "
            f"each row of x"
        )
    if batch.dtype != torch.long:
        raise DTypeError(f"batch has dtype {batch.dtype}; expected torch.int64")
    _require_one_device("batch", batch, edge_index)


def check_batch_values(batch: Tensor, edge_index: Tensor, num_graphs: int) -> None:
    """Raise unless the graphs are sorted, in range, not empty, and no edge joins two of them."""
    steps = batch.diff()
    least, most = (int(v) for v in steps.aminmax()) if steps.numel() else (0, 0)
    if least < 0:
        at = int((steps < 0).nonzero()[0, 0])
        raise GraphError(
            f"batch is not sorted: node {at} is in graph {int(batch[at])} and node {at + 1} in "
            f"graph {int(batch[at + 1])}; expected nodes grouped by graph, as "
            f"torch_geometric.data.Batch makes them"
        )
    low, high = int(batch[0]), int(batch[-1])
    if low < 0 or high >= num_graphs:
        raise GraphError(
            f"batch holds graph numbers {low} to {high}; expected 0 to {num_graphs - 1}"
        )
    if most > 1 or low > 0 or high < num_graphs - 1:  # of sorted numbers, some are left out
        empty = (torch.bincount(batch, minlength=num_graphs) == 0).nonzero()[:, 0]
        raise GraphError(
            f"{empty.numel()} of {num_graphs} graphs have no nodes (first: graph {int(empty[0])}); "
            f"remove empty graphs before batching"
        )
    sender, receiver = (batch.index_select(0, ends) for ends in edge_index)
    if not torch.equal(sender, receiver):
        crossing = (sender != receiver).nonzero()[:, 0]
        j, i = edge_index[:, crossing[0]].tolist()
        raise GraphError(
            f"{crossing.numel()} edges join different graphs (first: {j} -> {i}, graphs "
            f"{int(batch[j])} and {int(batch[i])}); expected edges within one graph"
        )


def check_degrees(degrees: Tensor, edge_index: Tensor, num_nodes: int) -> None:
    """Raise unless these are degrees [N, 2] of nodes on the edges' device; reads no values."""
    if tuple(degrees.shape) != (num_nodes, 2) or not degrees.is_floating_point():
        raise GraphError(
            f"degrees is {degrees.dtype} of shape {tuple(degrees.shape)}; expected floating-point "
            f"numbers [{num_nodes}, 2]: the sums of the weights of the edges into and out of every "
            f"node in the whole graph"
        )
    _require_one_device("degrees", degrees, edge_index)


def _require_one_device(name: str, value: Tensor, edge_index: Tensor) -> None:
    if value.device != edge_index.device:
        raise DeviceError(
            f"{name} is on {value.device} and edge_index on {edge_index.device}; move them to one "
            f"device"
        )
