"""Bounds on the error now: never below the true error, exact on small cases; and on the Hessian in
a box, against Hessians at random points of it."""

import math

import numpy as np
import pytest
import torch
from certified import data
from hypothesis import given, settings
from hypothesis import strategies as st

import hogwild
from hogwild import GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild.analysis import errors
from hogwild.analysis.errors import bounds_of, error_bounds, variation
from hogwild.errors import ConfigError
from hogwild.linalg.spectrum import matrices
from hogwild.testing.problems import Quadratic, _columns, random_graph

MODELS = {
    "edge": lambda: EnergyGNN(3, out_channels=2),
    "node": lambda: EnergyGNN(3, out_channels=2, message="node"),
    "squareplus": lambda: EnergyGNN(3, out_channels=2, act="squareplus"),
    "attention": lambda: EnergyGNN(3, out_channels=2, heads=2),
    "denoising": lambda: GSDGNN(3, out_channels=2),
}


def problem_of(kind, seed, sizes=(5,)):
    torch.manual_seed(seed)
    model, inputs = MODELS[kind]().double(), data(sizes)
    problem = model.problem(Inputs.of(inputs)).detach()
    answer = model.embed(Inputs.of(inputs)).value.detach().mT[None]
    for _ in range(3):  # the solver stops at a gradient that is not quite zero
        here = problem.evaluate(answer)
        matrix = _columns(here.hessian().apply, answer)[0]
        answer = answer - torch.linalg.solve(matrix, here.gradient.flatten()).view_as(answer)
    return model, inputs, problem, answer


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.integers(0, 10**6),
    st.floats(-9, 1),
    st.booleans(),
)
def test_the_error_is_never_larger_than_the_bound(kind, seed, exponent, far):
    _, _, problem, answer = problem_of(kind, seed)
    rng = torch.Generator().manual_seed(seed)
    h = answer + 10.0**exponent * torch.randn(answer.shape, generator=rng, dtype=answer.dtype)
    with pytest.MonkeyPatch.context() as patch:
        if far:  # where the inverse does not hold
            patch.setattr(errors, "_central", lambda *given: None)
        found = bounds_of(problem, h)
    assert found.method == "convexity" or not far
    assert bool(((h - answer).abs() <= found.entries + 1e-11).all())


def test_two_nodes_exactly():
    r"""E = h₁² + h₂² + ½ (h₁ - h₂)² in one channel: H = [[3, -1], [-1, 3]], and the
    central bound is exact."""
    graph = random_graph([2], seed=0)
    assert graph.num_edges == 2  # both ends hold a coupling of ½
    q, b = torch.tensor([[[2.0]]]).double(), torch.zeros(1, 1, 2).double()
    problem = Quadratic(graph, q, b, 0.5)
    for h in ((1.0, 1.0), (1.0, -1.0)):
        at = torch.tensor([[h]]).double()
        found = bounds_of(problem, at)
        assert found.method == "central"
        assert found.entries.flatten().tolist() == pytest.approx([1.0, 1.0], rel=1e-9)
        # ‖g‖ / β with β = 2
        length = math.hypot(*(problem.evaluate(at).gradient.flatten().tolist())) / 2.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(errors, "LARGEST", 1)
            found = bounds_of(problem, at)
        assert found.method == "convexity"
        assert found.entries.flatten().tolist() == pytest.approx([length, length])


def test_the_central_bound_is_nearly_the_error_close_to_the_answer():
    _, _, problem, answer = problem_of("edge", 3)
    h = answer + 1e-5 * torch.randn(answer.shape, dtype=answer.dtype)
    found = bounds_of(problem, h)
    assert found.method == "central"
    assert float(found.entries.max()) < 1.5 * float((h - answer).abs().max())


@pytest.mark.parametrize("rule", ["messages", "gradient"])
def test_a_run_knows_how_far_it_is(rule):
    model, inputs, _, answer = problem_of("edge", 1, (5, 9))
    run = hogwild.simulate(model, inputs, rule=rule, ticks=60, tol=None)
    found = error_bounds(model, inputs, run.h[0])
    error = (run.h[0].mT - answer[0]).abs()
    assert found.entries.shape == answer.shape
    assert found.nodes.shape == (1, 14)
    assert bool((error <= found.entries[0] + 1e-11).all())


def test_refusals():
    torch.manual_seed(0)
    inputs = data()
    with pytest.raises(ConfigError, match="expected a model whose embeddings"):
        error_bounds(IGNN(3, out_channels=2).double(), inputs, torch.zeros(14, 2))
    model = EnergyGNN(3, out_channels=2).double()
    with pytest.raises(ConfigError, match=r"expected \[14, 2\] or \[1, 14, 2\]"):
        error_bounds(model, inputs, torch.zeros(3, 2).double())
    far = error_bounds(model, inputs, torch.full((14, 2), 1e3).double())
    assert far.method == "convexity"


BOXES = {
    "edge": {},
    "node": {"message": "node"},
    "squareplus": {"act": "squareplus"},
    "heads": {"heads": 2},
    "mean of heads": {"heads": 2, "concat": False},
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(BOXES)), st.integers(0, 10**6), st.floats(-6, 1.5))
def test_hessians_stay_within_the_bounds(kind, seed, exponent):
    torch.manual_seed(seed)
    inputs = data((5,))
    if kind == "edge":  # a self-loop and parallel edges
        more = torch.tensor([[0, 1, 1, 2, 2], [0, 2, 2, 1, 1]])
        inputs.edge_index = torch.cat([inputs.edge_index, more], 1)
    model = EnergyGNN(3, out_channels=2, **BOXES[kind]).double()
    problem = model.problem(Inputs.of(inputs)).detach()
    rng = torch.Generator().manual_seed(seed)
    h, reach, where = (
        torch.randn(problem.start().shape, generator=rng, dtype=torch.float64) for _ in range(3)
    )
    reach = 10.0**exponent * reach.abs()
    (bound,) = variation(problem, h, reach)
    points = (h, h + reach * where.clamp(-1.0, 1.0))
    (here,), (there,) = (matrices(problem.evaluate(at).hessian()) for at in points)
    assert (np.abs((there - here).toarray()) <= bound.toarray() + 1e-12).all()
