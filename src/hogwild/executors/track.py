"""``hogwild.track``: run a model asynchronously while the graph and the features change.

The simulator is that of :func:`hogwild.simulate`. At a change every node that stays goes on with
what it has: its embedding, its next turn, what it last heard along the edges that stay, and its
rule's memory. The documentation ("Graphs that move") says what each rule keeps.
"""

from __future__ import annotations

import time as clock
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.asynchrony.impairment import Impairment, check_impairments
from hogwild.asynchrony.moving import Change, Frame, Register, Scenario, believed
from hogwild.asynchrony.schedule import Names, Schedule, Tick
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.executors.simulation import NUMBER, After, Settings, Simulation
from hogwild.executors.track_result import Track
from hogwild.graph.inputs import Inputs
from hogwild.metrics import choose as metric_for
from hogwild.models.base import Model
from hogwild.models.validation import evaluating
from hogwild.models.warm import Stream
from hogwild.models.wrapped import runnable
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.progress import bar
from hogwild.rules import choose
from hogwild_node.rules.base import Survivors, carry

BACK = 30
"""How many frames back an answer is looked for that the embeddings are nearest to."""
Score = Callable[[Tensor, Data], float]
"""A measure of predictions [N, out] on the graph of a moment; lower is better."""


def track(
    model: nn.Module,
    scenario: Scenario,
    *,
    stagger: int = 5,
    delay: int = 2,
    seed: int = 0,
    runs: int = 1,
    rule: str = "auto",
    step: str | float = "auto",
    radius: int | None = None,
    impairments: Impairment | Sequence[Impairment] = (),
    lease: int = 0,
    restart: int | None = None,
    every: int = 1,
    score: Score | None = None,
    keep_embeddings: bool = False,
    progress: bool | None = None,
) -> Track:
    """Run a model asynchronously on a graph that changes, and compare with the exact answer of
    every moment.

    ``model``, ``stagger``, ``delay``, ``seed``, ``runs``, ``rule``, ``step``, ``radius`` and
    ``impairments`` are as in :func:`hogwild.simulate`. A scenario that never
    changes gives the same embeddings as :func:`hogwild.simulate`, bit for bit.

    Args:
        scenario: Graph and features over time (:class:`hogwild.Scenario`).
        lease: Ticks for which a node counts on a neighbour that is gone, with the last packet that
            it has; 0: a node knows at once.
        restart: All nodes begin anew after so many ticks: the only way in which rules that stop
            after their last layer (``"overwriting"``, the paper's) can follow. Until its new pass
            is complete a node answers with the result of the last one.
        every: Record the error every so many ticks.
        score: Measure of predictions [N, out] on the ``Data`` of the moment; by default the root
            of the mean squared error (or the share of wrong classes) against ``data.y``.
        keep_embeddings: Record the embeddings, too, for pictures that move.
        progress: Show a progress bar; by default in a terminal or a notebook.
    """
    model = runnable(model)
    if model.replicas is not None:
        raise ConfigError(
            f"the model has replicas={model.replicas}; expected a model of one parameter set "
            f"(result.replica(r) of a training run)"
        )
    if not isinstance(scenario, Scenario):
        raise ConfigError(
            f"scenario is a {type(scenario).__name__}; expected a hogwild.Scenario, such as "
            f"hogwild.Scenario([data, later], times=[0, 100])"
        )
    settings = Settings(
        stagger, delay, seed, runs, rule, step, check_impairments(impairments), scenario.length,
        None, radius=radius,
    )  # fmt: skip
    lease = require_integer("lease", lease, 0, ": ticks")
    if restart is not None:
        require_positive("restart", restart)
    require_positive("every", every)
    begun, frames = clock.perf_counter(), believed(scenario, lease)
    ends = [*(frame.time for frame in frames[1:]), scenario.length]
    with evaluating(model), torch.no_grad(), bar(ends[-1], progress, "tick", "tracking") as shown:
        course = Course(model, settings, restart)
        metrics = TrackMetrics(course, scenario, every, score, keep_embeddings)
        for frame, end in zip(frames, ends, strict=True):
            course.enter(frame)
            metrics.enter(frame)
            for t in range(frame.time, end):
                if restart is not None and t and t % restart == 0:
                    course.begin_anew()
                course.step()
                metrics.look(t)
                shown.update()
        return metrics.report(lease, clock.perf_counter() - begun)


