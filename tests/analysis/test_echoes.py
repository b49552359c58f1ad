"""The echo of messages: exact on small cycles, and an upper bound of what runs show."""

import math

import pytest
import torch
from certified import data

from hogwild import EnergyGNN, Inputs
from hogwild.analysis.echoes import Echoes
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import message_rule
from hogwild.testing.problems import Quadratic


def cycle(n):
    i = torch.arange(n)
    edges = torch.stack([torch.cat([i, (i + 1) % n]), torch.cat([(i + 1) % n, i])])
    return Graph.of(edges, n, torch.zeros(n, dtype=torch.long))


def quadratic(graph, own, coupling):
    q = torch.full((1, 1, 1), own, dtype=torch.float64)
    return Quadratic(graph, q, torch.ones(1, 1, graph.num_nodes, dtype=torch.float64), coupling)


@pytest.mark.parametrize("n", [3, 4, 7])
@pytest.mark.parametrize("coupling", [0.1, 1.0, 20.0])
def test_a_cycle_exactly(n, coupling):
    """With diagonal a and couplings -c the cavity precision is q = a - c²/q, and the echo c/q."""
    problem = quadratic(cycle(n), 1.0, coupling)
    a, c = 1.0 + 4.0 * coupling, 2.0 * coupling
    q = 0.5 * (a + math.sqrt(a**2 - 4.0 * c**2))
    found = Echoes(problem, problem.start()).echo().radius
    assert c / q - 1e-6 <= found <= c / q + 0.03


def test_there_is_no_echo_without_cycles():
    path = Graph.of(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3, torch.zeros(3, dtype=torch.long))
    assert Echoes(quadratic(path, 1.0, 1.0), torch.zeros(1, 1, 3).double()).echo().radius < 0.1
    alone = Graph.of(torch.zeros(2, 0, dtype=torch.long), 2, torch.zeros(2, dtype=torch.long))
    assert Echoes(quadratic(alone, 1.0, 1.0), torch.zeros(1, 1, 2).double()).echo().radius == 0.0


@pytest.mark.parametrize(("seed", "message"), [(0, "edge"), (1, "edge"), (2, "node")])
def test_runs_near_the_answer_are_at_least_as_fast(seed, message):
    torch.manual_seed(seed)
    inputs = Inputs.of(data((6,), extra=0.8, seed=seed))
    model = EnergyGNN(3, out_channels=2, message=message).double()
    problem = model.problem(inputs).detach()
    answer = model.embed(inputs).value.detach().mT[None]
    echo = Echoes(problem, answer).echo().radius
    assert echo < 1.0
    schedule = Schedule(problem.graph, stagger=1, delay=0, seed=0)
    simulation = Simulation(message_rule(problem), schedule, answer + 1e-2)
    far = []
    while len(far) < 60 and (not far or far[-1] > 1e-11):
        simulation.step()
        far.append(float((simulation.h - answer).abs().max()))
    late = [x for x in far if x < 1e-5]
    assert len(late) > 1
    seen = (late[-1] / late[0]) ** (1.0 / (len(late) - 1))
    assert seen <= echo + 0.1  # transients of a few ticks
