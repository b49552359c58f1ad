"""Every rule and every executor of the library passes; what is broken does not."""

import pytest
import torch

from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.rules import fixed_point_rule, gradient_rule, message_rule
from hogwild.testing import check_executor, check_rule
from hogwild.testing.nodes import synchronous


@pytest.mark.parametrize("make", [gradient_rule, message_rule])
def test_rules_of_energies(make):
    check_rule(make, ticks=250)


def test_rule_of_fixed_points():
    check_rule(fixed_point_rule, kind="fixed-point", ticks=300)


def test_certified_steps():
    check_rule(lambda problem: gradient_rule(problem, "certified", age=8), ticks=1200, rtol=1e-2)


def test_the_synchronous_executor():
    def execute(problem, rule, seed):
        return synchronous(rule, problem.graph, problem.start(), 200)

    check_executor(execute)


@pytest.mark.parametrize("impairments", [(), (BernoulliLoss(0.2),)], ids=["delays", "loss"])
def test_the_simulator(impairments):
    def execute(problem, rule, seed):
        schedule = Schedule(problem.graph, seed=seed, impairments=impairments)
        simulation = Simulation(rule, schedule, problem.start(), impairments=impairments)
        before = simulation.h + 1.0
        while float((simulation.h - before).abs().max()) > 1e-9 and simulation.time < 500:
            before = simulation.h.clone()
            for _ in range(40):
                simulation.step()
        return simulation.h

    check_executor(execute, repeats=not impairments)  # one of the two runs everything twice


def test_a_rule_that_looks_at_others_is_caught():
    def make(problem):
        rule = gradient_rule(problem)
        honest = rule.update

        def update(h, inbox, mail, at):
            new, letters = honest(h, inbox, mail, at)
            return new + 1e-3 * h.sum(-1, keepdim=True), letters

        rule.update = update
        return rule

    with pytest.raises(AssertionError, match="differs by"):
        check_rule(make)


def test_a_rule_with_a_wrong_answer_is_caught():
    def make(problem):
        rule = fixed_point_rule(problem)
        honest = rule.update
        rule.update = lambda *given: (honest(*given)[0] + 0.1, None)
        return rule

    with pytest.raises(AssertionError, match="left it"):
        check_rule(make, kind="fixed-point")


def test_an_executor_that_stops_early_or_draws_is_caught():
    def early(problem, rule, seed):
        return synchronous(rule, problem.graph, problem.start(), 2)

    with pytest.raises(AssertionError, match="relative error"):
        check_executor(early)

    def drawing(problem, rule, seed):
        return problem.answer() + 1e-12 * torch.rand(())

    with pytest.raises(AssertionError, match="two answers"):
        check_executor(drawing)
