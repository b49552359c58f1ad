"""Algorithm 1, simulated: against a plain reading of it, and against the solver's answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

import hogwild
from hogwild import GCN, EnergyGNN, LayerTagged, StackedEnergyGNN, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    Duplication,
    EventTriggered,
    GeometricDelay,
    LinkChurn,
    ParetoDelay,
    Quantisation,
    Reordering,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import check_trace
from hogwild.errors import AsynchronyError, ConfigError, InputError, TraceError
from hogwild.executors.simulated import Simulation
from hogwild.fields import gather, scatter
from hogwild.rules import FixedPointRule, GradientRule
from hogwild.testing.problems import Affine, Quadratic, random_graph


def graphs(sizes=(1, 5, 12), seed=1, channels=3):
    graph = random_graph(list(sizes), seed=seed)
    rng = torch.Generator().manual_seed(seed)
    data = Data(
        x=torch.randn(graph.num_nodes, channels, generator=rng, dtype=torch.float64),
        edge_index=torch.stack([graph.src, graph.dst]),
    )
    data.batch = graph.batch
    return data


def energy(**options):
    torch.manual_seed(0)
    return EnergyGNN(3, 2, **options).double()


# -- the algorithm itself -------------------------------------------------------------------------


def plain(problem, schedule, step, ticks, exact):
    """Algorithm 1 node by node, with the whole past kept in lists: nothing clever at all."""
    graph = problem.graph
    n = graph.num_nodes
    into = [[e for e in range(graph.num_edges) if int(graph.dst[e]) == i] for i in range(n)]
    back = {(int(graph.src[e]), int(graph.dst[e])): e for e in range(graph.num_edges)}

    def gradients(i, own, views):
        at = graph.star(torch.tensor([i]))
        inbox = torch.stack([views[int(e)] for e in at.edges], -1) if len(at.edges) else (
            own.new_zeros(1, problem.channels, 0))  # fmt: skip
        mine, toward = problem.local(own.unsqueeze(-1), inbox, at)
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
        if exact:  # what nodes say at this moment rests on what they hear at this moment
            for i in nodes:
                own[i], letters[i] = gradients(i, h[..., i], heard[i])
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


@pytest.mark.parametrize("exchange", ["packet", "exact"])
@pytest.mark.parametrize(("stagger", "delay"), [(1, 0), (1, 2), (4, 0), (5, 2), (2, 5)])
def test_it_is_algorithm_1(exchange, stagger, delay):
    graph = random_graph([6], seed=2)
    problem = Quadratic.random(graph)
    options = {"stagger": stagger, "delay": delay, "seed": 3}
    slow = plain(problem, Schedule(graph, **options), 0.05, 40, exchange == "exact")
    fast = Simulation(
        GradientRule(problem, 0.05),
        Schedule(graph, **options),
        torch.zeros_like(slow),
        exchange=exchange,
    )
    for _ in range(40):
        fast.step()
    torch.testing.assert_close(fast.h, slow, rtol=0, atol=1e-13)


@pytest.mark.parametrize("exchange", ["packet", "exact"])
def test_exact_exchange_without_asynchrony_is_gradient_descent(exchange):
    graph = random_graph([3, 8], seed=1)
    model = energy()
    x = torch.randn(11, 3, dtype=torch.float64)
    problem = model.problem(x, torch.stack([graph.src, graph.dst]), None, graph.batch).detach()
    simulation = Simulation(
        GradientRule(problem, 0.05), Schedule(problem.graph, stagger=1, delay=0), problem.start(),
        exchange=exchange,
    )  # fmt: skip
    simulation.step()  # nobody updates at time 0
    h, gaps = problem.start(), []
    with torch.no_grad():
        for _ in range(30):
            simulation.step()
            h = h - 0.05 * problem.evaluate(h).gradient
            gaps.append(float((h - simulation.h).abs().max()))
    if exchange == "exact":
        assert max(gaps) < 1e-12
    else:  # one packet an update is one step behind, and not the same algorithm
        assert max(gaps) > 1e-3


def test_fixed_point_rule_without_asynchrony_is_picard():
    problem = Affine.random(random_graph([3, 8], seed=1), replicas=2)
    simulation = Simulation(
        FixedPointRule(problem), Schedule(problem.graph, stagger=1, delay=0), problem.start()
    )
    simulation.step()
    h = problem.start()
    for _ in range(20):
        simulation.step()
        h = problem.step(h)
        assert torch.equal(h, simulation.h)


def test_nothing_from_two_hops_away_reaches_a_node_within_one_hop_of_time():
    """Perturb a far feature: a node at distance d hears of it after d exchanges, not before."""
    n = 9
    line = torch.arange(n - 1)
    edges = torch.cat([torch.stack([line, line + 1]), torch.stack([line + 1, line])], 1)
    model = energy()
    x = torch.randn(n, 3, dtype=torch.float64)
    other = x.clone()
    other[0] += 1.0

    def start(x):
        problem = model.problem(x, edges).detach()
        return Simulation(
            GradientRule(problem, 0.05), Schedule(problem.graph, stagger=1, delay=0),
            problem.start(),
        )  # fmt: skip

    a, b = start(x), start(other)
    for _ in range(n):
        a.step(), b.step()
        moved = ((a.h - b.h).abs().amax((0, 1)) > 0).nonzero()[:, 0]
        # e^1 reads x_0: node 1 differs at once; then one hop a tick.
        assert moved.numel() == 0 or int(moved.max()) <= a.time + 1


# -- convergence ----------------------------------------------------------------------------------

BOUNDED = [
    GeometricDelay(0.5, cap=6),
    ParetoDelay(1.5, cap=8),
    Reordering(0.3),
    Duplication(0.3),
    BernoulliLoss(0.3, burst=3),
    LinkChurn(0.3, period=60, downtime=10),
    Stragglers(0.2, slowdown=3),
    Crashes(0.2, period=60, downtime=10, until=150),
    Crashes(0.2, period=60, downtime=10, until=150, rejoin="cold"),
]
VARIANTS = [{}, {"message": "node"}, {"heads": 2}, {"normalize": True}]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 4),
    st.lists(st.sampled_from(BOUNDED), max_size=2, unique=True),
    st.sampled_from(VARIANTS),
    st.sampled_from(["packet", "exact"]),
)
def test_energy_gnns_end_at_the_solvers_answer(
    seed, stagger, delay, impairments, variant, exchange
):
    torch.manual_seed(seed)
    model = EnergyGNN(3, 2, beta=0.5, **variant).double()  # more convex: ten times fewer ticks
    data = graphs([int(n) for n in torch.randint(1, 9, (3,))], seed=seed)
    run = simulate(
        model, data, stagger=stagger, delay=delay, seed=seed, impairments=impairments,
        exchange=exchange, ticks=6000, tol=1e-6,
    )  # fmt: skip
    assert bool(run.converged.all()), run
    out = model(data.x, data.edge_index, None, data.batch)
    torch.testing.assert_close(run.predictions[0], out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exchange", ["packet", "exact"])
def test_certified_steps_converge(exchange):
    graph = random_graph([3, 6], seed=4)
    problem = Quadratic.random(graph, coupling=0.2)
    problem.q = torch.eye(2, dtype=torch.float64).unsqueeze(0)  # well conditioned
    answer = problem.answer()
    age = 2 * 1 + 2 - (exchange == "exact")
    simulation = Simulation(
        GradientRule(problem, "certified", age=age), Schedule(graph, stagger=2, delay=1),
        problem.start(),
        exchange=exchange,
    )  # fmt: skip
    error = [float((simulation.h - answer).abs().max())]
    for _ in range(800):
        simulation.step()
    error.append(float((simulation.h - answer).abs().max()))
    assert error[1] < 1e-5 * error[0]


def test_certified_steps_converge_for_an_energy_gnn():
    torch.manual_seed(1)
    model = EnergyGNN(3, 2, beta=1.0).double()
    run = simulate(
        model, graphs([2, 4]), step="certified", stagger=2, delay=1, ticks=30_000, tol=1e-6
    )
    assert bool(run.converged.all()), run


def test_explicit_models_do_not_agree_and_waiting_ones_do():
    torch.manual_seed(0)
    model, data = GCN(3, 2).double(), graphs((10, 14))
    run = simulate(model, data, runs=20)
    assert float(run.deviation.min()) > 1e-3
    assert float(run.predictions.std(0).max()) > 1e-3
    assert bool((run.updates == model.depth).all())
    together = simulate(model, data, stagger=1, delay=0)
    assert float(together.deviation.max()) < 1e-12

    waiting = LayerTagged(model)
    patient = simulate(waiting, data, runs=20)
    assert float(patient.deviation.max()) < 1e-12
    assert bool((patient.updates == model.depth).all())
    stuck = simulate(waiting, data, runs=5, impairments=BernoulliLoss(0.5))
    assert not bool(stuck.converged.any())
    assert float(stuck.updates.double().mean()) < model.depth
    # A single lost message, an isolated one, is enough.
    assert bool(simulate(waiting, data, impairments=GeometricDelay(0.3)).converged.all())


@pytest.mark.parametrize(
    "impairment",
    [Reordering(0.5), Crashes(0.5, period=10, downtime=4, rejoin="cold", until=40)],
    ids=str,
)
def test_waiting_nodes_use_no_packet_without_the_value_they_need(impairment):
    """An overtaken packet, or that of a neighbour that begins anew, has fewer layers filled."""
    torch.manual_seed(0)
    model = LayerTagged(GCN(3, 2).double())
    run = simulate(model, graphs((10, 14)), runs=20, impairments=impairment)
    assert float(run.deviation.max()) < 1e-12


def test_waiting_nodes_stop_at_their_last_layer_however_long_the_schedule():
    torch.manual_seed(0)
    model, data = LayerTagged(GCN(3, 2).double()), graphs((5, 6))
    long = simulate(energy(), data, record=True, tol=None, ticks=100).trace
    run = simulate(model, data, replay=long)
    assert float(run.deviation.max()) < 1e-12
    assert bool((run.updates == model.model.depth).all())


def test_rare_updates_are_not_taken_for_a_standstill():
    torch.manual_seed(0)
    model, data = GCN(3, 2).double(), graphs((2,))
    run = simulate(model, data, stagger=4000, ticks=50_000)
    assert bool((run.updates == model.depth).all())


# -- what a run reports ---------------------------------------------------------------------------


def test_history_at_chosen_ticks():
    model, data = energy(), graphs()
    options = {"runs": 2, "ticks": 60, "keep_embeddings": True, "tol": None}
    every = simulate(model, data, history=1, **options)
    some = simulate(model, data, history=(0, 7, 50, 900), **options)
    assert some.history_ticks == [0, 7, 50]
    assert torch.equal(some.history, every.history[[0, 7, 50]])
    assert torch.equal(some.embeddings, every.embeddings[[0, 7, 50]])
    with pytest.raises(ConfigError, match="history=-1; expected an integer of at least 0"):
        simulate(model, data, history=[-1])


def test_a_run_reports_the_truth(tmp_path):
    model, data = energy(), graphs()
    run = simulate(model, data, runs=3, history=10, keep_embeddings=True, record=tmp_path / "t.npz")
    n, q = data.num_nodes, 3
    assert run.predictions.shape == (q, n, 2)
    assert run.h.shape == (q, n, 2)
    assert run.deviation.shape == run.converged.shape == run.reached.shape == (q, 3)
    assert run.history.shape == (len(run.history_ticks), q, 3)
    assert run.embeddings.shape == (len(run.history_ticks), q, n, 2)
    assert float(run.history[0].min()) > float(run.history[-1].max())
    torch.testing.assert_close(run.reference, model.embed(*_args(data)).value)

    # Counts against the trace, which knows who updated.
    problem = model.problem(*_args(data))
    counts = torch.zeros(q * n, dtype=torch.long)
    oldest = 0
    for tick in run.trace.ticks:
        counts[tick.at.nodes] += 1
        oldest = max(oldest, int((tick.time - tick.view).max()) if tick.view.numel() else 0)
    assert torch.equal(run.updates.flatten(), counts)
    degree = problem.graph.in_degree.repeat(q)
    assert torch.equal(run.messages.flatten(), counts * degree)
    assert run.staleness.packet.largest == oldest == 2
    assert run.staleness.bound == 5
    assert run.staleness.content.largest <= 2 * 2 + 5
    assert all(run.assumptions.values())
    assert int(run.saved.sum()) == 0
    assert "within tolerance" in str(run)

    again = simulate(model, data, runs=3, replay=tmp_path / "t.npz")
    assert torch.equal(again.h, run.h)
    assert torch.equal(again.updates, run.updates)
    other = GCN(3, 2).double()  # the schedule is integers only: any model can follow it
    assert simulate(other, data, runs=3, replay=run.trace).h.shape == (q, n, 10)
    with pytest.raises(TraceError, match="another graph"):
        simulate(model, graphs(seed=2), runs=3, replay=run.trace)
    with pytest.raises(TraceError, match="number of runs"):
        simulate(model, data, runs=2, replay=run.trace)


def test_a_replay_has_the_bounds_of_what_was_recorded(tmp_path):
    """The certified step depends on them: without them it would not be the same run."""
    model, data, path = energy(), graphs((6,)), tmp_path / "trace"
    run = simulate(
        model, data, stagger=9, delay=6, step="certified", ticks=200, tol=None, record=path,
        impairments=BernoulliLoss(0.3, burst=2),
    )  # fmt: skip
    again = simulate(model, data, step="certified", tol=None, replay=path, record=True)
    assert torch.equal(again.h, run.h)
    assert again.staleness.bound == run.staleness.bound == 6 + 2 * 9 + 1
    assert again.assumptions == run.assumptions == {"a": True, "b": True, "c": True}
    assert again.trace.about["stagger"] == 9


def _args(data):
    return data.x, data.edge_index, None, data.batch


def test_content_age_reaches_its_bound_and_not_more():
    model, data = energy(), graphs((20,))
    for exchange, bound in (("packet", 2 * 3 + 4), ("exact", 2 * 3 + 4 - 1)):
        run = simulate(
            model, data, runs=5, stagger=4, delay=3, exchange=exchange, ticks=300, tol=None
        )
        assert run.staleness.content.largest == run.staleness.content_bound == bound
        assert f"D' = {bound})" in str(run)


def test_the_trace_of_a_run_satisfies_the_assumptions():
    model, data = energy(), graphs((4, 6))
    run = simulate(model, data, runs=2, record=True, tol=None, ticks=100)
    graph = model.problem(*_args(data)).graph
    edges = torch.stack([graph.src, graph.dst])
    double = torch.cat([edges, edges + graph.num_nodes], 1)
    from hogwild.graph import Graph

    whole = Graph.of(double, 2 * graph.num_nodes)
    assert check_trace(run.trace, whole, 5).hold


def test_runs_and_graphs_do_not_depend_on_their_company():
    model, data = energy(), graphs()
    many = simulate(model, data, runs=4, seed=9, ticks=60, tol=None)
    for r in (1, 2):
        few = simulate(model, data, runs=r, seed=9, ticks=60, tol=None)
        torch.testing.assert_close(few.h, many.h[:r], rtol=0, atol=1e-13)


def test_replicas_share_a_schedule():
    torch.manual_seed(3)
    model = EnergyGNN(3, 2, replicas=2).double()
    data = graphs()
    run = simulate(model, data, runs=2, ticks=50, tol=None)
    assert run.h.shape == (2, 2, data.num_nodes, 2)
    assert run.predictions.shape == (2, 2, data.num_nodes, 2)
    assert run.deviation.shape == (2, 2, 3)
    for r in range(2):
        single = EnergyGNN(3, 2).double()
        single.load_state_dict({k: v[r] for k, v in model.state_dict().items()})
        alone = simulate(single, data, runs=2, ticks=50, tol=None)
        torch.testing.assert_close(run.h[:, r], alone.h, rtol=0, atol=1e-12)


def test_features_of_every_replica():
    torch.manual_seed(0)
    data = graphs((6,))
    several = Data(x=torch.stack([data.x, -data.x]), edge_index=data.edge_index)
    model = EnergyGNN(3, 2, replicas=2).double()
    run = simulate(model, several, runs=3)
    assert run.predictions.shape == (3, 2, 6, 2)
    assert bool(run.converged.all())


def test_graph_level_models_and_lists_of_graphs():
    torch.manual_seed(0)
    model = EnergyGNN(3, 2, pool="mean").double()
    data = [Data(x=graphs((n,)).x, edge_index=graphs((n,)).edge_index) for n in (3, 5, 2)]
    run = simulate(model, data, runs=2)
    assert run.predictions.shape == (2, 3, 2)
    batch = Batch.from_data_list(data)
    out = model(batch.x, batch.edge_index, None, batch.batch)
    torch.testing.assert_close(run.predictions[1], out, rtol=1e-4, atol=1e-5)


def test_stacks_run_level_by_level():
    torch.manual_seed(0)
    model, data = StackedEnergyGNN(3, 2, beta=2.0).double(), graphs()
    run = simulate(model, data, runs=2, tol=1e-6)
    assert bool(run.converged.all())
    torch.testing.assert_close(run.h[1], model.embed(*_args(data)).value, rtol=1e-5, atol=1e-5)
    assert float(run.updates.double().mean()) > 20
    with pytest.raises(ConfigError, match="a stack of 2 levels"):
        simulate(model, data, record=True)


def test_a_level_that_comes_no_nearer_is_done():
    """The answer below is exact to about 1e-9 only, and the level is asked for 1e-10."""
    torch.manual_seed(0)
    model, data = StackedEnergyGNN(3, 2, beta=2.0).double(), graphs()
    run = simulate(model, data, tol=1e-8, ticks=2500)
    assert run.ticks < 2 * 2500  # of both levels


def test_stacks_do_not_stop_short_of_the_tolerance_that_is_asked_for():
    """With levels settled just within the tolerance, the last one would miss it for ever."""
    data = Data(x=graphs((8,)).x, edge_index=graphs((8,)).edge_index)
    for seed in range(3):
        torch.manual_seed(seed)
        model = StackedEnergyGNN(3, 1).double()
        run = simulate(model, data, runs=5, ticks=6000)
        assert bool(run.converged.all()), float(run.deviation.max())


def test_self_loops_and_multi_edges():
    torch.manual_seed(0)
    model = energy()
    edges = torch.tensor([[0, 1, 1, 2, 0, 1, 0, 2], [1, 0, 2, 1, 1, 0, 0, 2]])
    data = Data(x=torch.randn(3, 3, dtype=torch.float64), edge_index=edges)
    for exchange in ("packet", "exact"):
        assert bool(simulate(model, data, exchange=exchange).converged.all())
    problem = model.problem(data.x, edges).detach()
    simulation = Simulation(
        GradientRule(problem, 0.05), Schedule(problem.graph, stagger=1, delay=0), problem.start(),
        exchange="exact",
    )  # fmt: skip
    h = problem.start()
    simulation.step()
    for _ in range(10):
        simulation.step()
        h = h - 0.05 * problem.evaluate(h).gradient
    torch.testing.assert_close(simulation.h, h, rtol=0, atol=1e-12)


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
        GradientRule(problem, 0.1), Schedule(graph), problem.start(),
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
    model, data = energy(), graphs((12,))
    always = simulate(model, data, runs=3, tol=None, ticks=1000)
    seldom = simulate(model, data, runs=3, tol=None, ticks=1000, impairments=EventTriggered(1e-3))
    assert int(seldom.messages.sum() + seldom.saved.sum()) == int(always.messages.sum())
    assert int(seldom.saved.sum()) > 0.3 * int(always.messages.sum())
    assert float(seldom.deviation.max()) < 0.1


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stagger": 0}, "stagger=0"),
        ({"delay": -1}, "delay=-1"),
        ({"runs": 0}, "runs=0"),
        ({"ticks": 0}, "ticks=0"),
        ({"step": -0.1}, "step=-0.1; expected a positive number"),
        ({"step": "fast"}, "step='fast'; expected"),
        ({"rule": "magic"}, "rule='magic'; expected one of"),
        ({"exchange": "letters"}, "exchange='letters'; expected one of"),
        ({"tol": 0.0}, "tol=0.0"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"impairments": ["rain"]}, "unknown impairment 'rain'"),
        ({"impairments": "rain"}, "unknown impairment 'rain'"),
        ({"impairments": BernoulliLoss}, "unknown impairment <class"),
        ({"impairments": None}, "unknown impairment None"),
        ({"step": None}, "step=None; expected a positive number"),
        ({"step": "certified", "impairments": BernoulliLoss(0.1)}, "needs a bound"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ConfigError, match=message):
        simulate(energy(), graphs((3,)), **options)


def test_bad_models_and_data():
    with pytest.raises(AsynchronyError, match="num_layers=2"):
        simulate(energy(num_layers=2), graphs((3,)))
    data = graphs((3,))
    one_way = Data(x=data.x, edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(AsynchronyError, match="no reverse link"):
        simulate(energy(), one_way)
    with pytest.raises(InputError, match="expected a torch_geometric"):
        simulate(energy(), [])
    with pytest.raises(InputError, match="is a NoneType"):
        simulate(energy(), None)
    with pytest.raises(InputError, match="a single feature is a column"):
        simulate(energy(), Data(x=data.x[:, 0], edge_index=data.edge_index))
    with pytest.raises(ConfigError, match="model is a Linear"):
        simulate(torch.nn.Linear(3, 3), data)
    with pytest.raises(ConfigError, match="model is a Linear"):
        hogwild.certify(torch.nn.Linear(3, 3), data)
    with pytest.raises(InputError, match="lacks x"):
        simulate(energy(), Data(edge_index=data.edge_index))


def test_simulate_leaves_the_model_as_it_was():
    model = energy()
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    simulate(model, graphs((3,)), ticks=5)
    assert model.training
    model.readout.eval()  # a part that is frozen stays so
    simulate(model, graphs((3,)), ticks=5)
    assert model.conv.training
    assert not model.readout.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert hogwild.simulate is simulate


def test_local_gradients_reach_the_right_neighbour():
    """Letters filed under j → i are read by j through i → j, multi-edges in their order."""
    problem = Quadratic.random(random_graph([7], seed=5))
    graph = problem.graph
    reverse = graph.reverse
    assert torch.equal(graph.src[reverse], graph.dst)
    assert torch.equal(reverse[reverse], torch.arange(graph.num_edges))
    h = torch.randn(1, 2, 7, dtype=torch.float64)
    own, toward = problem.local(h, gather(h, graph.src), graph.everyone)
    received = own + scatter(toward[..., reverse], graph.dst, 7)
    torch.testing.assert_close(received, problem.evaluate(h).gradient)


def test_memory_is_linear_in_edges_and_delay():
    """Packets are kept for D + 2 versions of every edge, whatever the time or the runs."""
    for sizes in ([5], [5, 5, 5]):
        problem = Quadratic.random(random_graph(sizes))
        kept = []
        for delay in (0, 3, 6):
            schedule = Schedule(problem.graph, delay=delay)
            simulation = Simulation(GradientRule(problem, 0.05), schedule, problem.start())
            for _ in range(30):
                simulation.step()
            kept.append(simulation.outbox.edge.numel() / problem.graph.num_edges)
        assert kept == [2 * (d + 2) for d in (0, 3, 6)]
