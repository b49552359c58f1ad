"""A user's own graphs and losses."""

import pytest
import torch
import torch.nn.functional as F
from tiny_tasks import Sums, chain
from torch_geometric.data import Batch, Data

from hogwild import EnergyGNN, Inputs, SoftEnergyGNN, simulate, train
from hogwild.errors import CheckpointError, ConfigError, InputError
from hogwild.training.own import OwnTask, parts
from hogwild.training.registry import entry
from hogwild.training.task import resolve


def classes(count=6, n=4):
    """Graph-level classes."""
    return [
        Data(x=torch.randn(n, 2), edge_index=chain(n), y=torch.tensor([i % 3]))
        for i in range(count)
    ]


def test_what_is_inferred():
    own = OwnTask(classes())
    assert (own.in_channels, own.out_channels, own.pool, own.edge_dim) == (2, 3, "mean", None)
    assert (own.metric_name, own.higher_is_better) == ("accuracy", True)
    nodes = [Data(x=torch.randn(4, 2), edge_index=chain(4), y=torch.randn(4)) for _ in range(3)]
    own = OwnTask(nodes, F.l1_loss)
    assert (own.out_channels, own.pool, own.higher_is_better) == (1, None, False)


def test_losses_are_of_what_counts():
    data, own = Batch.from_data_list(classes()), OwnTask(classes())
    out = torch.randn(2, 6, 3, dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, False, True], [True] * 6])
    found = own.loss(out, data, mask)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    rows = [0, 2, 5]
    torch.testing.assert_close(found[0], F.cross_entropy(out[0, rows], y[rows]))
    torch.testing.assert_close(found[1], F.cross_entropy(out[1], y))
    torch.testing.assert_close(own.loss(out[0], data, mask[0]), found[0])
    torch.testing.assert_close(own.loss(out, data)[1], found[1])
    accuracy = (out[0, rows].argmax(-1) == y[rows]).double().mean()
    assert float(own.metric(out, data, mask)[0]) == float(accuracy)


def test_node_level_masks_and_flat_targets():
    graphs = [Data(x=torch.randn(n, 1), edge_index=chain(n), y=torch.randn(n)) for n in (2, 3)]
    data, own = Batch.from_data_list(graphs), OwnTask(graphs)
    out = torch.randn(1, 5, 1)
    mask = torch.tensor([[False, True]])
    expected = (out[0, 2:, 0] - data.y[2:]).square().mean()
    torch.testing.assert_close(own.loss(out, data, mask)[0], expected)


@pytest.mark.parametrize("model", ["gat", "energy-edge", "scarselli", "energy-node", "gcn"])
@pytest.mark.parametrize(("width", "dtype"), [(None, torch.float32), (2, torch.float64)])
def test_the_model_takes_the_graphs_it_was_trained_on(model, width, dtype, recwarn):
    """Their dtype and their edge features, read or not, flat or not."""
    for graph in (graphs := classes(8)):
        graph.x = graph.x.to(dtype)
        graph.edge_attr = torch.randn(6, *([] if width is None else [width]), dtype=dtype)
    result = train(graphs, model=model, epochs=2)
    assert 0 <= float(result.metrics["train"][0]) <= 1
    reads = entry(model).edges
    said = [str(w.message) for w in recwarn if "does not read" in str(w.message)]
    assert len(said) == (not reads)
    assert all(f"{model} does not read" in text and "energy-edge" in text for text in said)
    for g in graphs[:2]:
        out = result.model(g.x, g.edge_index, g.edge_attr)
        assert out.dtype == dtype
        run = simulate(result.model, g, ticks=5, tol=None)
        expected = result.model.embed(Inputs(g.x, g.edge_index, g.edge_attr)).value
        torch.testing.assert_close(run.reference, expected)
        if not reads:
            assert torch.equal(out, result.model(g.x, g.edge_index))
    own = result.graph(0)
    attr = own.edge_attr
    assert torch.equal(
        result.model(own.x, own.edge_index, attr),
        result.model(own.x, own.edge_index, graphs[0].edge_attr),
    )


