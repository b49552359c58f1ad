"""Algorithm 1, simulated: against a plain reading of it, and against the solver's answers."""

import pytest
import torch
from helpers import bounded, energy, graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.maximum import MaxGNN
from hogwild import EIGNN, GCN, GSDGNN, IGNN, EnergyGNN, Inputs, ScarselliGNN, simulate
from hogwild.asynchrony.impairments import (
    Crashes,
    EventTriggered,
    Quantisation,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.executors.simulation import Simulation
from hogwild.rules import fixed_point_rule, gradient_rule
from hogwild.testing.problems import Affine, Quadratic, random_graph

# -- the algorithm itself -------------------------------------------------------------------------


def plain(problem, schedule, step, ticks):
    """Algorithm 1 node by node, with the whole past kept in lists: nothing clever at all."""
    graph = problem.graph
    n = graph.num_nodes
    into = [[e for e in range(graph.num_edges) if int(graph.dst[e]) == i] for i in range(n)]
    back = {(int(graph.src[e]), int(graph.dst[e])): e for e in range(graph.num_edges)}

    def gradients(i, own, views):
        at = graph.star(torch.tensor([i]))
        inbox = torch.stack([views[int(e)] for e in at.edges], -1) if len(at.edges) else (
            own.new_zeros(1, problem.channels, 0))  # fmt: skip
        mine, toward = problem.node.local(own.unsqueeze(-1), inbox, at)
        letters = {int(graph.src[e]): toward[..., p] for p, e in enumerate(at.edges)}
        return mine[..., 0], letters

    h = torch.zeros(1, problem.channels, n, dtype=torch.float64)
    past_h, past_g = [h.clone()], []  # by time: embeddings, and letters g[j][i] from j to i
    own, letters = [None] * n, [None] * n
    for i in range(n):
        views = {e: h[..., int(graph.src[e])] for e in into[i]}
        own[i], letters[i] = gradients(i, h[..., i], views)
    for t in range(ticks):
        tick = schedule.tick(t)
        view = dict(zip(tick.at.edges.tolist(), tick.view.tolist(), strict=True))
        nodes = tick.at.nodes.tolist()
        heard = {i: {e: past_h[view[e]][..., int(graph.src[e])] for e in into[i]} for i in nodes}
        past_g.append([dict(g) for g in letters])
        fresh = {}
        for i in nodes:
            g = own[i]
            for e in into[i]:
                g = g + past_g[view[e]][int(graph.src[e])][i]
            fresh[i] = h[..., i] - step * g
        for i in nodes:
            h[..., i] = fresh[i]
        for i in nodes:
            own[i], letters[i] = gradients(i, h[..., i], heard[i])
        past_h.append(h.clone())
    assert back
    return h


@pytest.mark.parametrize(("stagger", "delay"), [(1, 0), (1, 2), (4, 0), (5, 2), (2, 5)])
def test_the_simulation_is_algorithm_1(stagger, delay):
    graph = random_graph([6], seed=2)
    problem = Quadratic.random(graph)
    options = {"stagger": stagger, "delay": delay, "seed": 3}
    slow = plain(problem, Schedule(graph, **options), 0.05, 40)
    fast = Simulation(
        gradient_rule(problem, 0.05),
        Schedule(graph, **options),
        torch.zeros_like(slow),
    )
    for _ in range(40):
        fast.step()
    torch.testing.assert_close(fast.h, slow, rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", [energy(), GSDGNN(3, out_channels=2).double()])
def test_updates_together_are_gradient_descent_where_packets_hold_no_gradients(model):
    graph = random_graph([3, 8], seed=1)
    x = torch.randn(11, 3, dtype=torch.float64)
    problem = model.problem(
        Inputs(x, torch.stack([graph.src, graph.dst]), None, graph.batch)
    ).detach()
    rule = gradient_rule(problem, 0.05)
    simulation = Simulation(rule, Schedule(problem.graph, stagger=1, delay=0), problem.start())
    simulation.step()  # nobody updates at time 0
    h, gaps = problem.start(), []
    with torch.no_grad():
        for _ in range(30):
            simulation.step()
            h = h - 0.05 * problem.evaluate(h).gradient
            gaps.append(float((h - simulation.h).abs().max()))
    if not rule.letter_width:
        assert max(gaps) < 1e-12
    else:  # gradients in packets are one step behind: not the same algorithm
        assert max(gaps) > 1e-3


def test_fixed_point_rule_without_asynchrony_is_picard():
    problem = Affine.random(random_graph([3, 8], seed=1), replicas=2)
    simulation = Simulation(
        fixed_point_rule(problem), Schedule(problem.graph, stagger=1, delay=0), problem.start()
    )
    simulation.step()
    h = problem.start()
    for _ in range(20):
        simulation.step()
        h = problem.step(h)
        assert torch.equal(h, simulation.h)


# -- convergence ----------------------------------------------------------------------------------

COLD = Crashes(0.2, period=60, downtime=10, until=150, rejoin="cold")
BOUNDED = [*bounded(0.3, until=150), COLD]
SCHEDULES = (
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 4),
    st.lists(st.sampled_from(BOUNDED), max_size=2, unique=True),
)
"""Seed, stagger, delay and impairments."""
MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2, beta=0.5),  # more convex: fewer ticks
    "energy, messages of nodes": lambda: EnergyGNN(3, out_channels=2, beta=0.5, message="node"),
    "energy, attention": lambda: EnergyGNN(3, out_channels=2, heads=2, beta=0.5),
    "energy, normalised": lambda: EnergyGNN(3, out_channels=2, beta=0.5, normalize=True),
    "denoising": lambda: GSDGNN(3, out_channels=2),
    "IGNN": lambda: IGNN(3, out_channels=2),
    "EIGNN": lambda: EIGNN(3, out_channels=2),
    "Scarselli": lambda: ScarselliGNN(3, out_channels=2),
    "maximum": lambda: MaxGNN(3, out_channels=2),
}
NAMES = list(MODELS)


