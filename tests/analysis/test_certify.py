"""Guarantees: the constants are true, the theorems hold in runs, and nothing false is claimed."""

import json
import math

import pytest
import torch
from helpers import DOUBLE, graphs
from torch_geometric.data import Data

import hogwild
from hogwild import EIGNN, GCN, GSDGNN, IGNN, EnergyGNN, Inputs, MaxGNN, ScarselliGNN
from hogwild.analysis.certify import certify
from hogwild.analysis.energies import Descent
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    EventTriggered,
    GilbertElliott,
    LinkChurn,
    Quantisation,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.errors import ConfigError
from hogwild.executors.simulated import Simulation
from hogwild.models.adjacency import Adjacency
from hogwild.models.base import Kind
from hogwild.models.contraction import Contraction
from hogwild.nn.nonexpansive import resolve
from hogwild.ops import gather
from hogwild.rules import gradient_rule
from hogwild.rules.steps import THETA, certified_steps
from hogwild.testing.problems import Quadratic, _columns, random_graph

CERTIFIED = {"rule": "gradient", "step": "certified"}


def data(sizes=(5, 9), **options):
    return graphs(sizes, **options)


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


def test_the_constants_of_an_energy():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    found = certify(model, inputs, **CERTIFIED)
    assert found.guaranteed
    assert found.kind == Kind.OPTIMISATION
    assert found.constants["strong_convexity"] == 0.04
    assert found.constants["smallest_eigenvalue"] >= 0.04
    assert found.constants["largest_row_sum"] >= found.constants["largest_eigenvalue"]
    assert found.constants["content_age"] == 2 * 2 + 5
    args = (inputs.x, inputs.edge_index, None, inputs.batch)
    problem, h = (
        model.problem(Inputs(*args)).detach(),
        model.embed(Inputs(*args)).value.mT.unsqueeze(0),
    )
    values = torch.linalg.eigvalsh(_columns(problem.evaluate(h).hessian().apply, h)[0])
    low, high = found.constants["smallest_eigenvalue"], found.constants["largest_eigenvalue"]
    assert low <= float(values[0]) <= float(values[-1]) <= high
    assert found.constants["condition_number"] == pytest.approx(float(values[-1] / values[0]))


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN])
def test_row_bounds_dominate_the_hessian_everywhere(make):
    torch.manual_seed(1)
    model, inputs = make(3, out_channels=2).double(), data((6,))
    problem = model.problem(Inputs(inputs.x, inputs.edge_index, None, inputs.batch)).detach()
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
    rule = gradient_rule(problem, "certified", age=age)
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


@pytest.mark.parametrize("exchange", ["packet", "exact"])
def test_the_rate_of_a_certificate_is_the_theorems(exchange):
    """Of energies: 1 / (1 + c/C) every S + D' ticks, of the worst graph."""
    torch.manual_seed(0)
    model, stagger, delay = EnergyGNN(3, out_channels=2).double(), 4, 3
    age = 2 * delay + stagger - (exchange == "exact")
    rates = []
    for sizes in [(12,), (3,), (12, 3)]:
        inputs = data(sizes, seed=3)
        found = certify(model, inputs, stagger, delay, exchange=exchange, **CERTIFIED)
        assert found.period == stagger + age
        if len(sizes) == 1:
            problem = model.problem(Inputs(inputs.x, inputs.edge_index)).detach()
            a = THETA / (0.5 + age)
            c, mu = 1 / a - 0.5 - age, 0.04 / float(problem.row_bounds().max())
            big = (1 / a**2 + age + stagger) / mu + 0.5 * age
            assert found.rate == pytest.approx(1 / (1 + c / big), abs=1e-12)
        periods = math.log(1e-6) / math.log(found.rate)
        mean_gap = (stagger + 1) / 2
        assert found.updates == pytest.approx(periods * found.period / mean_gap)
        rates.append(found.rate)
    inputs = data((12, 3), seed=3)  # other graphs than those alone, drawn one after the other
    parts = [
        certify(
            model, Data(x=x, edge_index=edges), stagger, delay, exchange=exchange, **CERTIFIED
        ).rate
        for x, edges in _parts(inputs)
    ]
    assert rates[-1] == pytest.approx(max(parts), abs=1e-12)
    assert max(parts) > min(parts) + 1e-9


def _parts(inputs):
    for g in range(int(inputs.batch.max()) + 1):
        nodes = (inputs.batch == g).nonzero()[:, 0]
        edges = inputs.edge_index[:, inputs.batch[inputs.edge_index[0]] == g]
        yield inputs.x[nodes], edges - nodes[0]


