r"""Layers on stars: whether a node can compute a layer from what it hears.

A layer of a feed-forward GNN is written for whole graphs. An asynchronous node evaluates it on its
*star*: the node, and one leaf for every edge into it. The leaf holds the embedding that the node
last heard on that edge,

.. math:: h_i \leftarrow f^\ell_\theta\bigl(h_i, \{h_j, e_{ij} \mid j \in \mathcal N(i)\}\bigr).

* Some layers read the whole graph or several hops. They are refused, either because of their type
  (:func:`refuse_beyond_one_hop`) or after a test on the graph (:func:`surroundings_needed`).
* Some layers weigh a message by the *degree of its sender*. The leaves then get the edges of the
  nodes that they stand for. The values at the far ends of these edges do not matter.
* :class:`~torch_geometric.nn.GCNConv` also uses the degrees of senders. Its weights are constants
  of the graph and are computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from hogwild.errors import AsynchronyError
from hogwild.graph import Graph, Star, kept

# -- by type --------------------------------------------------------------------------------------

_WHOLE_GRAPH: dict[type, str] = {
    pyg.GraphNorm: "normalises over all nodes of the graph",
    pyg.PairNorm: "normalises over all nodes of the graph",
    pyg.InstanceNorm: "normalises over all nodes of the graph",
    pyg.MeanSubtractionNorm: "subtracts the mean over all nodes of the graph",
    pyg.GraphSizeNorm: "divides by the number of nodes of the graph",
    pyg.JumpingKnowledge: "reads the embeddings of all layers, and a node only keeps its latest",
    pyg.GPSConv: "attends to all nodes of the graph",
}

_HOPS: dict[type, Callable[[Any], int]] = {
    pyg.APPNP: lambda m: m.K,
    pyg.SGConv: lambda m: m.K,
    pyg.SSGConv: lambda m: m.K,
    pyg.TAGConv: lambda m: m.K,
    pyg.ChebConv: lambda m: len(m.lins) - 1,
    pyg.MixHopConv: lambda m: max(m.powers),
    pyg.ARMAConv: lambda m: m.num_layers,
    pyg.GatedGraphConv: lambda m: m.num_layers,
    pyg.AntiSymmetricConv: lambda m: m.num_iters,
}


def refuse_beyond_one_hop(layer: nn.Module, allow: tuple[type, ...] = ()) -> None:
    """Raise :class:`AsynchronyError` if the type of a layer, or of a module inside it, shows that
    it reads more than a node and its neighbours. Modules of the types ``allow`` are skipped."""
    for part in layer.modules():
        name = type(part).__name__
        if isinstance(part, allow):
            continue
        for known, reason in _WHOLE_GRAPH.items():
            if isinstance(part, known):
                raise _beyond(f"{name} {reason}")
        for known, hops in _HOPS.items():
            if isinstance(part, known) and hops(part) > 1:
                raise _beyond(f"this {name} reaches {hops(part)} hops")
        if isinstance(part, pyg.LayerNorm) and part.mode == "graph":
            raise _beyond("LayerNorm(mode='graph') normalises over all nodes of the graph")
        if isinstance(part, _BatchNorm) and not part.track_running_stats:
            raise _beyond(f"{name}(track_running_stats=False) normalises over all nodes")
        if isinstance(part, pyg.MessagePassing) and part.flow != "source_to_target":
            raise AsynchronyError(
                f"{name}(flow={part.flow!r}) reads the receivers of a node's edges, but a node "
                f"only hears the senders of the edges into it; expected flow='source_to_target': "
                f"flip edge_index instead"
            )


def _beyond(what: str) -> AsynchronyError:
    return AsynchronyError(
        f"{what}, but an asynchronous node knows only itself and its neighbours; expected layers "
        f"of one hop (several layers for several hops) and norms of single nodes, such as "
        f"torch.nn.LayerNorm, LayerNorm(mode='node') or BatchNorm"
    )


def normalises(conv: Any) -> bool:
    """Whether a convolution is PyG's GCN with normalised weights, which hogwild can compute."""
    return type(conv) is pyg.GCNConv and conv.normalize and conv.aggr in ("add", "sum")


@torch.compiler.disable(reason="torch.compile cannot see through a copy of a module")
def without_normalisation(conv: pyg.GCNConv) -> pyg.GCNConv:
    """A copy of a GCN layer that takes its edge weights as they are; it shares all parameters."""
    bare = copy.copy(conv)
    bare.normalize = False
    return bare


