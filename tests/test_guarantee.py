"""Guarantees: the constants are true, the theorems hold in runs, and nothing false is claimed."""

import math

import pytest
import torch
from torch_geometric.data import Data

import hogwild
from hogwild import (
    EIGNN,
    GCN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    LayerTagged,
    MaxGNN,
    ScarselliGNN,
    StackedEnergyGNN,
)
from hogwild.asynchrony.impairments import BernoulliLoss, Stragglers
from hogwild.asynchrony.schedule import Schedule
from hogwild.errors import ConfigError
from hogwild.executors.simulated import Simulation
from hogwild.guarantee import certify, explain_guarantee, spectrum
from hogwild.models.base import Kind
from hogwild.rules import GradientRule
from hogwild.rules.gradient import THETA, certified_steps
from hogwild.testing.problems import Quadratic, _columns, random_graph


def data(sizes=(5, 9), seed=1):
    graph = random_graph(list(sizes), seed=seed)
    rng = torch.Generator().manual_seed(seed)
    found = Data(
        x=torch.randn(graph.num_nodes, 3, generator=rng, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
    )
    found.batch = graph.batch
    return found


def test_a_euclidean_contraction_may_diverge():
    """Why the norm matters: the counterexample of the documentation."""
    angle = 2.25
    f = 0.98 * torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        dtype=torch.float64,
    )
    assert float(torch.linalg.matrix_norm(f, 2)) < 1.0
    first, second = torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    first[0], second[1] = f[0], f[1]  # one node updates, then the other
    radius = float(torch.linalg.eigvals(second @ first).abs().max())
    assert radius == pytest.approx(1.57, abs=0.01)
    assert float(torch.linalg.eigvals(f.abs()).abs().max()) > 1.0  # the test that sees it


def test_spectrum_against_dense_eigenvalues():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, 2).double(), data()
    problem = model.problem(inputs.x, inputs.edge_index, None, inputs.batch).detach()
    h = torch.randn(1, 2, 14, dtype=torch.float64)
    values = torch.linalg.eigvalsh(_columns(problem.evaluate(h).hessian().apply, h)[0])
    low, high = spectrum(problem, h)
    assert low == pytest.approx(float(values[0]), rel=1e-2)
    assert high == pytest.approx(float(values[-1]), rel=1e-3)
    found = certify(model, inputs)
    assert found.guaranteed
    assert found.kind == Kind.OPTIMISATION
    assert found.constants["strong convexity β"] == 0.04
    assert found.constants["smallest eigenvalue at the solution"] >= 0.04
    top = found.constants["largest row sum of |Hessian|, everywhere"]
    assert top >= found.constants["largest eigenvalue at the solution"]


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN])
def test_row_bounds_dominate_the_hessian_everywhere(make):
    torch.manual_seed(1)
    model, inputs = make(3, 2).double(), data((6,))
    problem = model.problem(inputs.x, inputs.edge_index, None, inputs.batch).detach()
    rows = problem.row_bounds()[0].flatten()
    for scale in (0.0, 0.3, 3.0, 30.0):
        h = scale * torch.randn(1, 2, 6, dtype=torch.float64)
        dense = _columns(problem.evaluate(h).hessian().apply, h)[0]
        assert bool((dense.abs().sum(-1) <= rows * (1 + 1e-9)).all())
        assert float(torch.linalg.eigvalsh(dense)[0]) >= float(problem.convexity().min()) - 1e-9


@pytest.mark.parametrize("exchange", ["packet", "exact"])
def test_the_proved_rate_holds_in_a_run(exchange):
    r"""The theorem's potential Φ, followed through a run: it never grows, by at least what the
    proof says, and shrinks at the proved rate."""
    graph = random_graph([6], seed=2)
    problem = Quadratic.random(graph, coupling=0.5)
    stagger, delay = 4, 2
    age = 2 * delay + stagger - (exchange == "exact")
    rule = GradientRule(problem, "certified", age=age)
    schedule = Schedule(graph, stagger=stagger, delay=delay, seed=7)
    simulation = Simulation(rule, schedule, problem.start(), exchange=exchange)
    rows, answer = problem.row_bounds(), problem.answer()
    least = problem.evaluate(answer).value
    a = THETA / (0.5 + age)
    c = 1 / a - 0.5 - age
    mu = float(problem.convexity().min() / rows.max())
    big = (1 / a**2 + age + stagger) / mu + 0.5 * age
    moves, potentials = [], []
    for t in range(400):
        window = [0.0] * max(age - len(moves), 0) + moves[-age:]
        gap = float(problem.evaluate(simulation.h).value - least)
        potentials.append(gap + 0.5 * sum((p + 1) * m for p, m in enumerate(window)))
        before = simulation.h.clone()
        simulation.step()
        moves.append(float((rows * (simulation.h - before).square()).sum()))
        if t:
            assert potentials[-1] <= potentials[-2] - c * moves[-2] + 1e-12
    for t in range(age, 400 - stagger):
        assert potentials[t + stagger] <= potentials[t - age] / (1 + c / big) + 1e-12
    assert potentials[-1] < 0.9 * potentials[0]