def test_the_rate_of_a_contraction_is_its_worst_modulus_every_s_plus_d_ticks():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2, replicas=3).double(), data()
    found = certify(model, inputs, 4, 3)
    problem = model.problem(Inputs(inputs.x, inputs.edge_index, None, inputs.batch))
    moduli = problem.detach().modulus()
    assert found.rate == found.constants["modulus"] == float(moduli.max()) > float(moduli.min())
    assert found.period == 7
    assert found.updates == pytest.approx(math.log(1e-6) / math.log(found.rate) * 7 / 2.5)


def test_certified_steps_are_local_and_scale_with_the_degree():
    graph = random_graph([12], seed=0)
    problem = Quadratic.random(graph)
    steps = certified_steps(problem, 9)
    busiest, idlest = graph.in_degree.argmax(), graph.in_degree.argmin()
    assert float(steps[..., busiest].max()) < float(steps[..., idlest].min())


def test_steps_below_and_above_the_certified_one():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    smallest = float(certify(model, inputs).step.min())
    high = certify(model, inputs).constants["largest_eigenvalue"]
    cases = [
        (0.5 * smallest, "is certified"),
        (1.0 / high, "not certified"),
        (3.0 / high, "diverges"),
    ]
    for step, word in cases:
        found = certify(model, inputs, step=step)
        assert word in found.own_step
        assert found.guaranteed is (word == "is certified")


def test_every_kind_of_model_gets_the_right_certificate(capsys):
    torch.manual_seed(0)
    inputs = data()
    cases = [
        (EnergyGNN(3, out_channels=2), Kind.OPTIMISATION, True),
        (GSDGNN(3, out_channels=2), Kind.OPTIMISATION, True),
        (EnergyGNN(3, out_channels=2, num_layers=2), Kind.OPTIMISATION, True),
        (
            ScarselliGNN(3, out_channels=2, num_layers=2),
            Kind.FIXED_POINT,
            False,
        ),
        (IGNN(3, out_channels=2, num_layers=2), Kind.FIXED_POINT, True),
        (IGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (EIGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (ScarselliGNN(3, out_channels=2), Kind.FIXED_POINT, False),
        (MaxGNN(3, out_channels=2), Kind.FIXED_POINT, True),
        (GCN(3, out_channels=2), Kind.EXPLICIT, False),
        (EnergyGNN(3, out_channels=2, rounds=2), Kind.OPTIMISATION, False),
    ]
    for model, kind, guaranteed in cases:
        step = "certified" if kind == Kind.OPTIMISATION else "auto"
        found = certify(model.double(), inputs, step=step)
        printed = str(found)
        assert model.kind == found.kind == kind
        assert found.guaranteed is guaranteed
        assert str(kind) in printed
        assert found.reason in printed
    assert hogwild.certify is certify


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, ScarselliGNN, MaxGNN, GCN])
def test_float32_models(make):
    torch.manual_seed(0)
    inputs = data()
    inputs.x = inputs.x.float()
    model = make(3, out_channels=2)
    assert certify(model, inputs).kind == model.kind
    run = hogwild.simulate(model, inputs, ticks=1500)
    assert run.h.dtype == run.predictions.dtype == torch.float32
    assert model.kind == Kind.EXPLICIT or float(run.deviation.max()) < 1e-3


def test_impairments_are_certified_with_the_bounds_they_leave():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    plain = certify(model, inputs, **CERTIFIED)
    slow = certify(model, inputs, **CERTIFIED, impairments=Stragglers(0.2, slowdown=4))
    assert float(slow.step.max()) < float(plain.step.max())
    assert slow.period == 20 + 2 * 2 + 20
    lost = certify(model, inputs, **CERTIFIED, impairments=[BernoulliLoss(0.1)])
    assert not lost.guaranteed
    assert "unbounded" in lost.reason


def test_directed_graphs_are_not_certified():
    torch.manual_seed(0)
    one_way = Data(x=data((3,)).x, edge_index=torch.tensor([[0, 1], [1, 2]]))
    found = certify(EnergyGNN(3, out_channels=2).double(), one_way)
    assert not found.guaranteed
    assert "no reverse link" in found.reason


@pytest.mark.parametrize(
    "options",
    [
        {"stagger": 0},
        {"delay": -1},
        {"step": -1.0},
        {"step": "fast"},
        {"step": None},
        {"rule": "magic"},
        {"rule": "fixed-point"},
        {"exchange": "none"},
        {"exchange": "exact", "impairments": EventTriggered(1e-3)},
    ],
)
def test_bad_options(options):
    with pytest.raises(ConfigError, match="expected"):
        certify(EnergyGNN(3, out_channels=2).double(), data(), **options)


