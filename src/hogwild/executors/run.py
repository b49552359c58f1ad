"""``hogwild.simulate``: a model on a graph, asynchronously, and what came of it."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.schedule import Schedule, Timetable, check_bounds
from hogwild.asynchrony.trace import Replay, Trace
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.executors.price import Price
from hogwild.executors.simulated import Ages, Simulation, check_exchange
from hogwild.graph import Graph
from hogwild.graph.inputs import Inputs
from hogwild.models.base import evaluating
from hogwild.models.check import Runnable, embedded, pose, runnable
from hogwild.models.stack import StackedGNN
from hogwild.models.wrapped import WrappedGNN
from hogwild.ops import as_field
from hogwild.problems.base import Problem
from hogwild.progress import bar
from hogwild.rules import choose, rule_for

PATIENCE = 500
"""Fewest ticks without progress after which runs with packets that are wrong have stalled."""
SHARE = 50
"""Looks at a run come at most a fiftieth of its ticks apart, so that its price is right to 2 %."""


def looks(t: int) -> bool:
    """Whether tick ``t`` is one after which a run is looked at: each at first, fewer later."""
    return t % max(1, t // SHARE) == 0


NUMBER = 4
"""Bytes of a number on the wire: a float32."""


@dataclass
class Staleness:
    """How old what the nodes used was.

    Attributes:
        packet: Ages of the packets when used: t − τ.
        content: Ages of the oldest embedding inside them (a gradient is computed from views that
            were stale already); empty for models whose packets hold embeddings only.
        bound: B of partial asynchronism for the schedule's S and D (with bounded impairments).
        bounded: Whether a bound holds at all.
        content_bound: D', likewise for the content.
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
        reference: The synchronous answer, [N, k].
        deviation: Largest distance from the synchronous embeddings, relative to their largest
            entry, for each run and graph, [Q, G]; of a stack, that of its worst level.
        converged: Whether that is within the tolerance, [Q, G].
        updates: Updates of each node, [Q, N].
        messages: Packets each node sent, [Q, N].
        saved: Packets an event trigger kept back, [Q, N].
        bytes: Bytes of the packets each node sent, [Q, N]: every number as a float32 on the wire,
            headers not counted, those of one replica.
        staleness: How old what nodes used was.
        assumptions: Whether (a) updates, (b) staleness and (c) own state of partial asynchronism
            held, as seen in this run.
        ticks: Ticks simulated.
        tol: The tolerance.
        stalled: Whether it ended early, since packets are wrong (quantised, or not sent because
            little has changed) and no run that was left came any nearer to the answer.
        halfway: A tick about halfway and the deviations then, [Q, G]; ``None``: too few ticks.
        reached: Tick at which each run and graph was first seen within the tolerance; −1: never.
        history: Deviation over time, [T, Q, G], at ``history_ticks``; ``None`` unless asked for.
        embeddings: Embeddings over time, [T, Q, N, k]; ``None`` unless asked for.
        trace: The schedule, where it was recorded.
        rule: The name of the rule the nodes followed.
        seconds: Wall-clock time of the simulation.
    """

    predictions: Tensor
    h: Tensor
    reference: Tensor
    deviation: Tensor
    converged: Tensor
    updates: Tensor
    messages: Tensor
    saved: Tensor
    bytes: Tensor
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
    rule: str
    seconds: float

    @property
    def price(self) -> Price:
        """What the runs cost."""
        counts = (self.updates, self.messages, self.bytes)
        return Price(self.ticks, *(float(count.double().mean()) for count in counts))

    def ticks_needed(self) -> int | None:
        """About so many ticks let every run arrive, if those that have not go on as they did in
        the second half of this simulation; ``None`` where they came no nearer, or too few ticks
        were simulated to tell."""
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

    def __str__(self) -> str:
        good, all_ = int(self.converged.sum()), self.converged.numel()
        held = ", ".join(f"({k}) {'held' if v else 'did not hold'}" for k, v in
                         self.assumptions.items())  # fmt: skip
        return (
            f"{good} of {all_} runs within tolerance of the synchronous answer (largest relative "
            f"deviation {float(self.deviation.max()):.2g}), rule {self.rule}\n"
            f"{self.price}; simulated in {self.seconds:.2f} s\n"
            f"{self.staleness}\nassumptions: {held}"
        )


def simulate(
    model: Runnable | nn.Module,
    data: Data | Batch | Iterable[Data],
    *,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    runs: int = 1,
    rule: str = "auto",
    step: str | float = "auto",
    exchange: str = "packet",
    impairments: Impairment | Sequence[Impairment] = (),
    ticks: int = 20_000,
    tol: float | None = 1e-6,
    history: int | Collection[int] | None = None,
    keep_embeddings: bool = False,
    record: bool | str | Path = False,
    replay: Trace | str | Path | None = None,
    progress: bool = False,
) -> Run:
    """Run a model asynchronously (Algorithm 1), many graphs and many schedules at once.

    The levels of a stack run together, each on the moving embeddings of the one below
    (:mod:`hogwild.rules.stack`).

    Args:
        model: Any model of this library, or a trained GNN of PyG's convolutions, which runs as it
            is (:func:`hogwild.wrap`).
        data: A PyG ``Data``, ``Batch`` or list of ``Data``: whole graphs. Parts of a graph are
            refused where a sampler left its mark on them (``n_id`` and the like); parts without a
            mark, such as those of ``Data.subgraph``, cannot be recognised.
        stagger: S, the largest number of ticks between two updates of a node; 1: all together.
        delay: D, the largest age of a view in ticks; 0: instantaneous.
        seed: The schedules are a function of it, on every machine.
        runs: Number of independent schedules.
        rule: What a node does: ``"auto"``, or the name of a rule that fits the model
            (:func:`hogwild.rules.fitting`). ``"auto"`` means messages for energies, the paper's
            overwriting for layers, and caching, which is exact, for trained models that were
            wrapped; the paper's gradient steps are ``"gradient"``.
        step: ``"auto"``, ``"certified"`` or a number, for gradient steps; with ``rule="auto"`` a
            number or ``"certified"`` asks for such steps.
        exchange: ``"packet"`` (Algorithm 1) or ``"exact"`` (the paper's equation).
        impairments: What else goes wrong (:mod:`hogwild.asynchrony.impairments`).
        ticks: Ticks after which the simulation ends in any case.
        tol: A run ends when its relative deviation from the synchronous embeddings is at most
            this; ``None``: it goes on for all ticks. With impairments that make packets wrong
            (``exact = False``) runs also end once they no longer come nearer: when the best
            distance of each has not improved by 1 % during half of all ticks so far, at least 500.
        history: Record the deviation every so many ticks, or at these ticks.
        keep_embeddings: Record the embeddings as often, too.
        record: Keep the schedule in ``Run.trace``; a path writes it there as well.
        replay: A trace to follow instead of drawing a schedule, with the bounds it was drawn with;
            ``stagger``, ``delay`` and ``seed`` are then not used.
        progress: Show a progress bar.
    """
    model = runnable(model)
    stagger, delay = check_bounds(stagger, delay)
    seed = require_integer("seed", seed)
    runs, ticks = require_positive("runs", runs), require_positive("ticks", ticks)
    if tol is not None and not tol > 0:
        raise ConfigError(f"tol={tol!r}; expected a positive number, or None")
    if isinstance(history, Collection):
        history = frozenset(require_integer("history", tick, 0) for tick in history)
    elif history is not None:
        history = require_positive("history", history)
    impaired = check_impairments(impairments)
    check_exchange(exchange, impaired)
    if isinstance(replay, str | Path):
        replay = Trace.load(replay)
    inputs = Inputs.of(data)
    with evaluating(model), torch.no_grad():
        return _run(
            model, inputs, stagger, delay, seed, runs, rule, step, exchange, impaired, ticks,
            tol, history, keep_embeddings, record, replay, progress,
        )  # fmt: skip


def _run(
    model: Runnable,
    inputs: Inputs,
    stagger: int,
    delay: int,
    seed: int,
    runs: int,
    rule_name: str,
    step: str | float,
    exchange: str,
    impairments: tuple[Impairment, ...],
    ticks: int,
    tol: float | None,
    history: int | frozenset[int] | None,
    keep: bool,
    record: bool | str | Path,
    replay: Trace | None,
    progress: bool,
) -> Run:
    begun = clock.perf_counter()
    model.require_asynchronous(inputs.edge_index, inputs.x.size(-2))
    many = inputs.repeat(runs)
    answers = _answers(model, inputs)
    problem = pose(model, many)
    problem = problem.detach() if isinstance(problem, Problem) else problem
    graph = problem.graph
    schedule = Schedule(
        graph, runs=runs, stagger=stagger, delay=delay, seed=seed, impairments=impairments
    )
    bounds = schedule.bounds
    timetable: Timetable = schedule
    about: dict[str, Any] = {"stagger": stagger, "delay": delay, "seed": seed, "runs": runs,
             "impairments": [repr(i) for i in impairments], "bounds": bounds}  # fmt: skip
    if replay is not None:
        timetable = Replay(replay, graph)
        ticks = min(ticks, timetable.length)
        about = about | replay.about  # what bounds the recorded schedule, not this call's
        bounds = None if about["bounds"] is None else tuple(about["bounds"])
    age = None if bounds is None else 2 * bounds[1] + bounds[0] - (exchange == "exact")
    chosen = choose(problem, rule_name, step)
    rule = rule_for(problem, chosen, step, age)
    start = problem.start()
    targets = [as_field(answer, start.dtype).repeat(1, 1, runs) for answer in answers]
    simulation = Simulation(rule, timetable, start, exchange=exchange, impairments=impairments)
    exact = all(impairment.exact for impairment in impairments)
    watch = _Watch(simulation, graph, targets, tol, history, keep, ticks // 2, exact)
    trace = None if not record else Trace.of(timetable, about)
    _tick(simulation, watch, ticks, trace, progress)
    if trace is not None and not isinstance(record, bool):
        trace.save(record)
    seconds = clock.perf_counter() - begun
    return _report(model, simulation, watch, inputs, many, runs, bounds or (stagger, delay),
                   bounds is not None, answers[-1], trace, chosen, seconds)  # fmt: skip


def _answers(model: Runnable, inputs: Inputs) -> list[Tensor]:
    """The synchronous embeddings, [N, k] or [R, N, k]: those of every level of a stack."""
    if isinstance(model, StackedGNN):
        args, kwargs = inputs.arguments()
        return [found.value for found in model.solutions(*args, **kwargs)]
    return [embedded(model, inputs)]


def _tick(
    simulation: Simulation, watch: _Watch, ticks: int, trace: Trace | None, progress: bool
) -> None:
    """Run until nothing is left to do, or for ``ticks`` ticks."""
    goal = "" if watch.goal is None else f" of {watch.goal:.0e}"
    total = ticks if watch.goal is None and not simulation.rule.ends else None
    with bar(total, progress, "tick", "simulating") as shown:
        for t in range(ticks):
            tick = simulation.step()
            shown.update()
            if trace is not None:
                trace.append(tick)
            if watch.look(t, last=t == ticks - 1):
                break
            if progress and looks(t):
                shown.set_postfix_str(f"deviation {float(watch.deviation.max()):.1e}{goal}", False)


class _Watch:
    """Looks at a simulation from outside: how far each run is from the synchronous answer.

    ``targets`` are the answers of all levels, [R, k, Q·N] each; the last is what a run is about.
    """

    def __init__(
        self,
        simulation: Simulation,
        graph: Graph,
        targets: list[Tensor],
        tol: float | None,
        history: int | frozenset[int] | None,
        keep: bool,
        half: int,
        exact: bool,
    ) -> None:
        self.half = half
        self.halfway: tuple[int, Tensor] | None = None
        self.simulation, self.graph, self.targets = simulation, graph, targets
        self.tol, self.times, self.keep = tol, history, keep
        self.widths = [target.size(1) for target in targets]
        tiny = torch.finfo(targets[-1].dtype).tiny
        self.scales = [graph.norm(target).clamp_min(tiny) for target in targets]  # [R, Q·G]
        self.deviation = self._distance()
        self.reached = torch.full_like(self.deviation[0], -1, dtype=torch.long)
        self.stall = None if exact else _Stall()
        self.stalled = False
        self.ticks: list[int] = []
        self.history: list[Tensor] = []
        self.embeddings: list[Tensor] = []

    @property
    def goal(self) -> float | None:
        """The deviation at which runs end; ``None``: they do not end at a deviation."""
        return None if self.simulation.rule.ends else self.tol

    @property
    def h(self) -> Tensor:
        """The embeddings of the last level, [R, k, Q·N]."""
        return self.simulation.h[:, -self.widths[-1] :]

    def _distance(self) -> Tensor:
        """Largest over the levels of the distance relative to the level's answer, [R, Q·G]."""
        levels = self.simulation.h.split(self.widths, 1)
        found = [
            self.graph.norm(h - target) / scale
            for h, target, scale in zip(levels, self.targets, self.scales, strict=True)
        ]
        return torch.stack(found).amax(0)

    def look(self, t: int, last: bool) -> bool:
        """After tick ``t``; whether nothing is left to do."""
        times = self.times
        record = t in times if isinstance(times, frozenset) else times and t % times == 0
        if not (record or last or looks(t) or t == self.half):
            return False
        self.deviation = self._distance()
        if self.halfway is None and t >= self.half:
            self.halfway = t, self.deviation
        if record:
            self.ticks.append(t)
            self.history.append(self.deviation.clone())
            if self.keep:
                self.embeddings.append(self.h.clone())
        if self.simulation.rule.ends:
            return self.simulation.finished
        if self.tol is None:
            return False
        fresh = (self.deviation <= self.tol).all(0) & (self.reached < 0)
        if bool(fresh.any()):
            self.reached[fresh] = t
            self.simulation.retire(fresh[self.graph.batch].nonzero()[:, 0])
        over = self.reached >= 0
        if self.stall is not None and not bool(over.all()):
            over = over | self.stall.look(t, torch.stack([self.deviation, self._total()]))
            self.stalled = bool(over.all())
        return bool(over.all())

    def _total(self) -> Tensor:
        """Sum of all distances from the answers, [R, Q·G]: it falls while word still travels, when
        the largest one does not."""
        gaps = (self.simulation.h - torch.cat(self.targets, 1)).abs().sum(1)
        return self.graph.sum(gaps)


class _Stall:
    """Knows when runs last came nearer to the answer, by at least 1 % of any of their distances."""

    def __init__(self) -> None:
        self.best = self.since = torch.empty(0)

    def look(self, t: int, distances: Tensor) -> Tensor:
        """Which runs have not come nearer for half of all ticks, and for long, [Q·G].

        Args:
            t: The tick.
            distances: Of several kinds, [kinds, R, Q·G].
        """
        if not self.best.numel():
            self.best, self.since = distances, torch.full_like(distances, t)
        better = distances < 0.99 * self.best
        self.best = torch.where(better, distances, self.best)
        self.since = torch.where(better, t, self.since)
        return (t - self.since >= max(PATIENCE, t // 2)).flatten(0, 1).all(0)


def _report(
    model: Runnable,
    simulation: Simulation,
    watch: _Watch,
    inputs: Inputs,
    many: Inputs,
    runs: int,
    bounds: tuple[int, int],
    bounded: bool,
    answer: Tensor,
    trace: Trace | None,
    rule: str,
    seconds: float,
) -> Run:
    tally, graphs = simulation.tally, inputs.num_graphs
    replicated = answer.dim() == 3
    bound = max(bounds[0], bounds[1] + 1)

    def per_node(x: Tensor) -> Tensor:  # [Q·N] -> [Q, N]
        return x.view(runs, -1)

    def embeddings(h: Tensor) -> Tensor:  # [R, k, Q·N] -> [Q, (R,) N, k]
        h = h.mT.unflatten(1, (runs, -1)).movedim(1, 0).to(answer.dtype)
        return h if replicated else h[:, 0]

    def per_graph(x: Tensor) -> Tensor:  # [R, Q·G] -> [Q, (R,) G]
        x = x.unflatten(-1, (runs, graphs)).movedim(-2, 0)
        return x if replicated else x[:, 0]

    h = watch.h.mT.to(answer.dtype)  # [R, Q·N, k]
    if isinstance(model, WrappedGNN):
        predictions = model.read(embeddings(watch.h), inputs)
    else:
        out = model.readout(h if replicated else h[0], many.batch, many.num_graphs)
        predictions = out.unflatten(-2, (runs, -1)).movedim(-3, 0)
    deviation, halfway = per_graph(watch.deviation), watch.halfway
    enough = 1e-6 if watch.tol is None else watch.tol
    return Run(
        predictions=predictions,
        h=embeddings(watch.h),
        reference=answer,
        deviation=deviation,
        converged=deviation <= enough,
        updates=per_node(tally.updates),
        messages=per_node(tally.messages),
        saved=per_node(tally.saved),
        bytes=NUMBER * per_node(tally.numbers),
        staleness=Staleness(
            tally.packet_age,
            tally.content_age,
            bound,
            bounded,
            2 * bounds[1] + bounds[0] - simulation.exact,
        ),
        assumptions={
            "a": simulation.longest_gap() <= bound,
            "b": tally.packet_age.largest < bound,
            "c": True,
        },
        ticks=tally.ticks,
        tol=enough,
        stalled=watch.stalled,
        halfway=None if halfway is None else (halfway[0], per_graph(halfway[1])),
        reached=watch.reached.view(runs, graphs),
        history=torch.stack([per_graph(d) for d in watch.history]) if watch.history else None,
        history_ticks=watch.ticks,
        embeddings=torch.stack([embeddings(x) for x in watch.embeddings])
        if watch.embeddings
        else None,
        trace=trace,
        rule=rule,
        seconds=seconds,
    )
