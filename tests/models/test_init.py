"""The fresh energy is well conditioned at any width, degree and number of rounds."""

import pytest
import torch
from helpers import DOUBLE, circulant, columns

from hogwild import EnergyConv, Newton

WORST = 1e3
# num_layers, PICNN widths, hidden_channels, degree
QUICK = [
    (1, 2, 2, 1),
    (1, 2, 2, 50),
    (1, 64, 2, 50),
    (1, 64, 64, 1),
    (2, 2, 2, 50),
    (2, 64, 2, 20),
    (3, 2, 2, 50),
    (3, 2, 32, 1),
]
GRID = [
    (rounds, width, k, degree)
    for rounds in (1, 2, 3)
    for width in (2, 8, 64)
    for k in (2, 8, 64)
    for degree in (1, 5, 50)
    if k * degree <= 400 and (rounds, width, k, degree) not in QUICK
]
KINDS = {"edge": {}, "node": {"message": "node"}, "heads": {"heads": 2}, "mean": {"aggr": "mean"}}


def condition(problem, h, dense):
    """Condition number of ∇²E(h), [R], up to ``dense`` unknowns; λ_max / β, a bound, beyond."""
    hessian = problem.evaluate(h).hessian()
    if h[0].numel() <= dense:
        spectrum = torch.linalg.eigvalsh(columns(hessian.apply, h))
        return spectrum[:, -1] / spectrum[:, 0]
    v = torch.randn_like(h)
    for _ in range(40):
        v = v / v.flatten(1).norm(dim=1)[:, None, None]
        new = hessian.apply(v)
        top = (new * v).sum((1, 2))
        v = new
    return 1.1 * top / problem.beta  # power iteration approaches from below


def check(rounds, width, k, degree, kind, *, replicas, dense=120):
    torch.manual_seed(0)
    conv = EnergyConv(
        3,
        k,
        num_layers=rounds,
        widths=(width, width),
        replicas=replicas,
        solver=Newton(linear="cg"),
        **KINDS[kind],
    ).double()
    n = degree + 2 + degree % 2
    x, edge_index = torch.randn(n, 3, **DOUBLE), circulant(n, degree)
    problem = conv.problem(x, edge_index).detach()
    assert problem.graph.in_degree.unique().tolist() == [degree]
    start = problem.zeros(torch.float64, x.device)
    assert float(condition(problem, start, dense).max()) < WORST
    found = conv.embed(x, edge_index)
    solution = found.value.detach().mT.contiguous()
    assert float(condition(problem, solution, dense).max()) < WORST


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rounds", "width", "k", "degree"), QUICK)
def test_fresh_energy_is_well_conditioned(rounds, width, k, degree, kind):
    """λ_max / λ_min < 1e3 at the start and at the solution, at the extremes."""
    check(rounds, width, k, degree, kind, replicas=8 if k * width < 100 else 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rounds", "width", "k", "degree"), GRID)
def test_fresh_energy_is_well_conditioned_on_a_grid(rounds, width, k, degree, kind):
    check(rounds, width, k, degree, kind, replicas=4 if k * degree <= 100 else 1, dense=450)
