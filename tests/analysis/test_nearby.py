"""Bounds on the Hessian in a box, against Hessians at random points of it."""

import numpy as np
import pytest
import torch
from certified import data
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from hogwild import GSDGNN, EnergyGNN, Inputs
from hogwild.analysis.nearby import Nearby, dominance, flat, split, unflat
from hogwild.testing.problems import Quadratic, _columns, random_graph

MODELS = {
    "edge": {},
    "node": {"message": "node"},
    "squareplus": {"act": "squareplus"},
    "heads": {"heads": 2},
    "mean of heads": {"heads": 2, "concat": False},
}


def problem_of(kind, seed, sizes=(5,)):
    torch.manual_seed(seed)
    inputs = data(sizes)
    if kind == "edge":  # a self-loop and parallel edges
        inputs.edge_index = torch.cat(
            [inputs.edge_index, torch.tensor([[0, 1, 1, 2], [0, 2, 2, 1]])], 1
        )
        inputs.edge_index = torch.cat([inputs.edge_index, torch.tensor([[2], [1]])], 1)
    return EnergyGNN(3, out_channels=2, **MODELS[kind]).double().problem(Inputs.of(inputs)).detach()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.integers(0, 10**6), st.floats(-6, 1.5))
def test_hessians_stay_within_the_bounds(kind, seed, exponent):
    problem = problem_of(kind, seed)
    rng = torch.Generator().manual_seed(seed)
    h, reach, where = (
        torch.randn(problem.start().shape, generator=rng, dtype=torch.float64) for _ in range(3)
    )
    reach = 10.0**exponent * reach.abs()
    near = Nearby(problem, h)
    (here,), (most,) = near.hessians()
    (bound,) = near.variation(reach)
    (there,), (all_there,) = Nearby(problem, h + reach * where.clamp(-1.0, 1.0)).hessians()
    assert (np.abs((there - here).toarray()) <= bound.toarray() + 1e-12).all()
    assert (all_there.toarray() <= (most + bound).toarray() + 1e-12).all()


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_assembled_hessian_is_the_hessian(kind):
    problem = problem_of(kind, 0)
    h = torch.randn(problem.start().shape, dtype=torch.float64)
    dense = _columns(problem.evaluate(h).hessian().apply, h)[0]
    order = torch.arange(dense.size(0)).view(2, -1).T.flatten()
    (found,), (most,) = Nearby(problem, h).hessians()
    assert np.allclose(found.toarray(), dense[order][:, order].numpy(), atol=1e-12)
    assert (most.toarray() >= np.abs(found.toarray()) - 1e-12).all()


def test_quadratic_energies_do_not_change():
    torch.manual_seed(0)
    problem = GSDGNN(3, out_channels=2).double().problem(Inputs.of(data((4,)))).detach()
    near = Nearby(problem, problem.start())
    assert near.known
    assert near.variation(torch.ones_like(near.h))[0].nnz == 0


def test_entries_node_by_node():
    x = torch.arange(12.0).view(2, 2, 3).double()
    assert flat(x)[0].tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    assert torch.equal(unflat(flat(x), x), x)


def test_dominance_of_two_nodes_exactly():
    """H = [[3, -1], [-1, 3]]: the ratio is 1/3 with equal weights."""
    problem = Quadratic(
        random_graph([2]), torch.full((1, 1, 1), 2.0).double(), torch.zeros(1, 1, 2).double(), 0.5
    )
    (matrix,), (most,) = Nearby(problem, problem.start()).hessians()
    assert matrix.toarray().tolist() == [[3.0, -1.0], [-1.0, 3.0]]
    found = dominance(matrix.diagonal(), split(most)[1])
    assert found.holds
    assert found.ratio == pytest.approx(1.0 / 3.0)


def test_dominance_fails_where_couplings_are_larger():
    """Three nodes with couplings of 0.6 have the ratio 1.2, whatever the weights."""
    matrix = csr_matrix(np.array([[1.0, 0.6, 0.6], [0.6, 1.0, 0.6], [0.6, 0.6, 1.0]]))
    assert not dominance(np.ones(3), split(matrix)[1]).holds
