"""Tables of asynchronous runs: a small real one from end to end."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Batch

from experiments import asynchronous, scheduled
from experiments.asynchronous import exact, sample
from experiments.experiment import Results, Work, run
from experiments.protocols import Protocol
from experiments.registry import EXPERIMENTS
from hogwild import Inputs, robustness
from hogwild.errors import ConfigError
from hogwild.executors.gradients import asynchronous_forward

TABLE = EXPERIMENTS["table2"]
PROTOCOLS = {
    "chains": Protocol(
        "chains", 2, always={"task_options": {"length": 3}}, default={"epochs": 4, "lr": 0.02}
    ),
    "coordinates": Protocol(
        "coordinates", 2,
        always={"task_options": {"num_graphs": 20, "num_nodes": 3, "radius": 1.5}, "folds": 2},
        default={"epochs": 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Trained models; of each task, four test graphs are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asynchronous, "SAMPLES", 4)
        yield Work(tmp_path_factory.mktemp("work"), protocols=PROTOCOLS)


EXPLICIT = (("chains", "gcn"), ("chains", "gat"), ("coordinates", "gcn"))
SOME = ["chains/*", *(f"coordinates/{model}" for model in ("*gnn", "energy-*", "gcn*"))]


@pytest.fixture(scope="module")
def records(work, tmp_path_factory):
    """A column without cycles, all rows; and one with cycles, all implicit models and GCNs."""
    results = Results(tmp_path_factory.mktemp("results"))
    done = run(TABLE, work, results, SOME)
    assert len(done.done) == len(TABLE.models) + 5 + 4
    return results.read(TABLE)


def test_implicit_models_end_at_the_synchronous_answer(records):
    for name, record in records.items():
        assert len(record["values"]) == len(record["asynchronous"]) == 5
        if "gcn" not in name and "gat" not in name:
            assert record["converged"] == 1.0
            assert record["deviation"] <= 1e-6
            assert max(map(abs, record["values"])) < 1e-4


def test_explicit_models_do_not_unless_they_wait(records):
    for column, model in EXPLICIT:
        assert records[f"{column}/{model}"]["deviation"] > 1e-3
        for how in ("resending", "caching"):
            record = records[f"{column}/{model}-{how}"]
            assert record["deviation"] < 1e-9
            assert record["values"] == pytest.approx([0.0] * 5)
        layers = {h: records[f"{column}/{model}-{h}"]["bytes"] for h in ("resending", "caching")}
        assert layers["caching"] > layers["resending"] > 0


def test_rules_suit_the_models(records):
    assert records["chains/energy-edge"]["rule"] == "messages"
    assert records["coordinates/energy-edge"]["rule"] == "messages"
    assert records["chains/ignn"]["rule"] == "fixed-point"
    assert records["chains/gcn"]["rule"] == "overwriting"
    assert records["chains/gcn-resending"]["rule"] == "resending"
    assert records["chains/gcn-caching"]["rule"] == "caching"


def test_samples_are_test_graphs(records, work):
    assert records["chains/gcn"]["samples"] == [0, 1]
    record = records["coordinates/gcn"]
    assert len(record["samples"]) == 4
    result = work.trained("coordinates", "gcn")
    split = result.task.splits(2)[record["replica"] % 2]
    assert set(record["samples"]) <= set(split.test.tolist())


def test_the_loss_is_the_metrics(records, work):
    """Recomputed from the public function, on the task's own metric."""
    result = work.trained("coordinates", "gcn")
    graphs = [result.graph(i, torch.float64) for i in sample(result, result.best)]
    batch = Batch.from_data_list(graphs)
    seen = robustness(
        exact(result, result.best), graphs, runs=5, rule="overwriting",
        metric=lambda p, _: result.task.metric(p, batch),
    )  # fmt: skip
    assert records["coordinates/gcn"]["values"] == pytest.approx(seen.decrease.tolist())