def test_a_model_in_training_mode_is_certified_in_evaluation_mode():
    """Dropout is not taken for a layer that looks beyond its neighbours."""
    model = GCN(3, out_channels=2, dropout=0.5).double().train()
    assert "depends on the schedule" in certify(model, data()).reason
    assert model.training


def test_bounds_so_large_that_the_proved_rate_rounds_to_one():
    found = certify(EnergyGNN(3, out_channels=2).double(), data(), 10**15, 10**15, **CERTIFIED)
    assert found.rate == pytest.approx(1.0)
    assert math.isfinite(found.updates)
    assert found.updates > 1e6


# -- what is proved for which rule and step --------------------------------------------------------


def test_a_certificate_is_about_the_given_rule_and_step():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    for options, proved, word in [
        ({}, False, "messages are observed"),
        ({"rule": "messages"}, False, "messages are observed"),
        ({"rule": "gradient"}, False, "step='auto' are observed"),
        ({"step": "certified"}, True, "strongly convex"),
        ({"rule": "gradient", "step": "certified"}, True, "strongly convex"),
        ({"rule": "gradient", "step": 0.1}, False, "larger than the smallest certified"),
    ]:
        found = certify(model, inputs, **options)
        assert found.guaranteed is proved
        assert found.near == (0.0 if proved else None)
        assert (found.rate is not None) is proved
        assert word in found.reason
        assert found.step is not None


def test_messages_are_proved_for_quadratic_energies_without_cycles():
    torch.manual_seed(0)
    tree, loops = data(extra=0.0), data()
    tree.edge_index = torch.cat([tree.edge_index, torch.tensor([[0, 3], [0, 3]])], 1)  # no cycles
    for model, inputs, proved in [
        (GSDGNN(3, out_channels=2), tree, True),
        (GSDGNN(3, out_channels=2), loops, False),
        (EnergyGNN(3, out_channels=2), tree, False),
    ]:
        found = certify(model.double(), inputs, rule="messages")
        assert found.guaranteed is proved
        assert found.rate is None
    lossy = certify(GSDGNN(3, out_channels=2).double(), tree, impairments=BernoulliLoss(0.3))
    assert lossy.guaranteed
    assert "probability one" in lossy.reason
    assert not certify(
        GSDGNN(3, out_channels=2).double(), tree, impairments=Quantisation(0.1)
    ).guaranteed


def test_held_messages_on_a_tree_contract():
    """The proof's step: exact elimination with every node held by any ρ, at embeddings however
    old, brings all nearer in the norm with weights v = H⁻¹1."""
    torch.manual_seed(0)
    inputs = data((12,), extra=0.0)
    problem = (
        GSDGNN(3, out_channels=2).double().problem(Inputs(inputs.x, inputs.edge_index)).detach()
    )
    dense = _columns(problem.evaluate(problem.start()).hessian().apply, problem.start())[0]
    v = torch.linalg.solve(dense, torch.ones(24, dtype=torch.float64))
    assert bool((dense - dense.diagonal().diag() <= 0.0).all())
    assert bool((v > 0.0).all())
    for _ in range(5):
        hold = 10.0 * torch.rand(24, dtype=torch.float64) ** 4 / v
        shrink = (torch.linalg.solve(dense + hold.diag(), hold * v) / v).max()
        assert float(shrink) <= 1.0 - 1.0 / (1.0 + float((hold * v).max())) + 1e-12


# -- near, and not at ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "impairment", [Quantisation(0.02), EventTriggered(0.01)], ids=["quantised", "triggered"]
)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: IGNN(3, out_channels=2, act="tanh", kappa=0.9), {}),
        (lambda: EIGNN(3, out_channels=2), {}),
        (lambda: MaxGNN(3, out_channels=2, least=0.1), {}),
        (lambda: GSDGNN(3, out_channels=2, gamma=4.0, beta=1.0), CERTIFIED),
        (lambda: EnergyGNN(3, out_channels=2, beta=2.0), CERTIFIED),
    ],
    ids=["IGNN", "EIGNN", "maximum", "denoising", "energy"],
)
def test_runs_end_within_the_bound(make, options, impairment):
    torch.manual_seed(0)
    model, inputs = make().double(), data()
    found = certify(model, inputs, impairments=impairment, **options)
    assert not found.guaranteed
    assert found.rate is None
    assert found.constants["packet_error"] == 0.01
    assert 0.0 < found.near < math.inf
    assert f"within {found.near:.3g} of" in str(found)
    run = hogwild.simulate(model, inputs, ticks=300, tol=None, impairments=impairment, **options)
    distance = float((run.h - run.reference).abs().max())
    assert distance <= found.near
    assert distance > 0.0 or isinstance(model, MaxGNN)  # a maximum may survive by luck
    # The bound grows with the error, and not faster.
    twice = certify(model, inputs, impairments=[impairment, Quantisation(0.02)], **options)
    assert twice.near >= 2.0 * found.near * (1 - 1e-9)