def test_a_given_model_takes_its_input_width_from_the_graphs():
    model = SoftEnergyGNN(-1, out_channels=3, hidden_channels=4, pool="attention", dropout=0.1)
    result = train(classes(12), model, epochs=1, standardize=False)
    assert result.model.in_channels == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_given_model_keeps_its_dtype(dtype):
    model = EnergyGNN(2, out_channels=3, pool="mean", on_failure="warn").to(dtype)
    graphs = classes(12)
    result = train(graphs, model, epochs=2)
    assert result.model is model
    assert result.config.dtype == str(dtype).removeprefix("torch.")
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.conv.on_failure == "warn"
    model(graphs[0].x.to(dtype), graphs[0].edge_index)
    chains = EnergyGNN(2, out_channels=1).to(dtype)
    train("chains", chains, epochs=1, task_options={"length": 3})
    assert {p.dtype for p in chains.parameters()} == {dtype}
    other = {torch.float32: "float64", torch.float64: "float32"}[dtype]
    with pytest.raises(ConfigError, match=f"dtype='{other}' was asked for with a model whose"):
        train(graphs, model, epochs=1, dtype=other)


def test_defaults_for_ones_own_graphs():
    result = train(classes(40), model="gcn", epochs=3)
    config = result.config
    assert (config.batch_size, config.dtype, config.validate_every) == (16, "float32", 1)
    assert [line["epoch"] for line in result.history] == [0, 1, 2]
    asked = train(classes(40), model="gcn", epochs=2, batch_size=40, dtype="float64")
    assert (asked.config.batch_size, asked.config.dtype) == (40, "float64")
    named = train("chains", "gcn", epochs=1, task_options={"length": 3}).config
    assert (named.batch_size, named.dtype, named.validate_every) == (None, "float64", 10)


def test_summary_compares_with_the_best_single_answer():
    """No constant is better on the test rows, also where the training rows know of none: here
    their classes are equally frequent, as those of citation graphs are."""
    y = torch.tensor([0] * 10 + [1] * 20 + [2] * 30)
    data = Data(x=torch.randn(60, 2), edge_index=chain(60), y=y)
    data.train_mask = torch.zeros(60).index_fill_(0, torch.tensor([0, 10, 30]), 1).bool()
    result = train(data, model="gcn", epochs=1)
    said = f"the best single answer for all test nodes: {29 / 57:.4g})"
    for value, words in [(0.3, f"(no better than {said}"), (29 / 57, f"(no better than {said}"),
                         (0.6, f"({said}")]:  # fmt: skip
        result.metrics["test"] = torch.tensor([value], dtype=torch.float64)
        assert words in result.summary()
    assert "parameters of epoch" in result.summary()


@pytest.mark.parametrize(
    ("loss", "constant"),
    [
        (None, lambda y: float((y - y.mean()).square().mean())),
        (F.l1_loss, lambda y: float((y - y.median()).abs().mean())),
        (F.huber_loss, lambda y: None),  # a function whose best constant nobody knows
    ],
)
def test_the_best_constant(loss, constant):
    numbers = [Data(x=torch.ones(n, 2), edge_index=chain(n), y=torch.randn(1)) for n in [3] * 40]
    own = OwnTask(numbers, loss)
    split = own.splits()[0]
    best = constant(torch.cat([numbers[i].y for i in split.test.tolist()]))
    assert own.baseline(split) == (pytest.approx(best, rel=1e-5) if best else None)
    assert OwnTask(numbers, metric=F.l1_loss).baseline(split) is None
    assert OwnTask(numbers[:9], loss).baseline(parts(9, None, 0)[0]) is None  # one graph


def test_classes_in_equal_shares():
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)[torch.randperm(100)]
    for split in (*parts(100, None, 3, y), *parts(100, 5, 3, y)):
        for part in (split.train, split.val, split.test):
            counts = torch.bincount(y[part], minlength=3) / len(part)
            torch.testing.assert_close(counts, torch.tensor([0.6, 0.3, 0.1]))
    assert parts(10, None, 0)[0].test.numel() == 1


