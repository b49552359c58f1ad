"""Launched ticks: emulated on a CPU everywhere, and themselves where there is a GPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from emulated_gpu import EmulatedTicks
from helpers import HARSH, energy, graphs, on_torch, record, undirected
from kernels.test_rules import ODD, OPTIONS, RULES, SIMPLE, gap, pose

from hogwild import simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    EventTriggered,
    GeometricDelay,
    Quantisation,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Replay
from hogwild.executors.simulated import Simulation
from hogwild.kernels import ticks_cuda
from hogwild.kernels.build import compiler
from hogwild.kernels.native import SWITCH, library

pytestmark = pytest.mark.skipif(os.environ.get(SWITCH) == "off", reason=f"{SWITCH}=off")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
STEPS = ("constant", "certified", "auto")
HUB = undirected(*((0, i) for i in range(1, 90)), (1, 2), (2, 3))
"""A node with more edges than a block has threads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture
def emulated(folder, monkeypatch):
    EmulatedTicks.folder = folder
    monkeypatch.setitem(ticks_cuda.TICKS, "cpu", EmulatedTicks)


def simulation(problem, rule, start, timetable=None, **options):
    timetable = timetable or Schedule(problem.graph, seed=2)
    return Simulation(RULES[rule](problem), timetable, start.clone(), **options)


def same(one, two, tolerance=1e-12):
    """Two simulations have made the same run."""
    assert gap(one.h.cpu(), two.h) <= tolerance
    for name in ("updates", "packets", "saved", "numbers"):
        assert torch.equal(getattr(one.tally, name).cpu(), getattr(two.tally, name)), name
    assert one.tally.ticks == two.tally.ticks
    for name in ("packet_age", "content_age"):
        mine, theirs = (getattr(x.tally, name).counts.cpu() for x in (one, two))
        assert torch.equal(mine, theirs), name
    assert one.longest_gap() == two.longest_gap()
    assert torch.equal(one.outbox.latest.cpu(), two.outbox.latest)
    assert torch.equal(one.outbox.content.cpu(), two.outbox.content)
    assert gap(one.outbox.node.cpu(), two.outbox.node) <= tolerance
    assert gap(one.outbox.edge.cpu(), two.outbox.edge) <= 1e3 * tolerance


@torch.no_grad()
def follow(one, two, ticks=25, tolerance=1e-12):
    """Ticks by themselves, and some that say what happened."""
    for t in range(ticks):
        if t % 5 == 3:
            mine, theirs = one.step(), two.step()
            for name in ("nodes", "edges", "view"):
                assert torch.equal(getattr(mine, name).cpu(), getattr(theirs, name)), (t, name)
        else:
            one.advance()
            two.advance()
    same(one, two, tolerance)


@needs_compiler
@pytest.mark.parametrize("rule", STEPS)
def test_runs_are_the_same(rule, emulated):
    for edge_index, n in ((SIMPLE, 12), (ODD, 14)):
        problem, h = pose(edge_index, n, scale=0.3)
        one, two = (simulation(problem, rule, h) for _ in range(2))
        assert isinstance(one.ticks, EmulatedTicks), one.ticks
        follow(one, on_torch(two))


@needs_compiler
@pytest.mark.parametrize("rule", ["constant", "auto"])
@pytest.mark.parametrize("options", [{"replicas": 2}, {"heads": 3}], ids=str)
def test_replicas_and_heads(options, rule, emulated):
    problem, h = pose(ODD, 14, scale=0.3, **options)
    one, two = (simulation(problem, rule, h) for _ in range(2))
    assert isinstance(one.ticks, EmulatedTicks), one.ticks
    follow(one, on_torch(two))


