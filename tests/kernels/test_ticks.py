"""Compiled ticks: the same draws, the same packets, the same counts, and runs equal to rounding."""

import pytest
import torch
from helpers import DOUBLE, HARSH, bounded, edges, energy, graphs, on_torch, randomise, record
from kernels.test_rules import ODD, RULES, SIMPLE, gap, pose

from hogwild import EnergyGNN, Inputs, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    EventTriggered,
    GeometricDelay,
    Quantisation,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Replay
from hogwild.executors.simulation import Simulation
from hogwild.kernels.native import library
from hogwild.testing import check_executor

pytestmark = pytest.mark.skipif(library() is None, reason="the kernels are not compiled")


def pair(problem, rule, start, **options):
    """Two simulations of one schedule: compiled, and on torch."""
    keys = ("stagger", "delay", "seed", "runs")
    drawn = {key: options.pop(key) for key in keys if key in options}
    impaired = {"impairments": options.get("impairments", ())}
    made = []
    for _ in range(2):
        schedule = Schedule(problem.graph, **drawn, **impaired)
        made.append(Simulation(RULES[rule](problem), schedule, start.clone(), **options))
    assert made[0].kernel is not None, made[0].path
    return made[0], on_torch(made[1])


@pytest.mark.parametrize(("stagger", "delay"), [(1, 0), (5, 2), (3, 7)])
def test_draws_are_those_of_the_streams(stagger, delay):
    graph = pose(torch.cat([ODD, edges((1, 1), (2, 2), (2, 2), (0, 1))], 1), 14)[0].graph
    ours, theirs = (Schedule(graph, stagger=stagger, delay=delay, seed=5) for _ in range(2))
    assert ours._clock is not None
    theirs._clock = None
    for t in range(60):
        one, two = ours.tick(t), theirs.tick(t)
        for name in ("nodes", "edges", "view"):
            assert torch.equal(getattr(one, name), getattr(two, name)), (t, name)
        for name in ("slot", "senders", "labels"):
            assert torch.equal(getattr(one.at, name), getattr(two.at, name)), (t, name)
    assert torch.equal(ours.next, theirs.next)
    assert torch.equal(ours.view, theirs.view)


@torch.no_grad()
def same(one, two, ticks, tolerance):
    """Two simulations make the same run."""
    for _ in range(ticks):
        one.step()
        two.step()
    assert gap(one.h, two.h) <= tolerance
    for name in ("updates", "packets", "saved", "numbers", "ticks"):
        mine, theirs = getattr(one.tally, name), getattr(two.tally, name)
        assert mine == theirs if name == "ticks" else torch.equal(mine, theirs), name
    for mine, theirs in zip(one.ages(), two.ages(), strict=True):
        assert torch.equal(mine.counts, theirs.counts)
    assert one.longest_gap() == two.longest_gap()
    assert torch.equal(one.outbox.latest, two.outbox.latest)
    assert torch.equal(one.outbox.content, two.outbox.content)
    assert gap(one.outbox.node, two.outbox.node) <= tolerance
    assert gap(one.outbox.edge, two.outbox.edge) <= 1e3 * tolerance


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("edge_index", "n"), [(SIMPLE, 12), (ODD, 14)], ids=["simple", "odd"])
def test_runs_are_the_same(rule, edge_index, n):
    tight = rule in ("constant", "certified")
    for options in ({}, {"replicas": 2}, {"heads": 2}):
        problem, h = pose(edge_index, n, scale=0.3, weight="heads" not in options, **options)
        one, two = pair(problem, rule, h, seed=2)
        assert one.ticks is not None
        same(one, two, 40, 1e-12 if tight else 1e-6)


@pytest.mark.parametrize("rule", ["constant", "auto", "messages"])
@torch.no_grad()
def test_a_tick_in_one_call_is_the_same_tick(rule):
    problem, start = pose(ODD, 14)
    steps, calls = (
        Simulation(RULES[rule](problem), Schedule(problem.graph, seed=3), start.clone())
        for _ in range(2)
    )
    for t in range(40):  # at tick 0 nobody has a turn
        steps.step()
        calls.step() if t % 7 == 6 else calls.advance()
        assert torch.equal(steps.h, calls.h), t
    assert torch.equal(steps.timetable.view, calls.timetable.view)
    assert steps.time == calls.time == steps.outbox.time + 1
    assert calls.outbox.time == steps.outbox.time
    same(steps, calls, 5, 0.0)


