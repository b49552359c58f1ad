"""What asynchronous runs had cost and what they were worth at each deadline.

A run is looked at before its first tick and then after geometrically spaced ticks. Each look notes
the updates, packets and bytes of a node so far, how far the embeddings are from the synchronous
ones, and the task's error of what the nodes would answer now: one readout. A run that arrives ends
when it arrives, so that its counts stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.trace import Trace
from hogwild.errors import ConfigError, is_number
from hogwild.executors.cone import LightCone, light_cone
from hogwild.executors.price import Price, aligned, shown, size, wrapped
from hogwild.executors.settings import Settings
from hogwild.graph import Graph
from hogwild.metrics import METRICS, Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SPACING = 1.15
"""Each look is at a tick that is so many times the tick of the look before, or at the next one."""
NEAR = 0.05
"""A run is in time when its error is within this share of the synchronous error."""
LEAST = 0.01
"""Where the synchronous error is smaller than this share of the error before the first update,
:data:`NEAR` refers to that share: of nothing there is no per cent."""
COSTS = {"ticks": "ticks", "updates": "updates a node", "packets": "packets a node",
         "bytes": "bytes a node"}  # fmt: skip
"""What a deadline can be counted in."""


@dataclass(frozen=True)
class Way:
    """The schedule that word travels on: the graph of all runs, their settings, their trace."""

    graph: Graph
    settings: Settings
    replay: Trace | None = None


@dataclass
class Deadlines:
    """Error by deadline. T looks, Q runs, G graphs; with replicas an R after Q.

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
        name: The rule, for texts.
        way: The schedule on which word travels.
        tick: The length of a tick in seconds, which tables then have, too; ``None``: unknown.
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
    name: str
    way: Way = field(repr=False)
    tick: float | None = None

    # -- the light cone ----------------------------------------------------------------------------

    @cached_property
    def cone(self) -> LightCone:
        """The light cone of these runs; it is computed when it is first asked for."""
        return light_cone(self.way.graph, self.way.settings, self.way.replay)

    def layer_cone(self, layers: int) -> LightCone:
        """The light cone of so many hops: no model of so many layers can be complete before."""
        return light_cone(self.way.graph, self.way.settings, self.way.replay, layers=layers)

    def cones(self, ticks: float) -> float:
        """A time in light cones; NaN: word does not cross the graph. It is counted in ticks, since
        nodes that wait have turns without an update, and runs that have arrived have no turns."""
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
                raise ConfigError("at(cones=…): word does not cross the graph in these runs")
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
        late = (self._excess() > self._allowance(share)).nonzero()
        first = int(late[-1, 0]) + 1 if late.numel() else 0
        if first >= len(self.ticks):
            return None
        row = self.rows()[first]
        return Price(int(row["ticks"]), row["updates"], row["packets"], row["bytes"], row["solved"])

    def _excess(self) -> Tensor:
        """How much worse than the synchronous answer the looks are, on average, [T]."""
        if self.error is None or self.synchronous is None or self.metric is None:
            return self.deviation.flatten(1).amax(1)
        more = (self.error - self.synchronous).flatten(1).mean(1)
        return -more if self.metric.higher_is_better else more

    def _wrong(self) -> float:
        """The synchronous error, lower is better."""
        assert self.synchronous is not None
        assert self.metric is not None
        value = float(self.synchronous.mean())
        if not self.metric.higher_is_better:
            return value
        share = self.metric in METRICS.values() or self.metric.percent
        return 1.0 - value if share else abs(value)

    def _allowance(self, share: float) -> float:
        """How much worse than the synchronous answer is still in time."""
        if self.synchronous is None or self.metric is None:
            return share
        rounding = 1e-9 * float(self.synchronous.abs().mean())
        return share * max(self._wrong(), LEAST * float(self._excess()[0])) + rounding

    @property
    def floored(self) -> bool:
        """Whether the synchronous error is so small that :data:`NEAR` refers to :data:`LEAST`."""
        return self.metric is not None and self._allowance(1.0) > 1.001 * self._wrong()

    # -- tables ------------------------------------------------------------------------------------

    def rows(self, tick: float | None = None) -> list[dict[str, float]]:
        """One row a look: ticks, updates, packets and bytes of a node (means over runs), the error
        (mean and worst schedule) and the largest deviation. With the length of a ``tick`` in
        seconds, seconds, too."""
        tick = check_tick(self.tick if tick is None else tick)
        out: list[dict[str, float]] = []
        for t, ticks in enumerate(self.ticks.tolist()):
            row: dict[str, float] = {"ticks": ticks}
            if tick is not None:
                row["seconds"] = ticks * tick
            for name in ("updates", "packets", "bytes", "solved"):
                row[name] = float(getattr(self, name)[t].mean())
            if self.error is not None and self.metric is not None:
                each = self.error[t].flatten(1).mean(1) if self.error.dim() > 2 else self.error[t]
                worst = each.min() if self.metric.higher_is_better else each.max()
                row |= {"error": float(each.mean()), "worst": float(worst)}
            out.append(row | {"deviation": float(self.deviation[t].max())})
        return out

    def to_frame(self, tick: float | None = None) -> DataFrame:
        """:meth:`rows` as a table of pandas."""
        from hogwild.plots.style import need

        return need("pandas").DataFrame(self.rows(tick))

    def as_dict(self, tick: float | None = None) -> dict[str, Any]:
        """Everything, for JSON."""
        near = self.within()
        return {
            "metric": None if self.metric is None else self.metric.name,
            "synchronous": None if self.synchronous is None else float(self.synchronous.mean()),
            "light_cone": self.cone.as_dict(),
            "within_5_percent": None if near is None else vars(near),
            "looks": self.rows(tick),
        }

    def table(self, tick: float | None = None) -> str:
        """A table of about ten looks, for a terminal."""
        tick = self.tick if tick is None else tick
        rows = self.rows(tick)
        kept = [rows[i] for i in _some(self.ticks.tolist())]
        heads = ["ticks", *(["seconds"] if tick is not None else []), "updates", "light cones",
                 "packets", "bytes"]  # fmt: skip
        if self.metric is not None:
            heads += [self.metric.name, "worst schedule"]
        lines = [[*heads, "deviation"]]
        for row in kept:
            cells = [f"{row['ticks']:,.0f}"]
            cells += [f"{row['seconds']:.3g}"] if tick is not None else []
            cones = self.cones(row["ticks"])
            cells += [shown(row["updates"]), "–" if cones != cones else f"{cones:.1f}",
                      shown(row["packets"]), size(row["bytes"])]  # fmt: skip
            if self.metric is not None:
                cells += [self.metric.show(row["error"]), self.metric.show(row["worst"])]
            lines.append([*cells, f"{row['deviation']:.1g}"])
        if self.metric is not None and self.synchronous is not None:
            blank = [""] * (len(heads) - 2)
            value = self.metric.show(float(self.synchronous.mean()))
            lines.append(["in step", *blank[1:], value, "", "0"])
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
        if reached.startswith("not "):
            return f"not {goal} {reached.removeprefix('not ')}"
        return f"{goal} {reached}"

    def goal(self, share: float = NEAR) -> str:
        """What in time means, in words."""
        of = "of the synchronous answer"
        if self.metric is not None and self.synchronous is not None:
            small = f"; instead of so small an error, {LEAST:.0%} of the first one counts"
            of = (
                f"of the synchronous {self.metric.name} "
                f"({self.metric.show(float(self.synchronous.mean()))}{small * self.floored})"
            )
        return f"within {share:.0%} {of}"

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
        from hogwild.plots.deadlines import deadlines

        return deadlines({self.name: self}, path)