@needs_compiler
@pytest.mark.parametrize("nodes", [256, 512])
@pytest.mark.parametrize("rule", ["constant", "auto"])
def test_many_batches_of_a_block(rule, nodes, emulated, monkeypatch):
    """Blocks of many nodes list them in several chunks, and make several batches of them."""
    monkeypatch.setattr(ticks_cuda, "THREADS", (32,))
    monkeypatch.setattr(ticks_cuda, "RANGE", nodes)
    monkeypatch.setattr(EmulatedTicks, "range", nodes)
    random = torch.Generator().manual_seed(1)
    ends = torch.randint(nodes + 40, (2, 2 * nodes), generator=random)
    problem, h = pose(torch.cat([ends, ends.flip(0)], 1), nodes + 40, scale=0.3)
    one, two = (simulation(problem, rule, h) for _ in range(2))
    assert one.ticks.blocks == 2
    follow(one, on_torch(two), 12, 1e-11)


@needs_compiler
@pytest.mark.parametrize("rule", ["constant", "auto"])
def test_single_precision(rule, emulated):
    problem, h = pose(ODD, 14, scale=0.3, solve_dtype=torch.float32)
    assert h.dtype == torch.float64
    one, two = (simulation(problem, rule, h.float()) for _ in range(2))
    assert isinstance(one.ticks, EmulatedTicks), one.ticks
    follow(one, on_torch(two), 15, 1e-5)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
def test_every_kind_of_model(options, emulated):
    problem, h = pose(ODD, 14, scale=0.3, **options)
    for rule in ("constant", "auto") if options.get("hidden_channels", 2) < 3 else ("constant",):
        one, two = (simulation(problem, rule, h) for _ in range(2))
        assert isinstance(one.ticks, EmulatedTicks), one.ticks
        follow(one, on_torch(two), 10)


@needs_compiler
@pytest.mark.parametrize("rule", ["constant", "auto"])
def test_a_node_with_more_edges_than_threads(rule, emulated, monkeypatch):
    monkeypatch.setattr(EmulatedTicks, "room", 40_000)
    problem, h = pose(HUB, 90, scale=0.2)
    one, two = (simulation(problem, rule, h) for _ in range(2))
    assert one.ticks.shape.threads < 89
    follow(one, on_torch(two), 12)


@needs_compiler
@pytest.mark.parametrize(("stagger", "delay"), [(1, 0), (3, 7)])
def test_other_schedules(stagger, delay, emulated):
    problem, h = pose(ODD, 14, scale=0.3)
    drawn = [Schedule(problem.graph, stagger=stagger, delay=delay, seed=5) for _ in range(2)]
    one, two = (simulation(problem, "constant", h, schedule) for schedule in drawn)
    follow(one, on_torch(two))
    assert torch.equal(drawn[0].next, drawn[1].next)
    assert torch.equal(drawn[0].view, drawn[1].view)


@needs_compiler
def test_ticks_that_are_given(emulated):
    """A schedule with impairments, and a trace, say whose turn it is; the rest is launched."""
    problem, h = pose(ODD, 14, scale=0.3)
    impaired = [GeometricDelay(0.5, cap=6), Stragglers(0.2, slowdown=3)]
    trace = record(Schedule(problem.graph, seed=3), 25)
    for make in (
        lambda: Schedule(problem.graph, seed=1, impairments=impaired),
        lambda: Replay(trace, problem.graph),
    ):
        one, two = (simulation(problem, "auto", h, make()) for _ in range(2))
        assert isinstance(one.ticks, EmulatedTicks)
        assert not one.ticks.draws
        follow(one, on_torch(two))


@needs_compiler
def test_what_stays_on_torch_says_why(emulated, monkeypatch):
    problem, h = pose(ODD, 14, scale=0.3)
    for options in (
        {"exchange": "exact"},
        {"impairments": [Quantisation(1e-3)]},
        {"impairments": [EventTriggered(1e-3)]},
    ):
        found = simulation(problem, "constant", h, **options)
        assert "on torch" in found.ticks
        assert found.path == ("torch: " + found.kernel if library() is None else
                              f"compiled ({library().instructions}, packets on torch)")  # fmt: skip
    for impairments in (HARSH, [BernoulliLoss(0.3)]):
        schedule = Schedule(problem.graph, impairments=impairments)
        found = simulation(problem, "constant", h, schedule, impairments=impairments)
        assert "on torch" in found.ticks
    assert "only gradient steps" in simulation(problem, "messages", h).ticks
    wide, start = pose(ODD, 14, widths=(60, 60))
    assert "wider" in simulation(wide, "constant", start).ticks
    monkeypatch.setenv(SWITCH, "off")
    assert SWITCH in simulation(problem, "constant", h).ticks