def test_the_bound_of_a_contraction_is_attained():
    """Two nodes that hear nothing but each other, h = κ·(other), and packets wrong by δ: an error
    of κδ / (1 - κ), which the bound must not miss and cannot improve on."""
    graph = random_graph([2])
    problem = Contraction(
        graph,
        Adjacency(torch.ones(2, **DOUBLE), None, torch.ones(2, **DOUBLE)),
        torch.full((1, 1, 1), 0.8, **DOUBLE),
        torch.zeros(1, 1, 2, **DOUBLE),
        resolve("identity"),
    )
    assert float(problem.drift(0.1)) == pytest.approx(0.8 * 0.1 / 0.2)
    h = torch.zeros(1, 1, 2, **DOUBLE)
    for _ in range(200):
        h = problem.node.update(h, gather(h, graph.src) + 0.1, graph.everyone)
    assert float(h.max()) == pytest.approx(float(problem.drift(0.1)))


@pytest.mark.parametrize("seed", range(3))
def test_wrong_gradients_end_near_the_answer(seed):
    """The lemma's inequality, followed through a run with errors drawn at random."""
    graph = random_graph([6], seed=seed)
    problem = Quadratic.random(graph, coupling=0.5, seed=seed)
    stagger, delay, error = 3, 1, 0.05
    age = 2 * delay + stagger
    rows = problem.row_bounds()
    descent = Descent(rows, problem.convexity(), certified_steps(problem, age), age, stagger, graph)
    rule = gradient_rule(problem, "certified", age=age)
    simulation = Simulation(
        rule, Schedule(graph, stagger=stagger, delay=delay, seed=seed), problem.start(),
        impairments=[Quantisation(2 * error)],
    )  # fmt: skip
    for _ in range(600):
        simulation.step()
    distance = float((simulation.h - problem.answer()).norm())
    assert 0.0 < distance <= descent.near(error)


def test_stacks_under_wrong_packets_are_not_certified():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2, num_layers=2).double(), data()
    found = certify(model, inputs, impairments=Quantisation(0.01))
    assert not found.guaranteed
    assert found.near is None
    assert found.levels[0].near > 0.0
    assert "passes its error on" in found.reason


def test_maxima_stay_near_while_packet_errors_are_below_the_decrements():
    """As the table of the documentation has it."""
    torch.manual_seed(0)
    model, inputs = MaxGNN(3, out_channels=2, least=0.1).double(), data()
    problem = model.problem(Inputs(inputs.x, inputs.edge_index, None, inputs.batch))
    least = float(problem.decrement.detach().min())
    found = certify(model, inputs, impairments=EventTriggered(0.9 * least))
    assert 0.0 < found.near < math.inf
    found = certify(model, inputs, impairments=EventTriggered(1.1 * least))
    assert found.near is None
    assert "need not end at the synchronous answer; no bound" in found.reason
    assert "less than the decrease along every edge" in found.reason


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: IGNN(3, out_channels=2, act="tanh", kappa=0.9), {}),
        (lambda: EnergyGNN(3, out_channels=2), CERTIFIED),
    ],
    ids=["IGNN", "energy"],
)
def test_a_bound_larger_than_the_answer_is_reported_as_useless(make, options):
    torch.manual_seed(0)
    model, inputs = make().double(), data()
    size = float(hogwild.simulate(model, inputs, ticks=1, **options).reference.abs().max())
    for step in (1e-9, 1.0):
        found = certify(model, inputs, impairments=Quantisation(step), **options)
        assert found.constants["largest_entry"] == pytest.approx(size)
        assert (found.near > size) == (step == 1.0)
        assert ("says nothing about the answer" in str(found)) == (found.near > size)


def test_constants_are_plain_numbers():
    for model in (
        EnergyGNN(3, out_channels=2),
        GSDGNN(3, out_channels=2),
        IGNN(3, out_channels=2),
        MaxGNN(3, out_channels=2),
    ):
        for impairment in (Quantisation(0.01), ()):
            found = certify(model.double(), data(), impairments=impairment)
            assert {type(value) for value in found.constants.values()} <= {float}