def test_certified_steps_are_local_and_scale_with_the_degree():
    graph = random_graph([12], seed=0)
    problem = Quadratic.random(graph)
    steps = certified_steps(problem, 9)
    busiest, idlest = graph.in_degree.argmax(), graph.in_degree.argmin()
    assert float(steps[..., busiest].max()) < float(steps[..., idlest].min())


def test_where_a_step_of_ones_own_lies():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, 2).double(), data()
    smallest = float(certify(model, inputs).step.min())
    high = certify(model, inputs).constants["largest eigenvalue at the solution"]
    cases = [
        (0.5 * smallest, "is certified"),
        (1.0 / high, "not certified"),
        (3.0 / high, "diverges"),
    ]
    for step, word in cases:
        assert word in certify(model, inputs, step=step).own_step


def test_every_kind_is_told_the_truth(capsys):
    torch.manual_seed(0)
    inputs = data()
    cases = [
        (EnergyGNN(3, 2), Kind.OPTIMISATION, True),
        (GSDGNN(3, 2), Kind.OPTIMISATION, True),
        (IGNN(3, 2), Kind.FIXED_POINT, True),
        (EIGNN(3, 2), Kind.FIXED_POINT, True),
        (ScarselliGNN(3, 2), Kind.FIXED_POINT, False),
        (MaxGNN(3, 2), Kind.FIXED_POINT, True),
        (GCN(3, 2), Kind.EXPLICIT, False),
        (LayerTagged(GCN(3, 2)), Kind.EXPLICIT, False),
        (StackedEnergyGNN(3, 2), Kind.OPTIMISATION, False),
        (EnergyGNN(3, 2, num_layers=2), Kind.OPTIMISATION, False),
    ]
    for model, kind, guaranteed in cases:
        found = explain_guarantee(model.double(), inputs)
        printed = capsys.readouterr().out
        assert model.kind == found.kind == kind
        assert found.guaranteed is guaranteed
        assert printed.strip() == str(found)
        assert str(kind) in printed
        assert found.reason in printed
    assert hogwild.explain_guarantee is explain_guarantee
    assert hogwild.certify is certify


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, ScarselliGNN, MaxGNN, GCN])
def test_float32_models(make):
    torch.manual_seed(0)
    inputs = data()
    inputs.x = inputs.x.float()
    model = make(3, 2)
    assert certify(model, inputs).kind == model.kind
    run = hogwild.simulate(model, inputs, ticks=1500)
    assert run.h.dtype == run.predictions.dtype == torch.float32
    assert model.kind == Kind.EXPLICIT or float(run.deviation.max()) < 1e-3


def test_impairments_are_certified_with_the_bounds_they_leave():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, 2).double(), data()
    plain = certify(model, inputs)
    slow = certify(model, inputs, impairments=Stragglers(0.2, slowdown=4))
    assert float(slow.step.max()) < float(plain.step.max())
    assert slow.period == 20 + 2 * 2 + 20
    lost = certify(model, inputs, impairments=[BernoulliLoss(0.1)])
    assert not lost.guaranteed
    assert "unbounded" in lost.reason


def test_directed_graphs_are_not_certified():
    torch.manual_seed(0)
    one_way = Data(x=data((3,)).x, edge_index=torch.tensor([[0, 1], [1, 2]]))
    found = certify(EnergyGNN(3, 2).double(), one_way)
    assert not found.guaranteed
    assert "no reverse link" in found.reason


@pytest.mark.parametrize(
    "options", [{"stagger": 0}, {"delay": -1}, {"step": -1.0}, {"exchange": "none"}]
)
def test_bad_options(options):
    with pytest.raises(ConfigError, match="expected"):
        certify(EnergyGNN(3, 2).double(), data(), **options)


def test_a_model_in_training_mode_is_judged_as_it_will_run():
    """Dropout is not taken for a layer that looks beyond its neighbours."""
    model = GCN(3, 2, dropout=0.5).double().train()
    assert "depends on the schedule" in certify(model, data()).reason
    assert model.training


def test_bounds_so_large_that_the_proved_rate_rounds_to_one():
    found = certify(EnergyGNN(3, 2).double(), data(), stagger=10**15, delay=10**15)
    assert found.rate == pytest.approx(1.0)
    assert math.isfinite(found.updates)
    assert found.updates > 1e6