def crowd(n=300, seed=0):
    """Degrees 0 to 100: several packs of nodes, some with a few lanes only, and nodes alone."""
    rng = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n - 4, (2, 3 * n), generator=rng).sort(0).values.unique(dim=1)
    hub = torch.stack([torch.zeros(100, dtype=torch.long), torch.arange(1, 101)])
    pairs = torch.cat([pairs[:, pairs[0] < pairs[1]], hub], 1).unique(dim=1)
    return torch.cat([pairs, pairs.flip(0)], 1)


@pytest.mark.parametrize("rule", ["constant", "certified"])
@pytest.mark.parametrize("options", [{}, {"replicas": 3}, {"replicas": 17}], ids=str)
def test_many_nodes_with_many_degrees_are_the_same(rule, options):
    problem, h = pose(crowd(), 300, scale=0.3, weight=True, **options)
    one, two = pair(problem, rule, h, seed=2)
    assert one.ticks is not None
    same(one, two, 15, 1e-12)


@pytest.mark.parametrize("rule", ["constant", "auto", "messages"])
def test_several_runs_are_the_same(rule):
    model = randomise(EnergyGNN(2, out_channels=1).double(), 0.3, 0)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), **DOUBLE)
    with torch.no_grad():
        problem = model.problem(Inputs(x, SIMPLE).repeat(5)).detach()
    one, two = pair(problem, rule, problem.start(), seed=2, runs=5)
    same(one, two, 30, 1e-12 if rule == "constant" else 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"impairments": HARSH},
        {"impairments": [Quantisation(1e-3)]},
        {"impairments": [EventTriggered(1e-3)]},
        {"impairments": [GeometricDelay(0.5, cap=6), Stragglers(0.2, slowdown=3)]},
        {"impairments": [Crashes(0.4, period=15, downtime=4, rejoin="cold", until=30)]},
        {"impairments": [BernoulliLoss(0.3)], "stagger": 1, "delay": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", ["constant", "auto", "messages"])
def test_runs_with_impairments_are_the_same(rule, options):
    problem, h = pose(ODD, 14, scale=0.3)
    rough = any(
        isinstance(i, Quantisation | EventTriggered) for i in options.get("impairments", ())
    )
    # A rounding error can tip a threshold or a quantum, but not in so few ticks of this seed.
    same(*pair(problem, rule, h, **options), 20 if rough else 40, 1e-6)


def test_a_replayed_trace_is_the_same_run():
    problem, h = pose(ODD, 14, scale=0.3)
    trace = record(Schedule(problem.graph, seed=3), 30)
    runs = [
        Simulation(RULES["messages"](problem), Replay(trace, problem.graph), h.clone())
        for _ in range(2)
    ]
    same(runs[0], on_torch(runs[1]), 30, 1e-6)


@torch.no_grad()
def test_the_answer_is_reached_and_kept_even_after_lost_memory():
    """What ``check_rule`` asks of a rule, on an energy, whose updates are compiled."""
    model, data = energy(), graphs((1, 2, 5, 9))
    problem = model.problem(data).detach()
    answer = model.embed(data).value.mT[None]
    size = answer.abs().max()
    for rule, ticks in (("auto", 5000), ("messages", 400)):
        made = RULES[rule](problem)
        simulation = Simulation(made, Schedule(problem.graph, stagger=3, seed=1), problem.start())
        for tick in range(ticks):
            simulation.step()
            if tick == 100:
                made.forget(torch.tensor([1, 4]))
        assert (simulation.h - answer).abs().max() <= 1e-6 * size, rule
        made = RULES[rule](problem)
        settled = Simulation(made, Schedule(problem.graph, stagger=1, delay=0), answer.clone())
        for _ in range(30):
            settled.step()
        # The first messages know nothing of the nodes beyond the neighbours.
        assert (settled.h - answer).abs().max() <= 1e-5 * size, rule


def test_the_executor_passes_its_suite():
    """The suite's energies run on torch, its schedules are drawn by compiled code."""

    def execute(problem, rule, seed):
        schedule = Schedule(problem.graph, stagger=3, delay=2, seed=seed)
        assert schedule._clock is not None
        simulation = Simulation(rule, schedule, problem.start())
        for _ in range(600):
            simulation.step()
        return simulation.h

    check_executor(execute)


def test_simulate_counts_the_same(monkeypatch):
    model, data = energy(), graphs()
    ours = simulate(model, data, runs=3, ticks=150, impairments=bounded(0.1)[:1])
    import hogwild.executors.simulation as module

    monkeypatch.setattr(module, "updates_for", lambda *_, **__: "switched off")
    theirs = simulate(model, data, runs=3, ticks=150, impairments=bounded(0.1)[:1])
    assert gap(ours.h, theirs.h) <= 1e-6
    assert str(ours.staleness) == str(theirs.staleness)
    assert ours.price == theirs.price
    assert torch.equal(ours.reached, theirs.reached)
