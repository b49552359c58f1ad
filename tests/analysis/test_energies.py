"""Certificates of energies: constants, steps, rates and bounds, against runs and matrices."""

import math
import re

import pytest
import torch
from certified import CERTIFIED, data
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_nodes import PAIRWISE, pairwise
from torch_geometric.data import Data

from hogwild import GSDGNN, EnergyGNN, Inputs, SoftEnergyGNN, simulate
from hogwild.analysis.certify import certify
from hogwild.analysis.energies import Descent
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Quantisation,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.models.base import Kind
from hogwild.rules import gradient_rule, message_rule
from hogwild.rules.base import THETA, certified_steps
from hogwild.solvers import Newton, solve
from hogwild.testing.problems import Quadratic, _columns, random_graph
from hogwild_node.rules.elimination import Messages


def test_the_constants_of_an_energy():
    torch.manual_seed(0)
    model, inputs = EnergyGNN(3, out_channels=2).double(), data()
    found = certify(model, inputs, **CERTIFIED)
    assert found.guaranteed
    assert found.kind == Kind.OPTIMISATION
    assert found.constants["strong_convexity"] == 0.04
    assert found.constants["smallest_eigenvalue"] >= 0.04 * (1 - 1e-9)
    assert found.constants["largest_row_sum"] >= found.constants["largest_eigenvalue"]
    assert found.constants["content_age"] == 2 * 2 + 5
    args = (inputs.x, inputs.edge_index, None, inputs.batch)
    problem, h = (
        model.problem(Inputs(*args)).detach(),
        model.embed(Inputs(*args)).value.mT.unsqueeze(0),
    )
    values = torch.linalg.eigvalsh(_columns(problem.evaluate(h).hessian().apply, h)[0])
    for name, value in (("smallest", values[0]), ("largest", values[-1])):
        assert found.constants[f"{name}_eigenvalue"] == pytest.approx(float(value))
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


def follow(problem, descent, rule, start, least, seed, ticks):
    r"""The theorem's potential Φ at every tick of a run. It never grows, by at least what the proof
    says, and shrinks at the proved rate; the constants are written out here."""
    rows, apart, age, stagger = descent.rows, descent.apart, descent.age, descent.stagger
    delay = (age - stagger) // 2 if descent.letters else age
    c = float((1 / (descent.steps * rows) - 0.5 - age * apart / rows).min())
    rho, mu = float((apart / rows).max()), float(problem.convexity().min() / rows.max())
    late = rho * math.sqrt(age + stagger if descent.letters else max(age, stagger - 1))
    big = (float((1 / (descent.steps * rows)).max()) + late) ** 2 / (2 * mu) + 0.5 * rho * age
    assert descent.shrink() >= c / big * (1 - 1e-9)
    schedule = Schedule(problem.graph, stagger=stagger, delay=delay, seed=seed)
    simulation = Simulation(rule, schedule, start)
    moves, potentials = [], []
    for t in range(ticks):
        window = [0.0] * max(age - len(moves), 0) + [q for _, q in moves[max(t - age, 0) :]]
        gap = float((problem.evaluate(simulation.h).value - least).sum())
        potentials.append(gap + 0.5 * sum((p + 1) * m for p, m in enumerate(window)))
        before = simulation.h.clone()
        simulation.step()
        square = (simulation.h - before).square()
        moves.append((float((rows * square).sum()), float((apart * square).sum())))
        if t:
            assert potentials[-1] <= potentials[-2] - c * moves[-2][0] + 1e-9
    for t in range(age + 1, ticks - stagger):  # no node has a turn at tick 0
        assert potentials[t + stagger] <= potentials[t - age] / (1 + c / big) + 1e-9
    return potentials


def test_the_proved_rate_holds_in_a_run():
    graph, stagger, delay = random_graph([6], seed=2), 4, 2
    problem, age = Quadratic.random(graph, coupling=0.5), 2 * delay + stagger
    rows, steps = problem.row_bounds(), certified_steps(problem, age)
    torch.testing.assert_close(steps, THETA / ((0.5 + age) * rows).expand_as(steps))
    descent = Descent(rows, rows, problem.convexity(), steps, age, stagger, graph)
    rule, least = gradient_rule(problem, "certified", age=age), problem.evaluate(problem.answer())
    found = follow(problem, descent, rule, problem.start(), least.value, 7, 400)
    assert found[-1] < 0.9 * found[0]


