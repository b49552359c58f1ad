"""The unit of a feature does not matter to training, and what was learned of it is kept."""

import os
import re
from pathlib import Path

import pytest
import torch
from tiny_tasks import Chains, chain
from torch_geometric.data import Data

import hogwild
from experiments.protocols import PROTOCOLS
from hogwild import EnergyGNN, train
from hogwild.training import Config, load
from hogwild.training.ensemble import Members


def graphs(factor=1.0, shift=0.0, count=9, dtype=torch.float64):
    """Classes by the mean of a number with a heavy tail; beside it an indicator; edges have a
    number, too."""
    random = torch.Generator().manual_seed(0)
    out = []
    for i in range(count):
        n = 4 + i % 3
        number = torch.randn(n, 1, generator=random).exp() * (1 + 3 * (i % 2))
        flag = torch.randint(2, (n, 1), generator=random)
        x = factor * torch.cat([number, flag], 1).to(dtype) + shift
        edge_index = chain(n)
        attr = factor * torch.randn(edge_index.size(1), generator=random).to(dtype) + shift
        y = torch.tensor([i % 2])
        out.append(Data(x=x, edge_index=edge_index, edge_attr=attr, y=y))
    return out


def predictions(result, data):
    with torch.no_grad():
        found = [result.model(g.x, g.edge_index, g.edge_attr) for g in data]
    return torch.cat(found)


@pytest.mark.filterwarnings("ignore:the graphs have edge_attr")
@pytest.mark.parametrize("model", ["energy-edge", "gat", "ignn"])
def test_the_unit_does_not_matter(model):
    options = {"model": model, "epochs": 2, "lr": 0.02}
    if model == "ignn":
        options["model_options"] = {"kappa": 0.9}
    plain = graphs()
    expected = train(plain, **options)
    for change in ((1e3, 0.0), (1e6, 0.0), (1.0, 1e3)):
        moved = graphs(*change)
        found = train(moved, **options)
        error = predictions(found, moved) - predictions(expected, plain)
        assert error.abs().max() < 1e-6
        assert torch.equal(found.metrics["test"], expected.metrics["test"])


@pytest.mark.parametrize(("factor", "shift"), [(1e6, 0.0), (1.0, 1e3)])
def test_in_single_precision(factor, shift):
    options = {"model": "gat", "epochs": 3, "lr": 0.02}
    plain, moved = graphs(dtype=torch.float32), graphs(factor, shift, dtype=torch.float32)
    a = predictions(train(plain, **options), plain)
    b = predictions(train(moved, **options), moved)
    torch.testing.assert_close(a, b, rtol=0, atol=5e-3)  # 1,000.123 has four digits after the point


def test_without_it_the_unit_matters():
    options = {"model": "gat", "epochs": 6, "lr": 0.02, "standardize": False}
    a, b = (predictions(train(g, **options), g) for g in (graphs(), graphs(1e3)))
    assert (a - b).abs().max() > 1e-2


def test_replicas_have_the_statistics_of_their_own_graphs():
    data = graphs()
    for g in data:
        g.edge_attr = None
    result = train(data, model="energy-node", epochs=2, folds=3, replicas=3)
    members = Members.of(result.config, result.task, 3, torch.device("cpu"))
    offset = result.ensemble.features.nodes.offset
    for r in range(3):
        x = torch.cat([data[i].x for i in members.train[r].nonzero()[:, 0].tolist()])
        assert float(offset[r, 0]) == pytest.approx(float(x[:, 0].mean()), rel=1e-12)
        assert float(offset[r, 1]) == 0.0
        g, model = data[0], result.replica(r)
        torch.testing.assert_close(model.features.nodes.offset, offset[r])
        found = result.ensemble(g.x, g.edge_index)[r]
        torch.testing.assert_close(model(g.x, g.edge_index), found, rtol=0, atol=1e-9)
    assert offset[0, 0] != offset[1, 0]


def test_tasks_of_indicators_stay_as_they_are():
    a, b = (train(Chains(), "energy-edge", epochs=5, standardize=s) for s in (True, False))
    assert not a.ensemble.features.fitted
    for p, q in zip(a.ensemble.parameters(), b.ensemble.parameters(), strict=True):
        assert torch.equal(p, q)


def test_checkpoints_keep_the_statistics(tmp_path):
    data = graphs(1e3, 1e3)
    options = {"model": "energy-edge", "epochs": 2, "folder": tmp_path, "resume": True}
    first = train(data, **{**options, "epochs": 1})
    result = train(data, **options)
    assert torch.equal(first.ensemble.features.nodes.scale, result.ensemble.features.nodes.scale)
    again = load(tmp_path, task=data)
    assert again.model.features.fitted
    assert torch.equal(predictions(again, data), predictions(result, data))
    assert torch.equal(again.evaluate()["test"], result.metrics["test"])
    model = EnergyGNN(2, 2, edge_dim=1, pool="mean", replicas=1).double()
    hogwild.training.checkpoint.load(tmp_path / "model", model)
    assert torch.equal(model.features.edges.offset, result.ensemble.features.edges.offset)


def test_a_model_that_has_statistics_keeps_them():
    data = graphs()
    model = EnergyGNN(2, 2, edge_dim=1, pool="mean").double()
    train(data, model, epochs=1)
    first = model.features.nodes.offset.clone()
    assert model.features.fitted
    train(graphs(1.0, 5.0), model, epochs=1)
    assert torch.equal(model.features.nodes.offset, first)
    raw = EnergyGNN(2, 2, edge_dim=1, pool="mean").double()
    train(data, raw, epochs=1, standardize=False)
    assert not raw.features.fitted


def test_the_loop_in_the_documentation():
    """A plain PyG loop, run as it stands there."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text("utf-8")
    (loop,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "standardize(" in b]
    found = []
    for change in ((1.0, 0.0), (1e6, 0.0)):
        torch.manual_seed(0)
        data = graphs(*change, count=8, dtype=torch.float32)
        names = {"hogwild": hogwild, "torch": torch, "graphs": data}
        exec(loop, names | {"num_features": 2, "num_classes": 2}, names)
        model = names["model"]
        assert model.features.fitted
        found.append(torch.cat([model(g.x, g.edge_index) for g in data]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


def test_the_papers_tables_are_made_of_features_as_they_are():
    for protocol in PROTOCOLS.values():
        for recipe in ("default", "paper"):
            config = protocol.config("energy-edge", recipe=recipe)
            assert not config.standardize
            assert Config.from_dict(config.as_dict()) == config
    assert Config.of().standardize
    assert not Config.of(recipe="paper").standardize


@pytest.mark.slow
@pytest.mark.skipif("HOGWILD_DATA" not in os.environ, reason="needs the files of PROTEINS")
def test_raw_attributes_of_proteins(tmp_path):
    """The attribute reaches 798 beside indicators; its unit does not matter."""
    import shutil

    from torch_geometric.datasets import TUDataset

    root = Path(os.environ["HOGWILD_DATA"]) / "TUDataset" / "PROTEINS" / "raw"
    shutil.copytree(root, tmp_path / "PROTEINS" / "raw")
    data = list(TUDataset(tmp_path, "PROTEINS", use_node_attr=True))[::25]
    found = []
    for factor, shift in ((1.0, 0.0), (1e3, 0.0), (1.0, 1e3)):
        moved = [g.clone() for g in data]
        for g in moved:
            g.x = factor * g.x.double() + shift
        result = train(moved, epochs=3)
        assert not result.failed
        found.append(torch.cat([result.model(g.x, g.edge_index) for g in moved]).detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-6)
