r"""What asynchronous runs had cost and what they were worth at each deadline; the light cone.

The *light cone* is the least time in which information can cross the graph. A rumour spreads on the
schedule of the runs, with the same delays, losses and crashes: at its turn a node adds what it last
heard from its neighbours,

.. math:: W_i \leftarrow W_i \cup \bigcup_{j \in N(i)} W_j(\tau^i_j(t)),

and passes everything on. No rule whose packets reach one hop can be complete before every node has
heard of every node that has a path to it. An error can be small before that, where few nodes or
near ones decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import ConfigError, TraceError
from hogwild.executors.simulation import Settings, Simulation
from hogwild.graph import Graph, Star
from hogwild.metrics import METRICS, Metric
from hogwild.progress import aligned, shown, size, wrapped
from hogwild_node.rules.base import Rule, Survivors

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

NEAR = 0.05
"""A run is in time when its error is within this share of the synchronous error."""
LEAST = 0.01
"""Where the synchronous error is smaller than this share of the error before the first update,
:data:`NEAR` refers to that share: a percentage of zero means nothing."""
COSTS = {"ticks": "ticks", "updates": "updates a node", "packets": "packets a node",
         "bytes": "bytes a node"}  # fmt: skip
"""What a deadline can be counted in."""
SOURCES = 256
"""Only so many nodes of a graph, drawn at random, start a rumour; each is a bit, 64 in a number."""
CROWD = 20_000
"""With more nodes than this in all runs together, only the first runs have their cones computed."""
BITS = 64


@dataclass(frozen=True)
class Price:
    """What runs cost until they ended. A run that arrives ends when it arrives.

    Attributes:
        ticks: Ticks until the last of the runs ended.
        updates: Updates of a node, mean over nodes and runs.
        packets: Packets that a node sent, mean over nodes and runs.
        bytes: Bytes in these packets; see :attr:`hogwild.executors.run.Run.bytes`.
        solved: Nodes for which a node solved, summed over its updates; as many as updates if
            every node solves for itself.
    """

    ticks: int
    updates: float
    packets: float
    bytes: float
    solved: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.ticks:,} ticks; of a node, on average, {shown(self.updates)} updates, "
            f"{shown(self.packets)} packets, {size(self.bytes)}{self.work}"
        )

    @property
    def work(self) -> str:
        """In words, for how many nodes a node solved; nothing if for itself only."""
        alone = self.solved <= self.updates * (1 + 1e-9)
        return "" if alone else f", solves for {shown(self.solved)} nodes"


@dataclass(frozen=True)
class LightCone:
    """When information has crossed the graph. Q runs, G graphs.

    Attributes:
        ticks: Ticks until the last node of a graph had heard of every node that has a path to it,
            [Q, G]; NaN: not within the ticks of the runs.
        updates: Updates that a node of the graph had made by then, on average, [Q, G].
        hops: The longest way in hops, [G]: updates a node if all nodes are in step.
        sources: Nodes that start a rumour, of the graph that has most nodes.
        nodes: Nodes of that graph.
    """

    ticks: Tensor
    updates: Tensor
    hops: Tensor
    sources: int
    nodes: int

    @property
    def crossed(self) -> bool:
        """Whether information crossed every graph in every run."""
        return not bool(self.ticks.isnan().any())

    @property
    def mean(self) -> float:
        """Updates of a node until then, mean over runs and graphs; NaN: it did not cross."""
        return float(self.updates.mean())

    @property
    def range(self) -> tuple[float, float]:
        """The fewest and the most updates a node, over runs and graphs."""
        return float(self.updates.min()), float(self.updates.max())

    def as_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        low, high = self.range
        values = {
            "updates": self.mean, "updates_least": low, "updates_most": high,
            "ticks": float(self.ticks.mean()),
        }  # fmt: skip
        known = {name: None if x != x else x for name, x in values.items()}
        size = {"hops": int(self.hops.max()), "sources": self.sources, "nodes": self.nodes}
        return known | size

    def __str__(self) -> str:
        if not self.crossed:
            missing = int(self.ticks.isnan().sum())
            return (
                f"light cone: in {missing} of {self.ticks.numel()} runs information does not cross "
                f"the graph"
            )
        near, far = int(self.hops.min()), int(self.hops.max())
        hops = f"{far} hop{'s' * (far != 1)}" if near == far else f"{near} to {far} hops"
        low, high = (shown(x) for x in self.range)
        among = "" if low == high else f" ({low} to {high})"
        some = ""
        if self.sources < self.nodes:
            some = f"; news of {self.sources} of {self.nodes:,} nodes, drawn at random"
        return (
            f"light cone: information crosses the graph ({hops}) in {shown(self.mean)} "
            f"updates a node{among}, {shown(float(self.ticks.mean()))} ticks{some}"
        )


def light_cone(graph: Graph, settings: Settings, replay: Trace | None = None) -> LightCone:
    """The light cones of all runs.

    Args:
        graph: The graph of all runs together, run by run.
        settings: Their settings; impairments that change what packets say or whether they are sent
            do not matter to a rumour, all others do.
        replay: The trace that the runs followed; ``None``: the schedule of the settings.
    """
    src, dst, batch = (x.cpu() for x in (graph.src, graph.dst, graph.batch))
    graph = Graph(src, dst, batch, graph.num_nodes, graph.num_graphs)
    runs, each = settings.runs, graph.num_graphs // settings.runs
    if replay is None and graph.num_nodes > CROWD:
        runs = max(1, CROWD * runs // graph.num_nodes)
        graph = graph.select(torch.arange(runs * each))[0]
        settings = replace(settings, runs=runs)
    one = graph.select(torch.arange(each))[0]
    rumours = _rumours(one)
    wanted, hops = _reached(one, rumours)
    timetable = settings.schedule(graph) if replay is None else Replay(replay, graph)
    start, wanted = rumours.repeat(1, 1, runs), wanted.repeat(1, 1, runs)
    simulation = Simulation(RumourRule(graph.everyone, start.size(1)), timetable, start)
    ticks = torch.full((graph.num_graphs,), torch.nan, dtype=torch.float64)
    updates, size = ticks.clone(), graph.sizes.double().clamp_min(1)
    lacks = torch.ones(1, graph.num_nodes, dtype=torch.bool)  # a node may hear all, and forget
    for t in range(settings.ticks):
        lacks &= ((simulation.h & wanted) != wanted).any(1)
        missing = graph.sum(lacks.double())[0]
        crossed = (missing == 0) & ticks.isnan()
        if bool(crossed.any()):
            made = graph.sum(simulation.tally.updates.double()[None])[0]
            ticks[crossed], updates[crossed] = t, (made / size)[crossed]
            simulation.retire(crossed[graph.batch].nonzero()[:, 0])
        if not bool(ticks.isnan().any()):
            break
        try:
            simulation.step()
        except TraceError:  # the trace ends before information has crossed
            break
    largest, ticks, updates = int(size.max()), ticks.view(runs, each), updates.view(runs, each)
    return LightCone(ticks, updates, hops, min(SOURCES, largest), largest)


class RumourRule(Rule):
    """A node adds what it hears. Its embedding is a set of rumours, int64 [1, W, N], a bit each."""

    def __init__(self, everyone: Star, channels: int) -> None:
        self.everyone, self.channels = everyone, channels

    def begin(self, h: Tensor, inbox: Tensor) -> Tensor | None:
        return None

    def update(
        self, h: Tensor, inbox: Tensor, mail: Tensor | None, at: Star
    ) -> tuple[Tensor, Tensor | None]:
        return h | _union(inbox, at), None

    def forget(self, nodes: Tensor) -> None:
        pass  # a node that forgets starts with its own rumour, which the simulation restores

    def keep(self, before: RumourRule, kept: Survivors) -> None:
        pass


def _union(rumours: Tensor, at: Star) -> Tensor:
    """The union of what comes in on the edges of each node, [1, W, E'] -> [1, W, A]."""
    slot, order = at.slot.sort(stable=True)
    out = rumours.new_zeros(*rumours.shape[:-1], at.size)
    if slot.numel():
        first = torch.cat([slot.new_zeros(1), (slot.diff() > 0).nonzero()[:, 0] + 1])
        heard = rumours[..., order].numpy()
        out[..., slot[first]] = torch.from_numpy(np.bitwise_or.reduceat(heard, first.numpy(), -1))
    return out


def _rumours(graph: Graph) -> Tensor:
    """What every node knows at first, [1, W, N]: graphs share the bits, since no rumour leaves a
    graph."""
    sizes = graph.sizes.tolist()
    out = np.zeros((-(-min(SOURCES, max(sizes)) // BITS), graph.num_nodes), np.uint64)
    for n, begin in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True):
        chosen = np.arange(n)
        if n > SOURCES:
            chosen = np.random.default_rng(0).permutation(n)[:SOURCES]
        bit = np.arange(chosen.size)
        out[bit // BITS, begin + chosen] = np.uint64(1) << (bit % BITS).astype(np.uint64)
    return torch.from_numpy(out.view(np.int64))[None]


def _reached(graph: Graph, known: Tensor) -> tuple[Tensor, Tensor]:
    """What every node will hear in the end [1, W, N], and the hops of the longest way of each
    graph [G]."""
    hops = torch.zeros(graph.num_graphs, dtype=torch.long)
    for done in range(1, graph.num_nodes + 1):
        wider = known | _union(known[..., graph.src], graph.everyone)
        grown = (wider != known).any(1)[0]
        if not bool(grown.any()):
            break
        hops[graph.batch[grown]] = done
        known = wider
    return known, hops


@dataclass
class Deadlines:
    """Error by deadline. T looks, Q runs, G graphs; with replicas an R after Q. A run that arrives
    ends when it arrives, so that its counts stay where they are.

    Attributes:
        ticks: Ticks until each look, [T]; the first is 0, before any update.
        updates: Updates that a node had made, mean over the nodes, [T, Q].
        packets: Packets that a node had sent, mean over the nodes, [T, Q].
        bytes: Bytes in these packets, [T, Q].
        solved: Nodes for which a node had solved, summed over its updates, [T, Q].
        deviation: Largest relative distance from the synchronous embeddings, [T, Q, G].
        error: The task's error of the nodes' answers, [T, Q]; ``None``: there is no target.
        synchronous: The task's error of the synchronous answer, [] or [R].
        metric: What the error is measured by.
        note: Why there is no error, where ``data.y`` did not fit.
        graph: The graph of all runs together.
        settings: The settings of the runs.
        replay: The trace that they followed; ``None``: the schedule of the settings.
    """

    ticks: Tensor
    updates: Tensor
    packets: Tensor
    bytes: Tensor
    solved: Tensor
    deviation: Tensor
    error: Tensor | None
    synchronous: Tensor | None
    metric: Metric | None
    note: str
    graph: Graph = field(repr=False)
    settings: Settings = field(repr=False)
    replay: Trace | None = field(repr=False)

    # -- the light cone ----------------------------------------------------------------------------

    @cached_property
    def cone(self) -> LightCone:
        """The light cone of these runs, computed at its first use."""
        return light_cone(self.graph, self.settings, self.replay)

    def cones(self, ticks: float) -> float:
        """A time in light cones; NaN: information does not cross the graph. It is counted in ticks,
        since nodes that wait have turns without an update, and runs that arrived have none."""
        crossed = float(self.cone.ticks.mean())
        return ticks / crossed if crossed > 0 else float("nan")

    # -- single deadlines --------------------------------------------------------------------------

    def at(self, **cost: float) -> dict[str, float]:
        """One row at a deadline between two looks: what it costs, and the error at the last look
        that is not later. ``at(updates=20)``, ``at(bytes=1000)``, ``at(ticks=…)``,
        ``at(packets=…)`` or ``at(cones=3)``."""
        if len(cost) != 1 or not {*cost} <= {*COSTS, "cones"}:
            raise ConfigError(
                f"at({', '.join(f'{k}={v!r}' for k, v in cost.items())}); expected exactly one of "
                f"{', '.join(COSTS)} and cones"
            )
        (kind, value), rows = *cost.items(), self.rows()
        if not value >= 0:
            raise ConfigError(f"at({kind}={value!r}); expected a number that is not negative")
        if kind == "cones":
            if not self.cone.crossed:
                raise ConfigError("at(cones=…): information does not cross the graph in these runs")
            kind, value = "ticks", value * float(self.cone.ticks.mean())
        past = [row for row in rows if row[kind] <= value * (1 + 1e-12)]
        before, after = past[-1], rows[len(past) : len(past) + 1]
        if not after:
            return dict(before)
        part = (value - before[kind]) / (after[0][kind] - before[kind])
        costs = {name: before[name] + part * (after[0][name] - before[name]) for name in COSTS}
        return before | costs  # between two looks costs grow evenly

    def within(self, share: float = NEAR) -> Price | None:
        """What it costs until the mean error is within a share of the synchronous error, and stays
        so; without a target, until the largest deviation is at most this share. ``None``: never in
        these runs."""
        if not share >= 0:
            raise ConfigError(f"share={share!r}; expected a number that is not negative")
        excess, whole, rounding, _ = self._excess()
        late = (excess > share * whole + rounding).nonzero()
        first = int(late[-1, 0]) + 1 if late.numel() else 0
        if first >= len(self.ticks):
            return None
        row = self.rows()[first]
        return Price(int(row["ticks"]), row["updates"], row["packets"], row["bytes"], row["solved"])

    def _excess(self) -> tuple[Tensor, float, float, bool]:
        """How much worse than the synchronous answer the looks are, on average, [T]; how much worse
        100 % are, and rounding; and whether that is a share of the first look's error, since the
        synchronous error is so small (:data:`LEAST`)."""
        if self.error is None or self.synchronous is None or self.metric is None:
            return self.deviation.flatten(1).amax(1), 1.0, 0.0, False
        excess = (self.error - self.synchronous).flatten(1).mean(1)
        wrong = float(self.synchronous.mean())  # lower is better
        if self.metric.higher_is_better:
            share = self.metric in METRICS.values() or self.metric.percent
            excess, wrong = -excess, 1.0 - wrong if share else abs(wrong)
        least = LEAST * float(excess[0])
        rounding = 1e-9 * float(self.synchronous.abs().mean())
        return excess, max(wrong, least), rounding, least > 1.001 * wrong

    # -- tables ------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, float]]:
        """One row a look: ticks, updates, packets and bytes of a node (means over runs), the error
        (mean and worst schedule) and the largest deviation."""
        out: list[dict[str, float]] = []
        for t, ticks in enumerate(self.ticks.tolist()):
            row: dict[str, float] = {"ticks": ticks}
            for name in ("updates", "packets", "bytes", "solved"):
                row[name] = float(getattr(self, name)[t].mean())
            if self.error is not None and self.metric is not None:
                each = self.error[t].flatten(1).mean(1) if self.error.dim() > 2 else self.error[t]
                worst = each.min() if self.metric.higher_is_better else each.max()
                row |= {"error": float(each.mean()), "worst": float(worst)}
            out.append(row | {"deviation": float(self.deviation[t].max())})
        return out

    def to_frame(self) -> DataFrame:
        """:meth:`rows` as a table of pandas."""
        from hogwild.plots.style import need

        return need("pandas").DataFrame(self.rows())

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        near = self.within()
        return {
            "metric": None if self.metric is None else self.metric.name,
            "synchronous": None if self.synchronous is None else float(self.synchronous.mean()),
            "light_cone": self.cone.as_dict(),
            "within_5_percent": None if near is None else vars(near),
            "looks": self.rows(),
        }

    def table(self) -> str:
        """A table of about ten looks, for a terminal."""
        rows, metric = self.rows(), self.metric
        heads = ["ticks", "updates", "light cones", "packets", "bytes"]
        scored = [] if metric is None else [metric.name, "worst schedule"]
        lines = [[*heads, *scored, "deviation"]]
        for row in (rows[i] for i in _some(self.ticks.tolist())):
            cones = self.cones(row["ticks"])
            lines.append([
                f"{row['ticks']:,.0f}", shown(row["updates"]),
                "–" if cones != cones else f"{cones:.1f}",
                shown(row["packets"]), size(row["bytes"]),
                *([] if metric is None else [metric.show(row[x]) for x in ("error", "worst")]),
                f"{row['deviation']:.1g}",
            ])  # fmt: skip
        if metric is not None and self.synchronous is not None:
            value = metric.show(float(self.synchronous.mean()))
            lines.append(["in step", *[""] * (len(heads) - 1), value, "", "0"])
        return aligned(lines)

    def __str__(self) -> str:
        what = "deviation from the synchronous embeddings"
        if self.metric is not None:
            what = f"{self.metric.name} of what nodes answer"
        head = f"error by deadline ({what}; updates, packets and bytes of a node, on average):"
        below = [str(self.cone), self.sentence(), *([self.note] if self.note else [])]
        return "\n".join([wrapped(head), self.table(), *map(wrapped, below)])

    def sentence(self, share: float = NEAR) -> str:
        """When the runs were in time, in a sentence."""
        goal, reached = self.goal(share), self.reached(share)
        never = reached.startswith("not ")
        return f"not {goal} {reached.removeprefix('not ')}" if never else f"{goal} {reached}"

    def goal(self, share: float = NEAR) -> str:
        """What in time means, in words."""
        if self.metric is None or self.synchronous is None:
            return f"within {share:.0%} of the synchronous answer"
        error, (*_, small) = self.metric.show(float(self.synchronous.mean())), self._excess()
        error += f"; instead of so small an error, {LEAST:.0%} of the first one counts" * small
        return f"within {share:.0%} of the synchronous {self.metric.name} ({error})"

    def reached(self, share: float = NEAR) -> str:
        """When the runs reached the goal, in words."""
        near = self.within(share)
        if near is None:
            return f"not in these {int(self.ticks[-1]):,} ticks"
        return "before the first update" if near.ticks == 0 else f"after {self.cost(near)}"

    def cost(self, price: Price) -> str:
        """A price in words: updates a node, light cones, bytes a node."""
        cones = self.cones(price.ticks)
        inside = "" if cones != cones else f"{cones:.1f} light cones, "
        sent = f"{inside}{size(price.bytes)} a node{price.work}"
        return f"{shown(price.updates)} updates a node ({sent})"

    def plot(self, path: str | Path | None = None) -> Figure:
        """The error against updates and against bytes, with the light cone."""
        from hogwild.plots.courses import deadlines

        return deadlines({self.settings.rule: self}, path)


def _some(ticks: list[int], count: int = 10) -> list[int]:
    """About so many looks, evenly spaced in the logarithm of the ticks, the last one included."""
    if len(ticks) <= count:
        return list(range(len(ticks)))
    wanted = np.geomspace(max(ticks[0], 1), ticks[-1], count)
    places = np.abs(np.log(np.maximum(ticks, 0.5))[:, None] - np.log(wanted)).argmin(0)
    return sorted({0, *places.tolist(), len(ticks) - 1})
