"""Solves of balls: exact answers under loss, delay and lost memories, and what they cost."""

import itertools
import warnings
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import hogwild
from experiments.maximum import MaxGNN
from hogwild.asynchrony.impairments import BernoulliLoss, Crashes, EventTriggered, Quantisation
from hogwild.asynchrony.schedule import Schedule
from hogwild.errors import AsynchronyError, ConfigError
from hogwild.executors.simulation import Simulation
from hogwild.graph import Graph
from hogwild.rules import rule_for
from hogwild.rules.balls import LARGEST, BallsRule, usual_radius
from hogwild.solvers import Newton
from hogwild.testing import check_rule
from hogwild.testing.problems import Affine, Quadratic, random_graph
from hogwild_node.reports import EMBEDDING, HEAD


def path(n):
    """Nodes in a row."""
    right = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return Graph.of(torch.cat([right, right.flip(0)], 1), n)


def error(problem, h):
    answer = problem.answer()
    return float((h - answer).abs().max() / answer.abs().max())


def after_solves(problem, radius, told):
    """The embeddings after a solve of every node, which has heard these embeddings [R, k, N, N] of
    its rim: the node is the last dimension."""
    rule = simulated(problem, radius, ticks=80).rule
    for i, node in enumerate(rule.nodes):
        reports = node.ball.flood.reports
        for key, report in reports.items():
            if key[0] == EMBEDDING:
                reports[key] = replace(report, content=told[..., int(key[1]), i].numpy())
        assert node.ball.full
        node.ball.answered = node.ball.depends()
    return rule._solve(list(range(problem.graph.num_nodes)), problem.start())


def simulated(problem, radius, *, ticks, impairments=(), stagger=3, delay=2, seed=0):
    rule = BallsRule(problem, radius)
    graph = problem.graph
    schedule = Schedule(graph, stagger=stagger, delay=delay, seed=seed, impairments=impairments)
    simulation = Simulation(rule, schedule, problem.start(), impairments=impairments)
    for _ in range(ticks):
        simulation.step()
    return simulation


@pytest.mark.parametrize(
    ("kind", "radius"), [("objective", 2), ("fixed-point", 2), ("objective", None)]
)
def test_conforms(kind, radius):
    check_rule(lambda problem: BallsRule(problem, radius), kind=kind, ticks=200)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 999),
    radius=st.sampled_from([None, 1, 2, 4]), fixed=st.booleans(),
    rate=st.sampled_from([0.0, 0.3, 0.6]), crashes=st.booleans(),
)  # fmt: skip
def test_exact_answers_under_loss_and_crashes(sizes, seed, radius, fixed, rate, crashes):
    graph = random_graph(sizes, seed=seed)
    problem = (Affine.random(graph, kappa=0.5, seed=seed) if fixed
               else Quadratic.random(graph, coupling=0.3, seed=seed))  # fmt: skip
    impairments = [BernoulliLoss(rate)] if rate else []
    if crashes:
        impairments.append(Crashes(rate=0.5, period=40, downtime=10, rejoin="cold", until=120))
    done = simulated(problem, radius, ticks=130, impairments=impairments, seed=seed)
    for _ in range(400):
        if error(problem, done.h) < 1e-6:
            break
        done.step()
    assert error(problem, done.h) < 1e-6
    assert all(node.ball.full for node in done.rule.nodes)


def test_a_ball_with_its_rim_at_the_answer_gives_the_answer():
    """A solve for the exact rim is exact, whatever the radius."""
    graph = random_graph([12], seed=3)
    problem = Quadratic.random(graph, seed=3)
    answer = problem.answer()
    found = after_solves(problem, 1, answer[..., None].expand(-1, -1, -1, 12))
    torch.testing.assert_close(found, answer, rtol=0, atol=1e-7)