@pytest.mark.parametrize("name", PAIRWISE)
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(0, 2))
def test_the_proved_rate_holds_where_nodes_compute_both_sides(name, seed, stagger, delay):
    """On graphs with loops and parallel edges: packets are as old as the delay, and what a node
    reads of itself is not old."""
    problem = pairwise(name, seed, [(0, 0), (0, 1), (0, 1), (1, 2), (2, 3), (3, 0), (3, 4)], 5)
    rule = gradient_rule(problem, "certified", age=delay)
    assert rule.letter_width == 0
    found = solve(problem, Newton(atol=1e-12), problem.start())
    steps = certified_steps(problem, delay, letters=False)
    rows, apart = (bound.expand_as(steps) for bound in problem.block_bounds())
    graph, least = problem.graph, problem.evaluate(found.value).value
    descent = Descent(rows, apart, problem.convexity(), steps, delay, stagger, graph, False)
    found = follow(problem, descent, rule, problem.start() + 1.0, least, seed, 120)
    assert found[-1] < 0.5 * found[0]


def test_the_rate_of_a_certificate_is_the_theorems():
    """Of energies: 1 / (1 + c/C) every S + D' ticks, of the worst graph."""
    torch.manual_seed(0)
    model, stagger, delay = EnergyGNN(3, out_channels=2).double(), 4, 3
    age = 2 * delay + stagger
    rates = []
    for sizes in [(12,), (3,), (12, 3)]:
        inputs = data(sizes, seed=3)
        found = certify(model, inputs, stagger, delay, **CERTIFIED)
        assert found.period == stagger + age
        if len(sizes) == 1:
            problem = model.problem(Inputs(inputs.x, inputs.edge_index)).detach()
            a = THETA / (0.5 + age)
            c, mu = 1 / a - 0.5 - age, 0.04 / float(problem.row_bounds().max())
            big = (1 / a + math.sqrt(age + stagger)) ** 2 / (2 * mu) + 0.5 * age
            assert found.rate == pytest.approx(1 / (1 + c / big), abs=1e-12)
        periods = math.log(1e-6) / math.log(found.rate)
        mean_gap = (stagger + 1) / 2
        assert found.updates == pytest.approx(periods * found.period / mean_gap)
        rates.append(found.rate)
    inputs = data((12, 3), seed=3)  # other graphs than those alone, drawn one after the other
    parts = [
        certify(model, Data(x=x, edge_index=edges), stagger, delay, **CERTIFIED).rate
        for x, edges in _parts(inputs)
    ]
    assert rates[-1] == pytest.approx(max(parts), abs=1e-12)
    assert max(parts) > min(parts) + 1e-9


def _parts(inputs):
    for g in range(int(inputs.batch.max()) + 1):
        nodes = (inputs.batch == g).nonzero()[:, 0]
        edges = inputs.edge_index[:, inputs.batch[inputs.edge_index[0]] == g]
        yield inputs.x[nodes], edges - nodes[0]


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
    for step, reason in (
        (0.5 * smallest, "steps of at most the certified size"),
        (3.0 / high, f"larger than the smallest .* steps above 2/λ_max = {2.0 / high:.3g} diverge"),
    ):
        found = certify(model, inputs, step=step)
        assert re.search(reason, found.reason)
        assert found.guaranteed is (step < smallest)


def test_bounds_so_large_that_the_proved_rate_rounds_to_one():
    found = certify(EnergyGNN(3, out_channels=2).double(), data(), 10**15, 10**15, **CERTIFIED)
    assert found.rate == pytest.approx(1.0)
    assert math.isfinite(found.updates)
    assert found.updates > 1e6


def test_messages_are_proved_for_denoising_on_every_graph():
    torch.manual_seed(0)
    tree, loops = data(extra=0.0), data()
    loops.edge_index = torch.cat([loops.edge_index, torch.tensor([[0, 3], [0, 3]])], 1)
    for model, inputs, proved in [
        (GSDGNN(3, out_channels=2), tree, True),
        (GSDGNN(3, out_channels=2), loops, True),
        (EnergyGNN(3, out_channels=2), tree, False),
    ]:
        found = certify(model.double(), inputs, rule="messages")
        assert found.guaranteed is proved
        assert (found.rate is not None) is proved
        assert found.local.period == 7
    lossy = certify(GSDGNN(3, out_channels=2).double(), loops, impairments=BernoulliLoss(0.3))
    assert lossy.guaranteed
    assert lossy.rate is lossy.local is None
    assert "probability one" in lossy.reason
    assert not certify(
        GSDGNN(3, out_channels=2).double(), loops, impairments=Quantisation(0.1)
    ).guaranteed


