"""Messages that diverge on a cycle without their safeguard, and with it do not."""

import pytest
import torch
from frustrated import Frustrated, complete

from hogwild.analysis.echoes import Echoes
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.rules import message_rule

V = torch.tensor(
    [[-1.0, 1, 1, 1], [-1, -1, 1, 1], [-1, -1, 1, -1], [-1, 1, -1, -1]], dtype=torch.float64
)


def problem_of(v=V, epsilon=0.005):
    b = torch.tensor([[[1.0, -0.5, 2.0, 0.3]]], dtype=torch.float64)
    return Frustrated(complete(4), v, b, epsilon)


class Unsafe(Frustrated):
    """The same energies without a safeguard of the messages."""

    @property
    def node(self):
        found = super().node
        found.dominated = True  # which is not true
        return found


def follow(rule, problem, ticks, stagger=1, delay=0):
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=0)
    simulation = Simulation(rule, schedule, problem.start())
    answer, far = problem.answer(), []
    for _ in range(ticks):
        simulation.step()
        far.append(float((simulation.h - answer).abs().max() / answer.abs().max()))
    return far


def test_messages_without_a_safeguard_diverge_on_a_frustrated_cycle():
    """A counterexample: strongly convex, quadratic, four nodes, all updating together."""
    problem = problem_of()
    assert Echoes(problem, problem.answer()).echo().radius >= 1.0
    unsafe = Unsafe(problem.graph, problem.v, problem.b, problem.epsilon)
    far = follow(message_rule(unsafe), unsafe, 200)
    assert far[-1] > 1e2
    assert far[-1] > far[100]
    assert min(far) > 1e-2


@pytest.mark.slow
def test_the_safeguard_brings_these_messages_home():
    """Measured, not proved."""
    problem = problem_of()
    far = follow(message_rule(problem), problem, 500)
    assert max(far) > 100.0
    assert far[-1] < 1e-6
