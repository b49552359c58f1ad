"""Inference on parts, in one process: the answers of the whole graph, errors, files."""

import numpy as np
import pytest
import torch
from cluster_parts import MODELS, case
from torch_geometric.data import Data

from hogwild import GAT, GSDGNN, EnergyGNN, SoftEnergyGNN
from hogwild.cluster import Disorder, Store, Trace, Trainer, infer, partition
from hogwild.errors import AsynchronyError, ConfigError, DataError, FeatureError


def close(run, model, data, atol=1e-5):
    with torch.no_grad():
        torch.testing.assert_close(run.h, model.embed(data).value, rtol=0, atol=atol)
        torch.testing.assert_close(run.prediction, model.predict(data), rtol=0, atol=10 * atol)


@pytest.mark.parametrize("name", MODELS)
def test_a_run_says_what_is_proved(name):
    model, data = case(name)
    run = infer(model, data, 3, disorder=Disorder(seed=1))
    assert (run.error_bar.error is None) == (name == "scarselli")
    assert len(run.updates) == len(run.bytes) == 3
    assert "converged" in str(run)
    assert set(run.part.tolist()) == {0, 1, 2}
    alone = infer(model, data)
    assert alone.part.tolist() == [0] * 18
    close(alone, model, data)


def chain(length, scale):
    torch.manual_seed(0)
    model = EnergyGNN(2, out_channels=1).double()
    ends = torch.arange(length - 1)
    edge_index = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    return model, Data(x=scale * torch.randn(length, 2, dtype=torch.float64), edge_index=edge_index)


def test_a_chain_is_solved_in_few_updates_and_large_features_settle():
    run = infer(*chain(60, 1.0), 2, disorder=Disorder())
    assert run.converged
    assert max(run.updates) <= 12
    model, data = chain(40, 30.0)
    run = infer(model, data, 3, disorder=Disorder(seed=2, delay=2))
    assert run.converged
    with torch.no_grad():
        exact = model.embed(data).value
    assert float((run.h - exact).norm() / exact.norm()) <= 1e-5


def test_time_runs_out_and_the_folder_goes_on(tmp_path):
    model, data = case("energy")
    options = {"folder": tmp_path / "run", "tol": 1e-8, "partition": "search"}
    first = infer(model, data, 3, seconds=0.0, disorder=Disorder(), **options)
    assert not first.converged
    assert first.error_bar.relative > 1e-8
    with torch.no_grad():
        gap = float((first.h - model.embed(data).value).norm())
    assert gap <= first.error_bar.error  # the bar is right before convergence, too
    second = infer(model, data, 3, disorder=Disorder(), **options)
    close(second, model, data)
    third = infer(model, data, 3, disorder=Disorder(), **options)
    assert sum(third.updates) == 0
    files = sorted((tmp_path / "run" / "answer").iterdir())
    assert files == third.files
    found = np.concatenate([np.load(f)["nodes"] for f in files])
    assert sorted(found.tolist()) == list(range(18))
    assert Trace.load(tmp_path / "run" / "trace.json").times


def test_stores_and_pictures(tmp_path):
    model, data = case("gsd")
    cut = partition(data, 2, method="search")
    store = Store.write(tmp_path / "graph", data, cut.part)
    run = infer(model, tmp_path / "graph", disorder=Disorder())
    close(run, model, data)
    run.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 5000
    with pytest.raises(ConfigError, match="workers=3"):
        infer(model, store, 3)
    near = Store.write(tmp_path / "near", data, cut.part, hops=1)
    close(infer(model, near, disorder=Disorder()), model, data)
    with pytest.raises(ConfigError, match=r"reach 1 hop, and this needs 2; expected Store\.write"):
        infer(case("energy")[0], near)


def test_bad_input_is_one_clear_line(tmp_path):
    model, data = case("gsd")
    with pytest.raises(FeatureError, match="3 features a node and the model reads 5"):
        infer(GSDGNN(5, out_channels=1), data, 2)
    with pytest.raises(FeatureError, match="2 features an edge"):
        infer(model, Data(**data.to_dict(), edge_attr=torch.randn(data.num_edges, 2)), 2)
    with pytest.raises(AsynchronyError, match="expected one implicit layer"):
        infer(GAT(3, out_channels=1), data, 2)
    with pytest.raises(AsynchronyError, match=r"attention \(heads=2\) needs the whole graph"):
        infer(SoftEnergyGNN(3, out_channels=1, heads=2), data, 2, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for options, words in (
        ({"workers": 0}, "workers=0"), ({"tol": 0.0}, r"tol=0\.0"),
        ({"partition": "magic"}, "magic"),
        ({"workers": 2, "address": "127.0.0.1:1"}, "no cluster of Ray answers"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            infer(model, data, **options)
    (tmp_path / "broken.npz").write_bytes(b"no graph")
    with pytest.raises(DataError, match=r"broken\.npz"):
        infer(model, tmp_path / "broken.npz")


@pytest.mark.parametrize("what", ["edge_weight", "x", "edges"])
def test_a_folder_with_another_graph_is_written_again(what, tmp_path):
    model, data = case("gsd", sizes=(3000,) if what == "x" else (12, 5))
    data.edge_weight = torch.ones(data.num_edges, dtype=torch.float64)
    infer(model, data, 2, folder=tmp_path, disorder=Disorder())
    other = data.clone()
    if what == "edge_weight":
        other.edge_weight = 10.0 * data.edge_weight
    elif what == "x":  # a single node
        other.x[1234] += 1.0
    else:
        other.edge_index = data.edge_index.flip(1)
    run = infer(model, other, 2, folder=tmp_path, disorder=Disorder())
    close(run, model, other)


def test_edge_weights_of_files_have_the_dtype_of_the_model(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "graph.npz"
    np.savez(path, src=[0, 1, 1, 2], dst=[1, 0, 2, 1], edge_weight=[2.0, 2.0, 3.0, 3.0])
    run = infer(GSDGNN(1, out_channels=2), path, 2, disorder=Disorder())
    assert run.converged
    assert run.prediction.dtype == torch.float32


def test_numbers_that_are_none_and_folders_that_cannot_be_written(tmp_path):
    model, data = case("gsd")
    bad = data.clone()
    bad.x[7, 1] = torch.nan
    with pytest.raises(FeatureError, match=r"x holds NaN or infinite values \(first at \(7, 1\)"):
        infer(model, bad, 2, disorder=Disorder())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        infer(model, data, 2, folder=tmp_path / "file" / "run", disorder=Disorder())
    with pytest.raises(ConfigError, match="seconds=-1"):
        infer(model, data, 2, seconds=-1, disorder=Disorder())
    with pytest.raises(TypeError, match="unexpected keyword argument 'fodler'"):
        Trainer(model, data, 2, loss=torch.nn.functional.mse_loss, fodler="here")


def test_damage_in_a_store_is_found_and_a_folder_is_written_again(tmp_path):
    model, data = case("gsd")
    infer(model, data, 2, folder=tmp_path, disorder=Disorder())
    file = tmp_path / "graph" / "part-00000.pt"
    content = bytearray(file.read_bytes())
    content[-3] ^= 8  # a copy of another part's features
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"part-00000\.pt is damaged"):
        infer(model, tmp_path / "graph", disorder=Disorder())
    close(infer(model, data, 2, folder=tmp_path, disorder=Disorder()), model, data)
