"""What asynchronous runs end with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from hogwild.asynchrony.trace import Trace
from hogwild.executors.deadlines import Deadlines, Price
from hogwild.executors.simulation import Ages, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASSUMED = {
    "a": "every node keeps updating",
    "b": "the age of packets is bounded",
    "c": "a node knows its own state",
}
"""The assumptions of partial asynchronism, in words (docs/asynchrony.md has the bounds)."""


@dataclass
class Staleness:
    """How old the packets were that nodes used.

    Attributes:
        packet: Ages of the packets when they were used: t − τ.
        content: Ages of the oldest embedding inside them: a gradient is computed from packets that
            were old already. Empty for models whose packets hold embeddings only.
        bound: B of partial asynchronism for the schedule's S and D (with bounded impairments).
        bounded: Whether any bound holds.
        content_bound: D', the bound on the ages of the content.
    """

    packet: Ages
    content: Ages
    bound: int
    bounded: bool
    content_bound: int

    def __str__(self) -> str:
        text = f"packets at most {self.packet.largest} ticks old (mean {self.packet.mean:.2f})"
        if self.content.counts.numel():
            text += (
                f", their content {self.content.largest} (mean {self.content.mean:.2f}; "
                f"D' = {self.content_bound})"
            )
        return text + f"; B = {self.bound}" + ("" if self.bounded else ", not guaranteed")


@dataclass
class Run:
    """What asynchronous runs ended with. Q runs, G graphs, N nodes; with replicas an R after Q.

    Attributes:
        predictions: Outputs of the model's readout, [Q, N, out] or, graph level, [Q, G, out].
        h: Final embeddings, [Q, N, k].
        reference: The synchronous embeddings, [N, k].
        deviation: Largest distance from the synchronous embeddings, relative to their largest
            entry, for each run and graph, [Q, G]; of a stack, that of its worst level.
        updates: Updates of each node, [Q, N].
        packets: Packets that each node sent, [Q, N].
        saved: Packets that an event trigger kept back, [Q, N].
        bytes: Bytes of the packets that each node sent, [Q, N], for one replica and without
            headers: every number as a float32, or with balls what an agent's packets hold.
        solved: For how many nodes each node solved, summed over its updates, [Q, N].
        staleness: How old the packets were that nodes used.
        assumptions: Whether (a) updates, (b) staleness and (c) own state of partial asynchronism
            held in these runs.
        ticks: Ticks simulated.
        tol: The tolerance.
        stalled: Whether the simulation ended early, since packets are wrong (quantised, or not sent
            because little has changed) and no remaining run came nearer to the answer.
        reached: Tick at which each run and graph was first seen within the tolerance; −1: never.
        history: Deviation over time, [T, Q, G], at ``history_ticks``; ``None`` unless asked for.
        embeddings: Embeddings over time, [T, Q, N, k]; ``None`` unless asked for.
        trace: The schedule, where it was recorded.
        deadlines: What the runs had cost and what they were worth at each deadline, and the light
            cone.
        settings: The settings of the runs, with the name of the rule that nodes followed.
        seconds: Wall-clock time of the simulation.
        path: How ticks were made: ``compiled (…)``, or ``torch: …`` with the reason.
    """

    predictions: Tensor
    h: Tensor
    reference: Tensor
    deviation: Tensor
    updates: Tensor
    packets: Tensor
    saved: Tensor
    bytes: Tensor
    solved: Tensor
    staleness: Staleness
    assumptions: dict[str, bool]
    ticks: int
    tol: float
    stalled: bool
    reached: Tensor
    history: Tensor | None
    history_ticks: list[int]
    embeddings: Tensor | None
    trace: Trace | None
    deadlines: Deadlines
    settings: Settings
    seconds: float
    path: str = ""

    @property
    def converged(self) -> Tensor:
        """Whether the deviation is within the tolerance, [Q, G]."""
        return self.deviation <= self.tol

    @property
    def rule(self) -> str:
        """The name of the rule that nodes followed."""
        return self.settings.rule

    @property
    def price(self) -> Price:
        """What the runs cost."""
        counts = (self.updates, self.packets, self.bytes, self.solved)
        return Price(self.ticks, *(float(count.double().mean()) for count in counts))

    def ticks_needed(self) -> int | None:
        """About how many ticks let every run arrive, if the others go on as they did in the second
        half of this simulation. ``None``: they came no nearer, or there were too few ticks."""
        looks, deviation = self.deadlines.ticks, self.deadlines.deviation[:, ~self.converged.cpu()]
        half = int((looks <= self.ticks // 2).sum()) - 1  # the last look of the first half
        if not 0 < int(looks[half]) < self.ticks:
            return None
        left = deviation[-1]
        slope = (left / deviation[half]).log() / (self.ticks - looks[half])  # a tick
        more = (self.tol / left).log() / slope
        if not bool(((slope < 0) & more.isfinite()).all()):
            return None
        if not more.numel():
            return self.ticks
        total = self.ticks + float(more.max())
        unit = 10 ** max(math.floor(math.log10(total)) - 1, 0)
        return math.ceil(total / unit) * unit  # two digits: it is a guess

    def plot(self, path: str | Path | None = None) -> Figure:
        """The error by deadline, with the light cone; and the deviation over time, as finely as
        ``history`` recorded it."""
        from hogwild.plots.courses import overview

        return overview(self, path)

    def __str__(self) -> str:
        good, all_ = int(self.converged.sum()), self.converged.numel()
        held = "; ".join(
            f"({name}) {ASSUMED[name]}: {'yes' if held else 'no'}"
            for name, held in self.assumptions.items()
        )
        return (
            f"{good} of {all_} runs within tolerance of the synchronous answer (largest relative "
            f"deviation {float(self.deviation.max()):.2g}), rule {self.rule}\n"
            f"{self.price}; simulated in {self.seconds:.2f} s\n"
            f"{self.staleness}\ntheorems assume {held}\n\n{self.deadlines}"
        )
