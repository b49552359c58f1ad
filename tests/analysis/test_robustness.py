"""What asynchrony costs: numbers against plain loops over simulated runs, verdicts, refusals."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, chain, cycle, example, graphs
from torch import nn
from torch_geometric.data import Batch

import hogwild
from hogwild import GCN, GNN, IGNN, EnergyGNN, simulate
from hogwild.analysis.robustness import verdict
from hogwild.asynchrony.impairments import BernoulliLoss, Quantisation
from hogwild.errors import ConfigError, InputError
from hogwild.models.base import Kind
from hogwild.models.implicit import ImplicitConv
from hogwild.models.readout import Readout
from hogwild.solvers import Picard
from hogwild.testing.problems import Affine


class Averaging(ImplicitConv):
    """The smallest fixed-point model: κ W (mean of the neighbours) + an affine map of x."""

    kind = Kind.FIXED_POINT

    def __init__(self, kappa):
        super().__init__(3, 2, solve_dtype=None)
        self.kappa, self.inner = kappa, nn.Linear(3, 2)

    def default_solver(self):
        return Picard()

    def reset_parameters(self):
        self.inner.reset_parameters()

    def problem(self, inputs):
        graph = self.graph(inputs)
        w = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]], **DOUBLE)
        share = graph.in_degree.clamp_min(1).double().reciprocal()
        return Affine(graph, w, self.inner(inputs.x).mT.unsqueeze(0), share, self.kappa)


def AveragingGNN(kappa=0.5):
    return GNN(Averaging(kappa), Readout(2, out_channels=2))


# -- numbers ---------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_runs():
    """Against plain NumPy over what ``simulate`` returned."""
    model, data = GCN(3, out_channels=2).double(), example(y=torch.randn(6, 2, **DOUBLE))
    options = {"runs": 4, "seed": 3, "stagger": 3, "delay": 1, "rule": "overwriting"}
    result, run = hogwild.robustness(model, data, **options), simulate(model, data, **options)
    with torch.no_grad():
        alone = model(data.x, data.edge_index)
    assert torch.equal(result.run.predictions, run.predictions)
    assert torch.allclose(result.prediction, alone, rtol=0, atol=1e-14)
    y, before, after = data.y.numpy(), alone.numpy(), run.predictions.numpy()
    rmse = [float(np.sqrt(np.mean((p - y) ** 2))) for p in (before, *after)]
    assert result.metric.name == "rmse"
    assert float(result.synchronous) == pytest.approx(rmse[0], rel=1e-12)
    assert result.asynchronous.tolist() == pytest.approx(rmse[1:], rel=1e-12)
    assert result.decrease.tolist() == pytest.approx([e - rmse[0] for e in rmse[1:]], rel=1e-9)
    row, largest = result.summary(), np.abs(before).max()
    assert row["asynchronous"] == pytest.approx(np.mean(rmse[1:]), rel=1e-12)
    deviation = pytest.approx(np.std(rmse[1:], ddof=1), rel=1e-9)
    assert row["asynchronous_std"] == row["decrease_std"] == deviation
    np.testing.assert_allclose(result.spread, after.std(0).max(1) / largest, rtol=1e-9)
    distance = np.abs(after - before).max((0, 2)) / largest
    np.testing.assert_allclose(result.distance, distance, rtol=1e-9)
    assert result.converged == float(run.converged.double().mean()) == 0.0
    assert row["ticks"] == run.ticks
    for name in ("updates", "packets", "bytes"):
        assert row[name] == pytest.approx(float(getattr(run, name).double().mean()))
    assert f"price: {run.ticks} ticks" in str(result)


def test_more_accuracy_is_better():
    data = example(y=torch.tensor([0, 1, 0, 1, 0, 1]))
    result = hogwild.robustness(GCN(3, out_channels=2).double(), data, runs=6)
    assert torch.equal(result.decrease, result.synchronous - result.asynchronous)
    errors = hogwild.robustness(GCN(3, out_channels=2).double(), data, runs=6, metric="error")
    assert torch.equal(errors.decrease, errors.asynchronous - errors.synchronous)


@pytest.mark.parametrize("pool", [None, "mean"])
def test_replicas_lists_and_graphs(pool):
    """A list of graphs equals their batch, and every replica the model alone."""
    graphs = [example(), example(chain(4), 4, seed=2), example(cycle(5), 5, seed=3)]
    count = 3 if pool else 15
    y = torch.randn(count, 1, **DOUBLE)
    model = GCN(3, out_channels=1, replicas=2, pool=pool).double()
    result = hogwild.robustness(model, iter(graphs), runs=3, target=y)
    batch = Batch.from_data_list(graphs)
    assert torch.equal(hogwild.robustness(model, batch, runs=3, target=y).spread, result.spread)
    assert result.synchronous.shape == (2,)
    assert result.asynchronous.shape == result.decrease.shape == (3, 2)
    assert result.spread.shape == result.distance.shape == (2, count)
    for r in range(2):
        single = GCN(3, out_channels=1, pool=pool).double()
        single.load_state_dict({k: v[r] for k, v in model.state_dict().items()})
        alone = hogwild.robustness(single, batch, runs=3, target=y)
        assert torch.allclose(alone.asynchronous, result.asynchronous[:, r], rtol=0, atol=1e-9)
        assert torch.allclose(alone.spread, result.spread[r], rtol=0, atol=1e-9)


def test_mask():
    y = torch.tensor([0, 1, -1, -1, 0, 1])
    model, mask = GCN(3, out_channels=2).double(), y >= 0
    result = hogwild.robustness(model, example(y=y), mask=mask)
    guess = result.run.predictions.argmax(-1)
    expected = (guess[:, mask] == y[mask]).double().mean(1)
    assert torch.equal(result.asynchronous, expected)
    same = hogwild.robustness(model, example(), mask=mask, target=y[mask])
    assert torch.equal(same.asynchronous, expected)
    assert same.spread.numel() == 6


def test_functions_as_metrics():
    def largest(prediction, target):
        assert prediction.shape == (6, 2)
        return float((prediction - target).max())

    data = example(y=torch.zeros(6, 2))
    result = hogwild.robustness(GCN(3, out_channels=2).double(), data, metric=largest)
    assert result.metric.name == "largest"
    assert torch.equal(result.asynchronous, result.run.predictions.flatten(1).amax(1))
    assert torch.equal(result.decrease, result.asynchronous - result.synchronous)
    better = hogwild.robustness(
        GCN(3, out_channels=2).double(), data, metric=largest, higher_is_better=True
    )
    assert torch.equal(better.decrease, better.synchronous - better.asynchronous)


def test_the_model_keeps_its_mode():
    model = GCN(3, out_channels=2, dropout=0.5).double()
    result = hogwild.robustness(model, example(y=torch.randn(6, 2)), stagger=1, delay=0)
    assert model.training
    assert float(result.distance.max()) <= 1e-12


# -- verdicts --------------------------------------------------------------------------------------

DATA = example(y=torch.tensor([0, 1, 0, 1, 0, 1]))


GRADIENT = {"rule": "gradient"}
CERTIFIED = {"step": "certified", "tol": 0.5}
OVERWRITTEN = {"rule": "overwriting", "stagger": 1, "delay": 0}
LOSSY = {"impairments": BernoulliLoss(0.3)}
BOUNDED = {"impairments": BernoulliLoss(0.3, burst=3)}


@pytest.mark.parametrize(
    ("make", "options", "word", "reason"),
    [
        (lambda: EnergyGNN(3, out_channels=2, beta=1.0), {}, "Arrives", "is not proved: "),
        (lambda: EnergyGNN(3, out_channels=2, beta=1.0), GRADIENT, "Arrives", "is not proved: "),
        (lambda: EnergyGNN(3, out_channels=2, beta=1.0), LOSSY, "Arrives", "is not proved: "),
        (
            lambda: EnergyGNN(3, out_channels=2, beta=9.0),
            CERTIFIED,
            "Immune",
            "proved: the energy is strongly",
        ),
        (lambda: IGNN(3, out_channels=2), {}, "Immune", "which is proved: the map contracts"),
        (lambda: IGNN(3, out_channels=2), BOUNDED, "Immune", "which is proved: the map contracts"),
        (AveragingGNN, {}, "Arrives", "nothing is proved"),
        (lambda: GCN(3, out_channels=2), {"rule": "resending"}, "Immune", "wait for the layer"),
        (lambda: GCN(3, out_channels=2), {}, "Immune", "newest values of all of them"),
        (lambda: GCN(3, out_channels=2), OVERWRITTEN, "In step", "update together"),
        (
            lambda: pyg.GraphSAGE(3, 3, 3),
            OVERWRITTEN,
            "In step",
            "update together",
        ),
    ],
)
def test_who_arrives_and_who_is_proved_to(make, options, word, reason):
    """Only a theorem about these steps and these losses makes a model immune."""
    torch.manual_seed(0)
    result = hogwild.robustness(make().double(), DATA, runs=3, **options)
    assert result.verdict.startswith(f"{word}: 3 of 3 schedules")
    assert reason in result.verdict
    assert result.certificate.guaranteed == (word == "Immune")
    expected = hogwild.certify(
        make().double(), DATA, rule=result.run.rule,
        **{k: v for k, v in options.items() if k not in ("tol", "rule")},
    )  # fmt: skip
    assert expected.guaranteed == result.certificate.guaranteed
    if "tol" in options:
        return
    assert result.converged == 1.0
    assert float(result.distance.max()) <= 1e-4
    assert result.decrease.abs().max() == 0.0


def test_degrades():
    """A model that is right synchronously can only lose."""
    for model in (GCN(3, out_channels=2), pyg.GraphSAGE(3, 3, 3)):
        model = model.double()
        with torch.no_grad():
            y = model(DATA.x, DATA.edge_index)
        result = hogwild.robustness(model, DATA, target=y, rule="overwriting")
        assert float(result.synchronous) <= 1e-14
        assert float(result.decrease.min()) > 1e-3
        assert re.match(r"Degrades: .* rmse rises from .* to .* ± .*since a node", result.verdict)
        assert str(result).endswith(result.verdict)


def test_depends_on_the_schedule():
    result = hogwild.robustness(GCN(3, out_channels=2).double(), example(), rule="overwriting")
    assert result.verdict.startswith("Depends on the schedule")
    assert result.metric is result.synchronous is result.asynchronous is result.decrease is None
    assert set(result.summary()) == {
        "spread", "distance", "converged", "ticks", "updates", "packets", "bytes", "solved",
        "deadline",
        "deadline_bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "head", "part"),
    [
        (
            {"rule": "caching", "impairments": BernoulliLoss(0.3)},
            "Immune",
            "With probability one all do, which is proved",
        ),
        *(
            ({"rule": rule, "impairments": BernoulliLoss(1.0), "ticks": 50}, "Not converged",
             "no packet ever arrives under BernoulliLoss(rate=1.0")
            for rule in ("overwriting", "resending", "caching")
        ),
    ],
)  # fmt: skip
def test_verdicts_on_layers(options, head, part):
    result = hogwild.robustness(GCN(3, out_channels=2).double(), DATA, runs=2, **options)
    assert result.verdict.startswith(head)
    assert part in result.verdict
    assert "no packet" not in part or "rule=" not in result.verdict  # no rule would help


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (EnergyGNN, GRADIENT, "rule='messages', which needs fewer updates"),
        (lambda *_, **__: AveragingGNN(0.99), {}, "That runs arrive in the end is not proved"),
        (IGNN, {}, "That runs arrive in the end is proved: the map contracts"),
        (EnergyGNN, LOSSY, "That runs arrive in the end is not proved"),
        (EnergyGNN, {"impairments": [Quantisation(0.1)]}, "Quantisation changes what packet"),
    ],
)
def test_not_converged(model, options, reason):
    torch.manual_seed(0)
    model = model(3, out_channels=2).double()
    result = hogwild.robustness(model, DATA, runs=1, ticks=5, **options)
    assert result.verdict.startswith("Not converged within the 5 ticks: 1 of 1 schedule ")
    assert "What to do: " in result.verdict
    assert reason in result.verdict
    assert result.converged == 0.0


@pytest.mark.parametrize("rule", ["gradient", "messages"])
def test_the_ticks_that_are_advised_are_enough(rule):
    """Give half of what a run takes; twice the advice, which is a guess, must be enough."""
    torch.manual_seed(0)
    model, options = EnergyGNN(3, out_channels=2, beta=1.0).double(), {"runs": 1, "rule": rule}
    whole = hogwild.robustness(model, DATA, **options).run.ticks
    short = hogwild.robustness(model, DATA, ticks=whole // 2, **options)
    advised = int(re.search(r"ticks=(\d+) would be enough", short.verdict)[1])
    assert advised == short.run.ticks_needed() > whole // 2
    assert hogwild.robustness(model, DATA, ticks=2 * advised, **options).converged == 1.0


def test_no_ticks_are_advised_where_runs_come_no_nearer():
    """As at half time: no number of ticks would do."""
    result = hogwild.robustness(AveragingGNN(0.9).double(), DATA, runs=1, ticks=21)
    assert result.run.ticks_needed() > 21
    seen = result.run.deadlines
    same = replace(seen, deviation=seen.deviation[-1:].expand_as(seen.deviation))
    stuck = replace(result.run, deadlines=same)
    assert stuck.ticks_needed() is None
    said = verdict(replace(result, run=stuck))
    assert "has not fallen in the second half" in said
    assert "look for such a norm" in said


# -- what people see -------------------------------------------------------------------------------


def test_print():
    result = hogwild.robustness(
        GCN(3, out_channels=2).double(), DATA, runs=3, impairments=BernoulliLoss(0.25)
    )
    text, row = str(result), result.summary()
    assert "GCN (explicit), 3 schedules, S = 5, D = 2, BernoulliLoss(rate=0.25" in text
    line = next(line for line in text.splitlines() if line.startswith("accuracy"))
    assert f"{100 * row['synchronous']:.2f} %" in line
    assert line.split(" %", 1)[1].strip().startswith(f"{100 * row['asynchronous']:.2f} %")
    assert all(len(line) <= 100 for line in text.splitlines()[:-1])
    bare = hogwild.robustness(GCN(3, out_channels=2).double(), example(), runs=1)
    assert "±" not in str(bare)
    assert "GCN (explicit), 1 schedule, S" in str(bare)


@pytest.mark.parametrize("count", [2, 12])
def test_an_error_of_few_graphs_is_no_base_for_advice(count):
    """The report says how many graphs it is of. Where all schedules agree there is no ±."""
    model = EnergyGNN(3, out_channels=2, pool="mean", beta=2.0).double()
    batch = graphs((4,) * count)
    batch.y = torch.arange(count) % 2
    result = hogwild.robustness(model, batch, runs=3)
    text = " ".join(str(result).split())
    assert result.scored == count
    assert f"of {count} graphs" in text
    assert float(result.asynchronous.std()) == 0.0
    assert "±" not in text
    assert (f"{count} graphs are too few for advice" in text) == (count < 10)
    assert ("messages:" in result.advice) == (count >= 10)
    masked = hogwild.robustness(model, batch, runs=1, mask=torch.arange(count) > 0)
    assert masked.items == f"{count - 1} graph{'s' * (count > 2)} of {count} graphs"
    moved = replace(result, asynchronous=torch.tensor([0.5, 0.6, 0.7]).double())
    assert "60.00 % ± 10.00 %" in str(moved)
    assert f"of {count} graphs; each ± is over 3 schedules" in str(moved)
    nodes = hogwild.robustness(EnergyGNN(3, out_channels=2).double(), batch, runs=1, ticks=5,
                               target=torch.zeros(4 * count).long())  # fmt: skip
    assert nodes.items == f"{4 * count} nodes of {count} graphs"


# -- refusals --------------------------------------------------------------------------------------


def test_bad_input():
    model = GCN(3, out_channels=2).double()
    with pytest.raises(InputError, match=r"GraphSAGE.forward raises .*x \[6, 3\] torch.float64"):
        hogwild.robustness(pyg.GraphSAGE(3, 3, 2), DATA)
    with pytest.raises(InputError, match="metric='mse' was given and data has no y"):
        hogwild.robustness(model, example(), metric="mse")
    with pytest.raises(InputError, match=r"mask has shape \[5\]"):
        hogwild.robustness(model, DATA, mask=torch.ones(5, dtype=torch.bool))
    with pytest.raises(InputError, match="0 of it set"):
        hogwild.robustness(model, DATA, mask=torch.zeros(6, dtype=torch.bool))
    with pytest.raises(ConfigError, match="runs=0"):
        hogwild.robustness(model, DATA, runs=0)
    with pytest.raises(TypeError, match="staggger"):
        hogwild.robustness(model, DATA, staggger=3)
    with pytest.raises(InputError, match="list"):
        hogwild.robustness(model, [])
    with pytest.raises(InputError, match="the target has shape"):  # before the simulation
        hogwild.robustness(model, DATA, target=torch.zeros(7), ticks="never read")
    with pytest.raises(InputError, match="NaN values in the target: 1"):
        hogwild.robustness(model, DATA, target=torch.tensor([[1.0], [float("nan")]]))


def test_runs_with_rounded_packets_end_when_they_come_no_nearer():
    torch.manual_seed(0)
    result = hogwild.robustness(
        EnergyGNN(3, out_channels=2, beta=1.0).double(),  # more convex: fewer ticks
        DATA,
        runs=2,
        rule="gradient",
        impairments=Quantisation(0.01),
    )
    assert result.run.stalled
    assert 500 < result.run.ticks < 5_000
    assert result.verdict.startswith(f"Stopped at tick {result.run.ticks}, as runs no longer come")
    assert "so that runs end near the answer and not at it" in result.verdict