def check_tick(tick: float | None) -> float | None:
    """The length of a tick in seconds, if it can be one."""
    if tick is not None and not (is_number(tick) and 0 < tick < float("inf")):
        raise ConfigError(f"tick={tick!r}; expected the length of a tick in seconds")
    return tick


class Looks:
    """Notes of the looks at runs on their way."""

    def __init__(self) -> None:
        self.next = 0
        self.ticks: list[int] = []
        self.counts: list[tuple[Tensor, ...]] = []
        self.deviations: list[Tensor] = []
        self.errors: list[Tensor] = []

    def due(self, ticks: int) -> bool:
        """Whether a look is due after so many ticks."""
        return ticks >= self.next

    def note(
        self, ticks: int, counts: Sequence[Tensor], deviation: Tensor, error: Tensor | None
    ) -> None:
        """Note a look: counts [Q, N] each, deviation, error."""
        self.ticks.append(ticks)
        self.counts.append(tuple(count.double().mean(1).cpu() for count in counts))
        self.deviations.append(deviation.double().cpu())
        if error is not None:
            self.errors.append(error)
        self.next = max(ticks + 1, int(np.ceil(SPACING * ticks)))

    def table(self, of: Callable[[Tensor], Tensor], **about: Any) -> Deadlines:
        """All looks; ``of`` turns deviations [R, Q·G] into [Q, (R,) G]."""
        updates, packets, numbers, solved = (torch.stack(x) for x in zip(*self.counts, strict=True))
        error = torch.stack(self.errors) if self.errors else None
        return Deadlines(
            torch.tensor(self.ticks), updates, packets, numbers, solved,
            torch.stack([of(x) for x in self.deviations]), error, **about,
        )  # fmt: skip


def _some(ticks: list[int], count: int = 10) -> list[int]:
    """About so many looks, evenly spaced in the logarithm of the ticks, the last one included."""
    if len(ticks) <= count:
        return list(range(len(ticks)))
    wanted = np.geomspace(max(ticks[0], 1), ticks[-1], count)
    places = np.abs(np.log(np.maximum(ticks, 0.5))[:, None] - np.log(wanted)).argmin(0)
    return sorted({0, *places.tolist(), len(ticks) - 1})