def masked(folds=None):
    """A ring whose nodes must tell which half they are in, from a number that says it roughly."""
    n = 30
    edge_index = torch.cat([chain(n), torch.tensor([[0, n - 1], [n - 1, 0]])], 1)
    half = (torch.arange(n) < n / 2).long()
    x = torch.randn(n, 2) + 3 * half.view(-1, 1)
    number = torch.rand(n) if folds is None else torch.rand(n, folds)
    return Data(
        x=x,
        edge_index=edge_index,
        y=half,
        train_mask=number < 0.6,
        val_mask=(number >= 0.6) & (number < 0.8),
        test_mask=number >= 0.8,
    )


def test_one_graph_with_masks():
    data = masked()
    result = train(data, model="gcn", epochs=60, lr=0.05)
    assert float(result.metrics["train"][0]) > 0.75
    out = result.model(data.x, data.edge_index)
    right = (out.argmax(-1) == data.y).double()
    for part in ("train", "val", "test"):
        expected = float(right[data[f"{part}_mask"]].mean())
        assert float(result.metrics[part][0]) == pytest.approx(expected, abs=1e-6)
    simulate(result.model, data, ticks=3)  # as it is, masks and all


def test_nodes_outside_the_training_mask_do_not_change_training():
    data, other = masked(), masked()
    other.update(data)
    other.y = torch.where(data.train_mask, data.y, 1 - data.y)
    options = {"model": "gcn", "epochs": 3, "validate_every": 99}
    a, b = (train(d, **options).history for d in (data, other))
    assert [line["loss"] for line in a] == [line["loss"] for line in b]


def test_masks_of_several_folds():
    data = masked(folds=3)
    result = train(data, model="gcn", epochs=2, replicas=3)
    out = torch.stack([result.replica(r)(data.x, data.edge_index) for r in range(3)])
    right = (out.argmax(-1) == data.y).double()
    expected = [float(right[r, data.test_mask[:, r]].mean()) for r in range(3)]
    assert result.metrics["test"].tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="whose masks have 3"):
        train(data, model="gcn", epochs=1, folds=4)


def test_masks_that_are_missing_or_wrong():
    data = masked()
    rest = ~(data.train_mask | data.val_mask)
    del data.test_mask
    split = OwnTask(data).splits()[0]
    assert torch.equal(OwnTask(data).graphs[int(split.test)].counted, rest)
    del data.val_mask
    assert not len(OwnTask(data).splits()[0].val)
    for mask, says in (
        (torch.zeros(30, dtype=torch.bool), "names no node"),
        (torch.zeros(30), r"torch.float32 \[30\]; expected bool \[30\]"),
        (torch.zeros(7, dtype=torch.bool), r"expected bool \[30\]"),
    ):
        data.train_mask = mask
        with pytest.raises(InputError, match=says):
            OwnTask(data)


@pytest.mark.parametrize("option", ["loss", "metric"])
def test_a_name_where_a_function_is_expected(option):
    with pytest.raises(ConfigError, match=f"{option}='mae'; expected a function of"):
        train(classes(12), model="gcn", **{option: "mae"})


def test_a_metric_where_higher_is_better():
    def accuracy(out, y):
        return (out.argmax(-1) == y).double().mean()

    result = train(classes(12), model="gcn", metric=accuracy, higher_is_better=True, epochs=2)
    assert result.task.higher_is_better
    assert not train(classes(12), model="gcn", metric=accuracy, epochs=1).task.higher_is_better


def test_progress_is_shown_on_a_terminal(monkeypatch, capsys):
    for seen in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda seen=seen: seen, raising=False)
        train(classes(), model="gcn", epochs=2)
        assert ("training" in capsys.readouterr().err) == seen