class Course:
    """The simulations of one tracked run, one after the other.

    Args:
        model: What nodes run.
        settings: How they run it.
        restart: Ticks after which all nodes begin anew; ``None``: never.
        depth: Keep packets of this age at least, for settings with longer delays.

    Attributes:
        simulation: That of the present graph; ``None``: there is no graph yet.
        anew: Whether all nodes began anew with it.
        held: What nodes of rules that stop answer with, [R, k, Q·N].
    """

    frame: Frame
    names: Names
    held: Tensor

    def __init__(
        self, model: Model, settings: Settings, restart: int | None, depth: int = 0
    ) -> None:
        self.model, self.settings, self.restart, self.depth = model, settings, restart, depth
        self.register, self.anew = Register(), True
        self.simulation: Any = None
        self._bill = torch.zeros(3, settings.runs, dtype=torch.long)

    def step(self) -> Tick:
        """One tick."""
        simulation = self.simulation
        tick: Tick = simulation.step()
        if simulation.rule.ends:
            everyone = torch.arange(self.held.size(-1), device=self.held.device)
            self.held = torch.where(simulation.rule.finished(everyone), simulation.h, self.held)
        return tick

    @property
    def h(self) -> Tensor:
        """The embeddings that nodes would answer with, [R, k, Q·N]: those that they have, or, of
        rules that stop, those of the last complete pass."""
        found: Tensor = self.held if self.simulation.rule.ends else self.simulation.h
        return found

    def enter(self, frame: Frame) -> None:
        """The graph changes to this frame."""
        names = self.register.names(frame)
        if self.simulation is None:
            self._begin(frame, names, None)
            return
        before, old = self.frame, self.names
        change = Change.between(before, frame, (old, names))
        still = torch.equal(names.nodes, old.nodes) and torch.equal(names.edges, old.edges)
        quiet = frame.gone == before.gone and torch.equal(frame.mute, before.mute)
        if still and quiet and change.nothing:
            self.frame = frame
            return
        self._begin(frame, names, change.repeat(self.settings.runs, before, frame))
        fresh = torch.ones_like(change.fresh) if self.anew else change.fresh
        self._greet(change.hello, fresh)

    def retime(self, settings: Settings) -> None:
        """From now on other settings hold, on the same graph: other bounds of the schedule, other
        impairments (as many as before), not another rule."""
        self.settings = replace(settings, rule=self.settings.rule)
        self._begin(self.frame, self.names, self._everything())

    def begin_anew(self) -> None:
        """All nodes begin anew, on the same graph."""
        names = self.names
        self._begin(self.frame, names, self._everything(), anew=True)
        self._greet(torch.zeros_like(names.nodes).bool(), torch.ones_like(names.edges).bool())

    def _everything(self) -> Survivors:
        graph = self.simulation.graph
        nodes, edges = torch.arange(graph.num_nodes), torch.arange(graph.num_edges)
        return Survivors((nodes, nodes), (edges, edges), (nodes, nodes))

    def _begin(
        self, frame: Frame, names: Names, kept: Survivors | None, anew: bool = False
    ) -> None:
        """A simulation of this frame, which continues the present one where nodes and edges are
        ``kept``, unless all nodes begin ``anew``."""
        before: Simulation | None = self.simulation
        inputs = Inputs.of(frame.data)
        self.model.require_asynchronous(inputs)
        problem = self.model.problem(inputs.repeat(self.settings.runs)).detach()
        if before is None:
            chosen = choose(problem, self.settings.rule, self.settings.step)
            self.settings = replace(self.settings, rule=chosen)
        settings = self.settings
        rule = settings.rule_on(problem, settings.bounds)
        if rule.ends and self.restart is None:
            raise ConfigError(
                f"rule={settings.rule!r} stops after its last layer and cannot follow a graph that "
                f"changes; expected restart=..., ticks after which all nodes begin anew, or "
                f"rule='caching'"
            )
        rule.note_inputs(inputs, partial(_posed, self.model))
        link, device, start = None, problem.graph.src.device, problem.start()
        held, time = start.clone(), 0
        if before is not None and kept is not None:
            self._bill = self.spent()
            time, held = before.time, carry(held, self.held, kept.nodes)
            if not anew and rule.follows(before.rule, kept):
                link = After(before, kept)
        silent = None if frame.silent is None else frame.silent.repeat(settings.runs).to(device)
        schedule = settings.schedule(
            problem.graph, begin=time, names=names, holds=True, silent=silent, depth=self.depth
        )
        back = torch.zeros(0, dtype=torch.long)
        if link is not None:
            drawn, back = schedule.next.clone(), _returned(self.frame, frame, link.kept)
            assert isinstance(link.before.timetable, Schedule)
            schedule.follow(link.before.timetable, link.kept)
            schedule.next[back] = drawn[back]
        simulation = Simulation(rule, schedule, start, impairments=settings.impairments, after=link)
        simulation.active[back] = True
        if frame.gone:
            left = torch.arange(frame.ids.numel(), device=device) >= frame.present
            simulation.retire(left.repeat(settings.runs).nonzero()[:, 0])
        self.frame, self.names, self.held = frame, names, held
        self.simulation, self.anew = simulation, link is None

    # -- what it costs -----------------------------------------------------------------------------

    def spent(self) -> Tensor:
        """Updates, packets and bytes of all nodes so far, [3, Q]."""
        return self._bill + self.simulation.counts(self.settings.runs)[:3].sum(-1).cpu()

    def _greet(self, hello: Tensor, fresh: Tensor) -> None:
        """Pay for the hellos of these nodes [N], and the first packets along these edges [E]."""
        data, simulation = self.frame.data, self.simulation
        n, there = self.frame.ids.numel(), self.frame.present
        degree = simulation.out_degree[:n].cpu() * hello
        degree[there:] = 0  # who is gone greets nobody
        src, dst = data.edge_index.cpu()
        first = torch.bincount(src[fresh & (src != dst) & (src < there)], minlength=n)
        size = simulation.rule.numbers(simulation.graph.everyone)
        sizes = size[:n].cpu() if isinstance(size, Tensor) else size
        features = data.x.size(-1) + 1  # and the degree
        numbers = degree * features + (first * sizes).round().long()
        paid = torch.stack([(degree + first).sum(), NUMBER * numbers.sum()])
        self._bill[1:] += paid[:, None]  # the same in every run


