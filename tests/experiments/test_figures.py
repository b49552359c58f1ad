"""Figures beyond the paper's: tiny real runs of each, and what their numbers must be."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from experiments import convergence, figures, staleness
from experiments.cost import batch, begin
from experiments.depth import conditioning, embed, fade, influence, reaches
from experiments.experiment import Results, Work, run
from experiments.protocols import Protocol
from experiments.registry import EXPERIMENTS
from experiments.report import part
from experiments.staleness import needed
from hogwild import Inputs
from hogwild.models import GCN, EnergyGNN
from hogwild.tasks import Sums
from hogwild.tasks.synthetic import edges
from hogwild.training import MODELS

PNG = b"\x89PNG"
PROTOCOLS = {
    "chains": Protocol(
        "chains", 3, always={"task_options": {"length": 8}}, default={"epochs": 20, "lr": 0.02}
    ),
    "counting": Protocol(
        "counting", 2, always={"task_options": {"sizes": [1, 2, 3, 4]}, "folds": 2},
        default={"epochs": 10},
    ),
    "sums": Protocol(
        "sums", 2, always={"task_options": {"num_graphs": 6, "sizes": 5}, "folds": 2},
        default={"epochs": 5},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return Work(tmp_path_factory.mktemp("work"), protocols=PROTOCOLS, quick=True, resume=True)


def made(name, only, work, folder):
    """Records of some cells, after their picture was drawn."""
    pytest.importorskip("matplotlib")
    results, experiment = Results(folder), EXPERIMENTS[name]
    done = run(experiment, work, results, only)
    assert not done.failed
    assert not done.skipped
    assert (folder / name / f"{name}.png").read_bytes()[:4] == PNG
    return results.read(experiment)


def chain(n, channels=2):
    torch.manual_seed(0)
    x = torch.randn(n, channels, dtype=torch.float64)
    return Data(x=x, edge_index=edges("chain", n, None))


def test_replicas_by_rank(work):
    result = work.trained("chains", "gcn")
    result.metrics["val"] = torch.tensor([0.3, 0.1, 0.2])
    assert result.ranking == [1, 2, 0]
    assert result.best == 1
    assert figures.chosen(work, result) == [1, 2]
    assert figures.chosen(replace(work, quick=False), result) == [1, 2, 0]
    largest = figures.largest(work.trained("counting", "gcn"), 0, 1)
    result = work.trained("counting", "gcn")
    test = result.task.splits(2)[0].test.tolist()
    assert [g.num_nodes for g in largest] == [max(result.task.graphs[i].num_nodes for i in test)]


def test_looks_and_labels():
    """Every model of Table 1 has one, and no two look the same on a grey printer."""
    models = EXPERIMENTS["depth"].models
    assert set(figures.LOOKS) == set(models)
    assert len({figures.LOOKS[m]["marker"] for m in models}) == len(models)
    built = [MODELS[m].type(2, out_channels=1, **MODELS[m].options) for m in models]
    assert {model.kind for model in built} == set(figures.RULES)


# -- depth -----------------------------------------------------------------------------------------


def test_influence_is_the_jacobian():
    """Of an explicit model by autograd's own, of an energy by central differences."""
    data, targets = chain(7), torch.tensor([0, 3])
    torch.manual_seed(1)
    for model in (
        GCN(2, out_channels=1, hidden_channels=3).double(),
        EnergyGNN(2, out_channels=1).double(),
    ):
        found = influence(model, data, targets)
        expected = torch.zeros(2, 7, dtype=torch.float64)
        for j in range(7):
            for c in range(2):
                moved = []
                for sign in (1, -1):
                    other = data.clone()
                    other.x = data.x.clone()
                    other.x[j, c] += sign * 1e-5
                    moved.append(embed(model, other).detach()[targets])
                expected[:, j] += ((moved[0] - moved[1]) / 2e-5).square().sum(1)
        assert torch.allclose(found, expected.sqrt(), rtol=1e-4, atol=1e-7)


def test_a_gcn_reaches_as_far_as_its_layers():
    torch.manual_seed(0)
    model = GCN(2, out_channels=1, num_layers=3).double()
    curves = fade(model, chain(9))
    assert [len(c) for c in curves] == [9, 7, 5, 7, 9]  # farthest node from 0, 2, 4, 6, 8
    assert all(float(c[4:].sum()) == 0 for c in curves)
    assert max(reaches(c) for c in curves) <= 3
    assert conditioning(model, [chain(9)]) == []