def test_smaller_balls_contract_by_the_proved_factor():
    """|h_i − h*_i| ≤ ρ^m max_B |h_b − h*_b| with m = ⌈(r + 1) / 2⌉, where the Hessian is diagonally
    dominant with ρ."""
    graph, coupling = path(15), 1.0
    rng = torch.Generator().manual_seed(0)
    b = torch.randn(1, 1, 15, generator=rng, **DOUBLE)
    problem = Quadratic(graph, torch.ones(1, 1, 1, **DOUBLE), b, coupling)
    answer = problem.answer()
    rho = 4 * coupling / (1 + 4 * coupling)  # each neighbour couples twice, once an edge
    for radius in (0, 1, 2, 3):
        wrong = torch.randn(1, 1, 15, 15, generator=rng, **DOUBLE).clamp(-1, 1)
        found = after_solves(problem, radius, answer[..., None] + wrong)
        power = (radius + 2) // 2
        assert float((found - answer).abs().max()) <= rho**power + 1e-7


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (hogwild.EnergyGNN, {"heads": 2}),
        (hogwild.EnergyGNN, {"message": "node", "normalize": True, "replicas": 2}),
        (hogwild.GSDGNN, {}),
        (hogwild.EIGNN, {}),
        (MaxGNN, {}),
        (hogwild.ScarselliGNN, {}),
    ],
)
def test_models_of_one_layer(model, options):
    torch.manual_seed(0)
    graph = random_graph([6, 4], seed=1)
    data = Data(x=torch.randn(10, 3), edge_index=torch.stack([graph.src, graph.dst]))
    trained = model(3, out_channels=1, **options)
    for radius in (None, 1):
        run = hogwild.simulate(trained, data, rule="balls", radius=radius, ticks=2000)
        assert bool(run.converged.all())


def test_problems_whose_pieces_are_not_known_are_refused():
    class Odd(Quadratic):
        def select(self, replicas, graphs):
            return super().select(replicas, graphs)

    problem = Odd(*vars(Quadratic.random(path(3))).values())
    with pytest.raises(AsynchronyError, match="has a select"):
        simulated(problem, None, ticks=5)


def test_an_energy_whose_model_says_no_widths():
    torch.manual_seed(0)
    graph = random_graph([9], seed=1)
    conv = hogwild.EnergyConv(3, solver=Newton(linear="cg")).to(**DOUBLE)
    inputs = hogwild.Inputs(torch.randn(9, 3, **DOUBLE), torch.stack([graph.src, graph.dst]))
    with torch.no_grad():
        problem = conv.problem(inputs).detach()
        answer = conv.embed(inputs).value.mT
    assert problem.numbers_per_node_and_edge == (3, 0)
    done = simulated(problem, None, ticks=40)
    torch.testing.assert_close(done.h[0], answer, rtol=0, atol=1e-6)


def test_a_change_of_the_graph_begins_the_flood_anew():
    torch.manual_seed(0)
    model = hogwild.EnergyGNN(3, out_channels=1)
    pair = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    first = Data(x=torch.randn(4, 3), edge_index=pair)
    later = Data(x=torch.randn(4, 3), edge_index=pair[:, :4])
    scenario = hogwild.Scenario([first, later], times=[0, 60], length=120)
    seen = hogwild.track(model, scenario, rule="balls", runs=2)
    for tick in (59, 119):
        assert float(seen.error[tick].max()) < 1e-5


