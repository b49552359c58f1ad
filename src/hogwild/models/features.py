"""The input stage of a model, which standardises and encodes features."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.errors import (
    FeatureError,
    FeatureWarning,
    require_positive,
    require_probability,
)
from hogwild.graph.inputs import Inputs
from hogwild.kernels.native import traced
from hogwild.models.validation import large_features, refuse_batch
from hogwild.nn.mlp import MLP
from hogwild.nn.standardize import Standardize


class Features(nn.Module):
    r"""Standardises node and edge features (:class:`~hogwild.nn.Standardize`), and encodes the node
    features, each node by itself. Edge features [E] become a column [E, 1].

    An encoder is an MLP with an activation after its last layer, too. The convolution then reads
    the encoded features, and nothing else does: agents tell their neighbours encoded features.

    All replicas share the statistics of the edge features.

    Args:
        in_channels: Width p of the node features.
        edge_dim: Width of the edge features; ``None`` if the model reads no edge features.
        replicas: Number of independent parameter sets, or ``None``.
        encoder: Widths of the encoder's layers; empty: there is no encoder.
        dropout: Probability of dropout of features and of the encoder's units in training.

    Attributes:
        out_channels: Width of the features that the convolution reads.
        ignores_edges: Whether a model without edge features ignores ``edge_attr`` instead of
            raising an error.
        advises: Whether the first large features in training mode give a warning, if no statistics
            were fitted by then.
    """

    def __init__(
        self,
        in_channels: int,
        edge_dim: int | None = None,
        replicas: int | None = None,
        *,
        encoder: Sequence[int] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_channels = require_positive("in_channels", in_channels)
        self.edge_dim, self.replicas = edge_dim, replicas
        self.dropout = require_probability("dropout", dropout)
        self.nodes = Standardize(in_channels, replicas=replicas)
        self.edges = None if edge_dim is None else Standardize(edge_dim, replicas=replicas)
        self.encoder = (
            MLP(in_channels, encoder, replicas=replicas, dropout=dropout) if encoder else None
        )
        self.out_channels = encoder[-1] if encoder else in_channels
        self.ignores_edges = False
        self.advises = True

    def reset_parameters(self) -> None:
        """Draw fresh parameters. The statistics stay."""
        if self.encoder is not None:
            self.encoder.reset_parameters()

    def __repr__(self) -> str:
        given = [f"encoder={self.encoder.channels[1:]}"] if self.encoder is not None else []
        given += [f"dropout={self.dropout}"] if self.dropout else []
        given += ["standardised" if self.fitted else "as they are"]
        return f"Features({', '.join([str(self.in_channels), *given])})"

    @property
    def fitted(self) -> bool:
        """Whether any statistics were fitted."""
        return any(part is not None and part.fitted for part in (self.nodes, self.edges))

    @property
    def encodes(self) -> bool:
        """Whether :meth:`encode` changes features."""
        return self.encoder is not None or (self.training and self.dropout > 0.0)

    def encode(self, x: Tensor) -> Tensor:
        """The encoded features, [(R,) n, p] → [(R,) n, :attr:`out_channels`]."""
        if self.training and self.dropout and self.replicas is not None:
            x = x.expand(self.replicas, *x.shape[-2:])  # every replica drops others
        x = F.dropout(x, self.dropout, self.training)
        if self.encoder is None:
            return x
        x = F.leaky_relu(self.encoder(x), self.encoder.negative_slope)
        return F.dropout(x, self.dropout, self.training)

    def forward(self, inputs: Inputs) -> Inputs:
        """The inputs with standardised features. Invalid features pass through unchanged, and the
        layers raise the error."""
        if self.advises and self.training and not traced():
            self._advise(inputs)
        x = self.nodes(inputs.x)
        edge_attr = self._edge_attr(inputs)
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
        nodes = _columns(graphs, "x", self.in_channels)
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
