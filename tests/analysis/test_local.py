"""Rates near the answer: exact constants of small cases, and runs that start inside the ball."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from certified import CERTIFIED, data
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_nodes import pairwise

from hogwild import GSDGNN, EnergyGNN, Inputs
from hogwild.analysis.certificate import counted
from hogwild.analysis.certify import certify
from hogwild.analysis.local import Around, best_local
from hogwild.analysis.nearby import dominance, flat, split
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulated import Simulation
from hogwild.linalg.spectrum import matrices, spectrum
from hogwild.rules import gradient_rule
from hogwild.rules.steps import certified_steps
from hogwild.solvers import Newton, solve
from hogwild.testing.problems import Quadratic, random_graph


def around_of(problem, answer):
    found = matrices(problem.evaluate(answer).hessian())
    return Around(problem, answer, spectrum(found, problem.convexity(), problem.lipschitz()))


def energy(seed, size=4, **options):
    torch.manual_seed(seed)
    model, inputs = EnergyGNN(3, out_channels=2, **options).double(), Inputs.of(data((size,)))
    answer = model.embed(inputs).value.detach().mT[None]
    return model.problem(inputs).detach(), answer


def test_two_nodes_exactly():
    """H = [[3, -1], [-1, 3]]: row sums 4, least eigenvalue 2, everywhere."""
    problem = Quadratic(
        random_graph([2]), torch.full((1, 1, 1), 2.0).double(), torch.zeros(1, 1, 2).double(), 0.5
    )
    around, age, stagger = around_of(problem, problem.start()), 3, 2
    found = around.descent(None, age, stagger)
    a = 0.5 / (0.5 + age)
    c = 1.0 / a - 0.5 - age
    big = (1.0 / a + math.sqrt(age + stagger)) ** 2 + 0.5 * age
    assert found.rate == pytest.approx(1.0 / (1.0 + c / big), rel=1e-6)
    assert found.step == pytest.approx(a / 4.0)
    assert found.condition == pytest.approx(2.0, rel=1e-6)
    assert math.isinf(found.radius)
    # δ = 3 - 1 - α D' · 3 · 4 with equal weights
    small = around.dominated(0.01, age, stagger)
    assert small.rate == pytest.approx(1.0 - 0.01 * (2.0 - 0.01 * age * 12.0), rel=1e-6)
    assert small.period == 2 * age + stagger
    assert around.dominated(0.5, age, stagger) is None


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 2), st.sampled_from(["edge", "node"])
)
def test_a_run_from_inside_the_ball_is_as_fast_as_proved(seed, stagger, delay, message):
    problem, answer = energy(seed, message=message)
    age = 2 * delay + stagger
    found = around_of(problem, answer).descent(None, age, stagger)
    rng = torch.Generator().manual_seed(seed)
    where = 2.0 * torch.rand(answer.shape, generator=rng, dtype=answer.dtype) - 1.0
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=seed)
    rule = gradient_rule(problem, found.step)
    simulation = Simulation(rule, schedule, answer + found.radius * where)
    least = problem.evaluate(answer).value
    rows = around_of(problem, answer).near.problem.row_bounds()
    limit = 0.75 * found.radius**2 * float(rows.sum())  # at least Φ at the start
    noise = float(problem.evaluate(answer).noise)
    for _ in range(20):
        gap = float(problem.evaluate(simulation.h).value - least)
        assert gap <= limit + noise
        for _ in range(found.period):
            simulation.step()
        limit *= found.rate


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 1))
def test_dominated_runs_shrink_in_the_weighted_norm(seed, stagger, delay):
    problem, answer = energy(seed, message="node")
    around, age = around_of(problem, answer), 2 * delay + stagger
    step = 0.3 * float(certified_steps(problem, age).min())
    found = around.dominated(step, age, stagger)
    if found is None:
        return  # couplings outweigh the diagonal
    (matrix,), (most,) = around.hessians
    w = dominance(matrix.diagonal(), split(most)[1]).weights
    rng = torch.Generator().manual_seed(seed)
    where = 2.0 * torch.rand(answer.shape, generator=rng, dtype=answer.dtype) - 1.0
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=seed)
    simulation = Simulation(gradient_rule(problem, step), schedule, answer + found.radius * where)

    def norm():
        return float((np.abs(flat(simulation.h - answer)[0]) / w).max())

    limit = norm()
    for _ in range(10):
        for _ in range(found.period):
            simulation.step()
            assert norm() <= limit + 1e-12
        limit *= found.rate


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 2))
def test_both_theorems_without_letters(seed, stagger, delay):
    """Nodes of a pairwise energy compute both sides of their edges: their own embeddings are not
    old, and the largest certified steps are as long as the theorem on dominance allows."""
    problem = pairwise("gsd", seed, [(0, 1), (0, 1), (1, 2), (2, 3), (3, 0), (3, 4)], 5)
    answer = solve(problem, Newton(atol=1e-12), problem.start()).value
    limits = spectrum(
        matrices(problem.evaluate(answer).hessian()), problem.convexity(), problem.lipschitz()
    )
    around = Around(problem, answer, limits, letters=False)
    most, least = around.hessians[1][0], problem.evaluate(answer).value  # both replicas have it
    w = dominance(most.diagonal(), split(most)[1]).weights
    longest = 1.0 / float(most.diagonal().max())
    descent = around.descent(None, delay, stagger)
    dominated = around.dominated(longest, delay, stagger)
    assert dominated.period == delay + stagger
    for found, step in ((descent, descent.step), (dominated, longest)):
        schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=seed)
        simulation = Simulation(gradient_rule(problem, step), schedule, answer + 1.0)
        sizes = []
        for _ in range(8 * found.period):
            off = flat(simulation.h - answer)
            gap = float((problem.evaluate(simulation.h).value - least).sum())
            sizes.append(gap if found is descent else float((np.abs(off) / w).max()))
            simulation.step()
        if found is dominated:
            limit = sizes[0]
            for t in range(found.period + 1, len(sizes)):  # no node has a turn at tick 0
                limit *= found.rate if (t - 1) % found.period == 0 else 1.0
                assert sizes[t] <= limit + 1e-12
        else:
            assert sizes[-1] <= sizes[0] * found.rate**7 + 1e-12


def test_the_certificate_of_gradient_steps_speaks_of_the_answer():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data((5,))
    found = certify(model, inputs, **CERTIFIED)
    assert found.local.radius > 0.0
    assert found.local.updates < 0.5 * found.updates
    assert found.local.condition < found.constants["condition_number_everywhere"]
    assert found.local.where in str(found)
    assert found.data["local"]["theorem"] == "descent"
    assert found.constants["dominance"] > 1.0  # scaled diagonal dominance fails
    large = certify(model, inputs, step=2.0 * float(found.step.min()))
    assert not large.guaranteed
    assert large.local is not None  # it is proved near the answer
    assert "far away" in large.reason
    assert certify(model, inputs, step=100.0).local is None


def test_numbers_of_no_use_are_not_printed():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, message="node").double()
    found = certify(model, data((5,)), **CERTIFIED)
    assert found.updates > 1e6 > found.local.updates
    assert f"{found.updates:.3g}" not in str(found)
    assert "from anywhere: runs converge; the proved rate is too slow" in str(found)
    assert f"{counted(found.local.updates)} updates" in str(found).splitlines()[1]
    found.local = replace(found.local, updates=1e12)
    assert "1e+12" not in str(found)


def test_quadratic_energies_have_the_rate_everywhere():
    torch.manual_seed(0)
    found = certify(GSDGNN(3, out_channels=2).double(), data((6,)), **CERTIFIED)
    assert math.isinf(found.local.radius)
    assert found.rate == found.local.rate
    assert "from anywhere: 1e-6" in str(found)


def test_smaller_balls_for_larger_weights():
    problem, answer = energy(0)
    steps, around = certified_steps(problem, 9), around_of(problem, answer)
    found = best_local(around, steps, 9, 5)
    assert 0.0 < found.radius < around.size
    assert found.relative == pytest.approx(found.radius / around.size)
    rows, _, least, _ = around.ball(found.radius)
    assert bool((rows <= problem.row_bounds()).all())
    assert bool((least >= problem.convexity()).all())
