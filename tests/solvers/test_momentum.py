"""Accelerated steps on any strongly convex energy, against the theorem."""

import math
from itertools import pairwise

import pytest
import torch
from helpers import DOUBLE, chain, cycle

from hogwild import Inputs
from hogwild.errors import ConfigError
from hogwild.models import EnergyConv, GSDConv
from hogwild.solvers import Newton, TripleMomentum, solve


@pytest.mark.parametrize("conv", [GSDConv, EnergyConv])
def test_other_energies(conv):
    """Bounds on the eigenvalues are enough; every graph has its own."""
    torch.manual_seed(0)
    layer = conv(3, hidden_channels=2).double()
    edges = torch.cat([chain(5), cycle(4) + 5], 1)
    batch = torch.tensor([0] * 5 + [1] * 4)
    problem = layer.problem(Inputs(torch.randn(9, 3, **DOUBLE), edges, batch=batch)).detach()
    exact = solve(problem, Newton(atol=1e-11), problem.start()).value
    found = solve(problem, TripleMomentum(most=math.inf), problem.start())
    assert bool(found.converged.all())
    torch.testing.assert_close(found.value, exact, rtol=0, atol=1e-6)


def test_the_rate():
    """The distance falls by 1 - 1/√κ a step."""
    torch.manual_seed(0)
    problem = GSDConv(3, hidden_channels=2, beta=50.0).double()
    problem = problem.problem(Inputs(torch.randn(40, 3, **DOUBLE), chain(40))).detach()
    exact = solve(problem, Newton(), problem.start()).value
    condition = float(problem.lipschitz() / problem.convexity())
    rho, errors = 1.0 - condition**-0.5, []
    for steps in (20, 60, 100):
        run = TripleMomentum(max_iter=steps, most=math.inf, atol=0.0)
        errors.append(float((solve(problem, run, problem.start()).value - exact).norm()))
    for before, after in pairwise(errors):
        assert after <= 3.0 * rho**40 * before


@pytest.mark.parametrize("most", [0, -1.0, "large"])
def test_bad_options(most):
    with pytest.raises(ConfigError, match="expected a positive condition number"):
        TripleMomentum(most=most)
