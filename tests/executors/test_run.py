"""`simulate`: what a run reports, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from helpers import chain, energy, example, graphs
from torch_geometric.data import Batch, Data

import hogwild
from hogwild import GCN, GSDGNN, IGNN, EnergyGNN, Inputs, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    EventTriggered,
    GeometricDelay,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Trace
from hogwild.errors import AsynchronyError, ConfigError, InputError, TraceError
from hogwild.executors.simulated import Simulation
from hogwild.executors.watch import PATIENCE, Stall
from hogwild.ops import gather, scatter
from hogwild.rules import gradient_rule, rule_for
from hogwild.rules.steps import THETA
from hogwild.testing import check_trace
from hogwild.testing.problems import Quadratic, random_graph

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


def test_a_run_reports_what_its_trace_shows(tmp_path):
    model, data = energy(beta=1.0), graphs()
    run = simulate(model, data, runs=3, history=10, keep_embeddings=True, record=tmp_path / "t.npz")
    n, q = data.num_nodes, 3
    assert run.predictions.shape == (q, n, 2)
    assert run.h.shape == (q, n, 2)
    assert run.deviation.shape == run.converged.shape == run.reached.shape == (q, 3)
    assert run.history.shape == (len(run.history_ticks), q, 3)
    assert run.embeddings.shape == (len(run.history_ticks), q, n, 2)
    assert float(run.history[0].min()) > float(run.history[-1].max())
    torch.testing.assert_close(run.reference, model.embed(Inputs(*_args(data))).value)

    # Counts against the trace, which knows who updated.
    problem = model.problem(Inputs(*_args(data)))
    counts = torch.zeros(q * n, dtype=torch.long)
    oldest = 0
    for tick in run.trace.ticks:
        counts[tick.at.nodes] += 1
        oldest = max(oldest, int((tick.time - tick.view).max()) if tick.view.numel() else 0)
    assert torch.equal(run.updates.flatten(), counts)
    degree = problem.graph.in_degree.repeat(q)
    assert torch.equal(run.packets.flatten(), counts * degree)
    assert run.staleness.packet.largest == oldest == 2
    assert run.staleness.bound == 5
    assert run.staleness.content.largest <= 2 * 2 + 5
    assert all(run.assumptions.values())
    assert int(run.saved.sum()) == 0
    assert "within tolerance" in str(run)

    again = simulate(model, data, runs=3, replay=tmp_path / "t.npz")
    assert torch.equal(again.h, run.h)
    assert torch.equal(again.updates, run.updates)
    other = GCN(
        3, out_channels=2
    ).double()  # the schedule is integers only: any model can follow it
    assert simulate(other, data, runs=3, replay=run.trace).h.shape == (q, n, 10)
    with pytest.raises(TraceError, match="another graph"):
        simulate(model, graphs(seed=2), runs=3, replay=run.trace)
    with pytest.raises(TraceError, match="number of runs"):
        simulate(model, data, runs=2, replay=run.trace)


def test_every_packet_is_counted_in_bytes():
    """Against the trace, which knows who sent how often, and the packets written out: k = 2."""
    data, q, k = graphs(), 2, 2
    triangle, vector = k * (2 * k + 1), 2 * k  # of a message, over both ends of its edge
    numbers = {
        ("gradient", 0.01): k + k,
        ("gradient", "auto"): k + k + k * k,
        ("messages", "auto"): k + triangle + vector + k + k * k,
    }
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    for (rule, step), count in numbers.items():
        run = simulate(energy(), data, runs=q, ticks=30, tol=None, rule=rule, step=step)
        assert torch.equal(run.packets, run.updates * degree)
        assert torch.equal(run.bytes, 4 * count * run.packets)
        problem = energy().problem(Inputs(*_args(data))).detach()
        made, start = rule_for(problem, rule, step), problem.start()
        letters = made.begin(start, problem.graph.everyone.current(start))
        assert letters.size(1) == made.letter
    layers = simulate(GCN(3, out_channels=2).double(), data, runs=q)
    assert torch.equal(layers.bytes, 4 * 10 * layers.packets)
    waiting = simulate(GCN(3, out_channels=2).double(), data, runs=q, rule="waiting")
    assert torch.equal(waiting.bytes, 4 * (1 + 10) * waiting.packets)
    price = layers.price
    assert price.updates == 5
    assert price.packets == pytest.approx(5 * float(degree.double().mean()))
    assert price.bytes == pytest.approx(4 * 10 * price.packets)
    assert f"5 updates, {price.packets:.0f} packets, {price.bytes:.0f} B" in str(layers)


@pytest.mark.parametrize("rule", ["overwriting", "waiting", "resending", "caching"])
def test_nothing_is_sent_along_a_loop(rule):
    x, edge_index = torch.randn(3, 2), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    looped = torch.cat([edge_index, torch.tensor([[0, 1], [0, 1]])], 1)  # links keep their delays
    model = GCN(2, out_channels=1, num_layers=3)
    with_loops, without = (
        simulate(model, Data(x=x, edge_index=edges), rule=rule, ticks=30, tol=None)
        for edges in (looped, edge_index)
    )
    assert torch.equal(with_loops.packets, without.packets)
    assert torch.equal(with_loops.bytes, without.bytes)


def test_a_run_that_still_changes_somewhere_has_not_stalled():
    """The largest distance stays where it was until word has come to the last node; the sum of all
    does not."""
    far, travelling, done = Stall(), Stall(), []
    for t in range(0, 2000, 10):
        flat = torch.ones(1, 1, 1)
        sums = torch.full((1, 1, 1), 1.0 - t / 2000)
        done.append(bool(far.look(t, torch.cat([flat, flat]))))
        assert not bool(travelling.look(t, torch.cat([flat, sums])))
    assert done.index(True) == PATIENCE // 10
    late = Stall()
    for t in range(0, 4000, 10):  # patience grows with the ticks
        distance = torch.full((1, 1, 1), max(1.0 - t / 3000, 0.5))
        if bool(late.look(t, distance)):
            break
    assert 2900 <= t <= 3000


def test_packets_that_are_not_sent_cost_no_bytes():
    options = {"ticks": 300, "tol": None, "rule": "gradient", "step": 0.05}
    run = simulate(energy(), graphs((6,)), impairments=EventTriggered(0.1), **options)
    assert int(run.saved.sum()) > 0
    assert torch.equal(run.bytes, 4 * (2 + 2) * run.packets)


@pytest.mark.parametrize(
    ("make", "options", "rule"),
    [
        (energy, {}, "messages"),
        (energy, {"step": "auto"}, "messages"),
        (energy, {"step": 0.05}, "gradient"),
        (energy, {"step": "certified"}, "gradient"),
        (energy, {"rule": "gradient"}, "gradient"),
        (lambda: GSDGNN(3, out_channels=2).double(), {}, "messages"),
        (lambda: IGNN(3, out_channels=2).double(), {}, "fixed-point"),
        (lambda: GCN(3, out_channels=2).double(), {}, "overwriting"),
        (lambda: GCN(3, out_channels=2).double(), {"rule": "waiting"}, "waiting"),
    ],
)
def test_the_rule_that_is_taken(make, options, rule):
    """A step means gradient steps; else energies send messages."""
    torch.manual_seed(0)
    model = make()
    run = simulate(model, graphs((3,)), ticks=20, **options)
    assert run.rule == rule
    by_name = simulate(model, graphs((3,)), ticks=20, **{**options, "rule": rule})
    assert torch.equal(run.h, by_name.h)
    assert f"rule {rule}" in str(run)


@pytest.mark.parametrize(
    "model", [IGNN(3, out_channels=2).double(), GCN(3, out_channels=2).double()]
)
def test_models_without_steps_are_given_none(model):
    with pytest.raises(ConfigError, match=r"step=0.1 was given .* has no step size"):
        simulate(model, graphs((3,)), step=0.1)


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


def test_reached_is_the_first_look_within_the_tolerance():
    """And a run with replicas is there when all of them are."""
    torch.manual_seed(0)
    model, data = EnergyGNN(3, out_channels=2, replicas=2, beta=2.0).double(), graphs((5, 12))
    run = simulate(model, data, runs=2, rule="gradient", tol=1e-3, history=1)
    assert run.reached.shape == (2, 2)
    assert bool(run.converged.all())
    there = (run.history <= 1e-3).all(2)  # [T, Q, G]
    first = torch.tensor(run.history_ticks)[there.to(torch.int).argmax(0)]
    assert torch.equal(run.reached, first)
    assert len(run.reached.unique()) > 1
    alone = (run.history <= 1e-3).to(torch.int).argmax(0)  # of each replica
    assert bool((alone[:, 0] != alone[:, 1]).any())


def test_assumptions_that_do_not_hold_are_reported():
    """(a) where nodes sleep through their turns, (b) where packets stay away."""
    model, data = energy(), graphs((6,))
    options = {"rule": "gradient", "stagger": 5, "delay": 0, "ticks": 200, "tol": None}
    lossy = simulate(model, data, impairments=BernoulliLoss(0.3), **options)
    assert lossy.assumptions == {"a": True, "b": False, "c": True}
    assert not lossy.staleness.bounded
    asleep = Crashes(0.9, period=14, downtime=10, until=200)
    sleepy = simulate(model, data, impairments=asleep, **options)
    assert sleepy.assumptions["a"] is False
    # Nodes that are down when a run ends have made no update that could show it.
    down = Crashes(1.0, period=300, downtime=298, until=300)
    assert simulate(model, data, impairments=down, **options).assumptions["a"] is False
    assert all(simulate(model, data, **options).assumptions.values())


@pytest.mark.parametrize("exchange", ["packet", "exact"])
@pytest.mark.parametrize(
    "impairments", [(), BernoulliLoss(0.3, burst=2), Stragglers(0.3, slowdown=3)]
)
def test_the_certified_step_of_a_run_is_that_of_its_certificate(exchange, impairments):
    """Bit by bit, the run is one with the steps that `certify` reports, and these have D' = 2D + S
    (one less with the exact exchange) of the bounds that hold."""
    model, data = energy(), graphs((7,))
    options = {"stagger": 4, "delay": 3, "exchange": exchange, "impairments": impairments}
    found = hogwild.certify(model, data, rule="gradient", step="certified", **options)
    run = simulate(model, data, rule="gradient", step="certified", ticks=40, tol=None, **options)

    problem = model.problem(Inputs(*_args(data))).detach()
    listed = list(impairments) if isinstance(impairments, tuple) else [impairments]
    schedule = Schedule(problem.graph, stagger=4, delay=3, impairments=listed)
    stagger, delay = schedule.bounds
    age = 2 * delay + stagger - (exchange == "exact")
    torch.testing.assert_close(found.step, THETA / ((0.5 + age) * problem.row_bounds()))
    rule = gradient_rule(problem, 1.0)
    rule.rate = found.step
    simulation = Simulation(rule, schedule, problem.start(), exchange=exchange, impairments=listed)
    for _ in range(40):
        simulation.step()
    assert torch.equal(run.h[0], simulation.h[0].mT)


def test_converged_means_within_the_tolerance():
    """And not a little more; distances are relative to the largest entry of each graph."""
    model, data = energy(beta=2.0), graphs((5, 12))
    options = {"rule": "gradient", "runs": 2, "ticks": 41}
    run = simulate(model, data, tol=None, **options)
    largest = run.reference.abs()
    for r in range(2):
        for g in range(2):
            nodes = data.batch == g
            gap = (run.h[r] - run.reference)[nodes].abs().max() / largest[nodes].max()
            torch.testing.assert_close(run.deviation[r, g], gap)
    near = run.deviation
    assert 1e-6 < float(near.min()) < float(near.max()) < 1.0
    assert not bool(run.converged.any())  # without a tolerance, 1e-6 counts
    middle = float((near.min() * near.max()).sqrt())
    some = simulate(model, data, tol=middle, **options)
    assert torch.equal(some.converged, some.deviation <= middle)
    assert torch.equal(some.reached >= 0, some.converged)
    assert bool(some.converged.any())
    assert not bool(some.converged.all())
    assert not bool(simulate(model, data, tol=0.9 * float(near.min()), **options).converged.any())


def test_content_age_reaches_its_bound_and_not_more():
    model, data = energy(), graphs((20,))
    for exchange, bound in (("packet", 2 * 3 + 4), ("exact", 2 * 3 + 4 - 1)):
        run = simulate(
            model, data, runs=5, stagger=4, delay=3, exchange=exchange, ticks=100, tol=None,
            rule="gradient",
        )  # fmt: skip
        assert run.staleness.content.largest == run.staleness.content_bound == bound
        assert f"D' = {bound})" in str(run)


def test_the_trace_of_a_run_satisfies_the_assumptions():
    model, data = energy(), graphs((4, 6))
    run = simulate(model, data, runs=2, record=True, tol=None, ticks=100, rule="gradient")
    graph = model.problem(Inputs(*_args(data))).graph
    edges = torch.stack([graph.src, graph.dst])
    double = torch.cat([edges, edges + graph.num_nodes], 1)
    from hogwild.graph import Graph

    whole = Graph.of(double, 2 * graph.num_nodes)
    assert check_trace(run.trace, whole, 5).hold


def test_runs_do_not_depend_on_other_runs():
    model, data = energy(), graphs()
    options = {"seed": 9, "ticks": 60, "tol": None, "rule": "gradient"}
    many = simulate(model, data, runs=4, **options)
    for r in (1, 2):
        few = simulate(model, data, runs=r, **options)
        torch.testing.assert_close(few.h, many.h[:r], rtol=0, atol=1e-13)


def test_replicas_share_a_schedule():
    torch.manual_seed(3)
    model = EnergyGNN(3, out_channels=2, replicas=2).double()
    data = graphs()
    options = {"runs": 2, "ticks": 50, "tol": None, "rule": "gradient"}
    run = simulate(model, data, **options)
    assert run.h.shape == (2, 2, data.num_nodes, 2)
    assert run.predictions.shape == (2, 2, data.num_nodes, 2)
    assert run.deviation.shape == (2, 2, 3)
    for r in range(2):
        single = EnergyGNN(3, out_channels=2).double()
        single.load_state_dict({k: v[r] for k, v in model.state_dict().items()})
        alone = simulate(single, data, **options)
        torch.testing.assert_close(run.h[:, r], alone.h, rtol=0, atol=1e-12)


def test_features_of_every_replica():
    torch.manual_seed(0)
    data = graphs((6,))
    several = Data(x=torch.stack([data.x, -data.x]), edge_index=data.edge_index)
    model = EnergyGNN(3, out_channels=2, replicas=2, beta=1.0).double()
    run = simulate(model, several, runs=3)
    assert run.predictions.shape == (3, 2, 6, 2)
    assert bool(run.converged.all())


def test_graph_level_models_and_lists_of_graphs():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, pool="mean", beta=1.0).double()
    data = [Data(x=graphs((n,)).x, edge_index=graphs((n,)).edge_index) for n in (3, 5, 2)]
    run = simulate(model, data, runs=2)
    assert run.predictions.shape == (2, 3, 2)
    batch = Batch.from_data_list(data)
    out = model(batch.x, batch.edge_index, None, batch.batch)
    torch.testing.assert_close(run.predictions[1], out, rtol=1e-4, atol=1e-5)


def test_stacks_do_not_stop_short_of_the_tolerance_that_is_asked_for():
    """With levels settled just within the tolerance, the last one would miss it for ever."""
    data = Data(x=graphs((5,)).x, edge_index=graphs((5,)).edge_index)
    for seed in range(2):
        torch.manual_seed(seed)
        model = EnergyGNN(3, out_channels=1, beta=1.0, num_layers=2).double()
        run = simulate(model, data, runs=2, ticks=1000, rule="gradient")
        assert bool(run.converged.all()), float(run.deviation.max())


def test_self_loops_and_multi_edges():
    torch.manual_seed(0)
    model = energy()
    edges = torch.tensor([[0, 1, 1, 2, 0, 1, 0, 2], [1, 0, 2, 1, 1, 0, 0, 2]])
    data = Data(x=torch.randn(3, 3, dtype=torch.float64), edge_index=edges)
    for exchange in ("packet", "exact"):
        assert bool(simulate(model, data, exchange=exchange).converged.all())
    problem = model.problem(Inputs(data.x, edges)).detach()
    simulation = Simulation(
        gradient_rule(problem, 0.05), Schedule(problem.graph, stagger=1, delay=0), problem.start(),
        exchange="exact",
    )  # fmt: skip
    h = problem.start()
    simulation.step()
    for _ in range(10):
        simulation.step()
        h = h - 0.05 * problem.evaluate(h).gradient
    torch.testing.assert_close(simulation.h, h, rtol=0, atol=1e-12)


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
        ({"rule": "magic"}, "rule='magic'; expected one of auto, gradient, messages"),
        ({"rule": "waiting"}, "does not fit this model; expected one of auto, messages, gradient"),
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
        simulate(energy(rounds=2), graphs((3,)))
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
    own, toward = problem.node.local(h, gather(h, graph.src), graph.everyone)
    received = own + scatter(toward[..., reverse], graph.dst, 7)
    torch.testing.assert_close(received, problem.evaluate(h).gradient)


def test_memory_is_linear_in_edges_and_delay():
    """Packets are kept for D + 2 versions of every edge, whatever the time or the runs."""
    for sizes in ([5], [5, 5, 5]):
        problem = Quadratic.random(random_graph(sizes))
        kept = []
        for delay in (0, 3, 6):
            schedule = Schedule(problem.graph, delay=delay)
            simulation = Simulation(gradient_rule(problem, 0.05), schedule, problem.start())
            for _ in range(30):
                simulation.step()
            kept.append(simulation.outbox.edge.numel() / problem.graph.num_edges)
        assert kept == [2 * (d + 2) for d in (0, 3, 6)]


def test_the_price_does_not_depend_on_history():
    """A run ends when it arrives, to 2 % of its ticks."""
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    data = Data(x=torch.randn(4, 3, dtype=torch.float64), edge_index=path)
    model = hogwild.GCN(3, out_channels=1, num_layers=3).double()
    usual, watched = (
        simulate(model, data, rule="caching", stagger=1, delay=0, history=h) for h in (None, 1)
    )
    assert usual.ticks == watched.ticks <= 5
    assert torch.equal(usual.bytes, watched.bytes)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16])
def test_numpy_integers_mean_the_same_as_python_integers(kind, tmp_path):
    data = example(chain(3), 3, torch.ones(3, 1), width=2)
    model = hogwild.EnergyGNN(kind(2), out_channels=kind(1), hidden_channels=kind(2)).double()
    options = {"stagger": 3, "delay": 1, "seed": 7, "runs": 2, "ticks": 50, "history": 5}
    expected = hogwild.simulate(model, data, record=True, **options)
    found = hogwild.simulate(
        model, data, record=tmp_path / "trace", **{k: kind(v) for k, v in options.items()}
    )
    assert torch.equal(found.predictions, expected.predictions)
    about = json.loads(json.dumps(expected.trace.about))
    assert Trace.load(tmp_path / "trace").about == about
    assert hogwild.certify(model, data, kind(3), kind(1)).rate == pytest.approx(
        hogwild.certify(model, data, 3, 1).rate
    )


def test_numpy_numbers_in_seeds_and_impairments():
    data = example(chain(3), 3, torch.ones(3, 1), width=2)
    model = hogwild.GCN(2, out_channels=1).double()
    python = (GeometricDelay(0.5, cap=4), BernoulliLoss(0.25, burst=3))
    numpy = (
        GeometricDelay(np.float32(0.5), cap=np.int64(4)),
        BernoulliLoss(np.float32(0.25), burst=np.int64(3)),
    )
    one, other = (
        hogwild.simulate(model, data, seed=seed, impairments=given).predictions
        for seed, given in ((-3, python), (np.int64(-3), numpy))
    )
    assert torch.equal(one, other)