@needs_compiler
@torch.no_grad()
def test_a_copy_goes_on_by_itself(emulated):
    problem, h = pose(ODD, 14, scale=0.3)
    one, two = simulation(problem, "auto", h), on_torch(simulation(problem, "auto", h))
    follow(one, two, 10)
    other = copy.deepcopy(one)
    assert isinstance(other.ticks, EmulatedTicks)
    for _ in range(10):
        other.advance()
    assert not torch.equal(other.h, one.h)
    follow(one, two, 10)
    same(other, two)


@needs_compiler
@torch.no_grad()
def test_a_rule_with_another_energy_follows_that_one(emulated):
    problem, h = pose(ODD, 14, scale=0.3)
    other, _ = pose(ODD, 14, seed=1, scale=0.3)
    one, two = simulation(problem, "auto", h), on_torch(simulation(problem, "auto", h))
    follow(one, two, 10)
    for each in (one, two):
        each.rule.pose(other.node)
    follow(one, two, 10)


@needs_compiler
def test_simulate_counts_the_same(emulated, monkeypatch):
    model, data = energy(), graphs((1, 2, 5))
    options = {"rule": "gradient", "runs": 2, "ticks": 60, "tol": 1e-3}
    ours = simulate(model, data, **options)
    monkeypatch.delitem(ticks_cuda.TICKS, "cpu")
    theirs = simulate(model, data, **options)
    assert ours.path == "compiled (emulated)"
    assert theirs.path.startswith("compiled (") != (library() is None)
    assert gap(ours.h, theirs.h) <= 1e-9
    assert str(ours.staleness) == str(theirs.staleness)
    assert ours.price == theirs.price
    assert torch.equal(ours.reached, theirs.reached)


def test_constants_of_a_shape_are_those_of_the_rows():
    """The sizes that the kernel is compiled for are those of the rows that it reads."""
    for options in OPTIONS:
        problem, h = pose(ODD, 14, **options)
        rule = RULES["constant"](problem)
        rule.begin(h, problem.graph.everyone.current(h))
        design = ticks_cuda.design_of(rule.model, rule.channels)
        shape = ticks_cuda.shape_of(design, 0, h, problem.graph, 10**6)
        rows = ticks_cuda.Rows.of(rule.model, problem.graph._rows[0])
        found = rows.edges.shape[-1], rows.nodes.shape[-1], rows.weights.shape[-1]
        assert (shape.row, shape.node_row, shape.weights) == found


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("rule", STEPS)
@pytest.mark.parametrize("options", [{}, {"replicas": 3}, {"heads": 3}, OPTIONS[2]], ids=str)
def test_a_gpu_makes_the_same_run_as_a_cpu(rule, options):
    torch.manual_seed(0)
    ring, hub = torch.arange(3000), torch.arange(1, 400)
    parts = [torch.stack([ring, ring.roll(1)]), torch.randint(0, 3000, (2, 6000))]
    half = torch.cat([*parts, torch.stack([0 * hub, hub])], 1)
    edge_index = torch.cat([half, half.flip(0)], 1)
    problem, h = pose(edge_index, 3000, scale=0.2, **options)
    two = simulation(problem, rule, h)
    there, _ = pose(edge_index, 3000, scale=0.2, device="cuda", **options)
    one = simulation(there, rule, h.cuda())
    assert isinstance(one.ticks, ticks_cuda.CudaTicks), one.ticks
    follow(one, two, 40, 1e-9)
