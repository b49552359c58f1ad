"""The door of a model: where features enter, and are standardised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.errors import FeatureError
from hogwild.graph.inputs import graphs_of
from hogwild.models.base import Reader, refuse_batch
from hogwild.nn.standardize import Standardize


class Features(nn.Module):
    """Node and edge features as the layers of a model read them: standardised
    (:class:`~hogwild.nn.Standardize`), and one number an edge as a column.

    All replicas share the statistics of edge features, because all read the same ones.

    Args:
        in_channels: Width of the node features.
        edge_dim: Width of the edge features; ``None``: none are read.
        replicas: Number of independent parameter sets, or ``None``.

    Attributes:
        ignores_edges: Whether edge features are left out, rather than refused, where none are read.
    """

    def __init__(self, in_channels: int, edge_dim: int | None, replicas: int | None) -> None:
        super().__init__()
        self.nodes = Standardize(in_channels, replicas=replicas)
        self.edges = None if edge_dim is None else Standardize(edge_dim, replicas=replicas)
        self.ignores_edges = False

    @classmethod
    def of(cls, reader: Reader) -> Features:
        """Of what the first layer of a model reads."""
        return cls(reader.in_channels, reader.edge_dim, reader.replicas)

    @property
    def fitted(self) -> bool:
        """Whether anything is changed."""
        return self.nodes.fitted or (self.edges is not None and self.edges.fitted)

    def forward(self, x: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both as the layers read them; what does not fit is left for the layers to refuse."""
        if self.edges is None and self.ignores_edges and not _per_node(edge_attr, x):
            return self.nodes(x), None
        refuse_batch(edge_attr)
        if self.edges is None:
            return self.nodes(x), edge_attr
        if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and self.edges.channels == 1:
            edge_attr = edge_attr.unsqueeze(1)
        return self.nodes(x), edge_attr if edge_attr is None else self.edges(edge_attr)

    def fit(self, graphs: Sequence[Data], members: Tensor | None = None) -> None:
        """Learn the statistics from graphs; ``members`` [R, G] says whose they are."""
        if members is not None:  # what nobody trains on has no say
            used = members.any(0).nonzero()[:, 0]
            graphs, members = [graphs[i] for i in used.tolist()], members[:, used]
        nodes = []
        for i, g in enumerate(graphs):
            x = g.get("x")
            if x is None or not x.is_floating_point() or x.dim() != 2:
                what = "no x" if x is None else f"x of dtype {x.dtype} and shape {list(x.shape)}"
                raise FeatureError(
                    f"graph {i} has {what}; expected floating-point features [nodes, "
                    f"{self.nodes.channels}] to standardise by"
                )
            nodes.append(x)
        edges = []
        for i, g in enumerate(graphs if self.edges is not None else ()):
            attr = g.get("edge_attr")
            if attr is None or not attr.is_floating_point():
                what = "no edge_attr" if attr is None else f"edge_attr of dtype {attr.dtype}"
                raise FeatureError(
                    f"graph {i} has {what}, and the model reads edge features; expected "
                    f"floating-point ones"
                )
            edges.append(attr.unsqueeze(1) if attr.dim() == 1 else attr)
        self.nodes.fit(nodes, members)
        if self.edges is not None and sum(t.size(0) for t in edges):
            self.edges.fit(edges)  # graphs without edges have nothing to tell


def _per_node(edge_attr: object, x: object) -> bool:
    """Whether these could be the graphs of the nodes, in the place of edge features."""
    if not isinstance(edge_attr, Tensor) or not isinstance(x, Tensor):
        return False
    return edge_attr.dtype == torch.long and edge_attr.shape == x.shape[-2:-1]


class Standardized(nn.Module):
    """A model with a door: ``features`` is set by every model of this library."""

    features: Features

    def standardize(self, data: Data | Iterable[Data]) -> Any:
        """Learn the statistics of the features, by which the model standardises them from now on:
        then the unit of a feature does not matter. Once, before training, on the training graphs.

        Args:
            data: A PyG ``Data``, ``Batch``, list, dataset or ``DataLoader``.

        Returns:
            The model itself.
        """
        self.features.fit(graphs_of(data))
        return self

    def _standardized(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], first: int = 0
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call with x, number ``first``, and edge_attr as the layers read
        them."""
        args_, kwargs = list(args), dict(kwargs)
        given: list[Any] = []
        places = ((first, "x"), (first + 2, "edge_attr"))
        for at, name in places:
            given.append(args_[at] if at < len(args_) else kwargs.get(name))
        for (at, name), value in zip(places, self._enter(*given), strict=True):
            if at < len(args_):
                args_[at] = value
            elif name in kwargs:
                kwargs[name] = value
        return args_, kwargs

    def _enter(self, x: Any, edge_attr: Any) -> tuple[Any, Any]:
        """Through the door, where there is one: a class outside this library may have none."""
        door = self._modules.get("features")
        return (x, edge_attr) if door is None else door(x, edge_attr)