def test_missing_targets_with_a_loss_that_leaves_them_out():
    def where_known(out, y):
        return F.mse_loss(out[torch.isfinite(y)], y[torch.isfinite(y)])

    graphs = [Data(x=g.x, edge_index=g.edge_index, y=g.x[:, 0].clone()) for g in classes(8)]
    for g in graphs:
        g.y[0] = torch.nan
    assert not train(graphs, model="gcn", loss=where_known, epochs=2).failed
    failed = train(graphs, model="energy-node", loss=F.mse_loss, epochs=1)
    assert "the loss was nan: look for NaN in the targets (y)" in failed.stops[0].reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: [], "non-empty list"),
        (lambda g: [*g, 3], "non-empty list"),
        (
            lambda g: [Data(x=g[0].x, edge_index=g[0].edge_index)],
            "graph 0 has no y; expected tensors x",
        ),
        (
            lambda g: [Data(x=g[0].x.numpy(), edge_index=g[0].edge_index, y=g[0].y)],
            "graph 0 has a ndarray as x; expected tensors",
        ),
        (lambda g: [*g, Data(x=g[0].x, edge_index=g[0].edge_index, y=torch.zeros(3))], "graph 6"),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "x": torch.zeros(4, 9)})], "graph 6 has 9 feat"),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "x": torch.zeros(4)})], r"x of shape \[4\]"),
        (
            lambda g: [*g, Data(**g[0].to_dict(), edge_attr=torch.ones(g[0].num_edges))],
            "edge_attr of width 1, graph 0 . and None",
        ),
        (
            lambda g: [Data(**g[0].to_dict(), test_mask=g[0].y > 0)],
            "graph 0 has test_mask; expected a train_mask in all",
        ),
        (
            lambda g: [Data(**g[0].to_dict(), train_mask=torch.ones(4, dtype=torch.bool))],
            r"masks of nodes, y of shape \[1\]",
        ),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "x": torch.ones(4, 2).long()})], "one_hot"),
        (lambda g: [*g, Data(**{**g[0].to_dict(), "y": torch.tensor([-1])})], "the class -1"),
        (lambda g: [Data(**{**g[0].to_dict(), "y": torch.zeros(1, 3).long()})], "one class a"),
        (
            lambda g: [Data(**{**g[0].to_dict(), "y": torch.tensor([torch.nan])})],
            "graph 0 has NaN or infinite values in y",
        ),
    ],
)
def test_refused(change, says):
    with pytest.raises(InputError, match=says):
        OwnTask(change(classes()))


def test_a_run_does_not_go_on_with_other_graphs(tmp_path):
    options = {"model": "energy-node", "epochs": 2, "folder": tmp_path, "resume": True}
    train(classes(), **options)
    for others in (classes(count=5), classes(n=5)):
        with pytest.raises(CheckpointError, match=r"on other data: {'graphs': 6, 'nodes': 24"):
            train(others, **{**options, "epochs": 3})
    assert train(classes(), **{**options, "epochs": 3}).config.epochs == 3


def test_options_that_do_not_apply():
    with pytest.raises(ConfigError, match="already built"):
        resolve(Sums(), {"length": 3})
    with pytest.raises(ConfigError, match="which has its own"):
        resolve("chains", {}, loss=F.mse_loss)
    with pytest.raises(ConfigError, match="no task was given"):
        resolve("", {})
    with pytest.raises(ConfigError, match="no file"):
        resolve("nowhere.py:Task", {})


@pytest.mark.parametrize("count", [3, 4, 5, 9, 50])
@pytest.mark.parametrize("folds", [None, 3])
def test_parts_are_disjoint_and_complete(count, folds):
    found = parts(count, folds, seed=1)
    for split in found:
        pieces = (split.train, split.val, split.test)
        assert all(p.numel() for p in pieces)
        assert all(torch.equal(p, p.sort().values) for p in pieces)
        assert torch.equal(torch.cat(pieces).sort().values, torch.arange(count))
    if folds:
        tests = torch.cat([split.test for split in found])
        assert torch.equal(tests.sort().values, torch.arange(count))
    with pytest.raises(ConfigError, match="folds="):
        parts(count, count + 1, 0)


def test_fewer_than_three_graphs_are_a_warning():
    """Nothing is held out of them, and no metric says so. One training warns once."""
    with pytest.warns(UserWarning, match="no masks of nodes") as seen:
        train(classes(2), epochs=1, progress=False)
    (text,) = [str(one.message) for one in seen]
    assert text.startswith("2 graphs and no masks of nodes: the model is trained and tested")
