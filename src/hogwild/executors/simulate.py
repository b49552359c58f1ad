"""``hogwild.simulate``: run a model on graphs asynchronously."""

from __future__ import annotations

import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Timetable
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import InputError
from hogwild.executors.deadlines import Deadlines
from hogwild.executors.run import Run, Staleness
from hogwild.executors.simulation import NUMBER, Settings, Simulation
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.linalg.solution import Solution
from hogwild.metrics import Metric
from hogwild.metrics import Score as Function
from hogwild.metrics import choose as metric_for
from hogwild.models.base import Model
from hogwild.models.mode import evaluating
from hogwild.models.wrapped import runnable
from hogwild.ops import as_field
from hogwild.progress import bar
from hogwild.rules import AnyProblem, choose

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
    metric: str | Function | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a model asynchronously (Algorithm 1), on many graphs and under many schedules at once.

    The levels of a stack run together: each level reads the moving embeddings of the level below
    (:mod:`hogwild.rules.stack`).

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
    case.score_by(metric, higher_is_better, target, mask)
    return case.run(settings, record, replay, progress)


class Case:
    """A model on graphs. What several runs and certificates need of it is computed once."""

    def __init__(self, model: Any, data: Any) -> None:
        self.model = model
        self.data = data if isinstance(data, Data | Inputs) else graphs_of(data)
        self.inputs = Inputs.of(self.data)
        self.score: Score | None = None
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
    def levels(self) -> list[Solution]:
        """The synchronous answers of all layers that are solved."""
        with self._quietly():
            self.model.require_asynchronous(self.inputs)
            solutions: list[Solution] = self.model.solutions(self.inputs)
        return solutions

    @cached_property
    def answer(self) -> Tensor:
        """The synchronous embeddings, [(R,) N, k]."""
        with self._quietly():
            answer: Tensor = self.model.joined(self.levels).value
        return answer

    @cached_property
    def prediction(self) -> Tensor:
        """The synchronous predictions, [(R,) N, out]."""
        with self._quietly():
            prediction: Tensor = self.model.read(self.answer, self.inputs)
        return prediction

    def score_by(self, *given: Any) -> None:
        """Choose how predictions are scored, by the last four arguments of :func:`score_of`. Where
        none is given and the targets do not fit, there is no score, and a note why."""
        try:
            self.score = score_of(self.prediction, self.data, *given)
        except InputError as error:
            if any(argument is not None for argument in given):
                raise
            self.note = f"no error of the task: {error}"

    def run(
        self,
        settings: Settings,
        record: bool | str | Path = False,
        replay: Trace | str | Path | None = None,
        progress: bool | None = None,
    ) -> Run:
        """Runs with these settings; the other arguments are those of :func:`simulate`."""
        begun, inputs = clock.perf_counter(), self.inputs
        if isinstance(replay, str | Path):
            replay = Trace.load(replay)
        with self._quietly():
            problem = self.model.problem(inputs.repeat(settings.runs)).detach()
            timetable, about, ticks = _timetable(problem.graph, settings, replay)
            bounds = None if about["bounds"] is None else tuple(about["bounds"])
            settings = replace(settings, rule=choose(problem, settings.rule, settings.step))
            start, made = problem.start(), settings.rule_on(problem, bounds)
            simulation = Simulation(made, timetable, start, impairments=settings.impairments)
            answers = [as_field(level.value, start.dtype) for level in self.levels]
            targets = [one.repeat(1, 1, settings.runs) for one in answers]
            monitor = Monitor(
                simulation, targets, settings, ticks, self.model, inputs, self.answer, self.score
            )
            trace = Trace.of(timetable, about) if record else None
            _tick(monitor, trace, progress)
            if trace is not None and not isinstance(record, bool):
                trace.save(record)
            synchronous = None if self.score is None else self.score(self.prediction)
            deadlines = monitor.deadlines(synchronous, self.note, replay)
            return monitor.report(bounds, trace, deadlines, clock.perf_counter() - begun)


