"""Free size: one loop for all models, and nothing is chosen on test nodes or graphs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import write_tu
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from experiments import free
from experiments.__main__ import main
from experiments.experiment import Results, Work, run
from experiments.registry import EXPERIMENTS
from hogwild.errors import ConfigError, DataError
from hogwild.metrics import ACCURACY

FREE = EXPERIMENTS["free"]


def rings(run):
    """Rings of three to six nodes: is the ring even? One feature says it, another is noise."""
    random = torch.Generator().manual_seed(run)

    def ring(n):
        i = torch.arange(n)
        edges = torch.stack([i, (i + 1) % n])
        noise = torch.randn(n, 1, generator=random)
        x = torch.cat([torch.full((n, 1), float(n % 2)), noise], 1)
        return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor([n % 2]))

    return [[ring(3 + i % 4) for i in range(count)] for count in (16, 8, 8)]


def board(run):
    """One ring of 60 nodes, a third of them in each part."""
    i = torch.arange(60)
    edges, part = torch.stack([i, (i + 1) % 60]), (i + run) % 3
    data = Data(x=torch.randn(60, 3), edge_index=torch.cat([edges, edges.flip(0)], 1))
    data.y = (data.x[:, 0] > 0).long()
    return free._of_nodes(data.x, data.edge_index, data.y, [part == p for p in range(3)])


def labelled(run):
    """The rings, with features of edges and two labels of a ring."""
    parts = rings(run)
    for g in (g for part in parts for g in part):
        g.edge_attr = torch.randn(g.num_edges, 2)
        g.y = torch.tensor([[float(g.y), 1.0 - float(g.y)]])
    return parts


@pytest.fixture
def tiny(monkeypatch):
    """Tiny sets in place of the real ones, and short trainings."""
    small = {
        "enzymes": replace(free.SETS["enzymes"], parts=rings, most=(3, 4), width=4, trials=2),
        "minesweeper": replace(free.SETS["minesweeper"], parts=board, most=(6, 6), width=4),
        "peptides": replace(
            free.SETS["peptides"], parts=labelled, most=(4, 4), width=4, trials=2, size=5
        ),
    }
    for name, data in small.items():
        monkeypatch.setitem(free.SETS, name, data)
    for name, number in {"RUNS": 3, "TURNS": 1}.items():
        monkeypatch.setattr(free, name, number)


def test_every_model_is_measured_alike(tiny, tmp_path):
    small = ("enzymes", "minesweeper", "peptides")
    work, results = Work(tmp_path / "work"), Results(tmp_path / "results")
    run(FREE, work, results, ["enzymes/*", "minesweeper/*", "peptides/*"])
    records = results.read(FREE)
    assert list(records) == [f"{n}/{m}" for n in small for m in free.MODELS]
    for cell, record in records.items():
        name, _, model = cell.partition("/")
        assert [one["options"] for one in record["trials"]] == [
            json.loads(json.dumps(free.drawn(name, model, trial))) for trial in range(2)
        ]
        best = max(record["trials"], key=lambda one: one["validation"])
        assert record["options"] == best["options"]
        assert record["validation"][0] == best["validation"]
        assert len(record["values"]) == len(record["best_epoch"]) == 3
        assert all(0.0 <= value <= 1.0 for value in record["values"])
        assert not any("test" in one for one in record["trials"])
        assert all(own > 0 and gcn > 0 for own, gcn in record["turns"])
        assert record["parameters"] > 0
    table = FREE.table(records)
    assert table.count("not run") == len(free.MODELS)  # Cora
    assert FREE.number(records["enzymes/gin"]) in table
    assert FREE.details(records).count("not run") == len(free.MODELS)
    for show in FREE.aspects().values():
        assert show(records["minesweeper/soft"])


def test_what_is_chosen_is_chosen_on_validation(tiny, monkeypatch):
    """Test graphs are read once, when the training is over, with the parameters of the last of the
    best epochs."""
    training = free.Training("enzymes", "gcn", rings(0), free.drawn("enzymes", "gcn", 0), 0, "cpu")
    looks, found, states = [], iter([0.5, 0.75, 0.75, 0.25]), []

    def judge(loader):
        looks.append(training.held.index(loader))
        states.append({k: v.clone() for k, v in training.model.state_dict().items()})
        return next(found, 0.125)

    monkeypatch.setattr(training, "judge", judge)
    assert training.run(4) == {"validation": 0.75, "test": 0.125, "epoch": 3}
    assert looks == [0, 0, 0, 0, 1]
    assert all(torch.equal(states[4][name], value) for name, value in states[2].items())
    assert not all(torch.equal(states[4][name], value) for name, value in states[3].items())


def test_a_training_stops_when_its_best_epoch_is_long_ago(tiny, monkeypatch):
    monkeypatch.setitem(free.SETS, "enzymes", replace(free.SETS["enzymes"], patience=3))
    training = free.Training("enzymes", "gcn", rings(0), free.drawn("enzymes", "gcn", 0), 0, "cpu")
    values = iter([0.5, 0.75] + [0.5] * 9)
    monkeypatch.setattr(training, "judge", lambda loader: next(values))
    assert training.run(100)["epoch"] == 2
    assert len(list(values)) == 5  # two and three epochs, and the test


@pytest.mark.parametrize("model", ["soft", "alone"])
def test_only_alone_sees_no_edges(tiny, model):
    graphs = rings(0)
    training = free.Training("enzymes", model, graphs, free.drawn("enzymes", model, 0), 0, "cpu")
    [batch] = training.train
    training.model.eval()
    bare = training.model(batch.x, batch.edge_index[:, :0], batch=batch.batch)
    assert torch.equal(training.predict(batch), bare) == (model == "alone")


@pytest.mark.parametrize("name", free.SETS)
@pytest.mark.parametrize("model", free.MODELS)
def test_trials_are_drawn_from_the_space_and_can_be_built(name, model):
    common, soft, explicit = free.SPACES[name]
    space = common | (explicit if model in free.LAYERS else soft)
    for trial in range(free.SETS[name].trials):
        options = free.drawn(name, model, trial)
        assert options == free.drawn(name, model, trial)
        assert options.keys() == space.keys()
        assert all(value in space[option] for option, value in options.items())
        free.build(free.SETS[name], model, rings(0), options)


def test_area_under_the_curve():
    """Against all pairs, with ties, and only of the rows that count."""
    out, y = torch.randn(40, 2).round(), torch.randint(2, (40,))
    keep = torch.rand(40) > 0.3
    score = (out[:, 1] - out[:, 0])[keep]
    one, zero = score[y[keep] == 1], score[y[keep] == 0]
    apart = one[:, None] - zero
    expected = ((apart > 0).double() + 0.5 * (apart == 0).double()).mean()
    torch.testing.assert_close(free.roc_auc(out, y, keep), expected)
    assert free.roc_auc(torch.stack([-y, y], 1), y, keep) == 1.0


def test_minesweeper_is_read_from_its_file(home):
    with pytest.raises(DataError, match=r"minesweeper was not found.*heterophilous"):
        free.minesweeper(0)
    (home / "heterophilous").mkdir()
    masks = np.eye(3, dtype=bool)[np.arange(6) % 3].T
    np.savez(
        home / "heterophilous" / "minesweeper.npz",
        node_features=np.ones((6, 2)), node_labels=np.arange(6) % 2, edges=[[0, 1], [1, 2]],
        **{f"{part}_masks": masks[[i, i]] for i, part in enumerate(("train", "val", "test"))},
    )  # fmt: skip
    [train], [val], [test] = free.minesweeper(1)
    assert train.num_edges == 4  # both directions
    assert torch.stack([train.keep, val.keep, test.keep]).sum(0).tolist() == [1] * 6
    assert free.SETS["minesweeper"].metric is not ACCURACY


def test_enzymes_are_split_at_random(home):
    write_tu(home, "ENZYMES", graphs=20)
    raw = home / "TUDataset" / "ENZYMES" / "raw"
    nodes = (raw / "ENZYMES_node_labels.txt").read_text().split()
    (raw / "ENZYMES_node_attributes.txt").write_text("\n".join(f"{n}.5, 1.0" for n in nodes) + "\n")
    parts, others = free.enzymes(0), free.enzymes(1)
    assert [len(part) for part in parts] == [16, 2, 2]
    x = torch.cat([g.x for g in parts[0]])
    assert abs(float(x[:, 0].mean())) < 1e-5
    assert set(x[:, 1:].unique().tolist()) == {0.0, 1.0}  # a constant, and one-hot labels
    assert [g.num_nodes for g in parts[0]] != [g.num_nodes for g in others[0]]


def test_cora_is_read_from_its_files(real):
    real("planetoid/cora")
    [train], [val], [test] = free.cora(0)
    assert (train.num_nodes, train.num_features) == (2708, 1433)
    assert [int(g.keep.sum()) for g in (train, val, test)] == [140, 500, 1000]
    assert set(train.x.unique().tolist()) == {0.0, 1.0}


def test_options_of_other_experiments_are_refused(tmp_path):
    for given in ({"recipe": "paper"}, {"trial": "one", "changes": {"lr": 0.1}}):
        with pytest.raises(ConfigError, match="tunes its options"):
            free.measured(Work(tmp_path, **given), name="cora", model="gcn")


def test_command_line(tiny, tmp_path, capsys):
    flags = ["--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"), "--quick"]
    assert main(["free", "--only", "enzymes/sage", *flags]) == 0
    said = capsys.readouterr()
    assert "QUICK" in said.out
    assert "| SAGE | not run |" in said.out
    record = json.loads((tmp_path / "r/quick/free/enzymes/sage.json").read_text())
    assert record["command"] == "python -m experiments free --only enzymes/sage --quick"
    assert len(record["trials"]) == 1


def test_resident_graphs_are_batched_as_a_loader_does():
    [graphs, *_] = labelled(0)
    found = free.Resident(graphs, 5, False, "cpu")
    for one, other in zip(found, DataLoader(graphs, batch_size=5), strict=True):
        assert one.num_graphs == other.num_graphs
        for name in ("x", "edge_index", "edge_attr", "y", "batch"):
            assert torch.equal(one[name], other[name]), name
    mixed = free.Resident(graphs, 5, True, "cpu")
    x = torch.cat([batch.x for batch in mixed])
    assert not torch.equal(x, found.all.x)
    assert torch.equal(x[:, 1].sort().values, found.all.x[:, 1].sort().values)
