"""Messages that diverge on a cycle, and the guarded rule that ends at the answer all the same."""

import pytest
import torch
from certified import data
from frustrated import Frustrated, complete

import hogwild
from hogwild import GSDGNN, EnergyGNN
from hogwild.analysis.certify import certify
from hogwild.analysis.echoes import Echoes
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.asynchrony.scenarios import swarm
from hogwild.asynchrony.schedule import Schedule
from hogwild.errors import ConfigError
from hogwild.executors.simulation import Simulation
from hogwild.rules import guarded_rule, message_rule
from hogwild.testing import check_rule
from hogwild_node.rules import guarded

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


def test_the_guarded_rule_falls_back_and_arrives(monkeypatch):
    monkeypatch.setattr(guarded, "PATIENCE", 2.0)
    problem = problem_of()
    unsafe = Unsafe(problem.graph, problem.v, problem.b, problem.epsilon)
    rule = guarded_rule(unsafe, age=1)
    far = follow(rule, unsafe, 1300)
    assert bool((rule.fallen > 0.0).all())
    assert max(far) > 1.0
    assert far[-1] < 1e-6


def test_messages_that_converge_never_fall_back():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    plain = hogwild.simulate(model, inputs, rule="messages", ticks=120, tol=None)
    run = hogwild.simulate(model, inputs, rule="guarded", ticks=120, tol=None)
    assert torch.allclose(plain.h, run.h, rtol=0.0, atol=1e-9)
    assert int(run.bytes.sum()) > int(plain.bytes.sum())  # one number a packet
    assert run.rule == "guarded"


def test_one_node_that_falls_back_takes_all_others_along():
    problem = problem_of(0.3 * V, 1.0)
    rule = guarded_rule(problem, age=9)
    schedule = Schedule(problem.graph, stagger=5, delay=2, seed=1)
    simulation = Simulation(rule, schedule, problem.start())
    rule.fallen[:, 0] = 1.0
    for _ in range(40):
        simulation.step()
    assert bool((rule.fallen > 0.0).all())
    for _ in range(1500):
        simulation.step()
    assert float((simulation.h - problem.answer()).abs().max()) < 1e-6


def test_what_is_proved_of_it():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    found = certify(model, inputs, rule="guarded")
    assert found.guaranteed
    assert "fall back" in found.reason
    lost = certify(model, inputs, rule="guarded", impairments=BernoulliLoss(0.1))
    assert not lost.guaranteed
    with pytest.raises(ConfigError, match="bound on the staleness"):
        hogwild.simulate(model, inputs, rule="guarded", impairments=BernoulliLoss(0.1), ticks=5)
    stack = EnergyGNN(3, out_channels=2, num_layers=2).double()
    with pytest.raises(ConfigError, match="num_layers=1"):
        hogwild.simulate(stack, inputs, rule="guarded", ticks=5)
    assert not certify(stack, inputs, rule="guarded").guaranteed
    denoised = certify(GSDGNN(3, out_channels=2).double(), inputs, rule="guarded")
    assert denoised.guaranteed
    assert denoised.rate is None


def test_it_is_a_rule():
    check_rule(lambda problem: guarded_rule(problem, age=7), ticks=200)


def test_graphs_that_move():
    moving = swarm(6, degree=3, changes=1, every=20, seed=0)
    model = GSDGNN(1, out_channels=1)
    plain = hogwild.track(model, moving)
    found = hogwild.track(model, moving, rule="guarded")
    assert torch.allclose(plain.error, found.error, rtol=0.0, atol=1e-5)
