"""``hogwild.simulate``: run a model on graphs asynchronously, and measure how near runs are."""

from __future__ import annotations

import math
import time as clock
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairment import Impairment, check_impairments
from hogwild.asynchrony.schedule import Timetable
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import InputError
from hogwild.executors.deadlines import Deadlines
from hogwild.executors.run import Run, Staleness
from hogwild.executors.simulation import Settings, Simulation
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.linalg.solution import Solution
from hogwild.metrics import Score, Scorer
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import runnable
from hogwild.ops import as_field
from hogwild.progress import bar
from hogwild.rules import AnyProblem, choose

ABOUT = ("stagger", "delay", "seed", "runs", "bounds")
"""What a trace says about the settings that it was drawn with, beside their impairments."""
PATIENCE, MARGIN = 500, 0.01
"""Runs with wrong packets have stalled after at least ``PATIENCE`` ticks in which no distance from
the answer fell by the share ``MARGIN``."""
SHARE = 50
"""Looks at a run are at most a fiftieth of its ticks apart, so that its price is right to 2 %."""
SPACING = 1.15
"""Costs are noted at a tick that is so many times the tick of the note before, or at the next."""


def simulate(
    model: nn.Module,
    data: Data | Batch | Iterable[Data],
    *,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    runs: int = 1,
    rule: str = "auto",
    step: str | float = "auto",
    radius: int | None = None,
    impairments: Impairment | Sequence[Impairment] = (),
    ticks: int = 20_000,
    tol: float | None = 1e-6,
    history: int | Collection[int] | None = None,
    keep_embeddings: bool = False,
    record: bool | str | Path = False,
    replay: Trace | str | Path | None = None,
    metric: str | Score | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a model asynchronously (Algorithm 1), on many graphs and under many schedules at once.

    The levels of a stack run together: each level reads the moving embeddings of the level below
    (:mod:`hogwild.rules.levels`).

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions, which runs as it
            is (:func:`hogwild.wrap`).
        data: A PyG ``Data``, ``Batch`` or list of ``Data``: whole graphs. Parts of a graph are
            refused where a sampler has marked them (``n_id`` and the like). Parts without such a
            mark, such as those of ``Data.subgraph``, cannot be recognised.
        stagger: S, the largest number of ticks between two turns of a node; 1: all together.
        delay: D, the largest age of a packet in ticks; 0: no delay. Ages are random, and their mean
            is at most (S + 1) / 2 however large D is (:mod:`hogwild.asynchrony.schedule`).
            :class:`~hogwild.asynchrony.Latency` gives all packets one age.
        seed: The schedules are a function of this number, on every machine.
        runs: Number of independent schedules.
        rule: What a node does: ``"auto"``, or the name of a rule that fits the model
            (:func:`hogwild.rules.fitting`). ``"auto"`` is ``"gradient"`` for soft energies of a
            condition number up to 100, ``"messages"`` for other energies, ``"fixed-point"`` for
            fixed points, and ``"caching"`` for layers: it ends at the synchronous answer. The
            paper's rules are ``"gradient"`` and ``"overwriting"``.
        step: ``"auto"``, ``"certified"`` or a number, for gradient steps. With
            ``rule="auto"``, all but ``"auto"`` select gradient steps.
        radius: With ``rule="balls"``: the hops within which a node solves for others, too.
        impairments: What else goes wrong (:mod:`hogwild.asynchrony.impairments`).
        ticks: The simulation ends after this many ticks in any case.
        tol: A run ends when its relative deviation from the synchronous embeddings is at most
            this. ``None``: runs go on for all ticks. Runs with impairments that make packets wrong
            (``exact = False``) also end when they stall: when the best distance of each run has
            not improved by 1 % during half of all ticks so far, and during at least 500.
        history: Record the deviation every so many ticks, or at these ticks.
        keep_embeddings: Record the embeddings at the same ticks, too.
        record: Keep the schedule in ``Run.trace``. A path also writes it to this file.
        replay: A trace to follow instead of a new schedule, with the bounds that it was drawn
            with; ``stagger``, ``delay`` and ``seed`` are then not used.
        metric: What the error by deadline (:attr:`Run.deadlines`) measures, against ``data.y``;
            this argument and the next three are those of :func:`hogwild.robustness`. Where none of
            the four is given and ``data.y`` does not fit, there is no such error.
        higher_is_better: Of a metric of your own.
        target: Targets other than ``data.y``.
        mask: Which items to score.
        progress: Show a progress bar; by default in a terminal or a notebook.
    """
    settings = Settings(
        stagger, delay, seed, runs, rule, step, check_impairments(impairments), ticks, tol,
        history, keep_embeddings, radius,
    )  # fmt: skip
    case = Case(runnable(model), data)
    try:
        case.score_by(metric, higher_is_better, target, mask)
    except InputError as error:
        if any(given is not None for given in (metric, higher_is_better, target, mask)):
            raise
        case.note = f"no error of the task: {error}"
    return case.run(settings, record, replay, progress)


class Case:
    """A model on graphs. What several runs and certificates need of it is computed once."""

    def __init__(self, model: Any, data: Any) -> None:
        self.model = model
        self.data = data if isinstance(data, Data | Inputs) else graphs_of(data)
        self.inputs = Inputs.of(self.data)
        self.score: Scorer | None = None
        self.note = ""  # why there is no score

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        with evaluating(self.model), torch.no_grad():
            yield

    @cached_property
    def problem(self) -> AnyProblem:
        """The problem of one run; :class:`~hogwild.errors.AsynchronyError` where there is none."""
        with self._quietly():
            self.model.require_asynchronous(self.inputs)
            problem: AnyProblem = self.model.problem(self.inputs).detach()
        return problem

    @cached_property
    def solution(self) -> Solution:
        """The synchronous answer."""
        with self._quietly():
            self.model.require_asynchronous(self.inputs)
            solution: Solution = self.model.embed(self.inputs)
        return solution

    @property
    def answer(self) -> Tensor:
        """The synchronous embeddings, [(R,) N, k]."""
        return self.solution.value

    @cached_property
    def prediction(self) -> Tensor:
        """The synchronous predictions, [(R,) N, out]."""
        with self._quietly():
            prediction: Tensor = self.model.read(self.answer, self.inputs)
        return prediction

    def score_by(
        self,
        metric: str | Score | None,
        higher_is_better: bool | None,
        target: Tensor | None,
        mask: Tensor | None,
    ) -> None:
        """Score predictions as :func:`hogwild.robustness` does, if there are targets; targets that
        do not fit raise."""
        if target is None:
            target = getattr(self.data, "y", None)
            if isinstance(self.data, list):
                target = Batch.from_data_list(self.data).y
        if target is not None:
            self.score = Scorer.of(self.prediction, target, metric, higher_is_better, mask)
        elif metric is not None:
            raise InputError(
                f"metric={metric!r} was given and data has no y; expected data.y, or target=..."
            )

    def run(
        self,
        settings: Settings,
        record: bool | str | Path = False,
        replay: Trace | str | Path | None = None,
        progress: bool | None = None,
    ) -> Run:
        """Runs with these settings; the other arguments are those of :func:`simulate`."""
        begun = clock.perf_counter()
        if isinstance(replay, str | Path):
            replay = Trace.load(replay)
        with self._quietly():
            problem = self.model.problem(self.inputs.repeat(settings.runs)).detach()
            settings = replace(settings, rule=choose(problem, settings.rule, settings.step))
            told = {name: getattr(settings, name) for name in ABOUT}
            told["impairments"] = [repr(impairment) for impairment in settings.impairments]
            if replay is None:
                timetable: Timetable = settings.schedule(problem.graph)
                ticks = settings.ticks
            else:  # with the bounds of the recording, not of this call
                timetable, told = Replay(replay, problem.graph), told | replay.about
                ticks = min(settings.ticks, timetable.length)
            bounds = None if told["bounds"] is None else tuple(told["bounds"])
            made = settings.rule_on(problem, bounds)
            simulation = Simulation(
                made, timetable, problem.start(), impairments=settings.impairments
            )
            monitor = Monitor(simulation, settings, ticks, self)
            trace = Trace.of(timetable, told) if record else None
            monitor.run(trace, progress)
            if trace is not None and not isinstance(record, bool):
                trace.save(record)
            return monitor.report(bounds, trace, replay, clock.perf_counter() - begun)


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
        # The answers of all levels, [R, k, Q·N] each, and their sizes.
        self.targets = [as_field(level.value, dtype).repeat(1, 1, settings.runs)
                        for level in case.solution.levels]  # fmt: skip
        tiny = torch.finfo(dtype).tiny
        self.scales = [self.graph.norm(target).clamp_min(tiny) for target in self.targets]
        self.deviation = self._distance()
        self.reached = torch.full_like(self.deviation[0], -1, dtype=torch.long)
        exact = all(impairment.exact for impairment in settings.impairments)
        self.stall = None if exact else Stall()
        self.stalled = False
        # The deviation at which runs end; None: they do not end at a deviation.
        self.goal = None if simulation.rule.ends else settings.tol
        self.noted: list[int] = []  # ticks
        self.records: dict[str, list[Any]] = defaultdict(list)
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
                    trace.ticks.append(simulation.step())
                shown.update()
                if self.look(t):
                    break
                if not shown.disable and looks(t):
                    text = f"deviation {float(self.deviation.max()):.1e}{goal}"
                    shown.set_postfix_str(text, False)

    def _note(self, ticks: int) -> None:
        """Note what the runs have cost after so many ticks, and what they are worth."""
        counts = self.simulation.counts(self.settings.runs)
        self.noted.append(ticks)
        self.records["counts"].append(counts.double().mean(-1).cpu())
        self.records["deviation"].append(self._per_graph(self.deviation.double().cpu()))
        if self.case.score is not None:
            h = self.h.mT.to(self.answer.dtype)
            out = self.case.model.read(h if self.answer.dim() == 3 else h[0], self.many)
            out = out.unflatten(-2, (self.settings.runs, -1)).movedim(-3, 0)
            self.records["error"].append(self.case.score(out))
        self.due = max(ticks + 1, math.ceil(SPACING * ticks))

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
            self.records["times"].append(t)
            self.records["history"].append(self._per_graph(self.deviation.clone()))
            if self.settings.keep_embeddings:
                self.records["embeddings"].append(self._per_run(self.h.clone()))
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
        case, score, simulation, settings = (
            self.case,
            self.case.score,
            self.simulation,
            self.settings,
        )
        times = self.records.pop("times", [])
        seen = {name: torch.stack(each) for name, each in self.records.items()}
        updates, packets, sent, solved = seen["counts"].unbind(1)
        deadlines = Deadlines(
            torch.tensor(self.noted), updates, packets, sent, solved, seen["deviation"],
            seen.get("error"), None if score is None else score(case.prediction),
            None if score is None else score.metric, case.note, self.graph, settings, replay,
        )  # fmt: skip
        held = bounds or (settings.stagger, settings.delay)
        bound, h = max(held[0], held[1] + 1), self._per_run(self.h)
        packet, content = simulation.ages()
        age = settings.content_age(held, simulation.rule.letter_width > 0)
        updates, packets, sent, solved = simulation.counts(settings.runs)
        gap = simulation.longest_gap()
        return Run(
            predictions=torch.stack([case.model.read(each, case.inputs) for each in h]),
            h=h,
            reference=self.answer,
            deviation=self._per_graph(self.deviation),
            updates=updates,
            packets=packets,
            saved=simulation.tally.saved.view(settings.runs, -1),
            bytes=sent,
            solved=solved,
            staleness=Staleness(packet, content, bound, bounds is not None, age),
            assumptions={"a": gap <= bound, "b": packet.largest < bound, "c": True},
            ticks=simulation.tally.ticks,
            tol=settings.tol or 1e-6,
            stalled=self.stalled,
            reached=self.reached.view(settings.runs, -1),
            history=seen.get("history"),
            history_ticks=times,
            embeddings=seen.get("embeddings"),
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
