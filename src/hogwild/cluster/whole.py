"""A whole graph as arrays that may be memory-mapped files, read and written in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch_geometric.data import Data

from hogwild.errors import FeatureError, GraphError, InputError
from hogwild.graph.inputs import Inputs

Array = npt.NDArray[Any]

ROWS = 1 << 21
"""Edges that are read at a time."""


@dataclass(eq=False)
class Whole:
    """A graph, whose arrays may lie on the disk (``numpy.memmap``).

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
        for name, value in (
            ("x", self.x),
            ("edge_attr", self.edge_attr),
            ("edge_weight", self.edge_weight),
        ):
            if value is not None and value.dtype.kind not in "fiub":
                raise FeatureError(f"{name} holds {value.dtype}; expected numbers")
        if not self.num_nodes:
            raise GraphError("the graph has no nodes (x has zero rows); expected at least one")
        expected = {"edge_attr": (self.edge_attr, 2), "edge_weight": (self.edge_weight, 1)}
        for name, (value, dim) in expected.items():
            if value is not None and (value.ndim != dim or len(value) != self.num_edges):
                more = ", channels" if dim == 2 else ""
                raise FeatureError(
                    f"{name} has shape {value.shape}; expected [{self.num_edges}{more}]"
                )
        for fields, count in (
            (self.node_fields, self.num_nodes), (self.edge_fields, self.num_edges)
        ):  # fmt: skip
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
        return cls(
            _array(inputs.edge_index),
            _array(inputs.x),
            None if inputs.edge_attr is None else _column(_array(inputs.edge_attr)),
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

    def chunks(self, rows: int | None = None) -> Iterator[tuple[slice, Array, Array]]:
        """Senders and receivers of at most ``rows`` edges at a time, as int64, with their place.

        Raises:
            GraphError: An edge names a node that does not exist.
        """
        for start in range(0, self.num_edges, rows or ROWS):
            part = slice(start, min(start + (rows or ROWS), self.num_edges))
            src, dst = (self.edge_index[row, part].astype(np.int64) for row in (0, 1))
            for ends in (src, dst):
                low, high = int(ends.min()), int(ends.max())
                if low < 0 or high >= self.num_nodes:
                    raise GraphError(
                        f"the edges {part.start} to {part.stop - 1} name nodes {low} to {high}; "
                        f"expected 0 to {self.num_nodes - 1}, since x has {self.num_nodes} rows"
                    )
            yield part, src, dst

    def inputs(self) -> Inputs:
        """The graph as a model reads it."""
        from hogwild.cluster.store import tensor

        return Inputs(
            tensor(self.x),
            tensor(self.edge_index).long(),
            None if self.edge_attr is None else tensor(self.edge_attr),
            edge_weight=None if self.edge_weight is None else tensor(self.edge_weight),
            nodes={name: tensor(value) for name, value in self.node_fields.items()},
            edges={name: tensor(value) for name, value in self.edge_fields.items()},
        )


def _array(x: Tensor) -> Array:
    found: Array = x.detach().cpu().numpy()
    return found


def _column(x: Array) -> Array:
    """Edge features [E] as a column [E, 1]."""
    return x[:, None] if x.ndim == 1 else x


class Rows:
    """Collects rows [n, …] of one dtype. With a folder they go into a file as they come, and
    :meth:`done` maps the file into memory; without one they stay in memory.

    Args:
        folder: The folder of the file, or ``None``.
        name: The name of the file, without its ending.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.path = None if folder is None else folder / f"{name}.rows"
        self.count, self.like = 0, np.empty(0)
        self.parts: list[Array] = []
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")

    def add(self, rows: Array) -> None:
        """Append rows. The first rows decide the dtype and the width."""
        if not self.count:
            self.like = np.empty((0, *rows.shape[1:]), rows.dtype)
        rows = np.ascontiguousarray(rows, dtype=self.like.dtype)
        self.count += len(rows)
        if self.path is None:
            self.parts.append(rows)
        else:
            with self.path.open("ab") as file:
                rows.tofile(file)

    def done(self) -> Array:
        """All rows; in a file, memory-mapped and copied on writing."""
        if self.path is None or not self.count:
            return np.concatenate([self.like, *self.parts])
        shape = (self.count, *self.like.shape[1:])
        return np.memmap(self.path, self.like.dtype, mode="c", shape=shape)
