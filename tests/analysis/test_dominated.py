"""Dominance of quadratic energies: exact constants of small cases, and runs as fast as proved."""

import numpy as np
import pytest
import torch
from certified import CERTIFIED, data
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_nodes import pairwise

from hogwild import GSDGNN, EnergyGNN
from hogwild.analysis.certify import certify
from hogwild.analysis.energies import dominated_rate
from hogwild.analysis.nearby import Nearby, dominance, flat, split
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.rules import gradient_rule
from hogwild.solvers import Newton, solve
from hogwild.testing.problems import Quadratic, random_graph


def test_two_nodes_exactly():
    """H = [[3, -1], [-1, 3]]."""
    problem = Quadratic(
        random_graph([2]), torch.full((1, 1, 1), 2.0).double(), torch.zeros(1, 1, 2).double(), 0.5
    )
    h, age, stagger = problem.start(), 3, 2
    # δ = 3 - 1 - α D' · 3 · 4 with equal weights
    rate, period, _ = dominated_rate(problem, h, 0.01, age, stagger)
    assert rate == pytest.approx(1.0 - 0.01 * (2.0 - 0.01 * age * 12.0), rel=1e-6)
    assert period == 2 * age + stagger
    assert dominated_rate(problem, h, 0.5, age, stagger) is None


def weighted_norm(problem, answer):
    (most, *_) = Nearby(problem, answer).hessians()[1]  # all replicas have the same
    w = dominance(most.diagonal(), split(most)[1]).weights
    return lambda h: float((np.abs(flat(h - answer)) / w).max())


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 2))
def test_runs_without_letters_shrink_in_the_weighted_norm(seed, stagger, delay):
    """Nodes of a pairwise energy compute both sides of their edges: their own embeddings are not
    old, and the largest certified steps are as long as the theorem on dominance allows."""
    problem = pairwise("gsd", seed, [(0, 1), (0, 1), (1, 2), (2, 3), (3, 0), (3, 4)], 5)
    answer = solve(problem, Newton(atol=1e-12), problem.start()).value
    norm, most = weighted_norm(problem, answer), Nearby(problem, answer).hessians()[1][0]
    step = 1.0 / float(most.diagonal().max())
    rate, period, _ = dominated_rate(problem, answer, step, delay, stagger, letters=False)
    assert period == delay + stagger
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=seed)
    simulation = Simulation(gradient_rule(problem, step), schedule, answer + 1.0)
    sizes = []
    for _ in range(8 * period):
        sizes.append(norm(simulation.h))
        simulation.step()
    limit = sizes[0]
    for t in range(period + 1, len(sizes)):  # no node has a turn at tick 0
        limit *= rate if (t - 1) % period == 0 else 1.0
        assert sizes[t] <= limit + 1e-12


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 1))
def test_runs_with_letters_shrink_in_the_weighted_norm(seed, stagger, delay):
    torch.manual_seed(seed)
    graph = random_graph([6], seed=seed)
    diagonal = 0.5 + torch.rand(1, 1, 1).double()
    problem = Quadratic(graph, diagonal, torch.randn(1, 1, 6).double(), 0.5)
    answer = solve(problem, Newton(atol=1e-12), problem.start()).value
    age, step, norm = 2 * delay + stagger, 5e-4, weighted_norm(problem, answer)
    rate, period, _ = dominated_rate(problem, answer, step, age, stagger)
    schedule = Schedule(graph, stagger=stagger, delay=delay, seed=seed)
    start = answer + torch.randn(answer.shape, dtype=answer.dtype)
    simulation = Simulation(gradient_rule(problem, step), schedule, start)
    limit = norm(simulation.h)
    for _ in range(10):
        for _ in range(period):
            simulation.step()
            assert norm(simulation.h) <= limit + 1e-12
        limit *= rate


def test_numbers_of_no_use_are_not_printed():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, message="node").double()
    found = certify(model, data((5,)), **CERTIFIED)
    assert found.updates > 1e6
    assert f"{found.updates:.3g}" not in str(found)
    assert "from anywhere: runs converge; the proved rate is too slow" in str(found)
    assert not certify(model, data((5,)), step=2.0 * float(found.step.min())).guaranteed


def test_quadratic_energies_have_the_rate_of_dominance():
    torch.manual_seed(0)
    model, inputs = GSDGNN(3, out_channels=2).double(), data((6,))
    found = certify(model, inputs, **CERTIFIED)
    problem = model.problem(inputs).detach()
    h = torch.zeros(problem.start().shape, dtype=torch.float64)
    age = int(found.constants["content_age"])
    known = dominated_rate(problem, h, found.step, age, 5, letters=False)
    assert (found.rate, found.period, found.updates) == pytest.approx(known)
    assert "from anywhere: 1e-6" in str(found)
