"""``hogwild.track``: run a model asynchronously while the graph and the features change.

The simulator is that of :func:`hogwild.simulate`. At a change every node that stays goes on with
what it has: its embedding, its next turn, what it last heard along the edges that stay, and its
rule's memory. The documentation ("Graphs that move") says what each rule keeps.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from hogwild.asynchrony.change import Change, Register
from hogwild.asynchrony.impairments import Impairment, check_impairments
from hogwild.asynchrony.lease import believed
from hogwild.asynchrony.scenario import Frame, Scenario
from hogwild.asynchrony.schedule import Names, Schedule
from hogwild.errors import ConfigError, require_integer, require_positive
from hogwild.executors.run import NUMBER
from hogwild.executors.settings import Settings
from hogwild.executors.simulated import After, Simulation
from hogwild.executors.tracked import Track
from hogwild.executors.tracker import Observer
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Model
from hogwild.models.check import runnable
from hogwild.models.mode import evaluating
from hogwild.problems.base import FixedPoint, Objective, Problem
from hogwild.progress import bar
from hogwild.rules import choose, rule_for
from hogwild_node.rules.base import Kept

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
    exchange: str = "packet",
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

    ``model``, ``stagger``, ``delay``, ``seed``, ``runs``, ``rule``, ``step``, ``radius``,
    ``exchange`` and ``impairments`` are as in :func:`hogwild.simulate`. A scenario that never
    changes gives the same embeddings as :func:`hogwild.simulate`, bit for bit.

    Args:
        scenario: Graph and features over time (:class:`hogwild.Scenario`).
        lease: Ticks for which a node counts on a neighbour that is gone, with the last packet that
            it has; 0: a node knows at once.
        restart: All nodes begin anew after so many ticks: the only way in which rules that stop
            after their last layer (``"overwriting"``, the paper's, and ``"waiting"``) can follow.
            Until its new pass is complete a node answers with the result of the last one.
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
        stagger, delay, seed, runs, rule, step, exchange, check_impairments(impairments),
        scenario.length, None, radius=radius,
    )  # fmt: skip
    lease = require_integer("lease", lease, 0, ": ticks")
    if restart is not None:
        require_positive("restart", restart)
    require_positive("every", every)
    begun = clock.perf_counter()
    with evaluating(model), torch.no_grad():
        course = Course(model, settings, restart)
        watch = Observer(model, scenario, runs, every, score, keep_embeddings)
        _follow(course, believed(scenario, lease), watch, progress)
    return watch.report(course.settings, restart, lease, clock.perf_counter() - begun)


def _follow(course: Course, frames: list[Frame], watch: Observer, progress: bool | None) -> None:
    """Run through all frames."""
    length = watch.scenario.length
    ends = [*(frame.time for frame in frames[1:]), length]
    with bar(length, progress, "tick", "tracking") as shown:
        for frame, end in zip(frames, ends, strict=True):
            course.enter(frame, watch)
            watch.enter(frame, course)
            for t in range(frame.time, end):
                if course.restart is not None and t and t % course.restart == 0:
                    course.begin_anew(watch)
                course.simulation.step()
                watch.look(t, course)
                shown.update()
    course.settle(watch)


@dataclass
class _Now:
    """What there is at a moment."""

    frame: Frame
    names: Names
    inputs: Inputs
    schedule: Schedule
    simulation: Simulation
    anew: bool  # whether all nodes began anew


class Ledger(Protocol):
    """Who adds up what nodes have spent."""

    def add(self, nodes: Tensor, *counts: Tensor) -> None:
        """Add updates, packets and bytes [Q · N] of these nodes, by their numbers [N]."""


class Course:
    """The simulations of one tracked run, one after the other.

    Args:
        model: What nodes run.
        settings: How they run it.
        restart: Ticks after which all nodes begin anew; ``None``: never.
        depth: Keep packets of this age at least, for settings with longer delays.
    """

    def __init__(
        self, model: Model, settings: Settings, restart: int | None, depth: int = 0
    ) -> None:
        self.model, self.settings, self.restart, self.depth = model, settings, restart, depth
        self.register = Register()
        self.now: _Now | None = None

    @property
    def simulation(self) -> Simulation:
        """The simulation of the present graph."""
        assert self.now is not None
        return self.now.simulation

    @property
    def anew(self) -> bool:
        """Whether all nodes began anew at the last change."""
        assert self.now is not None
        return self.now.anew

    @property
    def names(self) -> Names:
        """The numbers of the present nodes and edges."""
        assert self.now is not None
        return self.now.names

    def enter(self, frame: Frame, watch: Ledger) -> None:
        """The graph changes to this frame."""
        names, before = self.register.names(frame), self.now
        if before is None:
            self.now = self._begin(frame, names, None)
            return
        change = Change.between(before.frame, frame, (before.names, names))
        still = torch.equal(names.nodes, before.names.nodes) and frame.gone == before.frame.gone
        quiet = torch.equal(_silent(frame), _silent(before.frame))
        if still and quiet and torch.equal(names.edges, before.names.edges) and change.nothing:
            self.now = replace(before, frame=frame)
            return
        self.settle(watch)
        kept = change.repeat(self.settings.runs, before.frame, frame)
        self.now = self._begin(frame, names, (before, kept))
        self._greet(watch, change)

    def retime(self, settings: Settings, watch: Ledger) -> None:
        """From now on other settings hold, on the same graph: other bounds of the schedule, other
        impairments (as many as before), not another rule."""
        assert self.now is not None
        self.settings = replace(settings, rule=self.settings.rule)
        self.settle(watch)
        before, n, e = self.now, self.simulation.graph.num_nodes, self.simulation.graph.num_edges
        nodes, edges = torch.arange(n), torch.arange(e)
        kept = Kept((nodes, nodes), (edges, edges), (nodes, nodes))
        self.now = self._begin(before.frame, before.names, (before, kept))

    def begin_anew(self, watch: Ledger) -> None:
        """All nodes begin anew, on the same graph."""
        assert self.now is not None
        self.settle(watch)
        before = self.now
        self.now = self._begin(before.frame, before.names, None, before.simulation.time)
        everything = torch.ones(before.names.edges.numel(), dtype=torch.bool)
        self._count(watch, torch.zeros_like(before.names.nodes, dtype=torch.bool), everything)

    def _begin(
        self,
        frame: Frame,
        names: Names,
        after: tuple[_Now, Kept] | None,
        time: int = 0,
    ) -> _Now:
        model, settings = self.model, self.settings
        inputs = Inputs.of(frame.data)
        model.require_asynchronous(inputs)
        problem = model.problem(inputs.repeat(settings.runs)).detach()
        if self.now is None:
            chosen = choose(problem, settings.rule, settings.step)
            self.settings = settings = replace(settings, rule=chosen)
        age = settings.age_on(problem, settings.bounds)
        rule = rule_for(problem, settings.rule, settings.step, age, radius=settings.radius)
        if rule.ends and self.restart is None:
            raise ConfigError(
                f"rule={settings.rule!r} stops after its last layer and cannot follow a graph that "
                f"changes; expected restart=..., ticks after which all nodes begin anew, or "
                f"rule='caching'"
            )
        rule.read(inputs, partial(_posed, model))
        if after is not None and not rule.follows(after[0].simulation.rule, after[1]):
            time, after = after[0].simulation.time, None
        time = time if after is None else after[0].simulation.time
        device = problem.graph.src.device
        silent = None if frame.silent is None else frame.silent.repeat(settings.runs).to(device)
        schedule = settings.schedule(
            problem.graph, begin=time, names=names, holds=True, silent=silent, depth=self.depth
        )
        link, back = None, torch.zeros(0, dtype=torch.long)
        if after is not None:
            drawn, back = schedule.next.clone(), _returned(after[0].frame, frame, after[1])
            schedule.follow(after[0].schedule, after[1])
            schedule.next[back] = drawn[back]
            link = After(after[0].simulation, after[1])
        simulation = Simulation(
            rule, schedule, problem.start(), exchange=settings.exchange,
            impairments=settings.impairments, after=link,
        )  # fmt: skip
        simulation.active[back] = True
        if frame.gone:
            n = frame.ids.numel()
            left = torch.arange(n, device=device) >= frame.present
            simulation.retire(left.repeat(settings.runs).nonzero()[:, 0])
        return _Now(frame, names, inputs, schedule, simulation, after is None)

    # -- what it costs -----------------------------------------------------------------------------

    def settle(self, watch: Ledger) -> None:
        """Add what the present simulation has counted to the bill."""
        assert self.now is not None
        tally = self.now.simulation.tally
        bill = (tally.updates, tally.packets, NUMBER * tally.numbers)
        watch.add(self.now.names.nodes, *bill)

    def _greet(self, watch: Ledger, change: Change) -> None:
        assert self.now is not None
        fresh = change.fresh
        if self.now.anew:
            fresh = torch.ones_like(fresh)
        self._count(watch, change.hello, fresh)

    def _count(self, watch: Ledger, hello: Tensor, fresh: Tensor) -> None:
        """Count the hellos of these nodes [N], and the first packets along these edges [E]."""
        assert self.now is not None
        now, simulation = self.now, self.now.simulation
        n, gone = now.frame.ids.numel(), now.frame.gone
        degree = simulation.out_degree[:n].cpu()
        hello = hello.clone()
        hello[n - gone :] = False  # who is gone greets nobody
        src, dst = now.frame.data.edge_index.cpu()
        proper = (src != dst) & (src < n - gone)
        first = torch.bincount(src[fresh & proper], minlength=n)
        size = simulation.rule.numbers(simulation.graph.everyone)
        sizes = size[:n].cpu() if isinstance(size, Tensor) else size
        packets = degree * hello + first
        features = now.inputs.x.size(-1) + 1  # and the degree
        numbers = degree * hello * features + (first * sizes).round().long()
        runs = self.settings.runs
        none = torch.zeros(runs * n, dtype=torch.long)
        watch.add(now.names.nodes, none, packets.repeat(runs), NUMBER * numbers.repeat(runs))


def _posed(model: Model, inputs: Inputs) -> Problem:
    """The problem of a model of one layer."""
    problem = model.problem(inputs).detach()
    assert isinstance(problem, Objective | FixedPoint)
    return problem


def _silent(frame: Frame) -> Tensor:
    """Which edges [E] are silent."""
    if frame.silent is not None:
        return frame.silent
    return torch.zeros(frame.data.edge_index.size(1), dtype=torch.bool)


def _returned(before: Frame, after: Frame, kept: Kept) -> Tensor:
    """Nodes that were gone and are back within the lease: they have turns again."""
    here, there = kept.nodes
    gone = there % max(before.ids.numel(), 1) >= before.present
    return here[gone & (here % max(after.ids.numel(), 1) < after.present)]