def test_a_model_trained_otherwise_is_run_exactly(work):
    """The paper's recipe has its own solver and precision; the parameters are the same."""
    short = Protocol("chains", 2, always={"task_options": {"length": 2}, "epochs": 2})
    paper = replace(work, recipe="paper", protocols={"chains": short})
    result = paper.trained("chains", "energy-edge")
    assert next(result.ensemble.parameters()).dtype == torch.float32
    model = exact(result, 1)
    assert next(model.parameters()).dtype == torch.float64
    for a, b in zip(model.parameters(), result.ensemble.parameters(), strict=True):
        assert torch.equal(a, b[1].double())
    assert type(model.conv.solver) is not type(result.ensemble.conv.solver)


def test_where_one_rule_does_not_arrive_the_other_is_tried(work):
    result = work.trained("coordinates", "energy-edge")
    network = exact(result, result.best)
    graphs = [result.graph(i, torch.float64) for i in sample(result, result.best)]
    attempts = asynchronous.run(network, graphs, result, 3)
    assert [rule for rule, _ in attempts] == ["messages", "gradient"]
    assert all(seen.converged < 1.0 for _, seen in attempts)


def test_the_table_lists_all_results(records):
    text = TABLE.table(records)
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert "→" in lines["MaxGNN"]  # the second table's line, of the same name
    assert "/ 38.8 ± 3.3 |" in text
    assert text.count("/ < 0.1 |") == 25
    assert "implicit models (10 cells) lose at most" in text
    assert "‡" not in text
    assert "that arrived" not in text
    poor = {"chains/ignn": records["chains/ignn"] | {"converged": 0.9}}
    assert "‡ not all runs" in TABLE.table(poor)
    assert "implicit models that arrived in every run (9 cells)" in TABLE.table(records | poor)
    count = TABLE.details(records).count("`python -m experiments table2 --only ")
    assert count == len(records)


def test_runs_that_diverged_are_shown(records):
    record = records["chains/ignn"] | {"values": [None, 0.5], "deviation": None, "converged": 0.0}
    assert "50.0, 1 of 2 diverged (inf) ‡ / < 0.1" in TABLE.table({"chains/ignn": record})
    assert "| inf | 0% |" in TABLE.details({"chains/ignn": record})
    assert TABLE.number(record) == "50.0 %, 1 of 2 diverged"
    record |= {"values": [None], "synchronous": None, "asynchronous": [None]}
    assert "no value → no value" in TABLE.table({"chains/ignn": record})
    assert "| no value | no value | no value |" in TABLE.details({"chains/ignn": record})
    worst = TABLE.table(records | {"chains/ignn": record})
    assert "implicit models (10 cells) lose at most no value (chains/ignn)" in worst


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_training_under_schedules(model, work):
    """The embeddings are those of a schedule, and training goes on where it was."""
    plain = scheduled.trained(work, "chains", model)
    data = [plain.graph(i, torch.float64) for i in (0, 1)]
    batch = Batch.from_data_list(data)
    ensemble = plain.ensemble.eval()
    found = ensemble.embed(Inputs(batch.x, batch.edge_index, None, batch.batch))
    expected = asynchronous_forward(ensemble, batch, seed=0)
    assert torch.equal(ensemble.readout(found.value, batch.batch, 2), expected)
    synchronous = exact(plain, 0)(batch.x, batch.edge_index, None, batch.batch)
    assert not torch.allclose(synchronous, expected[0], atol=1e-6)
    again = scheduled.trained(work, "chains", model)
    for a, b in zip(ensemble.parameters(), again.ensemble.parameters(), strict=True):
        assert torch.equal(a, b)


def test_quick_training_under_schedules_is_shorter_throughout(work):
    quick = replace(work, folder=work.folder / "quick", quick=True)
    config, found = quick.config("chains", "gcn"), scheduled.trained(quick, "chains", "gcn").config
    (factor, every), epochs = config.decay, config.epochs
    assert found.epochs == max(1, epochs // scheduled.HASTE)
    assert found.decay == (factor, max(1, every // scheduled.HASTE))


def test_only_layered_models_are_trained_under_schedules(work):
    with pytest.raises(ConfigError, match="'energy-edge' is not trained under schedules"):
        scheduled.trained(work, "chains", "energy-edge")
