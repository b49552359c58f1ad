"""The light cone: against hops counted by hand, and against a rumour told in plain Python."""

import networkx as nx
import pytest
import torch
from helpers import chain
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.asynchrony import BernoulliLoss, Crashes, Latency
from hogwild.executors import deadlines as module
from hogwild.executors.deadlines import light_cone
from hogwild.executors.simulation import Settings
from hogwild.graph.inputs import Inputs


def graph_of(edge_index, n, runs=1, batch=None):
    return Inputs(torch.zeros(n, 1), edge_index, batch=batch).repeat(runs).graph()


def slow(graph, made, runs):
    """Tick and updates at which the last node has heard of all, with sets: [runs] each."""
    n = graph.num_nodes // runs
    schedule = made.schedule(graph)
    words = [{i} for i in range(graph.num_nodes)]
    past, updates = [[set(w) for w in words]], [0] * graph.num_nodes
    whole = [{i for i in range(q * n, (q + 1) * n)} for q in range(runs)]
    done = {}
    for t in range(10_000):
        for q in range(runs):
            mine = range(q * n, (q + 1) * n)
            if q not in done and all(words[i] == whole[q] for i in mine):
                done[q] = (t, sum(updates[i] for i in mine) / n)
        if len(done) == runs:
            return [done[q] for q in range(runs)]
        tick = schedule.tick(t)
        new = {}
        for i in tick.nodes.tolist():
            new[i] = set(words[i])
            updates[i] += 1
        fetched = torch.ones_like(tick.view, dtype=bool) if tick.fetched is None else tick.fetched
        for e, slot, view, fresh in zip(
            tick.edges.tolist(), tick.at.slot.tolist(), tick.view.tolist(), fetched.tolist(),
            strict=True,
        ):  # fmt: skip
            heard = new[tick.nodes[slot].item()]
            heard |= past[0][graph.src[e].item()]  # first packets are there from the beginning
            if fresh:
                heard |= past[view][graph.src[e].item()]
        for i, heard in new.items():
            words[i] = heard
        past.append([set(w) for w in words])
    raise AssertionError("word never crossed")


@settings(max_examples=15, deadline=None)
@given(
    st.integers(2, 9), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.0, 0.3]),
    st.integers(0, 99),
)  # fmt: skip
def test_is_that_of_a_rumour_told_with_sets(n, stagger, delay, loss, seed):
    tree = nx.random_labeled_tree(n, seed=seed)
    edges = torch.tensor([*tree.edges, *[(j, i) for i, j in tree.edges]]).T
    graph = graph_of(edges, n, runs=2)
    made = Settings(
        stagger, delay, seed, 2, impairments=(BernoulliLoss(loss),) if loss else (), ticks=5000
    )
    found, expected = light_cone(graph, made), slow(graph, made, 2)
    assert found.ticks[:, 0].tolist() == [t for t, _ in expected]
    assert found.updates[:, 0].tolist() == pytest.approx([u for _, u in expected], rel=1e-12)
    assert found.hops.tolist() == [nx.diameter(tree)]
    assert found.crossed


def test_in_step_it_is_the_diameter():
    found = light_cone(graph_of(chain(7), 7), Settings(1, 0))
    assert found.hops.tolist() == [6]
    assert found.updates.tolist() == [[6.0]]
    assert found.ticks.tolist() == [[7.0]]  # nobody has a turn at tick 0
    assert "crosses the graph (6 hops) in 6 updates a node, 7 ticks" in str(found)


@pytest.mark.parametrize("latency", [0, 1, 4, 10])
def test_every_hop_but_the_first_takes_the_latency_and_a_turn(latency):
    """Along a path in step: first packets are there from the beginning, and are read at tick 1."""
    made = Settings(stagger=1, delay=0, impairments=Latency(latency))
    found = light_cone(graph_of(chain(5), 5), made)
    assert found.ticks.tolist() == [[2 + 3 * (latency + 1)]]
    assert found.updates.tolist() == [[1 + 3 * (latency + 1)]]


def test_one_way_edges_and_lonely_nodes():
    """Word is waited for only where a path leads; a node alone has nothing to wait for."""
    one_way = torch.tensor([[0, 1], [1, 2]])
    assert light_cone(graph_of(one_way, 3), Settings(1, 0)).updates.tolist() == [[2.0]]
    alone = light_cone(graph_of(torch.zeros(2, 0, dtype=torch.long), 1), Settings(1, 0))
    assert (alone.ticks.tolist(), alone.updates.tolist(), alone.hops.tolist()) == (
        [[0.0]], [[0.0]], [0],
    )  # fmt: skip


def test_each_graph_of_a_batch_has_its_own():
    edges = torch.cat([chain(3), chain(6) + 3], 1)
    batch = torch.tensor([0] * 3 + [1] * 6)
    found = light_cone(graph_of(edges, 9, 2, batch), Settings(1, 0, runs=2))
    assert found.updates.tolist() == [[2.0, 5.0]] * 2
    assert found.hops.tolist() == [2, 5]
    assert found.range == (2.0, 5.0)


def test_word_that_never_crosses():
    lost = Settings(2, 0, impairments=(BernoulliLoss(1.0),), ticks=50)
    found = light_cone(graph_of(chain(3), 3), lost)
    assert not found.crossed
    assert "does not cross" in str(found)
    assert found.as_dict()["updates"] is None


def test_crashes_that_forget_count():
    """A node that has once been complete counts as complete, even if it then forgets."""
    calm = light_cone(graph_of(chain(8), 8), Settings(3, 1, seed=3))
    crashing = Settings(3, 1, 3, impairments=(Crashes(0.05, downtime=5),), ticks=5000)
    assert float(light_cone(graph_of(chain(8), 8), crashing).ticks) >= float(calm.ticks)


def test_many_nodes_have_few_words(monkeypatch):
    monkeypatch.setattr(module, "SOURCES", 5)
    few = light_cone(graph_of(chain(70), 70), Settings(1, 0))
    assert (few.sources, few.nodes) == (5, 70)
    assert 35 <= float(few.updates) <= 69
    assert "news of 5 of 70 nodes, drawn at random" in str(few)
    monkeypatch.setattr(module, "SOURCES", 256)
    assert light_cone(graph_of(chain(70), 70), Settings(1, 0)).updates.tolist() == [[69.0]]
    monkeypatch.setattr(module, "CROWD", 150)
    some = light_cone(graph_of(chain(70), 70, 4), Settings(3, 2, runs=4, seed=1))
    monkeypatch.setattr(module, "CROWD", 10_000)
    every = light_cone(graph_of(chain(70), 70, 4), Settings(3, 2, runs=4, seed=1))
    assert torch.equal(some.ticks, every.ticks[:2])  # of the first runs
