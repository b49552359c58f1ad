r"""What a forward reads: the tensors and edges of a whole graph, or of some stars.

A forward is written for whole graphs. An asynchronous node evaluates it on its *star*: the node,
and one leaf for every edge into it. The leaf holds what the node last heard on that edge.

* Some layers weigh a message by the *degree of its sender*. The leaves then get the edges of the
  nodes that they stand for. The values at the far ends of these edges do not matter.
* :class:`~torch_geometric.nn.GCNConv` also uses the degrees of senders. Its weights are constants
  of the graph and are computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hogwild.graph import Graph, Star, cached
from hogwild.graph.inputs import Inputs
from hogwild_node.activations import identity, leaky_relu, tanh
from hogwild_node.problems import GCN, GCNLayer

if TYPE_CHECKING:
    from hogwild.models.layered import Layer
    from hogwild.models.program import LayeredProblem


@dataclass(eq=False)
class StarEdges:
    """The edges of some stars, which share no nodes. The nodes of this graph are first the centres
    [A], then a leaf for every edge into them [E'], then, if a layer needs them, the far ends of the
    leaves' own edges [F].

    A self-loop leads from a centre to itself, not from a leaf.
    """

    index: Tensor  # [2, M]
    rows: Tensor  # [M] the edge of the whole graph that each edge is
    size: int  # A
    nodes: Tensor  # [A + E' + F] the node of the whole graph that each node stands for
    near: Tensor | None  # [F] the centre or leaf that each far end is joined to

    @classmethod
    def of(cls, graph: Graph, at: Star, surrounded: bool) -> StarEdges:
        """The edges of these stars; ``surrounded`` adds the leaves' own edges."""
        nodes, edges = _numbers(at, graph)
        a, count, src = at.size, edges.numel(), graph.src[edges]
        leaf = torch.arange(a, a + count, device=src.device)
        index = torch.stack([torch.where(src == graph.dst[edges], at.slot, leaf), at.slot])
        if not surrounded:
            return cls(index, edges, a, torch.cat([nodes, src]), None)
        into, out = graph.star(src), _reversed(graph).star(torch.cat([nodes, src]))
        (_, entering), (_, leaving) = _numbers(into, graph), _numbers(out, graph)
        drawn = torch.cat([torch.full_like(nodes, -1), edges])[out.slot]  # already drawn
        own = graph.src[entering] == graph.dst[entering]
        new = (graph.src[leaving] != graph.dst[leaving]) & (leaving != drawn)
        # The edges into every leaf, with its self-loops, and the edges out of all nodes.
        heard, loop, said = a + into.slot[~own], a + into.slot[own], out.slot[new]
        near = torch.cat([heard, said])
        far = torch.arange(a + count, a + count + near.numel(), device=src.device)
        far_in, far_out = far.tensor_split((heard.numel(),))
        senders = torch.cat([index[0], far_in, loop, said])
        receivers = torch.cat([index[1], heard, loop, far_out])
        return cls(
            torch.stack([senders, receivers]),
            torch.cat([edges, entering[~own], entering[own], leaving[new]]),
            a,
            torch.cat([nodes, src, graph.src[entering[~own]], graph.dst[leaving[new]]]),
            near,
        )

    def values(self, h: Tensor, inbox: Tensor) -> Tensor:
        """Values of all nodes: […, A, k], […, E', k] → […, A + E' + F, k].

        A far end gets the value of the node that it is joined to. This value is wrong on purpose:
        :mod:`hogwild.models.trial` then detects layers that read it.
        """
        x = torch.cat([h, inbox], -2)
        return x if self.near is None else torch.cat([x, x[..., self.near, :]], -2)

    def weighted(self, weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """:func:`normalised` edges and weights on these stars, from the ``weight`` of the ``count``
        edges of the whole graph and of its self-loops."""
        edge, loop = weight.tensor_split((count,))
        if not loop.numel():
            return self.index, edge[self.rows]
        own = torch.arange(self.nodes.numel(), device=self.nodes.device).expand(2, -1)
        index = torch.cat([self.index, own], 1)
        return index, torch.cat([edge[self.rows], loop[self.nodes]])


def _numbers(at: Star, graph: Graph) -> tuple[Tensor, Tensor]:
    """The indices of a star's nodes [A] and edges [E'] in the graph."""
    device = at.slot.device
    nodes = torch.arange(graph.num_nodes, device=device) if at.nodes is None else at.nodes
    edges = torch.arange(graph.num_edges, device=device) if at.edges is None else at.edges
    return nodes, edges


@cached
def _reversed(graph: Graph) -> Graph:
    """The graph with all edges reversed; edges keep their indices."""
    return Graph(graph.dst, graph.src, graph.batch, graph.num_nodes, graph.num_graphs)


@dataclass(eq=False)
class Fields:
    """What a forward reads: tensors over nodes, tensors over edges, and the edges, of the whole
    graph or of some stars."""

    graph: Graph
    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]
    index: Tensor
    batched: bool = True
    star: StarEdges | None = None
    whole: Fields | None = None  # those of the whole graph, on stars
    _kept: dict[object, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, inputs: Inputs, graph: Graph, x: Tensor) -> Fields:
        """The tensors of the data, with the node features ``x``."""
        edges = {"edge_attr": inputs.edge_attr, "edge_weight": inputs.edge_weight}
        return cls(
            graph,
            {"x": x, "batch": inputs.owner, **inputs.nodes},
            {name: value for name, value in edges.items() if value is not None} | inputs.edges,
            inputs.edge_index,
            inputs.batch is not None,
        )

    @property
    def rows(self) -> int:
        return self.nodes["x"].size(0)

    def at(self, star: StarEdges) -> Fields:
        """The data of the nodes and edges of some stars. A leaf has the features of the node that
        it stands for. Features never change, and a forward may compute edge features from them
        (such as distances)."""
        return replace(
            self,
            nodes={name: value[star.nodes] for name, value in self.nodes.items()},
            edges={name: value[star.rows] for name, value in self.edges.items()},
            index=star.index,
            star=star,
            whole=self,
        )

    def changed(self, change: Callable[[str, Tensor], Tensor]) -> Fields:
        """The data with other features of the nodes."""
        nodes = {n: v if n == "batch" else change(n, v) for n, v in self.nodes.items()}
        return replace(self, nodes=nodes)

    def normalised(self, conv: Any, name: str | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Edges and weights of PyG's GCN, with the degrees of the whole graph; ``name`` is that of
        its edge weights."""
        if self.whole is not None and self.star is not None:
            _, weight = self.whole.normalised(conv, name, dtype)
            return self.star.weighted(weight, self.graph.num_edges)
        key = (conv.improved, conv.add_self_loops, dtype)
        if name is None:
            return unweighted(self.graph, *key)
        if (name, *key) not in self._kept:
            self._kept[name, *key] = normalised(self.graph, self.edges[name], *key)
        return self._kept[name, *key]


# -- a GCN: its weights, and its layers without torch ----------------------------------------------


def normalises(conv: Any) -> bool:
    """Whether a convolution is PyG's GCN with normalised weights, which hogwild can compute."""
    return type(conv) is pyg.GCNConv and conv.normalize and conv.aggr in ("add", "sum")


@torch.compiler.disable(reason="torch.compile cannot see through a copy of a module")
def without_normalisation(conv: pyg.GCNConv) -> pyg.GCNConv:
    """A copy of a GCN layer that takes its edge weights as they are; it shares all parameters."""
    bare = copy.copy(conv)
    bare.normalize = False
    bare.__dict__.pop("forward", None)  # of an intercepted layer
    return bare


def normalised(
    graph: Graph, given: Tensor | None, improved: bool, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    r"""Edges and weights of the symmetrically normalised adjacency
    :math:`(D + I)^{-1/2}(A + I)(D + I)^{-1/2}`, for the weights ``given`` [E]. With ``loops`` one
    self-loop for every node is appended."""
    graph.require_whole("the normalisation of a GCN")
    edges = torch.stack([graph.src, graph.dst])
    index, weight = gcn_norm(
        edges, given, graph.num_nodes, improved, loops, "source_to_target", dtype
    )
    if loops and graph.self_loops is not None:
        # PyG removes self-loops before it adds its own. Here they stay with weight zero, so that
        # the edges keep their indices.
        keep = graph.src != graph.dst
        edge = weight.new_zeros(graph.num_edges)
        edge = edge.masked_scatter(keep, weight[: -graph.num_nodes])
        weight = torch.cat([edge, weight[-graph.num_nodes :]])
        index = torch.cat([edges, index[:, -graph.num_nodes :]], 1)
    return index, weight


@cached
def unweighted(
    graph: Graph, improved: bool, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """:func:`normalised` for edges of weight one, kept with the graph for all forward passes."""
    return normalised(graph, None, improved, loops, dtype)


_ACTS: dict[type, Callable[..., Any]]
_ACTS = {type(None): identity, nn.Identity: identity, nn.ReLU: leaky_relu, nn.Tanh: tanh}


def gcn_node(layers: Sequence[Layer], problem: LayeredProblem) -> GCN | None:
    """The layers as a :class:`hogwild_node.GCN`; ``None`` if any of them is not one of a GCN."""
    encoded, fields = problem.encoded, problem.fields
    acts = [activation(layer) for layer in layers]
    convs: list[Any] = [layer.conv for layer in layers]
    alike = {(conv.improved, conv.add_self_loops) for conv in convs if normalises(conv)}
    random = any(layer.dropout is not None and layer.training for layer in layers)
    if random or None in acts or not all(map(normalises, convs)) or len(alike) != 1:
        return None
    assert encoded is not None
    r, k = encoded.shape[:2]
    name = "edge_weight" if "edge_weight" in fields.edges else None
    _, weight = fields.normalised(convs[0], name, encoded.dtype)
    edge, loop = weight.tensor_split((problem.graph.num_edges,))
    parameters = [
        GCNLayer(
            conv.lin.weight.reshape(r, k, k),
            encoded.new_zeros(r, k, 1) if conv.bias is None else conv.bias.reshape(r, k, 1),
            act or identity,
        )
        for conv, act in zip(convs, acts, strict=True)
    ]
    widths = (k,) * (len(convs) + 1)
    return GCN(encoded, tuple(parameters), edge, loop if loop.numel() else None, widths)


def activation(layer: Layer) -> Callable[..., Any] | None:
    """The activation of a layer without torch; ``None`` if the layer has a norm or an unknown
    activation."""
    if layer.norm is not None:
        return None
    if isinstance(layer.act, nn.LeakyReLU):
        return partial(leaky_relu, negative_slope=layer.act.negative_slope)
    return _ACTS.get(type(layer.act))
