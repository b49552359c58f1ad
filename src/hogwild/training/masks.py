"""Graphs whose nodes are split by masks, as PyG has them: train_mask, val_mask and test_mask."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import InputError
from hogwild.tasks.splits import Split

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