def test_a_trigger_with_threshold_zero_changes_nothing():
    model, inputs = IGNN(3, out_channels=2).double(), data()
    assert certify(model, inputs, impairments=EventTriggered(0.0)).guaranteed


# -- crashes and unbounded loss --------------------------------------------------------------------


def test_no_rate_before_cold_crashes_end():
    torch.manual_seed(0)
    model, inputs = IGNN(3, out_channels=2).double(), data()
    cold = certify(model, inputs, impairments=Crashes(rejoin="cold", until=300))
    warm = certify(model, inputs, impairments=Crashes(rejoin="warm", until=300))
    assert cold.guaranteed
    assert warm.guaranteed
    assert cold.since == 300 + cold.period - 2  # S more ticks, until all are back
    assert warm.since == 0
    assert cold.rate == warm.rate
    assert f"from tick {cold.since} on" in str(cold)
    assert "nothing is proved about the time before" in cold.reason


def test_the_rate_holds_once_cold_crashes_have_ended():
    torch.manual_seed(0)
    inputs = data((9,))
    model = IGNN(3, out_channels=2, act="identity", kappa=0.95).double()
    crashes = Crashes(0.5, period=40, downtime=10, until=45, rejoin="cold")
    found = certify(model, inputs, impairments=crashes)
    problem = model.problem(Inputs(inputs.x, inputs.edge_index)).detach()
    v = problem.adjacency.perron
    run = hogwild.simulate(
        model, inputs, impairments=crashes, tol=None, history=1, keep_embeddings=True, ticks=400
    )
    error = ((run.embeddings[:, 0] - run.reference).abs().amax(-1) / v).amax(-1)
    assert float(error[45:60].max()) > 0.1 * float(error[0])  # crashes have thrown it back
    # A view after `since` may hold embeddings from D ticks before it.
    last, window = found.period + 2, error[found.since - 2 :]
    for t in range(len(window) - last):
        assert float(window[t + last]) <= found.rate * float(window[: t + 3].max()) + 1e-12


@pytest.mark.parametrize(
    ("impairment", "hope"),
    [
        (BernoulliLoss(0.9), True),
        (BernoulliLoss(1.0), False),
        (GilbertElliott(0.1, 0.3), True),
        (GilbertElliott(0.1, 0.0), False),
        (GilbertElliott(0.1, 0.0, bad=0.5), True),
        (GilbertElliott(0.0, 0.1, good=1.0, bad=0.0), False),
        (GilbertElliott(0.1, 0.1, good=1.0, bad=1.0), False),
        (LinkChurn(0.9, period=6, downtime=4), True),
        (LinkChurn(1.0, period=6, downtime=4), False),
        ([BernoulliLoss(0.5), GilbertElliott()], True),
    ],
)
def test_unbounded_loss(impairment, hope):
    """Fixed points still converge, with probability one; certified steps need a bound."""
    torch.manual_seed(0)
    inputs = data()
    for model in (
        IGNN(3, out_channels=2),
        MaxGNN(3, out_channels=2),
        IGNN(3, out_channels=2, num_layers=2),
    ):
        found = certify(model.double(), inputs, impairments=impairment)
        assert found.guaranteed is hope
        assert found.rate is None
        assert ("probability one" in found.reason) is hope
    energy = certify(
        EnergyGNN(3, out_channels=2).double(), inputs, **CERTIFIED, impairments=impairment
    )
    assert not energy.guaranteed
    assert "unbounded" in energy.reason
    assert energy.step is None


def test_a_certificate_as_data():
    """What `hogwild certify --json` prints: keys that are names, values that JSON knows."""
    torch.manual_seed(0)
    inputs = data()
    for model in (
        EnergyGNN(3, out_channels=2),
        IGNN(3, out_channels=2),
        GCN(3, out_channels=2),
        EnergyGNN(3, out_channels=2, num_layers=2),
    ):
        step = "certified" if model.kind == Kind.OPTIMISATION else "auto"
        found = certify(model.double(), inputs, step=step).data
        assert all(key.isidentifier() and key.isascii() for key in found)
        assert json.loads(json.dumps(found)) == found
    found = certify(EnergyGNN(3, out_channels=2).double(), inputs, step="certified").data
    assert found["certified_step_min"] < found["certified_step_max"]
    assert found["strong_convexity"] == 0.04
    assert found["guaranteed"] is True


def test_a_rule_that_cannot_run_is_not_guaranteed():
    one_way = Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    model = GCN(2, out_channels=1, num_layers=2)
    found = certify(model, one_way, rule="resending")
    assert not found.guaranteed
    assert "no reverse link" in found.reason
    assert certify(model, one_way, rule="caching").guaranteed