def _posed(model: Model, inputs: Inputs) -> Problem:
    """The problem of a model of one layer."""
    problem = model.problem(inputs).detach()
    assert isinstance(problem, Objective | FixedPoint)
    return problem


def _returned(before: Frame, after: Frame, kept: Survivors) -> Tensor:
    """Nodes that were gone and are back within the lease: they have turns again."""
    here, there = kept.nodes
    gone = there % max(before.ids.numel(), 1) >= before.present
    return here[gone & (here % max(after.ids.numel(), 1) < after.present)]


class TrackMetrics:
    """Measures a tracked run from outside: how far each node is from the answer of the moment.

    Q runs; U nodes that are ever there, numbered in the order in which they appear.
    """

    def __init__(
        self, course: Course, scenario: Scenario, every: int, score: Score | None, keep: bool
    ) -> None:
        self.course, self.model, self.scenario, self.every = course, course.model, scenario, every
        self.keep, self.given, self.runs = keep, score, course.settings.runs
        self.ids, self.stream = scenario.ids, Stream(course.model)
        self.frame: Frame | None = None
        self.node_ticks = 0
        self.answers: list[Tensor] = []  # [U, k], NaN where a node is not there
        self.moves: list[float] = []
        self.records: dict[str, list[Tensor]] = defaultdict(list)
        self.times: list[int] = []
        name = getattr(score, "__name__", "score")
        self.score_name = "score" if name == "<lambda>" else name
        self.best: list[float] = []  # the score of the exact answer of every frame

    def enter(self, frame: Frame) -> None:
        """The graph has changed, for the nodes or in truth."""
        true = self.scenario.at(frame.time)
        if true is self.frame:
            return
        self.frame, self.inputs = true, Inputs.of(true.data)
        self.places = self.course.names.nodes[: true.ids.numel()]
        self.answer = self.stream.update(true.data).value
        answer = torch.full((self.ids.numel(), self.answer.size(-1)), torch.nan).double()
        answer[self.places] = self.answer.double().cpu()
        if self.answers:
            moved = (answer - self.answers[-1]).abs().amax(-1)
            self.moves.append(float(moved[~moved.isnan()].square().mean().sqrt()))
        self.answers.append(answer)
        self.base = self.course.spent()[0]  # updates when the frame began
        self._measure()

    def _measure(self) -> None:
        """How good the exact answer is."""
        assert self.frame is not None
        self.score, y = self.given, self.frame.data.get("y")
        out = self.model.read(self.answer, self.inputs)
        if self.score is None and y is not None and y.dim() and y.size(0) == out.size(0):
            metric = metric_for(None, None, out, y)
            share = metric.higher_is_better  # accuracy: its complement
            self.score_name = "share of wrong nodes" if share else metric.name
            sign, whole = (-1.0, 1.0) if share else (1.0, 0.0)
            self.score = lambda out, data: whole + sign * float(metric(out, data.y))
        if self.score is not None:
            self.best.append(float(self.score(out, self.frame.data)))

    def look(self, t: int) -> None:
        """Look at the run after tick ``t``."""
        assert self.frame is not None
        n = self.frame.ids.numel()
        self.node_ticks += n
        if t % self.every and t != self.scenario.length - 1:
            return
        h = self.course.h[0, -self.answer.size(-1) :]
        own = h.view(h.size(0), self.runs, -1)[..., :n].permute(1, 2, 0)  # [Q, N, k]
        updates, packets, sent = self.course.spent()
        self.times.append(t)
        found = {
            "error": self._everywhere((own.double() - self.answer.double()).abs().amax(-1)),
            "lag": self._lag(t, own),
            "since": (updates - self.base).double() / n,
            "updates": updates,
            "packets": packets,
            "bytes": sent,
        }
        if self.score is not None:
            outs = [self.model.read(one.to(self.answer.dtype), self.inputs) for one in own]
            found["score"] = torch.tensor([float(self.score(o, self.frame.data)) for o in outs])
        if self.keep:
            found["embeddings"] = self._everywhere(own)
        for name, value in found.items():
            self.records[name].append(value)

    def _everywhere(self, values: Tensor) -> Tensor:
        """Values [Q, N, …] of the nodes that are there, for all nodes, [Q, U, …]: NaN elsewhere."""
        shape = (self.runs, self.ids.numel(), *values.shape[2:])
        whole = torch.full(shape, torch.nan, dtype=values.dtype)
        whole[:, self.places] = values.cpu()
        return whole

    def _lag(self, t: int, own: Tensor) -> Tensor:
        """Ticks since the answer was replaced that the embeddings are nearest to, [Q]."""
        past = torch.stack(self.answers[-BACK:])[:, self.places]  # [F, N, k]
        gap = (own.double().cpu().unsqueeze(1) - past).square().sum(-1)  # [Q, F, N]
        distance = gap.nanmean(-1)  # nodes that were not there do not count
        distance = torch.where(distance.isnan(), torch.inf, distance)
        nearest = past.size(0) - 1 - distance.flip(-1).argmin(-1)  # of equals, the latest
        starts = self.scenario.times[: len(self.answers)][-BACK:]
        replaced = torch.tensor([*starts[1:], t])
        return t - replaced[nearest]

    def report(self, lease: int, seconds: float) -> Track:
        """What was seen."""
        seen: dict[str, Any] = {"score": None, "embeddings": None}
        seen |= {name: torch.stack(each) for name, each in self.records.items()}
        return Track(
            **seen,
            scenario=self.scenario,
            ids=self.ids,
            times=self.times,
            exact_score=self.best or None,
            score_name=self.score_name,
            answers=torch.stack(self.answers),
            moves=torch.tensor(self.moves, dtype=torch.float64),
            node_ticks=self.node_ticks,
            settings=self.course.settings,
            restart=self.course.restart,
            lease=lease,
            seconds=seconds,
        )
