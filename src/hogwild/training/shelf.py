"""All graphs of a task, and mini-batches of them.

The nodes of a graph may be split by masks, as PyG has them: train_mask, val_mask and test_mask.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from hogwild.errors import InputError
from hogwild.tasks.splits import Split


@dataclass(frozen=True)
class Taken:
    """Some graphs as one batch."""

    data: Batch
    ids: Tensor  # [B] their numbers
    nodes: Tensor  # [n] the numbers of their nodes among those of all graphs


class Shelf:
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


def portions(used: Tensor, trained: Tensor, size: int | None, seed: int) -> list[Tensor]:
    """The numbers of the graphs ``used`` [G] in few batches, for measuring.

    Where ``used`` includes all graphs that are ``trained`` on [G], these come in the mini-batches
    of training: unless batches are reshuffled, their analysis is done already.
    """
    chunks: list[Tensor] = []
    if not bool((trained & ~used).any()):
        chunks, used = mini_batches(trained, size, seed), used & ~trained
    rest = used.cpu().nonzero()[:, 0]
    return [*chunks, *(rest.split(size or len(used)) if len(rest) else ())]


MASKS = ("train_mask", "val_mask", "test_mask")
"""PyG's names for the masks of training, validation and test nodes."""


def views(graphs: Sequence[Data]) -> tuple[list[Data], list[Split]]:
    """Each graph once for every part (training, validation, test) of every fold, with the nodes
    that count there as ``counted`` [N]; and the splits of these graphs."""
    columns = {_columns(g) for g in graphs}
    if len(columns) > 1:
        raise InputError(
            f"the masks of the graphs have {sorted(columns)} columns; expected one for each of as "
            f"many folds in all graphs, or masks [N]"
        )
    out: list[Data] = []
    splits = []
    for fold in range(columns.pop()):
        ids: list[list[int]] = [[], [], []]
        for graph in graphs:
            for part, mask in zip(ids, _masks(graph, fold), strict=True):
                if bool(mask.any()):
                    view = copy.copy(graph)
                    for key in MASKS:
                        if key in view:
                            del view[key]
                    view.counted = mask
                    part.append(len(out))
                    out.append(view)
        if not ids[0]:
            raise InputError(
                f"train_mask names no node (fold {fold}); expected at least one to train on"
            )
        splits.append(Split(*(torch.tensor(part, dtype=torch.long) for part in ids)))
    return out, splits


def _columns(graph: Data) -> int:
    """The number of folds in the masks of a graph."""
    found = [graph.get(key) for key in MASKS if graph.get(key) is not None]
    for mask in found:
        good = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() in (1, 2)
        if not good or mask.size(0) != graph.num_nodes:
            what = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise InputError(
                f"a mask of nodes is {what}; expected bool [{graph.num_nodes}], or a column for "
                f"each of several folds"
            )
    return max(mask.size(1) if mask.dim() == 2 else 1 for mask in found)


def _masks(graph: Data, fold: int) -> list[Tensor]:
    """The training, validation and test nodes of one fold, bool [N] each."""
    found = []
    for key in MASKS:
        mask = graph.get(key)
        if mask is not None and mask.dim() == 2:
            mask = mask[:, fold if mask.size(1) > 1 else 0]
        found.append(mask)
    train, val, test = found
    val = torch.zeros_like(train) if val is None else val
    return [train, val, ~(train | val) if test is None else test]
