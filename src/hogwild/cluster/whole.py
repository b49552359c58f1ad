"""A graph as arrays, which may be memory-mapped files: the whole graph, and one part of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import FeatureError, GraphError, InputError
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

ROWS = 1 << 21
"""Edges that are read at a time."""


class Count(NamedTuple):
    """Sizes of a part for one or two hops."""

    nodes: int
    halo: int
    edges: int


@dataclass(eq=False)
class Whole:
    """A graph, whose arrays may lie on the disk (``numpy.memmap``).

    It is also what one worker in this process reads: a graph in a single part, without files.

    Attributes:
        edge_index: Senders and receivers, [2, E], integers.
        x: Node features, [N, p].
        edge_attr: Edge features, [E, r], or ``None``.
        edge_weight: Nonnegative weights, [E], or ``None``.
        node_fields: More arrays with a row for each node, by name, such as ``y`` or ``pos``.
        edge_fields: More arrays with a row for each edge, by name.
    """

    edge_index: Array
    x: Array
    edge_attr: Array | None = None
    edge_weight: Array | None = None
    node_fields: Mapping[str, Array] = field(default_factory=dict)
    edge_fields: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.edge_index.ndim != 2 or self.edge_index.shape[0] != 2:
            raise GraphError(
                f"edge_index has shape {self.edge_index.shape}; expected [2, num_edges] with "
                f"senders in row 0 and receivers in row 1"
            )
        if self.edge_index.dtype.kind not in "iu":
            raise GraphError(f"edge_index is {self.edge_index.dtype}; expected integers")
        if self.x.ndim != 2:
            raise FeatureError(
                f"x has shape {self.x.shape}; expected [nodes, channels]: a single feature is a "
                f"column, x[:, None]"
            )
        if not self.num_nodes:
            raise GraphError("the graph has no nodes (x has zero rows); expected at least one")
        edges = {"edge_attr": (self.edge_attr, 2), "edge_weight": (self.edge_weight, 1)}
        for name, (value, dim) in edges.items():
            if value is not None and (value.ndim != dim or len(value) != self.num_edges):
                more = ", channels" if dim == 2 else ""
                raise FeatureError(
                    f"{name} has shape {value.shape}; expected [{self.num_edges}{more}]"
                )
        for name, value in (("x", self.x), *((name, found) for name, (found, _) in edges.items())):
            if value is not None and value.dtype.kind not in "fiub":
                raise FeatureError(f"{name} holds {value.dtype}; expected numbers")
        rows = (self.node_fields, self.num_nodes), (self.edge_fields, self.num_edges)
        for fields, count in rows:
            for name, value in fields.items():
                if not value.ndim or len(value) != count:
                    raise FeatureError(f"{name} has shape {value.shape}; expected {count} rows")

    @classmethod
    def of(cls, graph: Whole | Inputs | Data) -> Whole:
        """A graph of PyG as arrays, without copies; a ``Whole`` as it is."""
        if isinstance(graph, Whole):
            return graph
        inputs = Inputs.of(graph)
        if inputs.num_graphs > 1:
            raise InputError(
                f"the data are a batch of {inputs.num_graphs} graphs; expected one graph. It may "
                f"consist of several components: leave batch out"
            )
        if inputs.degrees is not None or inputs.heard is not None:
            raise InputError("the inputs are a part of a larger graph; expected the whole graph")
        attr = None if inputs.edge_attr is None else _array(inputs.edge_attr)
        return cls(
            _array(inputs.edge_index),
            _array(inputs.x),
            attr[:, None] if attr is not None and attr.ndim == 1 else attr,
            None if inputs.edge_weight is None else _array(inputs.edge_weight),
            {name: _array(value) for name, value in inputs.nodes.items()},
            {name: _array(value) for name, value in inputs.edges.items()},
        )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.x)

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.edge_index.shape[1])

    def require_finite(self) -> None:
        """Raise :class:`FeatureError` where features or weights are NaN or infinite."""
        for name in ("x", "edge_attr", "edge_weight"):
            value = getattr(self, name)
            if value is None or value.dtype.kind != "f":
                continue
            for start in range(0, len(value), ROWS):
                bad = ~np.isfinite(value[start : start + ROWS])
                if bad.any():
                    row = start + int(np.argwhere(bad)[0][0])
                    raise FeatureError(
                        f"{name} holds NaN or infinite values, first in row {row}; expected finite "
                        f"numbers: impute or drop them"
                    )

    def chunks(self) -> Iterator[tuple[slice, Array, Array]]:
        """Senders and receivers of at most :data:`ROWS` edges at a time, as int64, with their
        place.

        Raises:
            GraphError: An edge names a node that does not exist.
        """
        for start in range(0, self.num_edges, ROWS):
            part = slice(start, min(start + ROWS, self.num_edges))
            src, dst = (self.edge_index[row, part].astype(np.int64) for row in (0, 1))
            for ends in (src, dst):
                low, high = int(ends.min()), int(ends.max())
                if low < 0 or high >= self.num_nodes:
                    raise GraphError(
                        f"the edges {part.start} to {part.stop - 1} name nodes {low} to {high}; "
                        f"expected 0 to {self.num_nodes - 1}, since x has {self.num_nodes} rows"
                    )
            yield part, src, dst

    def degrees(self) -> Array:
        """Sums of the weights of the edges into and out of each node, [N, 2]."""
        found = np.zeros((self.num_nodes, 2))
        for at, src, dst in self.chunks():
            weight = None if self.edge_weight is None else self.edge_weight[at].astype(np.float64)
            found[:, 0] += np.bincount(dst, weight, minlength=self.num_nodes)
            found[:, 1] += np.bincount(src, weight, minlength=self.num_nodes)
        return found

    def checksum(self) -> str:
        """A checksum of all arrays."""
        found = hashlib.sha256()
        arrays: dict[str, Any] = {"edge_index": self.edge_index.T, "x": self.x}
        arrays |= {"edge_attr": self.edge_attr, "edge_weight": self.edge_weight}
        arrays |= {f"node {name}": value for name, value in self.node_fields.items()}
        arrays |= {f"edge {name}": value for name, value in self.edge_fields.items()}
        for name, value in arrays.items():
            if value is not None:
                found.update(f"{name} {value.dtype} {value.shape}".encode())
                for start in range(0, len(value), ROWS):
                    found.update(np.ascontiguousarray(value[start : start + ROWS]).data)
        return found.hexdigest()

    def inputs(self) -> Inputs:
        """The graph as a model reads it."""
        return _inputs(self, None)

    # -- the graph as the only part of itself --------------------------------------------------

    num_parts = 1

    @property
    def parts(self) -> Array:
        """The part of every node, [N]."""
        return np.zeros(self.num_nodes, dtype=np.int32)

    @property
    def has_weights(self) -> bool:
        """Whether the edges have weights."""
        return self.edge_weight is not None

    def counts(self, hops: int = 2, overlap: int | None = 0) -> list[Count]:
        """Sizes of all parts."""
        return [Count(self.num_nodes, 0, self.num_edges)]

    def part(self, number: int = 0, hops: int = 2, overlap: int | None = 0) -> Part:
        """The whole graph as one part."""
        none = np.empty(0, dtype=np.int64)
        return Part(
            0, np.arange(self.num_nodes), none, none, (), 0, self.edge_index,
            np.arange(self.num_edges), self.x, self.edge_attr, self.edge_weight, self.degrees(),
            {}, dict(self.node_fields), dict(self.edge_fields),
        )  # fmt: skip

    def check(self, number: int | None = None) -> None:
        """There are no files that may be damaged."""


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
        """The part as a model reads it, with the degrees of the whole graph: the problem of the
        model for these inputs has the rows of the whole problem at owned nodes."""
        return _inputs(self, tensor(self.degrees))


def _inputs(of: Whole | Part, degrees: Tensor | None) -> Inputs:
    return Inputs(
        tensor(of.x),
        tensor(of.edge_index).long().contiguous(),
        None if of.edge_attr is None else tensor(of.edge_attr),
        edge_weight=None if of.edge_weight is None else tensor(of.edge_weight),
        degrees=degrees,
        nodes={name: tensor(value) for name, value in of.node_fields.items()},
        edges={name: tensor(value) for name, value in of.edge_fields.items()},
    )


def tensor(x: Array) -> Tensor:
    """An array as a tensor; it shares memory if torch may write there."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def _array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().numpy()
    return found