def test_condition_number():
    """The largest eigenvalue over the smallest, from the dense Hessian."""
    torch.manual_seed(0)
    model, data = EnergyGNN(2, out_channels=1, hidden_channels=2).double(), chain(4)
    h = embed(model, data).detach().mT.unsqueeze(0)
    problem = model.problem(Inputs(data.x, data.edge_index)).detach()
    apply = problem.evaluate(h).hessian().apply
    columns = [apply(e.view_as(h)).flatten() for e in torch.eye(h.numel(), dtype=h.dtype)]
    values = np.linalg.eigvalsh(torch.stack(columns).detach().numpy())
    assert conditioning(model, [data]) == pytest.approx([values[-1] / values[0]], rel=1e-3)


def test_depth(work, tmp_path):
    only = ["chains/gcn", "chains/energy-edge", "counting/ignn"]
    records = made("depth", only, work, tmp_path)
    assert max(records["chains/gcn"]["reach"]) <= 5
    assert records["chains/gcn"]["iterations"] == {"layers": [5, 5]}
    energy = records["chains/energy-edge"]
    assert set(energy["iterations"]) == {"gradient", "messages"}
    pairs = zip(energy["iterations"]["messages"], energy["iterations"]["gradient"], strict=True)
    assert all(0 < messages < gradient for messages, gradient in pairs)
    assert all(c > 1 for c in energy["condition"])
    assert set(records["counting/ignn"]["iterations"]) == {"fixed point"}
    text = EXPERIMENTS["depth"].table(records)
    assert (
        f"| chains | GCN | {figures.shown(records['chains/gcn']['reach'])} of 7 | 5 | — |" in text
    )
    assert "| sums | GCN | not run |" in text
    assert "over 2 trained models" in text  # what the records had, not what full ones have
    assert "Never: not within 2,000 updates" in text
    assert "QUICK" in text


# -- convergence -----------------------------------------------------------------------------------


def test_convergence(work, tmp_path, monkeypatch):
    monkeypatch.setattr(convergence, "QUICK_UPDATES", 80)
    chains = replace(PROTOCOLS["chains"], always={"task_options": {"length": 4}})
    short = replace(work, folder=tmp_path / "work", protocols={"chains": chains})
    records = made("convergence", ["chains/energy-edge", "chains/ignn"], short, tmp_path)
    energy = records["chains/energy-edge"]
    assert set(energy["curves"]) == {"gradient", "messages"}
    assert set(records["chains/ignn"]["curves"]) == {"fixed point"}
    for record in records.values():
        for ways in record["curves"].values():
            assert set(ways) == {"synchronous", "asynchronous"}
            for curve in ways.values():
                assert len(curve["updates"]) == len(curve["distance"]["median"])
                assert curve["updates"][0] == 0
                assert curve["distance"]["median"][0] == pytest.approx(1.0)  # from nothing
                assert curve["metric"]["median"][-1] == pytest.approx(
                    float(np.median(record["answer"]))
                )
    for curve in energy["curves"]["messages"].values():
        assert curve["distance"]["high"][-1] <= 1e-8
    text = EXPERIMENTS["convergence"].table(records)
    first, second = (line for line in text.splitlines() if line.startswith("| chains | energy, e"))
    assert "gradient" in first
    assert "messages" in second
    assert "not reached" not in second
    curves = records["chains/ignn"]["curves"]["fixed point"]  # as JSON has what is not finite
    curves["asynchronous"]["distance"]["median"][-1] = None
    records["chains/ignn"]["answer"] = [None] * len(records["chains/ignn"]["answer"])
    assert re.search(
        r"IGNN \| fixed point \| .* / diverged \|", EXPERIMENTS["convergence"].table(records)
    )
    EXPERIMENTS["convergence"].picture(records, tmp_path / "diverged.png")
    assert (tmp_path / "diverged.png").exists()


# -- size ------------------------------------------------------------------------------------------


def test_size(work, tmp_path):
    records = made("size", ["chains/g??", "chains/energy-edge", "counting/gcn"], work, tmp_path)
    for name in ("gcn", "gat", "energy-edge"):
        record = records[f"chains/{name}"]
        assert record["sizes"]["chain"] == [2, 4, 8, 16, 40, 80]
        table1 = work.trained("chains", name).metrics["test"].tolist()  # the same eight nodes
        assert record["values"]["chain"][2] == pytest.approx(table1)
        assert record["constant"]["chain"] == [0.5] * 6
        assert record["unsolved"]["chain"] == [0] * 6
    # Of 80 nodes a GCN of five layers tells six at most from those of the other chain.
    assert all(value >= (80 - 6) / 160 for value in records["chains/gcn"]["values"]["chain"][-1])
    assert set(records["counting/gcn"]["values"]) == {"chain", "tree", "grid"}
    text = EXPERIMENTS["size"].table(records)
    lines = text.splitlines()
    assert sum(line.startswith("| energy, edge-wise | not run |") for line in lines) == 2
    assert "(1)" not in text
    poor = {"chains/gcn": records["chains/gcn"] | {"unsolved": {"chain": [0, 0, 0, 0, 0, 1]}}}
    assert " (1) |" in EXPERIMENTS["size"].table(poor)


