"""`simulate`: its options, the models and the data that it takes, and what it refuses."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from helpers import chain, energy, example, graphs
from torch_geometric.data import Batch, Data

import hogwild
from hogwild import GCN, GSDGNN, IGNN, EnergyGNN, Inputs, simulate
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    GeometricDelay,
    Stragglers,
)
from hogwild.asynchrony.schedule import Schedule
from hogwild.asynchrony.trace import Trace
from hogwild.errors import AsynchronyError, ConfigError, InputError
from hogwild.executors.simulation import Simulation
from hogwild.rules import gradient_rule
from hogwild.rules.base import THETA
from hogwild.testing.problems import Quadratic, random_graph


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
        (lambda: GCN(3, out_channels=2).double(), {}, "caching"),
        (lambda: GCN(3, out_channels=2).double(), {"rule": "resending"}, "resending"),
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


@pytest.mark.parametrize(
    "impairments", [(), BernoulliLoss(0.3, burst=2), Stragglers(0.3, slowdown=3)]
)
def test_the_certified_step_of_a_run_is_that_of_its_certificate(impairments):
    """Bit by bit, the run is one with the steps that `certify` reports, and these have D' = 2D + S
    of the bounds that hold."""
    model, data = energy(), graphs((7,))
    options = {"stagger": 4, "delay": 3, "impairments": impairments}
    found = hogwild.certify(model, data, rule="gradient", step="certified", **options)
    run = simulate(model, data, rule="gradient", step="certified", ticks=40, tol=None, **options)

    problem = model.problem(Inputs.of(data)).detach()
    listed = list(impairments) if isinstance(impairments, tuple) else [impairments]
    schedule = Schedule(problem.graph, stagger=4, delay=3, impairments=listed)
    stagger, delay = schedule.bounds
    age = 2 * delay + stagger
    torch.testing.assert_close(found.step, THETA / ((0.5 + age) * problem.row_bounds()))
    rule = gradient_rule(problem, 1.0)
    rule.rate = found.step
    simulation = Simulation(rule, schedule, problem.start(), impairments=listed)
    for _ in range(40):
        simulation.step()
    assert torch.equal(run.h[0], simulation.h[0].mT)


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
    assert bool(simulate(model, data).converged.all())
    problem = GSDGNN(3, out_channels=2).double().problem(Inputs(data.x, edges)).detach()
    simulation = Simulation(
        gradient_rule(problem, 0.05), Schedule(problem.graph, stagger=1, delay=0), problem.start()
    )
    h = problem.start()
    simulation.step()
    for _ in range(10):
        simulation.step()
        h = h - 0.05 * problem.evaluate(h).gradient
    torch.testing.assert_close(simulation.h, h, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stagger": 0}, "stagger=0; expected an integer of at least 1"),
        ({"stagger": 2.5}, "stagger=2.5"),
        ({"delay": -1}, "delay=-1; expected an integer of at least 0"),
        ({"runs": 0}, "runs=0"),
        ({"ticks": 0}, "ticks=0"),
        ({"step": -0.1}, "step=-0.1; expected a positive number"),
        ({"step": "fast"}, "step='fast'; expected"),
        ({"rule": "magic"}, "rule='magic'; expected one of auto, messages, gradient"),
        (
            {"rule": "resending"},
            "does not fit this model; expected one of auto, messages, gradient",
        ),
        ({"tol": 0.0}, "tol=0.0"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"impairments": ["rain"]}, "unknown impairment 'rain'; expected instances of: Bernoulli"),
        ({"impairments": "rain"}, "unknown impairment 'rain'"),
        ({"impairments": BernoulliLoss}, "unknown impairment <class"),
        ({"step": None}, "step=None; expected a positive number"),
        ({"step": "certified", "impairments": BernoulliLoss(0.1)}, "needs a bound"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ConfigError, match=message):
        simulate(energy(), graphs((3,)), **options)


def test_bad_models_and_data():
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


class Watched(torch.nn.Module):
    """While a thread is inside its forward, another thread calls the model."""

    def __init__(self, data):
        super().__init__()
        self.first, self.second = pyg.GCNConv(3, 4), pyg.GCNConv(4, 1)
        self.data = data

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as others:
                others.submit(self, self.data.x, self.data.edge_index).result()
        return self.second(h, edge_index)


def test_other_threads_may_call_the_model_meanwhile():
    data = graphs((5,))
    model = Watched(data).double().eval()
    run = simulate(model, data)
    assert bool(run.converged.all())
    torch.testing.assert_close(run.predictions[0], model(data.x, data.edge_index))


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


def test_numpy_numbers_in_impairments():
    model, data = hogwild.GCN(3, out_channels=1).double(), graphs((3,))
    one, other = (
        simulate(
            model, data, seed=seed, rule="overwriting",
            impairments=(GeometricDelay(real(0.5), cap=whole(4)), BernoulliLoss(real(0.25))),
        ).predictions
        for seed, real, whole in ((-3, float, int), (np.int64(-3), np.float32, np.int64))
    )  # fmt: skip
    assert torch.equal(one, other)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_in_a_terminal(terminal, monkeypatch, capsys):
    monkeypatch.setattr("hogwild.progress.DELAY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    simulate(energy(), graphs((5,)), ticks=20)
    assert ("simulating: tick" in capsys.readouterr().err) == terminal