# -- the edges as a layer sees them ---------------------------------------------------------------


@dataclass(eq=False)
class AllEdges:
    """The edges of the whole graph, with their features [E, r] and weights [E]."""

    graph: Graph
    index: Tensor
    attr: Tensor | None
    weight: Tensor | None
    _kept: dict[tuple[bool, bool, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def normalised(self, improved: bool, loops: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        r"""Edges and weights of the symmetrically normalised adjacency
        :math:`(D + I)^{-1/2}(A + I)(D + I)^{-1/2}`. With ``loops`` one self-loop for every node is
        appended."""
        if self.weight is None:  # cached on the graph, for all forward passes
            return _unweighted(self.graph, improved, loops, dtype)
        key = (improved, loops, dtype)
        if key not in self._kept:
            self._kept[key] = _normalise(self.graph, self.weight, *key)
        return self._kept[key]


def _normalise(
    graph: Graph, given: Tensor | None, improved: bool, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """:meth:`AllEdges.normalised` for these weights [E]."""
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


@kept
def _unweighted(
    graph: Graph, improved: bool, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _normalise(graph, None, improved, loops, dtype)


@dataclass(eq=False)
class StarEdges:
    """The edges of some stars, which share no nodes. The nodes of this graph are first the centres
    [A], then a leaf for every edge into them [E'], then, if a layer needs them, the far ends of the
    leaves' own edges [F].

    A self-loop leads from a centre to itself, not from a leaf.
    """

    whole: AllEdges
    at: Star
    index: Tensor
    attr: Tensor | None
    weight: Tensor | None
    near: Tensor | None  # [F] the centre or leaf that each far end is joined to
    rows: Tensor | None  # [M] the edge of the whole graph that each edge is; None: the same edges
    far: Tensor | None  # [F] the node of the whole graph that each far end stands for

    @classmethod
    def of(cls, whole: AllEdges, at: Star, surrounded: bool) -> StarEdges:
        """The edges of these stars; ``surrounded`` adds the leaves' own edges."""
        graph, a, count = whole.graph, at.size, at.slot.numel()
        nodes, edges = _numbers(at, graph)
        src = graph.src[edges]
        leaf = torch.arange(a, a + count, device=src.device)
        index = torch.stack([torch.where(src == graph.dst[edges], at.slot, leaf), at.slot])
        rows, near, beyond = at.edges, None, None
        if surrounded:
            into, out = graph.star(src), _reversed(graph).star(torch.cat([nodes, src]))
            (_, entering), (_, leaving) = _numbers(into, graph), _numbers(out, graph)
            drawn = torch.cat([torch.full_like(nodes, -1), edges])[out.slot]  # already drawn
            own = graph.src[entering] == graph.dst[entering]
            new = (graph.src[leaving] != graph.dst[leaving]) & (leaving != drawn)
            # The edges into every leaf, with its self-loops, and the edges out of all nodes.
            heard, loop, said = a + into.slot[~own], a + into.slot[own], out.slot[new]
            near = torch.cat([heard, said])
            beyond = torch.cat([graph.src[entering[~own]], graph.dst[leaving[new]]])
            far = torch.arange(a + count, a + count + near.numel(), device=src.device)
            far_in, far_out = far.tensor_split((heard.numel(),))
            senders = torch.cat([index[0], far_in, loop, said])
            receivers = torch.cat([index[1], heard, loop, far_out])
            index = torch.stack([senders, receivers])
            rows = torch.cat([edges, entering[~own], entering[own], leaving[new]])

        def at_rows(x: Tensor | None) -> Tensor | None:
            return x if x is None or rows is None else x[rows]

        attr, weight = at_rows(whole.attr), at_rows(whole.weight)
        return cls(whole, at, index, attr, weight, near, rows, beyond)

    def nodes(self) -> Tensor:
        """The node of the whole graph that each node stands for, [A + E' + F]."""
        nodes, edges = _numbers(self.at, self.whole.graph)
        found = torch.cat([nodes, self.whole.graph.src[edges]])
        return found if self.far is None else torch.cat([found, self.far])

    def values(self, h: Tensor, inbox: Tensor) -> Tensor:
        """Values of all nodes: […, A, k], […, E', k] → […, A + E' + F, k].

        A far end gets the value of the node that it is joined to. This value is wrong on purpose:
        :func:`surroundings_needed` then detects layers that read it.
        """
        x = torch.cat([h, inbox], -2)
        return x if self.near is None else torch.cat([x, x[..., self.near, :]], -2)

    def normalised(self, improved: bool, loops: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """As :meth:`AllEdges.normalised`, with the degrees of the whole graph."""
        _, whole = self.whole.normalised(improved, loops, dtype)
        edges, nodes = whole.tensor_split((self.whole.graph.num_edges,))
        index, weight = self.index[:, : self.at.slot.numel()], self.at.at_edges(edges)
        if loops:
            own = torch.arange(self.at.size, device=index.device)
            index = torch.cat([index, torch.stack([own, own])], 1)
            weight = torch.cat([weight, self.at.at_nodes(nodes)])
        return index, weight


Edges = AllEdges | StarEdges
"""The edges that a layer reads."""


def _numbers(at: Star, graph: Graph) -> tuple[Tensor, Tensor]:
    """The indices of a star's nodes [A] and edges [E'] in the graph."""
    device = at.slot.device
    nodes = torch.arange(graph.num_nodes, device=device) if at.nodes is None else at.nodes
    edges = torch.arange(graph.num_edges, device=device) if at.edges is None else at.edges
    return nodes, edges


@kept
def _reversed(graph: Graph) -> Graph:
    """The graph with all edges reversed; edges keep their indices."""
    return Graph(graph.dst, graph.src, graph.batch, graph.num_nodes, graph.num_graphs)


# -- by a test ------------------------------------------------------------------------------------

Evaluate = Callable[[Tensor, Edges], Tensor]
"""A layer, which maps values [R, N, k] and edges to new values [R, N, k]."""

_SAMPLES, _DRAWS = 64, 8
"""Nodes on which a layer is tested. Smaller graphs get several random draws, at most ``_DRAWS``."""


@torch.no_grad()
def surroundings_needed(
    evaluate: Evaluate, name: str, whole: AllEdges, like: Tensor, hint: str = ""
) -> bool:
    """Whether a layer gives the right result on stars only if the leaves have their own edges.

    The layer is tested with random values, on the stars of all nodes and of a random half of the
    nodes. The stars of all nodes are not enough: on a regular graph, statistics over all of them
    could equal those of the graph.

    Args:
        evaluate: The layer. It should also return its values before the activation, which could
            hide a difference.
        name: The layer's name in the error.
        whole: The edges of the whole graph.
        like: A tensor [R, N, k] with the dtype and device of the test.
        hint: Text that is appended to the error.

    Raises:
        AsynchronyError: The layer at a node is not a function of the node's star.
    """
    graph, random = whole.graph, torch.Generator().manual_seed(0)
    n = graph.num_nodes
    half = torch.randperm(n, generator=random)[: max(n // 2, 1)].to(like.device)
    drawn = [
        torch.randn(like.shape, generator=random, dtype=torch.float64).to(like)
        for _ in range(min(-(-_SAMPLES // n), _DRAWS))
    ]
    expected = [evaluate(h, whole) for h in drawn]
    scale = max(float(values.abs().max()) for values in expected)
    tolerance = torch.finfo(like.dtype).eps ** 0.5 * max(scale, 1.0)
    reason, cause = "", None
    for surrounded in (False, True):
        try:
            gap = max(
                _gap(evaluate, whole, at, surrounded, h, values)
                for at in (graph.everyone, graph.star(half))
                for h, values in zip(drawn, expected, strict=True)
            )
        except Exception as error:  # a foreign layer may raise anything on stars
            reason, cause = f"raises {error!r}", error
            continue
        if gap <= tolerance:
            return surrounded
        reason, cause = f"differs by {gap:.1e}", None
    raise AsynchronyError(
        f"{name} looks beyond a node and the neighbours it hears: evaluated on these alone it "
        f"{reason}. Expected a layer of one hop. Pass information about the whole graph as "
        f"features of nodes or edges{hint}"
    ) from cause


def _gap(
    evaluate: Evaluate, whole: AllEdges, at: Star, surrounded: bool, h: Tensor, expected: Tensor
) -> float:
    """Largest difference between a layer on stars and on the whole graph."""
    edges = StarEdges.of(whole, at, surrounded)
    own, inbox = at.at_nodes(h.mT).mT, h[:, at.at_edges(whole.graph.src)]
    found = evaluate(edges.values(own, inbox), edges)[:, : at.size]
    gap = (found - at.at_nodes(expected.mT).mT).abs().max()
    return float(gap.nan_to_num(nan=torch.inf))
