"""Linear systems: which method solves them, and what is reported."""

import torch
from helpers import cycle

from hogwild import EnergyConv, Inputs
from hogwild.solvers import LinearSolver, Status


def test_an_indefinite_matrix_is_not_solved():
    """A factorisation that breaks down is reported, not returned as converged."""
    problem = EnergyConv(3).problem(Inputs(torch.randn(5, 3), cycle(5))).detach()
    h = problem.start()
    hessian = problem.evaluate(h).hessian()
    hessian.b = hessian.b - 50.0 * torch.eye(2).view(1, 2, 2, 1)
    found = LinearSolver().solve(hessian, torch.ones_like(h), 1e-10)
    assert found.status.tolist() == [[Status.NOT_FINITE]]
