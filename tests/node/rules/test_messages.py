"""Messages over separators: exact for quadratic energies on trees, right at fixed points on all
graphs, one hop and of fixed size."""

import helpers
import pytest
import torch
from helpers import DOUBLE, graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from hogwild import GSDGNN, EnergyGNN, Inputs, simulate
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import gradient_rule, message_rule
from hogwild.testing.problems import Quadratic, random_graph
from hogwild_node.rules import GradientRule, messages
from hogwild_node.rules.elimination import columns
from hogwild_node.rules.messages import MessageRule
from hogwild_node.rules.safeguard import FLOOR, Trust


def undirected(pairs, n):
    return graph_of(helpers.undirected(*pairs), n)


def grid(side):
    return graph_of(helpers.grid(side, side))


TREES = {
    "one node": (Graph.of(torch.zeros(2, 0, dtype=torch.long), 1), 1),
    "two nodes": (undirected([(0, 1)], 2), 1),
    "path": (undirected([(i, i + 1) for i in range(14)], 15), 14),
    "star": (undirected([(0, i) for i in range(1, 9)], 9), 2),
    "binary": (undirected([((i - 1) // 2, i) for i in range(1, 15)], 15), 6),
    "caterpillar": (
        undirected([(i, i + 1) for i in range(5)] + [(i, 6 + i) for i in range(6)], 12),
        7,
    ),
}


def tree_of(name):
    """An energy on a tree, its answer, and the diameter."""
    if name != "denoising":
        graph, diameter = TREES[name]
        problem = Quadratic.random(graph, replicas=2, coupling=3.0)
        return problem, problem.answer(), diameter
    torch.manual_seed(0)
    graph, diameter = TREES["binary"]
    model = GSDGNN(3, out_channels=2).double()
    inputs = Inputs(torch.randn(15, 3, **DOUBLE), torch.stack([graph.src, graph.dst]))
    with torch.no_grad():
        return model.problem(inputs).detach(), model.embed(inputs).value.mT, diameter


@pytest.mark.parametrize("name", [*TREES, "denoising"])
def test_quadratic_energies_on_trees_are_exact_after_the_diameter(name):
    """And not before news has crossed half of it."""
    problem, answer, diameter = tree_of(name)
    schedule = Schedule(problem.graph, stagger=1, delay=0)
    simulation = Simulation(message_rule(problem), schedule, problem.start())
    far = []
    for _ in range(max(diameter, 1) + 1):  # nobody updates at time 0
        simulation.step()
        far.append(float((simulation.h - answer).abs().max() / answer.abs().max()))
    assert far[-1] < 1e-8
    assert diameter <= 2 or far[diameter // 2 - 1] > 1e-6


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_any_schedule_on_trees_and_graphs_with_cycles(seed, stagger, delay, cycles):
    torch.manual_seed(seed)
    graph = random_graph([1, 3, 7], seed=seed, extra=0.5 if cycles else 0.0)
    data = Data(
        x=torch.randn(11, 3, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
        batch=graph.batch,
    )
    run = simulate(
        EnergyGNN(3, out_channels=2).double(),
        data,
        rule="messages",
        stagger=stagger,
        delay=delay,
        seed=seed,
        ticks=3000,
    )
    assert bool(run.converged.all()), run


LOOPS = torch.tensor([[0, 1, 1, 2, 0, 1, 0, 2], [1, 0, 2, 1, 1, 0, 0, 2]])


@pytest.mark.parametrize(
    "options", [{"message": "node"}, {"heads": 2}, {"normalize": True}, "loops and parallel edges"]
)
def test_every_variant(options):
    torch.manual_seed(1)
    graph, loops = random_graph([8], seed=1), isinstance(options, str)
    edge_index = LOOPS if loops else torch.stack([graph.src, graph.dst])
    data = Data(x=torch.randn(3 if loops else 8, 3, **DOUBLE), edge_index=edge_index)
    model = EnergyGNN(3, out_channels=2, **({} if loops else options)).double()
    run = simulate(model, data, rule="messages", runs=2)
    assert bool(run.converged.all()), run


@pytest.mark.parametrize(("coupling", "trust"), [(0.3, FLOOR), (30.0, 1.0), (30.0, FLOOR)])
def test_a_grid_ends_no_worse_than_with_gradient_steps(coupling, trust, monkeypatch):
    """Also where nodes never trusted themselves much."""
    monkeypatch.setattr(Trust, "watch", lambda *_: None)
    graph = grid(5)
    problem = Quadratic.random(graph, coupling=coupling)
    answer = problem.answer()
    error = {}
    for rule in (message_rule(problem), gradient_rule(problem)):
        simulation = Simulation(rule, Schedule(graph), problem.start())
        if isinstance(rule, MessageRule):
            rule.trust.share[:] = trust
        for _ in range(200):
            simulation.step()
        error[type(rule)] = float((simulation.h - answer).abs().max() / answer.abs().max())
    assert error[MessageRule] <= max(1.05 * error[GradientRule], 1e-6)


def distrusted(problem, share):
    """Messages of nodes that trust themselves so much, whatever happens."""
    rule = message_rule(problem)
    simulation = Simulation(rule, Schedule(problem.graph, stagger=1, delay=0), problem.start())
    rule.trust.watch = lambda *_: None
    rule.trust.share[:] = share
    return simulation


@pytest.mark.parametrize("share", [0.5, FLOOR])
def test_distrust_does_not_change_the_answer(share):
    """Nodes that hold on to where they are get there all the same."""
    problem = Quadratic.random(grid(4), coupling=0.3)
    answer, simulation, far = problem.answer(), distrusted(problem, share), 1.0
    while far > 1e-6:
        simulation.step()
        far = float((simulation.h - answer).abs().max() / answer.abs().max())
        assert simulation.time < 5000


def test_nodes_that_are_held_take_gradient_steps(monkeypatch):
    """Held by ρ, all together move by -∇E / ρ, but for terms of order ρ⁻²."""
    held = []

    def note(self, *given, anchor=MessageRule._anchor):
        held.append(anchor(self, *given))
        return held[-1]

    monkeypatch.setattr(messages, "HOLD", 1e5)
    monkeypatch.setattr(MessageRule, "_anchor", note)
    problem = Quadratic.random(grid(4), coupling=0.3)
    simulation = distrusted(problem, 0.5)
    for _ in range(20):  # until messages speak of nodes that are held
        simulation.step()
    before = simulation.h.clone()
    simulation.step()
    force = (simulation.h - before) * columns(held[-1].hold)
    torch.testing.assert_close(force, -problem.evaluate(before).gradient, rtol=1e-3, atol=1e-5)


def test_far_fewer_updates_than_gradient_steps_on_a_long_chain():
    """A chain that carries a signal from one end to the other: a condition number of hundreds."""
    graph = undirected([(i, i + 1) for i in range(19)], 20)
    problem = Quadratic.random(graph, coupling=100.0)
    answer = problem.answer()
    count = {}
    for rule in (message_rule(problem), gradient_rule(problem)):
        simulation = Simulation(rule, Schedule(graph), problem.start())
        far, ticks = 1.0, 0
        most = 10 * count[MessageRule] if count else 500
        while far > 1e-3 and ticks <= most:
            simulation.step()
            ticks += 1
            far = float((simulation.h - answer).abs().max() / answer.abs().max())
        count[type(rule)] = ticks
    assert 10 * count[MessageRule] < count[GradientRule]


def test_a_search_that_makes_no_progress_does_not_count_as_converged(monkeypatch):
    """Nodes whose search for their cluster's minimum gets nowhere take gradient steps instead."""
    monkeypatch.setattr(messages, "PASSES", 0)
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1, beta=1.0).double()
    there = torch.arange(5)
    edge_index = torch.stack([torch.cat([there, there + 1]), torch.cat([there + 1, there])])
    data = Data(x=torch.randn(6, 3, dtype=torch.float64), edge_index=edge_index)
    run = simulate(model, data, runs=3, rule="messages", ticks=4000, tol=1e-4)
    assert bool(run.converged.all())