# -- staleness -------------------------------------------------------------------------------------


def test_updates_needed_are_those_of_the_graph():
    updates = torch.tensor([[1, 3, 10], [5, 5, 20]])
    reached = torch.tensor([[4, 9], [8, -1]])
    assert needed(updates, reached, torch.tensor([0, 0, 1])) == [2.0, 10.0, 5.0, None]


def test_staleness(work, tmp_path, monkeypatch):
    monkeypatch.setattr(staleness, "QUICK_STAGGERS", (1, 3))
    monkeypatch.setattr(staleness, "QUICK_DELAYS", (0, 2))
    monkeypatch.setattr(staleness, "QUICK_UPDATES", 300)
    records = made("staleness", ["chains/*"], work, tmp_path)
    settings = records["chains/energy-edge"]["rules"]["messages"]
    assert [(s["stagger"], s["delay"]) for s in settings] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert all(s["reached"] == 1 and s["distance"] <= 1e-3 for s in settings)
    assert all(len(s["updates"]) == 10 and min(s["updates"]) > 0 for s in settings)
    layers = records["chains/gcn"]["rules"]["layers"]
    result = work.trained("chains", "gcn")
    in_step = float(result.metrics["test"][result.best])
    assert layers[0]["error"] == pytest.approx([in_step] * 5)
    assert layers[0]["reached"] == 1
    assert layers[-1]["distance"] > 1e-3
    lines = EXPERIMENTS["staleness"].table(records).splitlines()
    assert sum(line.startswith("| counting |") and "not run" in line for line in lines) == 3


def test_settings_are_not_tried_where_none_can_get_there(work, tmp_path, monkeypatch):
    monkeypatch.setattr(staleness, "QUICK_UPDATES", 1)
    records = made("staleness", ["chains/energy-edge"], work, tmp_path)
    (only,) = records["chains/energy-edge"]["rules"]["gradient"]
    assert only["updates"] == [None] * 10
    assert "| never (0%) | not tried |" in EXPERIMENTS["staleness"].table(records)


# -- cost ------------------------------------------------------------------------------------------


def test_cost(work, tmp_path):
    """Fresh models first; trained ones as soon as all of a task are there."""
    elsewhere = replace(work, folder=tmp_path / "work")
    results = Results(tmp_path / "fresh")
    assert run(EXPERIMENTS["cost"], elsewhere, results, ["chains"]).done == ["chains"]
    record = results.read(EXPERIMENTS["cost"])["chains"]
    assert set(record["models"]) == set(EXPERIMENTS["cost"].models)
    assert record["trained"] is False
    assert record["share"] == 1.0
    for model in record["models"].values():
        assert len(model["epoch"]) == len(model["inference"]) == 3
        assert min(model["epoch"] + model["inference"]) > 0
    text = EXPERIMENTS["cost"].table({"chains": record})
    assert "Fresh parameters, with which solves are quicker: chains." in text
    assert record["hardware"]["device"] in text
    assert "| GCN | " in text


def test_cost_of_trained_models(work):
    result = work.trained("sums", "gcn")
    loop, share = begin(work, result.task, "sums", "gcn", True)
    for mine, theirs in zip(loop.model.parameters(), result.ensemble.parameters(), strict=True):
        assert torch.equal(mine[0], theirs[result.best])
    assert share == 1.0
    assert len(loop.batches.graphs) == 3  # half of six
    batches = {**PROTOCOLS, "sums": replace(PROTOCOLS["sums"], always={"batch_size": 1})}
    many = replace(work, protocols=batches)
    loop, share = begin(many, Sums(2000), "sums", "gcn", False)
    assert len(loop.batches.graphs) == 2  # two batches of one graph
    assert share == 1800 / 2
    assert batch(loop).num_graphs == 1
    own = replace(batches["sums"], own={"energy-node": {"batch_size": 7}})
    rival = replace(work, protocols=batches | {"sums": own})
    loop, share = begin(rival, Sums(2000), "sums", "energy-node", False)
    assert (batch(loop).num_graphs, share) == (1, 1800 / 2)  # as the others


def test_the_report_shows_pictures_that_are_there(work, tmp_path):
    results = Results(tmp_path / "results")
    run(EXPERIMENTS["size"], replace(work, quick=False), results, ["chains/gcn"])
    text = part(EXPERIMENTS["size"], results)
    assert text.startswith("![train small, test large](results/size/size.png)\n")
    assert "![" not in part(EXPERIMENTS["depth"], results)
