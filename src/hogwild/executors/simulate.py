"""``hogwild.simulate``: run a model on graphs asynchronously."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Timetable
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import InputError
from hogwild.executors.run import Run, Worth, report
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import Simulation
from hogwild.executors.watch import Watch, looks, score_of
from hogwild.graph.inputs import Inputs, graphs_of
from hogwild.metrics import Score as Function
from hogwild.models.base import Model
from hogwild.models.check import runnable
from hogwild.models.mode import evaluating
from hogwild.ops import as_field
from hogwild.progress import bar
from hogwild.rules import choose, rule_for


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
    exchange: str = "packet",
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
        step: ``"auto"``, ``"momentum"``, ``"certified"`` or a number, for gradient steps. With
            ``rule="auto"``, all but ``"auto"`` select gradient steps.
        radius: With ``rule="balls"``: the hops within which a node solves for others, too.
        exchange: ``"packet"`` (Algorithm 1) or ``"exact"`` (the paper's equation).
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
    model = runnable(model)
    settings = Settings(
        stagger, delay, seed, runs, rule, step, exchange, check_impairments(impairments),
        ticks, tol, history, keep_embeddings, radius,
    )  # fmt: skip
    if isinstance(replay, str | Path):
        replay = Trace.load(replay)
    data = data if isinstance(data, Data) else graphs_of(data)
    inputs = Inputs.of(data)
    scoring = Scoring(data, metric, higher_is_better, target, mask)
    with evaluating(model), torch.no_grad():
        return _run(model, inputs, settings, record, replay, scoring, progress)


def _run(
    model: Model,
    inputs: Inputs,
    settings: Settings,
    record: bool | str | Path,
    replay: Trace | None,
    scoring: Scoring,
    progress: bool | None,
) -> Run:
    begun = clock.perf_counter()
    model.require_asynchronous(inputs)
    many = inputs.repeat(settings.runs)
    levels = model.solutions(inputs)  # of every layer that is solved
    answers, answer = [found.value for found in levels], model.joined(levels).value
    worth = scoring.worth(model.read(answer, inputs), replay)
    problem = model.problem(many).detach()
    timetable, about, ticks = _timetable(problem.graph, settings, replay)
    bounds = None if about["bounds"] is None else tuple(about["bounds"])
    settings = replace(settings, rule=choose(problem, settings.rule, settings.step))
    age = settings.age_on(problem, bounds)
    rule = rule_for(problem, settings.rule, settings.step, age, radius=settings.radius)
    start = problem.start()
    simulation = Simulation(
        rule, timetable, start, exchange=settings.exchange, impairments=settings.impairments
    )
    targets = [as_field(answer, start.dtype).repeat(1, 1, settings.runs) for answer in answers]
    scorer = _scorer(model, many, answer, worth)
    watch = Watch(simulation, targets, answer.size(-1), settings, ticks, scorer)
    trace = Trace.of(timetable, about) if record else None
    _tick(watch, trace, progress)
    if trace is not None and not isinstance(record, bool):
        trace.save(record)
    seconds = clock.perf_counter() - begun
    return report(model, watch, inputs, bounds, answer, trace, worth, seconds)


@dataclass(frozen=True)
class Scoring:
    """How a user wants runs to be scored: the data and the arguments of :func:`simulate`."""

    data: Data | list[Data]
    metric: str | Function | None = None
    higher_is_better: bool | None = None
    target: Tensor | None = None
    mask: Tensor | None = None

    def worth(self, prediction: Tensor, replay: Trace | None) -> Worth:
        """The score of the synchronous prediction [N, out], and how to score others."""
        given = (self.metric, self.higher_is_better, self.target, self.mask)
        try:
            score = score_of(prediction, self.data, *given)
        except InputError as error:
            if any(argument is not None for argument in given):
                raise
            return Worth(None, None, f"no error of the task: {error}", replay)
        return Worth(score, None if score is None else score(prediction), "", replay)


def _scorer(
    model: Model, many: Inputs, answer: Tensor, worth: Worth
) -> Callable[[Tensor], Tensor] | None:
    """From embeddings [R, k, Q·N] of all runs to their scores [Q] or [Q, R]."""
    score = worth.score
    if score is None:
        return None
    runs = many.num_nodes // answer.size(-2)

    def scored(h: Tensor) -> Tensor:
        h = h.mT.to(answer.dtype)
        out = model.read(h if answer.dim() == 3 else h[0], many)  # [(R,) Q·items, out]
        return score(out.unflatten(-2, (runs, -1)).movedim(-3, 0))

    return scored


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


def _tick(watch: Watch, trace: Trace | None, progress: bool | None) -> None:
    """Run until nothing is left to do, or to the last tick."""
    simulation, ticks = watch.simulation, watch.ticks
    goal = "" if watch.goal is None else f" of {watch.goal:.0e}"
    total = ticks if watch.goal is None and not simulation.rule.ends else None
    with bar(total, progress, "tick", "simulating") as shown:
        for t in range(ticks):
            if trace is None:
                simulation.advance()
            else:
                trace.append(simulation.step())
            shown.update()
            if watch.look(t):
                break
            if not shown.disable and looks(t):
                shown.set_postfix_str(f"deviation {float(watch.deviation.max()):.1e}{goal}", False)
