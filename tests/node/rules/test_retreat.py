"""Retreat: nodes that messages led far off go home, together, and try again."""

import pytest
import torch
from torch_geometric.data import Data

from hogwild import EnergyGNN, simulate
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import message_rule
from hogwild.testing.problems import Quadratic, random_graph
from hogwild_node.rules.safeguard import LEASH, REST, Retreat

PATH = Graph.of(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)


def everybody(*names):
    return torch.tensor([[i in names for i in range(3)]])


@pytest.mark.parametrize(("stagger", "delay"), [pytest.param(1, 0, marks=pytest.mark.slow), (5, 2)])
def test_badly_scaled_energies_stay_bounded(stagger, delay):
    """Features a thousand times too large: without retreats, 1e5 times the answer and more. Which
    tick brings the nodes back depends on rounding; they are back by tick 200."""
    torch.manual_seed(0)
    graph = random_graph([5], seed=0, extra=0.7)
    x = 1000.0 * torch.randn(5, 3, dtype=torch.float64)
    data = Data(x=x, edge_index=torch.stack([graph.src, graph.dst]))
    model = EnergyGNN(3, out_channels=2, replicas=2, on_failure="ignore").double()
    run = simulate(
        model, data, rule="messages", stagger=stagger, delay=delay, ticks=250, tol=None,
        history=list(range(200, 250, 5)),
    )  # fmt: skip
    assert run.history is not None
    assert float(run.history.max()) < 3.0


def test_half_of_a_rest_is_waiting_and_rests_double():
    h = torch.zeros(1, 1, 3)
    retreat, at = Retreat(h, PATH.everyone), PATH.everyone
    for times in (1, 2, 3):
        stays, rests = retreat.count(everybody(1), at), 0
        assert stays.tolist() == everybody(1).tolist()
        waited = 0
        while bool(retreat.resting(at).any()):
            assert retreat.resting(at).tolist() == everybody(1).tolist()
            waited += int(stays.sum())
            rests += 1
            stays = retreat.count(everybody(), at)
        assert (rests, waited) == (REST * 2**times, REST * 2**times / 2)


def test_a_silent_neighbour_is_reported_once():
    retreat, at = Retreat(torch.zeros(1, 1, 3), PATH.everyone), PATH.everyone
    messages = torch.ones(1, 2, 4)
    assert not bool(retreat.called(messages, at).any())
    messages[..., PATH.src == 0] = 0.0
    assert retreat.called(messages, at).tolist() == everybody(1).tolist()
    assert not bool(retreat.called(messages, at).any())


def test_nodes_may_go_anywhere_before_their_first_retreat():
    retreat, at = Retreat(torch.ones(1, 1, 3), PATH.everyone), PATH.everyone
    far = torch.full((1, 1, 3), 2 * LEASH)
    assert not bool(retreat.beyond(far, at).any())
    retreat.count(everybody(2), at)
    assert retreat.beyond(far, at).tolist() == everybody(2).tolist()
    assert not bool(retreat.beyond(far / 4, at).any())
    retreat.forget(torch.tensor([2]))
    assert not bool(retreat.beyond(far, at).any())


def test_one_that_is_lost_calls_all_and_the_answer_is_the_same():
    graph = random_graph([9], seed=3, extra=0.3)
    problem = Quadratic.random(graph)
    answer, rule = problem.answer(), message_rule(problem)
    simulation = Simulation(rule, Schedule(graph), problem.start())
    for _ in range(10):
        simulation.step()
    rule.trust.share[:, 0], rule.trust.turns[:, 0] = 0.5, 10.0
    for _ in range(40):
        simulation.step()
    assert bool((rule.retreat.times > 0.0).all())
    for _ in range(1500):
        simulation.step()
        far = float((simulation.h - answer).abs().max() / answer.abs().max())
        if far < 1e-6 and not bool(rule.retreat.resting(graph.everyone).any()):
            break
    assert not bool(rule.retreat.resting(graph.everyone).any())
    assert far < 1e-6
