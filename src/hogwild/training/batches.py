"""All graphs of a task, mini-batches of them, and what a model predicts for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.graph.inputs import Inputs
from hogwild.linalg.solution import Solution
from hogwild.models.gnn import ConvGNN


@dataclass(frozen=True)
class Taken:
    """Some graphs as one batch."""

    data: Batch
    ids: Tensor  # [B] their numbers
    nodes: Tensor  # [n] the numbers of their nodes among those of all graphs


class Batches:
    """All graphs of a task in one dtype and on one device, to take batches from."""

    def __init__(self, graphs: Sequence[Data], dtype: torch.dtype, device: torch.device) -> None:
        def convert(t: Tensor) -> Tensor:
            return t.to(device, dtype) if t.is_floating_point() else t.to(device)

        self.graphs = [g.clone().apply(convert) for g in graphs]
        sizes = torch.tensor([int(g.num_nodes or 0) for g in self.graphs])
        self.ends = sizes.cumsum(0)
        self.starts = self.ends - sizes
        self.num_nodes = int(sizes.sum())
        self.device = device
        edges = sum(g.num_edges for g in self.graphs)
        self.counts = {"graphs": len(self.graphs), "nodes": self.num_nodes, "edges": edges}
        self._kept: dict[tuple[int, ...], Taken] = {}

    @torch.inference_mode(False)  # a kept batch must serve training, too
    def take(self, ids: Tensor, keep: bool = False) -> Taken:
        """The graphs of these numbers; ``keep`` a batch that is taken again and again."""
        key = tuple(ids.tolist())
        if key in self._kept:
            return self._kept[key]
        data = Batch.from_data_list([self.graphs[i] for i in key])
        spans = [torch.arange(int(self.starts[i]), int(self.ends[i])) for i in key]
        taken = Taken(data, ids.to(self.device), torch.cat(spans).to(self.device))
        if keep:
            self._kept[key] = taken
        return taken


def mini_batches(used: Tensor, size: int | None, seed: int, turn: int = 0) -> list[Tensor]:
    """The numbers of the graphs ``used`` [G] in mini-batches of at most ``size``.

    The order of *all* graphs is a function of ``seed`` and ``turn``, so that a replica meets its
    graphs in the same company whichever replicas are trained beside it.
    """
    used = used.cpu()
    if size is None:
        return [used.nonzero()[:, 0]]
    random = torch.Generator().manual_seed(seed * 1_000_003 + turn)
    order = torch.randperm(len(used), generator=random)
    chunks = [c[used[c]].sort().values for c in order.split(size)]
    return [c for c in chunks if c.numel()]


def inputs_of(model: ConvGNN, data: Batch) -> Inputs:
    """What a model reads, from a batch that the library made: nothing is checked."""
    attr = None if model.edge_dim is None else data.edge_attr
    weight, count = data.get("edge_weight"), data.num_graphs
    return Inputs(data.x, data.edge_index, attr, data.batch, edge_weight=weight, batch_size=count)


def predict_levels(
    model: ConvGNN, data: Batch, h0: Tensor | None = None
) -> tuple[Tensor, Solution, Tensor]:
    """Predictions [R, …], embeddings [R, N, k], and those of all levels side by side [R, N, K];
    R = 1 for a model without replicas. Solves begin at ``h0`` [R, N, K]."""
    many = model.replicas is not None
    if h0 is not None and not many:
        h0 = h0[0]
    inputs = inputs_of(model, data)
    found = model.embed(inputs, h0)
    h = found.side_by_side.detach()
    out = model.read(found.value, inputs)
    if many:
        return out, found, h
    value, status, iterations, residual = (
        t.unsqueeze(0) for t in (found.value, found.status, found.iterations, found.residual)
    )
    return out.unsqueeze(0), Solution(value, status, iterations, residual), h.unsqueeze(0)
