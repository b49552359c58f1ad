r"""The light cone of a schedule: the fewest updates in which word can cross the graph.

A rumour spreads on the schedule of the runs, with the same delays, losses and crashes. Every node
starts with a word of its own. At its turn a node adds what it last heard from its neighbours,

.. math:: W_i \leftarrow W_i \cup \bigcup_{j \in N(i)} W_j(\tau^i_j(t)),

and passes everything on. A node has its neighbours' first packets from the beginning, as in every
run. No rule whose packets reach one hop can be faster: an answer that depends on all nodes cannot
be complete before every node has heard of every node. An error can be small before that: where a
few nodes decide, or near ones, fewer have to be heard of. The *light cone* of a run is the moment
when the last node has heard of every node that has a path to it, in ticks and in the updates that a
node has made by then, on average.

Words are bits, 64 in a number, so that a tick costs as much as a tick of a very small model. On
graphs of more than :data:`SOURCES` nodes only so many of them, drawn at random, have a word; the
result says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import TraceError
from hogwild.executors.price import shown
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Simulation
from hogwild.graph import Graph, Star
from hogwild_node.rules.base import Kept, Rule

SOURCES = 256
"""Nodes of a graph that have a word, at most."""
CROWD = 20_000
"""With more nodes than this in all runs together, only the first runs have their cones computed."""
BITS = 64


@dataclass(frozen=True)
class LightCone:
    """When word has crossed the graph. Q runs, G graphs.

    Attributes:
        ticks: Ticks until the last node of a graph had heard of every node that has a path to it,
            [Q, G]; NaN: not within the ticks of the runs.
        updates: Updates that a node of the graph had made by then, on average, [Q, G].
        hops: The longest way of a word in hops, [G]: updates a node if all nodes are in step.
        sources: Nodes with a word, of the graph that has most nodes.
        nodes: Nodes of that graph.
        layers: Only words from at most so many hops away were waited for; ``None``: all words.
    """

    ticks: Tensor
    updates: Tensor
    hops: Tensor
    sources: int
    nodes: int
    layers: int | None = None

    @property
    def crossed(self) -> bool:
        """Whether word crossed every graph in every run."""
        return not bool(self.ticks.isnan().any())

    @property
    def mean(self) -> float:
        """Updates a node until word has crossed, mean over runs and graphs; NaN: it did not."""
        return float(self.updates.mean())

    @property
    def range(self) -> tuple[float, float]:
        """The fewest and the most updates a node, over runs and graphs."""
        return float(self.updates.min()), float(self.updates.max())

    def as_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        low, high = self.range
        return {
            "updates": _number(self.mean), "updates_least": _number(low),
            "updates_most": _number(high), "ticks": _number(float(self.ticks.mean())),
            "hops": int(self.hops.max()), "sources": self.sources, "nodes": self.nodes,
        }  # fmt: skip

    def __str__(self) -> str:
        word = "word" if self.layers is None else f"word of the nodes within {self.layers} hops"
        if not self.crossed:
            missing = int(self.ticks.isnan().sum())
            return (
                f"light cone: in {missing} of {self.ticks.numel()} runs {word} does not cross the "
                f"graph"
            )
        low, high = (shown(x) for x in self.range)
        among = "" if low == high else f" ({low} to {high})"
        some = ""
        if self.sources < self.nodes:
            some = f"; words of {self.sources} of {self.nodes:,} nodes, drawn at random"
        return (
            f"light cone: {word} crosses the graph ({hops(self.hops)}) in {shown(self.mean)} "
            f"updates a node{among}, {shown(float(self.ticks.mean()))} ticks{some}"
        )


def hops(count: Tensor) -> str:
    """Numbers of hops, as text."""
    low, high = int(count.min()), int(count.max())
    return f"{high} hop{'s' if high != 1 else ''}" if low == high else f"{low} to {high} hops"


def light_cone(
    graph: Graph, settings: Settings, replay: Trace | None = None, *, layers: int | None = None
) -> LightCone:
    """The light cones of all runs.

    Args:
        graph: The graph of all runs together, run by run.
        settings: Their settings; impairments that change what packets say or whether they are sent
            do not matter to a rumour, all others do.
        replay: The trace that the runs followed; ``None``: the schedule of the settings.
        layers: Wait only for words from at most so many hops away; ``None``: for all.
    """
    src, dst, batch = (x.cpu() for x in (graph.src, graph.dst, graph.batch))
    graph = Graph(src, dst, batch, graph.num_nodes, graph.num_graphs)
    runs, each = settings.runs, graph.num_graphs // settings.runs
    if replay is None and graph.num_nodes > CROWD:
        runs = max(1, CROWD * runs // graph.num_nodes)
        graph = graph.select(torch.arange(runs * each))[0]
        settings = replace(settings, runs=runs)
    one = graph.select(torch.arange(each))[0]
    words = _words(one)
    targets, hops = _reached(one, words, layers)
    timetable = settings.schedule(graph) if replay is None else Replay(replay, graph)
    start = torch.from_numpy(words).T[None].repeat(1, 1, runs)
    rule = RumourRule(graph.everyone, start.size(1))
    simulation = Simulation(rule, timetable, start)
    wanted = torch.from_numpy(targets).T[None].repeat(1, 1, runs)
    ticks = torch.full((graph.num_graphs,), torch.nan, dtype=torch.float64)
    updates, size = ticks.clone(), graph.sizes.double().clamp_min(1)
    complete = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for t in range(settings.ticks):
        complete |= ((simulation.h & wanted) == wanted).all(1)[0]
        missing = torch.zeros_like(size).index_add_(0, graph.batch, (~complete).double())
        crossed = (missing == 0) & ticks.isnan()
        if bool(crossed.any()):
            made = torch.zeros_like(size).index_add_(
                0, graph.batch, simulation.tally.updates.double()
            )
            ticks[crossed], updates[crossed] = t, (made / size)[crossed]
            simulation.retire(crossed[graph.batch].nonzero()[:, 0])
        if not bool(ticks.isnan().any()):
            break
        try:
            simulation.step()
        except TraceError:  # the trace ends before word has crossed
            break
    largest = int(size.max())
    shape = (runs, each)
    return LightCone(ticks.view(shape), updates.view(shape), hops, min(SOURCES, largest), largest,
                     layers)  # fmt: skip


class RumourRule(Rule):
    """A node adds what it hears. Its embedding is a set of words, int64 [1, W, N], a bit a word.

    Args:
        everyone: The star of all nodes.
        channels: W, the numbers that hold all words.
    """

    def __init__(self, everyone: Star, channels: int) -> None:
        self.everyone, self.channels = everyone, channels

    def begin(self, h: Tensor, inbox: Tensor) -> None:
        return None

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        heard = _union(inbox[0].T.numpy(), at.slot.numpy(), at.size)
        return h | torch.from_numpy(heard).T[None], None

    def forget(self, nodes: Tensor) -> None:
        pass  # a node that forgets starts with its own word, which the simulation restores

    def keep(self, before: RumourRule, kept: Kept) -> None:
        pass


def _union(words: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Union of the sets [E, W] of each owner [E], [count, W]."""
    out = np.zeros((count, words.shape[1]), words.dtype)
    if owner.size:
        if (owner[1:] < owner[:-1]).any():
            order = np.argsort(owner, kind="stable")
            owner, words = owner[order], words[order]
        first = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))
        out[owner[first]] = np.bitwise_or.reduceat(np.ascontiguousarray(words), first, axis=0)
    return out