def ends_at_the_solvers_answer(name, rule, seed, stagger, delay, impairments):
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    data = graphs([int(n) for n in torch.randint(1, 7, (3,))], seed=seed)
    run = simulate(
        model, data, stagger=stagger, delay=delay, seed=seed, impairments=impairments,
        ticks=6000, tol=1e-6, rule=rule,
    )  # fmt: skip
    assert bool(run.converged.all()), run
    assert all(run.assumptions.values()) or not run.staleness.bounded
    out = model(data.x, data.edge_index, None, data.batch)
    torch.testing.assert_close(run.predictions[0], out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", range(2 * len(BOUNDED)))
def test_every_implicit_model_ends_at_the_solvers_answer(case):
    """Every impairment, alone in one half of the cases and beside the next one in the other, with
    models, rules, staggers and delays by turns."""
    impairments = (BOUNDED * 3)[case : case + 1 + case % 2]
    name = NAMES[case % len(NAMES)]
    rule = "gradient" if name.startswith("energy") and case < len(BOUNDED) else "auto"
    ends_at_the_solvers_answer(name, rule, case, 1 + case % 4, case % 3, impairments)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.sampled_from(NAMES), st.just("auto"), *SCHEDULES)
def test_every_implicit_model_ends_at_the_solvers_answer_in_any_combination(
    name, rule, seed, stagger, delay, impairments
):
    ends_at_the_solvers_answer(name, rule, seed, stagger, delay, impairments)


def test_certified_steps_converge():
    graph = random_graph([3, 6], seed=4)
    problem = Quadratic.random(graph, coupling=0.2)
    problem.q = torch.eye(2, dtype=torch.float64).unsqueeze(0)  # well conditioned
    answer = problem.answer()
    rule = gradient_rule(problem, "certified", age=2 * 1 + 2)
    simulation = Simulation(rule, Schedule(graph, stagger=2, delay=1), problem.start())
    error = [float((simulation.h - answer).abs().max())]
    for _ in range(800):
        simulation.step()
    error.append(float((simulation.h - answer).abs().max()))
    assert error[1] < 1e-5 * error[0]


def test_explicit_models_do_not_agree_unless_nodes_wait():
    torch.manual_seed(0)
    model, data = GCN(3, out_channels=2).double(), graphs((10, 14))
    run = simulate(model, data, runs=8, rule="overwriting")
    assert float(run.deviation.min()) > 1e-3
    assert float(run.predictions.std(0).max()) > 1e-3
    assert bool((run.updates == model.conv.num_layers).all())
    together = simulate(model, data, stagger=1, delay=0, rule="overwriting")
    assert float(together.deviation.max()) < 1e-12

    patient = simulate(model, data, rule="resending", runs=8)
    assert float(patient.deviation.max()) < 1e-12


def test_rare_updates_do_not_count_as_stalled():
    torch.manual_seed(0)
    model, data = GCN(3, out_channels=2, num_layers=2).double(), graphs((2,))
    run = simulate(model, data, stagger=2000, ticks=25_000, rule="overwriting")
    assert bool((run.updates == model.conv.num_layers).all())


# -- inexact packets ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1e-2, 1e-4])
def test_quantised_packets_end_within_their_error_bound(step):
    r"""At rest the true gradient is what rounding leaves: each letter is off by step/2, and each
    view by step/2, which moves a node's gradients by at most P's row sum times it; strong
    convexity divides by β."""
    graph = random_graph([8], seed=3)
    problem = Quadratic.random(graph, coupling=0.3)
    answer = problem.answer()
    simulation = Simulation(
        gradient_rule(problem, 0.1), Schedule(graph), problem.start(),
        impairments=[Quantisation(step)],
    )  # fmt: skip
    for _ in range(2000):
        simulation.step()
    degree = float(graph.in_degree.max())
    entry = 0.5 * step * (degree + float(problem.row_bounds().max()))
    bound = entry * answer.numel() ** 0.5 / float(problem.convexity().min())
    error = float((simulation.h - answer).norm())
    assert 0 < error <= bound
    assert error > 1e-3 * step  # rounding does show


def test_event_triggered_sending_saves_packets():
    model, data = energy(beta=1.0), graphs((12,))
    options = {"runs": 1, "tol": None, "ticks": 300, "rule": "gradient"}
    always = simulate(model, data, **options)
    seldom = simulate(model, data, impairments=EventTriggered(1e-3), **options)
    assert int(seldom.packets.sum() + seldom.saved.sum()) == int(always.packets.sum())
    assert int(seldom.saved.sum()) > 0.3 * int(always.packets.sum())
    assert torch.equal(
        seldom.bytes * int(always.packets.sum()), seldom.packets * int(always.bytes.sum())
    )
    assert float(seldom.deviation.max()) < 0.1


def test_a_changed_letter_is_sent():
    """Even where the embedding beside it has not."""
    problem = Quadratic.random(random_graph([5], seed=1))
    trigger = EventTriggered(0.5)
    simulation = Simulation(
        gradient_rule(problem, 0.01),
        Schedule(problem.graph),
        problem.start(),
        impairments=[trigger],
    )
    star = problem.graph.star(torch.tensor([0, 3]))
    node, letters = simulation.outbox.last(star)

    def sends(node, letters):
        return trigger.worth_sending(simulation._change(star, node, letters)).tolist()

    assert sends(node, letters) == [False, False]
    changed = letters.clone()
    changed[..., star.slot == 1] += 0.6
    assert sends(node, changed) == [False, True]
    assert sends(node + 0.6, letters) == [True, True]
