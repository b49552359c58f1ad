"""The input stage of a model, which standardises features."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.errors import FeatureError, FeatureWarning
from hogwild.graph.inputs import Inputs
from hogwild.kernels.dense import traced
from hogwild.models.validation import large_features, refuse_batch
from hogwild.nn.standardize import Standardize


class Features(nn.Module):
    """Standardises node and edge features (:class:`~hogwild.nn.Standardize`). Edge features [E]
    become a column [E, 1].

    All replicas share the statistics of the edge features.

    Args:
        in_channels: Width of the node features.
        edge_dim: Width of the edge features; ``None`` if the model reads no edge features.
        replicas: Number of independent parameter sets, or ``None``.

    Attributes:
        ignores_edges: Whether a model without edge features ignores ``edge_attr`` instead of
            raising an error.
        advises: Whether the first large features in training mode give a warning, if no statistics
            were fitted by then.
    """

    def __init__(self, in_channels: int, edge_dim: int | None, replicas: int | None) -> None:
        super().__init__()
        self.nodes = Standardize(in_channels, replicas=replicas)
        self.edges = None if edge_dim is None else Standardize(edge_dim, replicas=replicas)
        self.ignores_edges = False
        self.advises = True

    def __repr__(self) -> str:
        return f"Features({'standardised' if self.fitted else 'as they are'})"

    @property
    def fitted(self) -> bool:
        """Whether any statistics were fitted."""
        return self.nodes.fitted or (self.edges is not None and self.edges.fitted)

    def forward(self, inputs: Inputs) -> Inputs:
        """The inputs with standardised features. Invalid features pass through unchanged, and the
        layers raise the error."""
        if self.advises and self.training and not traced():
            self._advise(inputs)
        x, edge_attr = self.nodes(inputs.x), self._edge_attr(inputs)
        if x is inputs.x and edge_attr is inputs.edge_attr:
            return inputs
        return replace(inputs, x=x, edge_attr=edge_attr)

    def _advise(self, inputs: Inputs) -> None:
        """Look at the features of the first batch of a training, once: they may be large."""
        self.advises = False
        given = {"x": inputs.x, "edge_attr": inputs.edge_attr}
        known = {
            name: t
            for name, t in given.items()
            if type(t) is Tensor and t.layout == torch.strided and not t.is_meta
        }
        if not self.fitted and (found := large_features(**known)):
            warnings.warn(FeatureWarning(found), stacklevel=4)

    def _edge_attr(self, inputs: Inputs) -> Tensor | None:
        edge_attr = inputs.edge_attr
        if self.edges is None and self.ignores_edges and not _per_node(edge_attr, inputs.x):
            return None
        refuse_batch(edge_attr)
        if self.edges is None or edge_attr is None:
            return edge_attr
        if isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and self.edges.channels == 1:
            edge_attr = edge_attr.unsqueeze(1)
        standardised: Tensor = self.edges(edge_attr)
        return standardised

    def fit(self, graphs: Sequence[Data], members: Tensor | None = None) -> None:
        """Compute the statistics from graphs; ``members`` [R, G] says which replica trains on
        which graph."""
        if members is not None:  # graphs that no replica trains on are left out
            used = members.any(0).nonzero()[:, 0]
            graphs, members = [graphs[i] for i in used.tolist()], members[:, used]
        nodes = _columns(graphs, "x", self.nodes.channels)
        edges = [] if self.edges is None else _columns(graphs, "edge_attr", self.edges.channels)
        self.nodes.fit(nodes, members)
        if self.edges is not None and any(t.size(0) > 0 for t in edges):
            self.edges.fit(edges)


def _columns(graphs: Sequence[Data], name: str, width: int) -> list[Tensor]:
    """Floating-point features [n, width] of all graphs; edge features [n] become a column."""
    found = []
    for i, graph in enumerate(graphs):
        t = graph.get(name)
        if t is not None and t.dim() == 1 and name == "edge_attr":
            t = t.unsqueeze(1)
        if t is None or not t.is_floating_point() or t.dim() != 2:
            what = "" if t is None else f" of dtype {t.dtype} and shape {list(t.shape)}"
            raise FeatureError(
                f"graph {i} has {'no ' if t is None else ''}{name}{what}, and the model reads "
                f"{name}; expected floating-point features [n, {width}]"
            )
        found.append(t)
    return found


def _per_node(edge_attr: object, x: object) -> bool:
    """Whether ``edge_attr`` looks like a ``batch`` vector."""
    if not isinstance(edge_attr, Tensor) or not isinstance(x, Tensor):
        return False
    return edge_attr.dtype == torch.long and edge_attr.shape == x.shape[-2:-1]
