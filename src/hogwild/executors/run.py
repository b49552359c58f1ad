"""What asynchronous runs end with, and who measures them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hogwild.asynchrony.trace import Trace
from hogwild.executors.deadlines import Deadlines, Price
from hogwild.executors.simulation import NUMBER, Ages, Settings, Simulation
from hogwild.ops import as_field
from hogwild.progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hogwild.executors.simulate import Case

PATIENCE, MARGIN = 500, 0.01
"""Runs with wrong packets have stalled after at least ``PATIENCE`` ticks in which no distance from
the answer fell by the share ``MARGIN``."""
SHARE = 50
"""Looks at a run are at most a fiftieth of its ticks apart, so that its price is right to 2 %."""
SPACING = 1.15
"""Costs are noted at a tick that is so many times the tick of the note before, or at the next."""
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
        """The error by deadline, with the light cone; with ``history`` the deviation over time
        beside it."""
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


def looks(t: int) -> bool:
    """Whether a run is looked at after tick ``t``: after every tick at first, less often later."""
    return t % max(1, t // SHARE) == 0


class Monitor:
    """Measures the distance of every run from the synchronous answer, and ends runs.

    Args:
        simulation: The simulation.
        settings: The tolerance, what is recorded, and the impairments.
        ticks: Ticks after which the simulation ends in any case.
        case: The model, its graphs and the synchronous answers.
    """

    def __init__(self, simulation: Simulation, settings: Settings, ticks: int, case: Case) -> None:
        self.simulation, self.graph, self.case = simulation, simulation.graph, case
        self.settings, self.ticks = settings, ticks
        self.many, self.answer = case.inputs.repeat(settings.runs), case.answer
        dtype = simulation.h.dtype
        levels = case.solution.levels
        repeated = (as_field(one.value, dtype).repeat(1, 1, settings.runs) for one in levels)
        self.targets = list(repeated)  # the answers of all levels, [R, k, Q·N] each
        tiny = torch.finfo(dtype).tiny
        self.scales = [self.graph.norm(target).clamp_min(tiny) for target in self.targets]
        self.deviation = self._distance()
        self.reached = torch.full_like(self.deviation[0], -1, dtype=torch.long)
        exact = all(impairment.exact for impairment in settings.impairments)
        self.stall = None if exact else Stall()
        self.stalled = False
        self.times: list[int] = []
        self.history: list[Tensor] = []
        self.embeddings: list[Tensor] = []
        self.noted: list[int] = []  # ticks; then counts of a node, deviations, errors
        self.notes: dict[str, list[Tensor]] = {"counts": [], "deviation": [], "error": []}
        self._note(0)

    def run(self, trace: Trace | None, progress: bool | None) -> None:
        """Run until nothing is left to do, or to the last tick; the trace is filled."""
        simulation, ticks = self.simulation, self.ticks
        goal = "" if self.goal is None else f" of {self.goal:.0e}"
        total = ticks if self.goal is None and not simulation.rule.ends else None
        with bar(total, progress, "tick", "simulating") as shown:
            for t in range(ticks):
                if trace is None:
                    simulation.advance()
                else:
                    trace.append(simulation.step())
                shown.update()
                if self.look(t):
                    break
                if not shown.disable and looks(t):
                    text = f"deviation {float(self.deviation.max()):.1e}{goal}"
                    shown.set_postfix_str(text, False)

    def _counts(self) -> list[Tensor]:
        """Updates, packets, bytes and solves of every node so far, [Q, N] each."""
        tally = self.simulation.tally
        counts = (tally.updates, tally.packets, NUMBER * tally.numbers, self.simulation.solved)
        return [count.view(self.settings.runs, -1) for count in counts]

    def _note(self, ticks: int) -> None:
        """Note what the runs have cost after so many ticks, and what they are worth."""
        means = [count.double().mean(1).cpu() for count in self._counts()]
        self.noted.append(ticks)
        self.notes["counts"].append(torch.stack(means))
        self.notes["deviation"].append(self._per_graph(self.deviation.double().cpu()))
        if self.case.score is not None:
            h = self.h.mT.to(self.answer.dtype)
            out = self.case.model.read(h if self.answer.dim() == 3 else h[0], self.many)
            out = out.unflatten(-2, (self.settings.runs, -1)).movedim(-3, 0)
            self.notes["error"].append(self.case.score(out))
        self.due = max(ticks + 1, int(np.ceil(SPACING * ticks)))

    @property
    def goal(self) -> float | None:
        """The deviation at which runs end; ``None``: they do not end at a deviation."""
        return None if self.simulation.rule.ends else self.settings.tol

    @property
    def h(self) -> Tensor:
        """The model's embeddings, those of the last levels, [R, k, Q·N]."""
        return self.simulation.h[:, -self.answer.size(-1) :]

    def _distance(self) -> Tensor:
        """Distance relative to the level's answer, largest over the levels, [R, Q·G]."""
        levels = self.simulation.h.split([target.size(1) for target in self.targets], 1)
        found = [
            self.graph.norm(h - target) / scale
            for h, target, scale in zip(levels, self.targets, self.scales, strict=True)
        ]
        return torch.stack(found).amax(0)

    def look(self, t: int) -> bool:
        """Look at the runs after tick ``t``; returns whether nothing is left to do."""
        times, last = self.settings.history, t == self.ticks - 1
        record = t % times == 0 if isinstance(times, int) else times is not None and t in times
        if not (record or looks(t) or last or t == self.ticks // 2):
            return False
        self.deviation = self._distance()
        over = self._over(t)
        if over or last or t + 1 >= self.due:
            self._note(t + 1)
        if record:
            self.times.append(t)
            self.history.append(self._per_graph(self.deviation.clone()))
            if self.settings.keep_embeddings:
                self.embeddings.append(self._per_run(self.h.clone()))
        return over

    def _over(self, t: int) -> bool:
        """Whether nothing is left to do after tick ``t``."""
        if self.simulation.rule.ends:
            return self.simulation.finished
        if self.goal is None:
            return False
        fresh = (self.deviation <= self.goal).all(0) & (self.reached < 0)
        if bool(fresh.any()):
            self.reached[fresh] = t
            self.simulation.retire(fresh[self.graph.batch].nonzero()[:, 0])
        over = self.reached >= 0
        if self.stall is not None and not bool(over.all()):
            # While news still travels, the sum of all distances falls even where the largest one
            # does not.
            gaps = (self.simulation.h - torch.cat(self.targets, 1)).abs().sum(1)
            over = over | self.stall.look(t, torch.stack([self.deviation, self.graph.sum(gaps)]))
            self.stalled = bool(over.all())
        return bool(over.all())

    # -- what the runs ended with ------------------------------------------------------------------

    def _per_run(self, h: Tensor) -> Tensor:
        """[R, k, Q·N] -> [Q, (R,) N, k]."""
        h = h.mT.unflatten(1, (self.settings.runs, -1)).movedim(1, 0).to(self.answer.dtype)
        return h if self.answer.dim() == 3 else h[:, 0]

    def _per_graph(self, x: Tensor) -> Tensor:
        """[R, Q·G] -> [Q, (R,) G]."""
        x = x.unflatten(-1, (self.settings.runs, -1)).movedim(-2, 0)
        return x if self.answer.dim() == 3 else x[:, 0]

    def report(
        self,
        bounds: tuple[int, int] | None,
        trace: Trace | None,
        replay: Trace | None,
        seconds: float,
    ) -> Run:
        """What the runs ended with, where the bounds (S, D) held."""
        case, score = self.case, self.case.score
        noted = {name: torch.stack(each) for name, each in self.notes.items() if each}
        updates, packets, sent, solved = noted["counts"].unbind(1)
        deadlines = Deadlines(
            torch.tensor(self.noted), updates, packets, sent, solved, noted["deviation"],
            noted.get("error"), None if score is None else score(case.prediction),
            None if score is None else score.metric, case.note, self.graph, self.settings, replay,
        )  # fmt: skip
        simulation, settings = self.simulation, self.settings
        held = bounds or (settings.stagger, settings.delay)
        bound, h = max(held[0], held[1] + 1), self._per_run(self.h)
        (packet, content), deviation = simulation.ages(), self._per_graph(self.deviation)
        updates, packets, sent, solved = self._counts()
        tol = settings.tol or 1e-6
        return Run(
            predictions=torch.stack([case.model.read(each, case.inputs) for each in h]),
            h=h,
            reference=self.answer,
            deviation=deviation,
            converged=deviation <= tol,
            updates=updates,
            packets=packets,
            saved=simulation.tally.saved.view(settings.runs, -1),
            bytes=sent,
            solved=solved,
            staleness=Staleness(
                packet,
                content,
                bound,
                bounds is not None,
                settings.content_age(held, simulation.rule.letter_width > 0),
            ),
            assumptions={
                "a": simulation.longest_gap() <= bound,
                "b": packet.largest < bound,
                "c": True,
            },
            ticks=simulation.tally.ticks,
            tol=tol,
            stalled=self.stalled,
            reached=self.reached.view(settings.runs, -1),
            history=torch.stack(self.history) if self.history else None,
            history_ticks=self.times,
            embeddings=torch.stack(self.embeddings) if self.embeddings else None,
            trace=trace,
            deadlines=deadlines,
            settings=settings,
            seconds=seconds,
            path=simulation.path,
        )


class Stall:
    """Knows when runs last came nearer to the answer: one of their distances fell by
    :data:`MARGIN`."""

    def __init__(self) -> None:
        self.best = self.since = torch.empty(0)

    def look(self, t: int, distances: Tensor) -> Tensor:
        """Which runs have not come nearer for half of all ticks, and for long, [Q·G], by their
        distances [kinds, R, Q·G] after tick ``t``."""
        if not self.best.numel():
            self.best, self.since = distances, torch.full_like(distances, t)
        better = distances < (1.0 - MARGIN) * self.best
        self.best = torch.where(better, distances, self.best)
        self.since = torch.where(better, t, self.since)
        return (t - self.since >= max(PATIENCE, t // 2)).flatten(0, 1).all(0)