@pytest.mark.parametrize("radius", [None, 2])
@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_change_of_features_floods_nothing_else(radius, faulty, every):
    """Nodes solve with the old features until they hear of the new ones, and tell only these, even
    if they change again before any packet arrives."""
    torch.manual_seed(0)
    model = hogwild.EnergyGNN(3, out_channels=1, beta=1.0).double()
    pairs = torch.stack([torch.arange(9), torch.arange(1, 10)])
    first = Data(x=torch.randn(10, 3, **DOUBLE), edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    frames, times, three = [first], [0, *range(150, 155, every), 155], torch.eye(10, 3, **DOUBLE)
    for time in times[1:]:
        frames.append(first.clone())  # three nodes change, and at last three at the other end
        frames[-1].x = frames[-2].x + (three if time < 155 else -three.flip(0))
    crashes = Crashes(0.5, 40, 10, rejoin="cold", until=250)
    faults = (BernoulliLoss(0.3), crashes) if faulty else ()
    seen = hogwild.track(
        model, hogwild.Scenario(frames, times=times, length=400),
        rule="balls", radius=radius, impairments=faults, keep_embeddings=True,
    )  # fmt: skip
    assert float(seen.error[-1].max()) < 1e-5
    if not faulty:
        assert float(seen.error[149].max()) < 1e-5
        moved = seen.embeddings[150:155, 0, -1] - seen.embeddings[149, 0, -1]
        assert float(moved.abs().max()) < 1e-5  # the far end has not heard yet
        news = seen.bytes - HEAD.size * seen.packets
        if radius is None:  # now and then all reports are told again
            assert news[-1] - news[149] < 2 * news[149]


def test_embeddings_are_sent_only_where_there_is_a_rim():
    problem = Quadratic.random(path(9), coupling=0.3)
    whole, wide, narrow = (simulated(problem, r, ticks=150) for r in (None, 8, 2))
    assert torch.equal(whole.h, wide.h)
    assert torch.equal(whole.tally.numbers, wide.tally.numbers)
    assert not any(node.editions[EMBEDDING] for node in wide.rule.nodes)
    assert all(node.editions[EMBEDDING] for node in narrow.rule.nodes)
    assert error(problem, narrow.h) < 1e-5


def test_at_rest_an_event_trigger_lets_only_what_is_told_again_through():
    problem = Quadratic.random(path(6), coupling=0.1)
    done = simulated(problem, 1, ticks=250, impairments=[EventTriggered(1e-9)])
    before, saved = done.tally.packets.sum(), done.tally.saved.sum()
    for _ in range(60):
        done.step()
    assert int(done.tally.packets.sum() - before) < int(done.tally.saved.sum() - saved) / 2
    assert error(problem, done.h) < 1e-5


def test_rounding_leaves_versions_alone():
    problem = Quadratic.random(path(9), coupling=0.3)
    done = simulated(problem, 1, ticks=300, impairments=[Quantisation(0.25)])
    assert all(node.ball.full for node in done.rule.nodes)
    assert error(problem, done.h) < 0.2
    exact = simulated(problem, None, ticks=100, impairments=[Quantisation(0.25)])
    assert error(problem, exact.h) < 1e-7


def test_simulate_counts_work_and_knows_the_radius():
    torch.manual_seed(0)
    graph = random_graph([8], seed=1)
    model = hogwild.EnergyGNN(3, out_channels=1)
    data = Data(x=torch.randn(8, 3), edge_index=torch.stack([graph.src, graph.dst]))
    run = hogwild.simulate(model, data, rule="balls", runs=3, ticks=200)
    assert bool(run.converged.all())
    assert run.price.solved > run.price.updates
    assert "solves for" in str(run.price)
    small = hogwild.simulate(model, data, rule="balls", radius=1, runs=3, ticks=2000)
    assert bool(small.converged.all())
    plain = hogwild.simulate(model, data, runs=3)
    assert plain.price.solved == plain.price.updates
    assert "solves for" not in str(plain.price)


def test_wide_balls_are_warned_of():
    long = Quadratic.random(path(LARGEST + 50))
    with pytest.warns(UserWarning, match="this is slow"):
        rule_for(long, "balls", radius=200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule_for(long, "balls", radius=2)
        rule_for(Quadratic.random(path(9)), "balls", radius=50)


def test_the_usual_radius():
    assert usual_radius(Quadratic.random(path(9))) is None
    long = path(LARGEST + 50)
    # 2 (r + c) + 1 entries in a table
    assert usual_radius(Quadratic.random(long)) == (LARGEST - 1) // 2 - 2
    assert usual_radius(Affine.random(long)) == (LARGEST - 1) // 2 - 1


def test_refusals():
    problem = Quadratic.random(path(4))
    with pytest.raises(ConfigError, match="radius=2 was given with rule='messages'"):
        hogwild.executors.simulation.Settings(rule="messages", radius=2)
    with pytest.raises(ConfigError, match="radius"):
        hogwild.executors.simulation.Settings(rule="balls", radius=-1)
    with pytest.raises(ConfigError, match="whose problems move"):
        rule_for(problem, "balls", moving=True)
    data = Data(x=torch.ones(2, 2, **DOUBLE), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for call, step in itertools.product((hogwild.simulate, hogwild.certify), (0.1, "certified")):
        with pytest.raises(ConfigError, match="with rule='balls', which has no step"):
            call(hogwild.EnergyGNN(2, out_channels=1).double(), data, rule="balls", step=step)
    one_way = Affine.random(Graph.of(torch.tensor([[0, 1], [1, 2]]), 3))
    with pytest.raises(AsynchronyError, match="way back"):
        BallsRule(one_way, 1)
