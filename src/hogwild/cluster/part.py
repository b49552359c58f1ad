"""One part of a graph that is cut into parts: what the worker of the part reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]


@dataclass(eq=False)
class Part:
    """The nodes that one worker owns, and what their problem needs of the rest of the graph.

    The local nodes are the A owned nodes, then the B nodes of the *halo*, which other parts own.
    The nodes of the halo come in rings, by their distance from the owned nodes. The part solves for
    its owned nodes and for the first rings of the halo, its *overlap*; the others are held fixed.

    With one hop a part holds all edges of the nodes for which it solves. With two hops it also
    holds all edges of their neighbours, which makes the rows of these nodes exact in the gradient
    and Hessian of any one-hop energy. One hop is enough for fixed points and for graph signal
    denoising.

    Attributes:
        number: The number of the part.
        nodes: Owned nodes in the whole graph, [A], sorted.
        halo: Nodes of the halo in the whole graph, [B]: the first ring (nodes that share an edge
            with an owned node), then the second ring, and so on, each sorted.
        owner: The part that owns each node of the halo, [B].
        rings: Sizes of the rings.
        overlap: Number of rings for which the part solves, too.
        edge_index: Senders and receivers, [2, E], as local indices.
        edges: The edges in the whole graph, [E].
        x: Features of the local nodes, [A + B, p].
        edge_attr: Edge features, [E, r], or ``None``.
        edge_weight: Edge weights, [E], or ``None``.
        degrees: Sums of the weights of the edges into and out of each local node in the *whole*
            graph, [A + B, 2].
        sends: For each other part, the local indices of the owned nodes that the part needs.
        receives: For each other part, the local indices of the halo nodes that the part owns. The
            n-th node of ``a.sends[b.number]`` is the n-th node of ``b.receives[a.number]``.
        node_fields: More arrays with a row for each local node, by name.
        edge_fields: More arrays with a row for each edge, by name.
    """

    number: int
    nodes: Array
    halo: Array
    owner: Array
    rings: tuple[int, ...]
    overlap: int
    edge_index: Array
    edges: Array
    x: Array
    edge_attr: Array | None
    edge_weight: Array | None
    degrees: Array
    sends: dict[int, Array]
    node_fields: dict[str, Array] = field(default_factory=dict)
    edge_fields: dict[str, Array] = field(default_factory=dict)
    receives: dict[int, Array] = field(init=False)

    def __post_init__(self) -> None:
        order = np.argsort(self.owner, kind="stable")
        owners, first = np.unique(self.owner[order], return_index=True)
        groups = np.split(order + len(self.nodes), first[1:]) if len(owners) else []
        self.receives = dict(zip(owners.tolist(), groups, strict=True))

    @property
    def num_owned(self) -> int:
        """A."""
        return len(self.nodes)

    @property
    def num_free(self) -> int:
        """Nodes for which the part solves: the owned ones, then those of the overlap."""
        return len(self.nodes) + sum(self.rings[: self.overlap])

    @property
    def num_local(self) -> int:
        """A + B."""
        return len(self.nodes) + len(self.halo)

    def inputs(self) -> Inputs:
        """The part as a model reads it, with the degrees of the whole graph.

        The problem that a model poses for these inputs has the rows of the whole problem at owned
        nodes.
        """
        return Inputs(
            tensor(self.x),
            tensor(self.edge_index).long(),
            None if self.edge_attr is None else tensor(self.edge_attr),
            edge_weight=None if self.edge_weight is None else tensor(self.edge_weight),
            degrees=tensor(self.degrees),
            nodes={name: tensor(value) for name, value in self.node_fields.items()},
            edges={name: tensor(value) for name, value in self.edge_fields.items()},
        )


def tensor(x: Array) -> Tensor:
    """An array as a tensor; it shares memory if torch may write there."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())
