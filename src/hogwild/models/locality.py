r"""What a layer reads, and whether a node can compute it from what it hears.

A layer of a feed-forward GNN is written over the whole graph. An asynchronous node evaluates it on
its *star*: itself, and one leaf for every edge into it, holding what was last heard there,

.. math:: h_i \leftarrow f^\ell_\theta\bigl(h_i, \{h_j, e_{ij} \mid j \in \mathcal N(i)\}\bigr).

Three things stand in the way. Some layers look at the whole graph or at several hops: they are
refused, by type where the type tells (:func:`refuse_beyond_one_hop`), and by trying otherwise
(:func:`surroundings_needed`). Some weigh a message by the *degree of its sender*: a leaf of a star
has no edges of its own, so it is given those of the node it stands for, from far ends whose values
do not matter. And :class:`~torch_geometric.nn.GCNConv` does the latter in a way that is known: its
weights are constants of the graph, computed once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    pyg.JumpingKnowledge: "reads all layers at once, and a node only has its latest",
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
    """Raise :class:`AsynchronyError`, with the reason, where a type tells that a layer (or anything
    inside it) reads more than a node and its neighbours; ``allow`` are types to pass over."""
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
            raise _beyond(f"{name}(track_running_stats=False) normalises over all nodes at hand")
        if isinstance(part, pyg.MessagePassing) and part.flow != "source_to_target":
            raise AsynchronyError(
                f"{name}(flow={part.flow!r}) reads the targets of a node's edges, from which it "
                f"hears nothing; expected flow='source_to_target': flip edge_index instead"
            )


def _beyond(what: str) -> AsynchronyError:
    return AsynchronyError(
        f"{what}, and an asynchronous node knows only itself and its neighbours; expected layers "
        f"of one hop (several of them for several hops) and norms of single nodes, such as "
        f"torch.nn.LayerNorm, LayerNorm(mode='node') or BatchNorm"
    )


# -- the edges as a layer sees them ---------------------------------------------------------------


class Edges(ABC):
    """What a layer reads beside the values of the nodes."""

    index: Tensor  # [2, M]
    attr: Tensor | None  # [M, r]
    weight: Tensor | None  # [M]

    @abstractmethod
    def normalised(self, improved: bool, loops: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        r"""Edges and weights of the symmetrically normalised adjacency
        :math:`(D + I)^{-1/2}(A + I)(D + I)^{-1/2}`; with ``loops`` one loop a node comes last."""


@dataclass(eq=False)
class AllEdges(Edges):
    """The edges of the whole graph."""

    graph: Graph
    index: Tensor
    attr: Tensor | None
    weight: Tensor | None
    _kept: dict[tuple[bool, bool, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def normalised(self, improved: bool, loops: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.weight is None:  # a constant of the graph: once for all forward passes
            return _unweighted(self.graph, improved, loops, dtype)
        key = (improved, loops, dtype)
        if key not in self._kept:
            self._kept[key] = _normalise(self.graph, self.weight, *key)
        return self._kept[key]


def _normalise(
    graph: Graph, given: Tensor | None, improved: bool, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """As :meth:`Edges.normalised`, of these weights [E]."""
    edges = torch.stack([graph.src, graph.dst])
    index, weight = gcn_norm(
        edges, given, graph.num_nodes, improved, loops, "source_to_target", dtype
    )
    if loops and graph.self_loops is not None:
        # PyG takes loops out before it adds its own; here they stay, weighing nothing, so that
        # edges keep their numbers.
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
class StarEdges(Edges):
    """The edges of some stars, drawn apart: first the nodes [A], then a leaf for every edge into
    them [E'], then the far ends of the leaves' own edges where a layer needs these.

    A self-loop is no message: the node reads itself.
    """

    whole: AllEdges
    at: Star
    index: Tensor
    attr: Tensor | None
    weight: Tensor | None
    near: Tensor | None  # [F] the node or leaf that each far end belongs to
    rows: Tensor | None  # [M] the edge of the graph that each edge drawn stands for; None: the same
    far: Tensor | None  # [F] the node that each far end stands for

    @classmethod
    def of(cls, whole: AllEdges, at: Star, surrounded: bool) -> StarEdges:
        graph, a, count = whole.graph, at.size, at.slot.numel()
        nodes, edges = _numbers(at, graph)
        src = graph.src[edges]
        leaf = torch.arange(a, a + count, device=src.device)
        index = torch.stack([torch.where(src == graph.dst[edges], at.slot, leaf), at.slot])
        rows, near, beyond = at.edges, None, None
        if surrounded:
            into, out = graph.star(src), _reversed(graph).star(torch.cat([nodes, src]))
            (_, entering), (_, leaving) = _numbers(into, graph), _numbers(out, graph)
            drawn = torch.cat([torch.full_like(nodes, -1), edges])[out.slot]  # already there
            own = graph.src[entering] == graph.dst[entering]
            new = (graph.src[leaving] != graph.dst[leaving]) & (leaving != drawn)
            # The edges into every leaf, its own loops among them, and those out of everyone.
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
        """The node of the graph that each node drawn stands for, [A + E' + F]."""
        nodes, edges = _numbers(self.at, self.whole.graph)
        found = torch.cat([nodes, self.whole.graph.src[edges]])
        return found if self.far is None else torch.cat([found, self.far])

    def values(self, h: Tensor, inbox: Tensor) -> Tensor:
        """Values of all nodes drawn: […, A, k], […, E', k] → […, A + E' + F, k].

        A far end repeats the value at its near end: finite, and the wrong one for a layer that
        looks at it, which :func:`surroundings_needed` then finds out.
        """
        x = torch.cat([h, inbox], -2)
        return x if self.near is None else torch.cat([x, x[..., self.near, :]], -2)

    def normalised(self, improved: bool, loops: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        _, whole = self.whole.normalised(improved, loops, dtype)
        edges, nodes = whole.tensor_split((self.whole.graph.num_edges,))
        index, weight = self.index[:, : self.at.slot.numel()], self.at.at_edges(edges)
        if loops:
            own = torch.arange(self.at.size, device=index.device)
            index = torch.cat([index, torch.stack([own, own])], 1)
            weight = torch.cat([weight, self.at.at_nodes(nodes)])
        return index, weight


def _numbers(at: Star, graph: Graph) -> tuple[Tensor, Tensor]:
    """The numbers of a star's nodes [A] and edges [E'] in the graph."""
    device = at.slot.device
    nodes = torch.arange(graph.num_nodes, device=device) if at.nodes is None else at.nodes
    edges = torch.arange(graph.num_edges, device=device) if at.edges is None else at.edges
    return nodes, edges


@kept
def _reversed(graph: Graph) -> Graph:
    """The graph with all edges turned round, edges keeping their numbers."""
    return Graph(graph.dst, graph.src, graph.batch, graph.num_nodes, graph.num_graphs)


# -- by trying ------------------------------------------------------------------------------------

Evaluate = Callable[[Tensor, Edges], Tensor]
"""A layer: values [R, N, k] and edges to new values [R, N, k]."""

_SAMPLES, _DRAWS = 64, 8
"""Nodes on which a layer is tried, in several draws (at most so many) where a graph has fewer."""


@torch.no_grad()
def surroundings_needed(
    evaluate: Evaluate, name: str, whole: AllEdges, like: Tensor, hint: str = ""
) -> bool:
    """Whether the leaves of a star need their own edges for a layer to come out right.

    Tried on random values, at all nodes and at a random half of them: statistics over all stars
    could agree with those over a regular graph.

    Args:
        evaluate: The layer. What it returns is compared, so it should be shown before an activation
            hides it.
        name: What to call the layer.
        like: A tensor [R, N, k] of the dtype and device in question.
        hint: Another possible reason for a failure.

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
        except Exception as error:  # whatever a foreign layer raises on a graph it did not expect
            reason, cause = f"raises {error!r}", error
            continue
        if gap <= tolerance:
            return surrounded
        reason, cause = f"differs by {gap:.1e}", None
    raise AsynchronyError(
        f"{name} looks beyond a node and the neighbours it hears: evaluated on these alone it "
        f"{reason}. Expected a layer of one hop; what it must know of the whole graph should be a "
        f"feature of nodes or edges{hint}"
    ) from cause


def _gap(
    evaluate: Evaluate, whole: AllEdges, at: Star, surrounded: bool, h: Tensor, expected: Tensor
) -> float:
    """How far a layer on stars is from the layer on the whole graph."""
    edges = StarEdges.of(whole, at, surrounded)
    own, inbox = at.at_nodes(h.mT).mT, h[:, at.at_edges(whole.graph.src)]
    found = evaluate(edges.values(own, inbox), edges)[:, : at.size]
    gap = (found - at.at_nodes(expected.mT).mT).abs().max()
    return float(gap.nan_to_num(nan=torch.inf))
