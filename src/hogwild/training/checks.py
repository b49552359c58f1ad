"""Checks of a user's own graphs: could a model be trained on them?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import InputError
from hogwild.graph.inputs import require_whole
from hogwild.training.shelf import MASKS


def check_graphs(graphs: Sequence[Data]) -> None:
    """Raise on graphs that no model could be trained on."""
    masked = [g.get("train_mask") is not None for g in graphs]
    for i, g in enumerate(graphs):
        require_whole(g)
        needed = {key: g.get(key) for key in ("x", "edge_index", "y")}
        for key, value in needed.items():
            if value is not None and not isinstance(value, Tensor):
                raise InputError(
                    f"graph {i} has {key} as a {type(value).__name__}; expected a tensor: "
                    f"torch.as_tensor({key}), where it holds numbers"
                )
        lacks = [key for key, value in needed.items() if value is None]
        if lacks:
            raise InputError(f"graph {i} lacks {' and '.join(lacks)}; expected x, edge_index and y")
        if g.x.dim() != 2:
            raise InputError(
                f"graph {i} has x of shape {list(g.x.shape)}; expected [nodes, features]: a single "
                f"feature is a column, x.unsqueeze(1)"
            )
        if not g.x.is_floating_point():
            raise InputError(
                f"graph {i} has x of dtype {g.x.dtype}; expected floating-point features: "
                f"x.float() for numbers, torch.nn.functional.one_hot for categories"
            )
        unused = [key for key in MASKS[1:] if g.get(key) is not None]
        if unused and not masked[i]:
            raise InputError(
                f"graph {i} has {' and '.join(unused)} and no train_mask, so all of its nodes "
                f"would be trained on; expected a train_mask, or none of the three"
            )
        if masked[i] != masked[0]:
            raise InputError(
                f"graph {i} {'has' if masked[i] else 'lacks'} a train_mask, unlike graph 0; "
                f"expected masks of nodes in all graphs or in none"
            )
        width, edges = g.x.size(-1), edge_dim(g)
        expected = graphs[0].x.size(-1), edge_dim(graphs[0])
        if (width, edges) != expected:
            raise InputError(
                f"graph {i} has {width} features a node and edge_attr of width {edges}, "
                f"graph 0 {expected[0]} and {expected[1]}; expected the same in all"
            )


def per_node(graphs: Sequence[Data]) -> bool:
    """Whether y has a row for every node, in all graphs; otherwise it has one for each graph."""
    nodes = [g.y.dim() > 0 and g.y.size(0) == g.num_nodes for g in graphs]
    whole = [g.y.dim() == 0 or g.y.size(0) == 1 for g in graphs]
    masked = any(g.get("train_mask") is not None for g in graphs)
    if all(nodes) or (all(whole) and not masked):
        return all(nodes)
    fits = whole if whole[0] and not masked else nodes
    bad = fits.index(False)
    y, n = list(graphs[bad].y.shape), graphs[bad].num_nodes
    if masked:
        raise InputError(
            f"graph {bad} has masks of nodes and y of shape {y}; expected a row for each of {n} "
            f"nodes"
        )
    raise InputError(
        f"graph {bad} has y of shape {y} and {n} nodes; expected a row for every node, in all "
        f"graphs, or one row for each graph"
    )


def check_targets(graphs: Sequence[Data], classes: bool) -> None:
    """Raise on targets that the default losses do not take."""
    for i, g in enumerate(graphs):
        y = g.y if g.get("counted") is None else g.y[g.counted]
        if classes and y.dim() == 2 and y.size(1) > 1:
            raise InputError(
                f"graph {i} has y of {y.dtype} and shape {list(y.shape)}; expected one class a "
                f"row, or floats and a loss for several labels, such as "
                f"torch.nn.functional.binary_cross_entropy_with_logits"
            )
        if classes and y.numel() and int(y.min()) < 0:
            raise InputError(
                f"graph {i} has the class {int(y.min())} in y; expected classes from 0 on: drop "
                f"what has no label, or leave it out of the masks"
            )
        if not classes and not bool(torch.isfinite(y).all()):
            raise InputError(
                f"graph {i} has NaN or infinite values in y; expected finite numbers: drop what "
                f"has no target, or give a loss that leaves it out"
            )


def edge_dim(graph: Data) -> int | None:
    """Width of the edge features; ``None``: there are none."""
    attr = graph.edge_attr
    return None if attr is None else 1 if attr.dim() == 1 else int(attr.size(-1))
