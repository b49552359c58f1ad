"""Algorithm 1's schedule: its laws, its bounds, and an independent check of traces."""

import pytest
import torch
from helpers import UNBOUNDED, bounded, record
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GeometricDelay,
    Latency,
    Reordering,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.testing import check_trace
from hogwild.testing.problems import random_graph

BOUNDED = bounded(0.4)


def by_itself(test):
    """Every impairment, whatever else is drawn."""
    for impairment in BOUNDED:
        test = example(5, 2, 1, [impairment])(test)
    return test


@by_itself
@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 1000),
    st.lists(st.sampled_from(BOUNDED), max_size=3, unique=True),
)
def test_bounded_schedules_are_partially_asynchronous(stagger, delay, seed, impairments):
    graph = random_graph([7, 9], seed=seed % 5)
    schedule = Schedule(graph, stagger=stagger, delay=delay, seed=seed, impairments=impairments)
    if sum(i.stage == 3 for i in impairments) > 1:
        assert schedule.bounds is None
        return
    s, d = schedule.bounds
    found = check_trace(record(schedule, 150), graph, max(s, d + 1))
    assert found.hold, found


@pytest.mark.parametrize("order", [1, -1])
def test_a_cap_below_the_delay_binds_overtaken_packets_too(order):
    graph = random_graph([12], seed=1)
    impairments = [GeometricDelay(0.3, cap=2), Reordering(0.6)][::order]
    schedule = Schedule(graph, stagger=5, delay=10, impairments=impairments)
    assert schedule.bounds == (5, 2)
    assert check_trace(record(schedule, 300), graph, 5).oldest_view <= 2


def test_slow_nodes_that_crash_have_no_bound():
    """Whichever impairment is named first: gaps of 20 ticks and 12 ticks between outages."""
    impairments = [Crashes(1.0, period=20, downtime=8), Stragglers(1.0, slowdown=4)]
    for order in (1, -1):
        schedule = Schedule(random_graph([5], seed=1), impairments=impairments[::order])
        assert schedule.bounds is None


@pytest.mark.parametrize("impairment", UNBOUNDED, ids=str)
def test_unbounded_impairments_break_the_bound_without_impairments(impairment):
    graph = random_graph([20], seed=1)
    schedule = Schedule(graph, impairments=[impairment])
    assert schedule.bounds is None
    assert not check_trace(record(schedule, 300), graph, 5).staleness


def ages(stagger, delay, *impairments):
    """Ages of all packets that are read, once the start is forgotten."""
    schedule = Schedule(
        random_graph([200], seed=0), stagger=stagger, delay=delay, impairments=impairments
    )
    ticks = [schedule.tick(t) for t in range(400)]
    return torch.cat([t.time - t.view for t in ticks[100:]]).double()


@pytest.mark.parametrize("stagger", [1, 4])
def test_a_delay_is_a_weak_bound_on_a_random_age_and_a_latency_is_an_age(stagger):
    """However large D is, the mean age is at most (S + 1) / 2. Of a latency it is the latency."""
    for delay in (2, 20, 90):
        assert float(ages(stagger, delay).mean()) <= 1.01 * (stagger + 1) / 2
    for ticks in (0, 2, 20, 90):
        assert bool((ages(stagger, 0, Latency(ticks)) == ticks).all())


def test_jitter_in_step_by_hand():
    """The age is one below the latency L if the packet of L - 1 ticks ago took L - 1 ticks, with
    probability 1/3. Otherwise it is L, if the packet sent before took at most L ticks (2/3); and
    else L + 1."""
    found = ages(1, 0, Latency(10, jitter=1))
    for age, share in ((9, 1 / 3), (10, 4 / 9), (11, 2 / 9)):
        assert float((found == age).double().mean()) == pytest.approx(share, abs=0.01)
    assert float(found.mean()) == pytest.approx(10 - 1 / 9, abs=0.02)


def test_rare_turns_do_not_overtake():
    """With turns two latencies apart no packet is overtaken: ages are uniform."""
    found = ages(1, 0, Stragglers(1.0, slowdown=9), Latency(4, jitter=4))
    assert float(found.mean()) == pytest.approx(4.0, abs=0.1)
    counts = torch.bincount(found.long(), minlength=9) / found.numel()
    assert counts.tolist() == pytest.approx([1 / 9] * 9, abs=0.01)


def test_packet_ages_are_uniform_and_views_never_go_back():
    graph = random_graph([200], seed=0)
    schedule = Schedule(graph, stagger=3, delay=4, seed=5)
    before = torch.zeros(graph.num_edges, dtype=torch.long)
    ages, gaps = [], []
    last = torch.zeros(graph.num_nodes, dtype=torch.long)
    for t in range(60):
        tick = schedule.tick(t)
        edges, nodes = tick.at.edges, tick.at.nodes
        assert bool((tick.view >= before[edges]).all())
        full = t - before[edges] >= 4  # the draw is over 0 … D
        ages.append((t - tick.view)[full])
        gaps.append((t - last[nodes])[last[nodes] > 0])
        before[edges], last[nodes] = tick.view, t
    for found, values in ((torch.cat(ages), range(5)), (torch.cat(gaps), range(1, 4))):
        share = torch.bincount(found).double() / found.numel()
        for value in values:
            assert abs(float(share[value]) - 1 / len(values)) < 0.03
        assert found.max() == max(values)


def test_stagger_one_and_no_delay_is_synchronous():
    graph = random_graph([9])
    schedule = Schedule(graph, stagger=1, delay=0)
    assert schedule.tick(0).at.size == 0  # first updates are drawn from 1 … S
    for t in range(1, 5):
        tick = schedule.tick(t)
        assert tick.at.nodes.tolist() == list(range(9))
        assert bool((tick.view == t).all())


def test_adding_loss_does_not_shift_other_draws():
    graph = random_graph([30], seed=2)
    plain = Schedule(graph, seed=4)
    lossy = Schedule(graph, seed=4, impairments=[BernoulliLoss(0.5)])
    for t in range(20):
        a, b = plain.tick(t), lossy.tick(t)
        assert torch.equal(a.at.nodes, b.at.nodes)


def test_runs_are_independent_of_each_other():
    one = random_graph([8], seed=3)
    edges = torch.stack([one.src, one.dst])
    from hogwild.graph import Graph

    three = Graph.of(
        torch.cat([edges, edges + 8, edges + 16], 1), 24, torch.arange(3).repeat_interleave(8)
    )
    alone, together = Schedule(one, seed=6), Schedule(three, seed=6, runs=3)
    for t in range(30):
        a, b = alone.tick(t), together.tick(t)
        first = b.at.nodes < 8
        assert torch.equal(a.at.nodes, b.at.nodes[first])
        assert torch.equal(a.view, b.view[first[b.at.slot]])
