"""The fresh energy is well conditioned at any width, degree and number of rounds."""

import pytest
import torch
from helpers import DOUBLE, circulant, columns

from hogwild import EnergyConv, Inputs
from hogwild.nn import PICNN
from hogwild.solvers import Newton

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
        hidden_channels=k,
        rounds=rounds,
        widths=(width, width),
        replicas=replicas,
        solver=Newton(linear="cg"),
        **KINDS[kind],
    ).double()
    n = degree + 2 + degree % 2
    x, edge_index = torch.randn(n, 3, **DOUBLE), circulant(n, degree)
    problem = conv.problem(Inputs(x, edge_index)).detach()
    assert problem.graph.in_degree.unique().tolist() == [degree]
    start = problem.zeros(torch.float64, x.device)
    assert float(condition(problem, start, dense).max()) < WORST
    found = conv.embed(Inputs(x, edge_index))
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


def fading(conv):
    """Factor by which what the first node of a chain knows fades from hop to hop, [R]."""
    chain = torch.stack([torch.arange(29), torch.arange(1, 30)])
    edge_index = torch.cat([chain, chain.flip(0)], 1)
    x = torch.zeros(2, 30, 2, **DOUBLE)
    x[0, 0, 0] = x[1, 0, 1] = 1.0
    one, other = (conv.embed(Inputs(x_, edge_index)).value for x_ in x)
    difference = (one - other).norm(dim=-1)
    return (difference[:, 8] / difference[:, 2]) ** (1 / 6)


@pytest.mark.parametrize("heads", [None, 2])
@torch.no_grad()
def test_fresh_messages_are_about_differences(heads):
    """What a node knows carries over several hops, unlike with independent weights on both ends of
    an edge; node-wise messages cannot be about differences."""
    torch.manual_seed(0)
    conv = EnergyConv(2, heads=heads, replicas=50).double()
    assert float(fading(conv).median()) > 0.5
    assert float(fading(conv).min()) > 0.3
    for module in conv.modules():
        if isinstance(module, PICNN):
            module.reset_parameters()  # without what EnergyConv does to it
    assert float(fading(conv).median()) < 0.35
    conv.reset_parameters()
    assert float(fading(conv).median()) > 0.5