def _words(graph: Graph) -> np.ndarray:
    """What every node knows at first, [N, W]: graphs share the bits, since no word leaves a
    graph."""
    sizes = graph.sizes.numpy()
    count = min(SOURCES, int(sizes.max()))
    out = np.zeros((graph.num_nodes, -(-count // BITS)), np.uint64)
    begin = 0
    for n in sizes.tolist():
        chosen = np.arange(n)
        if n > SOURCES:
            chosen = np.random.default_rng(0).permutation(n)[:SOURCES]
        bit = np.arange(chosen.size)
        out[begin + chosen, bit // BITS] = np.uint64(1) << (bit % BITS).astype(np.uint64)
        begin += n
    return out.view(np.int64)


def _reached(graph: Graph, words: np.ndarray, layers: int | None) -> tuple[np.ndarray, Tensor]:
    """What every node will hear in the end (within ``layers`` hops) [N, W], and the hops of the
    longest way of each graph [G]."""
    src, dst = graph.src.numpy(), graph.dst.numpy()
    order = np.argsort(dst, kind="stable")
    src, dst = src[order], dst[order]
    hops, done, batch = torch.zeros(graph.num_graphs, dtype=torch.long), 0, graph.batch.numpy()
    known = words
    while layers is None or done < layers:
        wider = known | _union(known[src], dst, graph.num_nodes)
        grown = (wider != known).any(1)
        if not grown.any():
            break
        done += 1
        hops[torch.from_numpy(np.unique(batch[grown]))] = done
        known = wider
    return known, hops


def _number(x: float) -> float | None:
    """A number as JSON has it."""
    return None if x != x else x