@pytest.mark.parametrize("seed", range(3))
def test_messages_of_denoising_contract_on_cycles_in_every_window(seed):
    """The norm of the proof, of all messages and embeddings of a run, shrinks by the proved factor
    every S + D ticks."""
    torch.manual_seed(seed)
    inputs = data((7,), extra=0.8, seed=seed)
    model = GSDGNN(3, out_channels=2).double()
    problem = model.problem(Inputs(inputs.x, inputs.edge_index)).detach()
    answer = model.embed(Inputs(inputs.x, inputs.edge_index)).value.detach().mT[None]
    stagger, delay = 3, 2
    rate = certify(model, inputs, stagger, delay, rule="messages").rate
    rule, graph, k = message_rule(problem), problem.graph, 2
    simulation = Simulation(
        rule, Schedule(graph, stagger=stagger, delay=delay, seed=seed), 3.0 + answer
    )
    weights = {
        (int(s), int(d)): float(w)
        for s, d, w in zip(graph.src, graph.dst, problem.weight, strict=True)
    }
    degree = problem.root**-2
    v = degree.sqrt()
    _, letters = problem.node.local(answer, graph.everyone.current(answer), graph.everyone)
    letter = {
        (int(s), int(d)): letters[0, :, e]
        for e, (s, d) in enumerate(zip(graph.src, graph.dst, strict=True))
    }

    def norm():
        found = float(((simulation.h - answer).abs() / v).max())
        for e, (j, i) in enumerate(
            zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        ):  # μ from i to j
            one = Messages.unpack(rule.sent[:, : rule.width, e : e + 1], k)
            here = torch.cat([answer[0, :, i], answer[0, :, j]])
            slope = (one.precision[0, 0] @ here - one.linear[0, 0])[:k]
            wrong = slope + letter[i, j]  # ∂e^j/∂h_i at the answer
            share = problem.beta * weights[i, j] / float(degree[i])
            own = float(one.precision[0, 0, 0, 0]) + share
            both = problem.beta * (weights[i, j] + weights[j, i]) / float(v[i] * v[j])
            margin = own * float(v[i]) - both * float(v[j])
            assert margin >= 2.0 * problem.gamma * float(v[i]) - 1e-9
            found = max(found, float(wrong.abs().max()) / margin)
        return found

    norms = []
    for _ in range(40):
        norms.append(norm())
        simulation.step()
    for t in range(len(norms) - stagger - delay):
        later, before = max(norms[t + stagger + delay :]), max(norms[t:])
        assert later <= rate * before + 1e-9
    assert norms[-1] < 0.05 * norms[0]


@pytest.mark.parametrize("seed", range(3))
def test_wrong_gradients_end_near_the_answer(seed):
    """The lemma's inequality, followed through a run with errors drawn at random."""
    graph = random_graph([6], seed=seed)
    problem = Quadratic.random(graph, coupling=0.5, seed=seed)
    stagger, delay, error = 3, 1, 0.05
    age = 2 * delay + stagger
    rows = problem.row_bounds()
    steps = certified_steps(problem, age)
    descent = Descent(rows, rows, problem.convexity(), steps, age, stagger, graph)
    rule = gradient_rule(problem, "certified", age=age)
    simulation = Simulation(
        rule, Schedule(graph, stagger=stagger, delay=delay, seed=seed), problem.start(),
        impairments=[Quantisation(2 * error)],
    )  # fmt: skip
    for _ in range(600):
        simulation.step()
    distance = float((simulation.h - problem.answer()).norm())
    assert 0.0 < distance <= descent.near(error)


def test_packets_of_embeddings_are_proved_to_arrive_within_hundreds_of_updates():
    """The certificate of a soft energy, whose condition number is known, and runs beside it."""
    torch.manual_seed(0)
    model = SoftEnergyGNN(3, hidden_channels=8, out_channels=1, condition=5.0).double()
    inputs = data((8, 5))
    found = certify(model, inputs, rule="gradient", step="certified")
    assert found.guaranteed
    assert found.constants["content_age"] == 2  # D, not 2 D + S
    assert found.updates < 1000
    run = simulate(model, inputs, rule="gradient", step="certified", runs=3)
    assert bool(run.converged.all())
    assert 5.0 < run.price.updates < found.updates
    near = certify(
        model, inputs, rule="gradient", step="certified", impairments=Quantisation(0.02)
    ).near
    run = simulate(
        model, inputs, rule="gradient", step="certified", impairments=Quantisation(0.02), runs=3
    )
    wrong = (run.h - run.reference).square().sum((1, 2)).sqrt()
    assert 0.0 < float(wrong.max()) <= near


def test_stacks_send_letters_above_their_first_level():
    """There nodes pose the problem from what they heard, and so know their own side only."""
    torch.manual_seed(0)
    model = SoftEnergyGNN(3, hidden_channels=2, out_channels=1, condition=3.0, num_layers=2)
    inputs = data((6,))
    run = simulate(model.double(), inputs, rule="gradient", step="certified", tol=1e-4)
    assert bool(run.converged.all())
    assert int(run.bytes.sum()) == 4 * (2 + 2 + 2 + 2) * int(run.packets.sum())
    found = certify(model, inputs, rule="gradient", step="certified")
    assert found.guaranteed
    assert [level.constants["content_age"] for level in found.levels] == [9, 9]
