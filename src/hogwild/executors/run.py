"""What asynchronous runs ended with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hogwild.asynchrony.trace import Trace
from hogwild.executors.deadlines import Deadlines, Way
from hogwild.executors.price import Price
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Ages
from hogwild.executors.watch import NUMBER, Score, Watch
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model

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
        converged: Whether the deviation is within the tolerance, [Q, G].
        updates: Updates of each node, [Q, N].
        packets: Packets that each node sent, [Q, N].
        saved: Packets that an event trigger kept back, [Q, N].
        bytes: Bytes of the packets that each node sent, [Q, N]: every number as a float32, without
            headers, for one replica.
        solved: For how many nodes each node solved, summed over its updates, [Q, N].
        staleness: How old the packets were that nodes used.
        assumptions: Whether (a) updates, (b) staleness and (c) own state of partial asynchronism
            held in these runs.
        ticks: Ticks simulated.
        tol: The tolerance.
        stalled: Whether the simulation ended early, since packets are wrong (quantised, or not sent
            because little has changed) and no remaining run came nearer to the answer.
        halfway: A tick about halfway and the deviations then, [Q, G]; ``None``: too few ticks.
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
    converged: Tensor
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
    halfway: tuple[int, Tensor] | None
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
        if self.halfway is None or self.halfway[0] >= self.ticks - 1:
            return None
        left, then = self.deviation[~self.converged], self.halfway[1][~self.converged]
        slope = (left / then).log() / (self.ticks - 1 - self.halfway[0])  # a tick
        more = (self.tol / left).log() / slope
        if not bool(((slope < 0) & more.isfinite()).all()):
            return None
        if not more.numel():
            return self.ticks
        total = self.ticks + float(more.max())
        unit = 10 ** max(math.floor(math.log10(total)) - 1, 0)
        return math.ceil(total / unit) * unit  # two digits: it is a guess

    def plot(self, path: str | Path | None = None) -> Figure:
        """The error by deadline, with the light cone; with ``history`` the deviation over time
        beside it."""
        from hogwild.plots.charts import overview

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


@dataclass(frozen=True)
class Worth:
    """What runs are scored by.

    Attributes:
        score: The metric and its targets; ``None``: there are none.
        synchronous: The score of the synchronous answer, [] or [R].
        note: Why there is no score, where targets did not fit.
        replay: The trace that the runs follow; ``None``: a new schedule.
    """

    score: Score | None
    synchronous: Tensor | None
    note: str
    replay: Trace | None


def report(
    model: Model,
    watch: Watch,
    inputs: Inputs,
    bounds: tuple[int, int] | None,
    answer: Tensor,
    trace: Trace | None,
    worth: Worth,
    seconds: float,
) -> Run:
    """What the runs ended with, where the bounds (S, D) held and ``answer`` is synchronous."""
    simulation, settings = watch.simulation, watch.settings
    tally, runs, replicated = simulation.tally, settings.runs, answer.dim() == 3
    held = bounds or (settings.stagger, settings.delay)
    bound = max(held[0], held[1] + 1)

    def embeddings(h: Tensor) -> Tensor:  # [R, k, Q·N] -> [Q, (R,) N, k]
        h = h.mT.unflatten(1, (runs, -1)).movedim(1, 0).to(answer.dtype)
        return h if replicated else h[:, 0]

    def per_graph(x: Tensor) -> Tensor:  # [R, Q·G] -> [Q, (R,) G]
        x = x.unflatten(-1, (runs, inputs.num_graphs)).movedim(-2, 0)
        return x if replicated else x[:, 0]

    predictions = torch.stack([model.read(h, inputs) for h in embeddings(watch.h)])
    deviation, halfway = per_graph(watch.deviation), watch.halfway
    tol = 1e-6 if settings.tol is None else settings.tol
    history = [per_graph(deviation) for deviation in watch.history]
    kept = [embeddings(h) for h in watch.embeddings]
    return Run(
        predictions=predictions,
        h=embeddings(watch.h),
        reference=answer,
        deviation=deviation,
        converged=deviation <= tol,
        updates=tally.updates.view(runs, -1),
        packets=tally.packets.view(runs, -1),
        saved=tally.saved.view(runs, -1),
        bytes=NUMBER * tally.numbers.view(runs, -1),
        solved=simulation.solved.view(runs, -1),
        staleness=Staleness(
            tally.packet_age,
            tally.content_age,
            bound,
            bounds is not None,
            settings.content_age(held, simulation.rule.letter > 0),
        ),
        assumptions={
            "a": simulation.longest_gap() <= bound,
            "b": tally.packet_age.largest < bound,
            "c": True,
        },
        ticks=tally.ticks,
        tol=tol,
        stalled=watch.stalled,
        halfway=None if halfway is None else (halfway[0], per_graph(halfway[1])),
        reached=watch.reached.view(runs, inputs.num_graphs),
        history=torch.stack(history) if history else None,
        history_ticks=watch.times,
        embeddings=torch.stack(kept) if kept else None,
        trace=trace,
        deadlines=watch.looks.table(
            of=per_graph,
            synchronous=worth.synchronous,
            metric=None if worth.score is None else worth.score.metric,
            note=worth.note,
            name=settings.rule,
            way=Way(simulation.graph, settings, worth.replay),
        ),
        settings=settings,
        seconds=seconds,
        path=simulation.path,
    )
