"""Every solver through the one conformance suite."""

import pytest

from hogwild.solvers import LBFGS, Anderson, Newton, Picard, SemismoothNewton
from hogwild.testing import check_solver

OBJECTIVE = [
    Newton(),
    Newton(linear="direct"),
    Newton(linear="cg"),
    LBFGS(atol=1e-12),
    LBFGS(atol=1e-12, memory=3),
    Anderson(atol=1e-12, memory=8),
    # Thousands of steps: by default tests/solvers/test_loop.py is what tries them.
    pytest.param(Picard(max_iter=100_000, atol=1e-12), marks=pytest.mark.slow),
]
FIXED_POINT = [
    Picard(atol=1e-12),
    Anderson(atol=1e-12),
    Anderson(atol=1e-12, memory=2),
    SemismoothNewton(atol=1e-12),
]


@pytest.mark.parametrize("solver", OBJECTIVE, ids=repr)
def test_objective(solver, device):
    check_solver(solver, kind="objective", device=device)


@pytest.mark.parametrize("solver", FIXED_POINT, ids=repr)
def test_fixed_point(solver, device):
    check_solver(solver, kind="fixed-point", device=device)