def _timetable(
    graph: Any, settings: Settings, replay: Trace | None
) -> tuple[Timetable, dict[str, Any], int]:
    """A schedule or a replayed trace; what it was drawn with; and for how many ticks it goes."""
    names = ("stagger", "delay", "seed", "runs", "bounds")
    about: dict[str, Any] = {name: getattr(settings, name) for name in names}
    about["impairments"] = [repr(impairment) for impairment in settings.impairments]
    if replay is None:
        return settings.schedule(graph), about, settings.ticks
    timetable = Replay(replay, graph)
    # The bounds of a recorded schedule are those of the recording, not of this call.
    return timetable, about | replay.about, min(settings.ticks, timetable.length)


def _tick(monitor: Monitor, trace: Trace | None, progress: bool | None) -> None:
    """Run until nothing is left to do, or to the last tick."""
    simulation, ticks = monitor.simulation, monitor.ticks
    goal = "" if monitor.goal is None else f" of {monitor.goal:.0e}"
    total = ticks if monitor.goal is None and not simulation.rule.ends else None
    with bar(total, progress, "tick", "simulating") as shown:
        for t in range(ticks):
            if trace is None:
                simulation.advance()
            else:
                trace.append(simulation.step())
            shown.update()
            if monitor.look(t):
                break
            if not shown.disable and looks(t):
                text = f"deviation {float(monitor.deviation.max()):.1e}{goal}"
                shown.set_postfix_str(text, False)


def looks(t: int) -> bool:
    """Whether a run is looked at after tick ``t``: after every tick at first, less often later."""
    return t % max(1, t // SHARE) == 0


class Monitor:
    """Measures the distance of every run from the synchronous answer, and ends runs.

    Args:
        simulation: The simulation.
        targets: The answers of all levels, [R, k, Q·N] each.
        settings: The tolerance, what is recorded, and the impairments.
        ticks: Ticks after which the simulation ends in any case.
        model: What reads predictions.
        inputs: The graphs of one run.
        answer: The synchronous embeddings, [(R,) N, k].
        score: Of predictions; ``None``: there is no target.
    """

    def __init__(
        self,
        simulation: Simulation,
        targets: list[Tensor],
        settings: Settings,
        ticks: int,
        model: Model,
        inputs: Inputs,
        answer: Tensor,
        score: Score | None,
    ) -> None:
        self.simulation, self.graph, self.targets = simulation, simulation.graph, targets
        self.settings, self.ticks, self.model = settings, ticks, model
        self.inputs, self.answer, self.score = inputs, answer, score
        self.many = inputs.repeat(settings.runs)
        tiny = torch.finfo(targets[-1].dtype).tiny
        self.scales = [self.graph.norm(target).clamp_min(tiny) for target in targets]  # [R, Q·G]
        self.deviation = self._distance()
        self.halfway: tuple[int, Tensor] | None = None
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
        if self.score is not None:
            h = self.h.mT.to(self.answer.dtype)
            out = self.model.read(h if self.answer.dim() == 3 else h[0], self.many)
            out = out.unflatten(-2, (self.settings.runs, -1)).movedim(-3, 0)
            self.notes["error"].append(self.score(out))
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
        times, half = self.settings.history, self.ticks // 2
        record = t % times == 0 if isinstance(times, int) else times is not None and t in times
        if not (record or looks(t) or t in (half, self.ticks - 1)):
            return False
        self.deviation = self._distance()
        over = self._over(t, record)
        if over or t == self.ticks - 1 or t + 1 >= self.due:
            self._note(t + 1)
        return over

    def _over(self, t: int, record: bool) -> bool:
        """Whether nothing is left to do after tick ``t``."""
        if self.halfway is None and t >= self.ticks // 2:
            self.halfway = t, self._per_graph(self.deviation)
        if record:
            self.times.append(t)
            self.history.append(self._per_graph(self.deviation.clone()))
            if self.settings.keep_embeddings:
                self.embeddings.append(self._per_run(self.h.clone()))
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

    def deadlines(self, synchronous: Tensor | None, note: str, replay: Trace | None) -> Deadlines:
        """Error by deadline, where the prediction in step has the score ``synchronous``."""
        stacked = {name: torch.stack(each) for name, each in self.notes.items() if each}
        updates, packets, sent, solved = stacked["counts"].unbind(1)
        return Deadlines(
            ticks=torch.tensor(self.noted),
            updates=updates,
            packets=packets,
            bytes=sent,
            solved=solved,
            deviation=stacked["deviation"],
            error=stacked.get("error"),
            synchronous=synchronous,
            metric=None if self.score is None else self.score.metric,
            note=note,
            name=self.settings.rule,
            graph=self.graph,
            settings=self.settings,
            replay=replay,
        )

    def report(
        self,
        bounds: tuple[int, int] | None,
        trace: Trace | None,
        deadlines: Deadlines,
        seconds: float,
    ) -> Run:
        """What the runs ended with, where the bounds (S, D) held."""
        simulation, settings, tally = self.simulation, self.settings, self.simulation.tally
        held = bounds or (settings.stagger, settings.delay)
        bound, h = max(held[0], held[1] + 1), self._per_run(self.h)
        updates, packets, sent, solved = self._counts()
        deviation, tol = self._per_graph(self.deviation), settings.tol or 1e-6
        return Run(
            predictions=torch.stack([self.model.read(each, self.inputs) for each in h]),
            h=h,
            reference=self.answer,
            deviation=deviation,
            converged=deviation <= tol,
            updates=updates,
            packets=packets,
            saved=tally.saved.view(settings.runs, -1),
            bytes=sent,
            solved=solved,
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
            stalled=self.stalled,
            halfway=self.halfway,
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


@dataclass(frozen=True)
class Score:
    """A metric of predictions [..., N, out] against given targets.

    Attributes:
        metric: The metric.
        target: The targets of the items that count.
        keep: Which items count, [N]; ``None``: all.
    """

    metric: Metric
    target: Tensor
    keep: Tensor | None = None

    def __call__(self, prediction: Tensor) -> Tensor:
        """The metric of predictions [..., N, out], [...] in double precision on the CPU."""
        chosen = prediction if self.keep is None else prediction[..., self.keep, :]
        return self.metric(chosen, self.target).double().cpu()


def score_of(
    prediction: Tensor,
    data: Data | Sequence[Data],
    metric: str | Function | None = None,
    higher_is_better: bool | None = None,
    target: Tensor | None = None,
    mask: Tensor | None = None,
) -> Score | None:
    """The score of predictions like these, [..., N, out]; ``None``: there are no targets. The
    other arguments are those of :func:`hogwild.robustness`; targets that do not fit raise."""
    if target is None:
        target = (data if isinstance(data, Data) else Batch.from_data_list(list(data))).y
    keep = None if mask is None else _check_mask(mask, prediction.size(-2))
    if target is None:
        if metric is not None:
            raise InputError(
                f"metric={metric!r} was given and data has no y; expected data.y, or target=..."
            )
        return None
    if target.is_floating_point() and bool(target.isnan().any()):
        raise InputError(
            f"NaN values in the target: {int(target.isnan().sum())}; expected numbers, "
            f"or target= and mask= without those that are missing"
        )
    chosen = prediction
    if keep is not None:
        chosen = prediction[..., keep, :]
        if target.dim() and target.size(0) == keep.numel():
            target = target[keep]
    return Score(metric_for(metric, higher_is_better, chosen, target), target, keep)


def _check_mask(mask: Tensor, n: int) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != (n,) or not bool(mask.any()):
        raise InputError(
            f"mask has shape {list(mask.shape)} and dtype {mask.dtype}, {int(mask.sum())} of it "
            f"set; expected a boolean [{n}], one for each prediction, with some of them set"
        )
    return mask
