"""What every task keeps to: masks, replicas, splits, baselines, and being found by name."""

import pytest
import torch
from samples import FILED, SYNTHETIC, small
from torch_geometric.data import Batch

from hogwild import EnergyGNN, tasks
from hogwild.errors import ConfigError, FeatureError, InputError

EVERY = [*SYNTHETIC, *FILED]


def batch(graphs):
    return Batch.from_data_list(list(graphs))


def predictions(task, data, *lead):
    rows = data.num_nodes if task.pool is None else data.num_graphs
    return torch.randn(*lead, rows, task.out_channels, dtype=torch.float64)


@pytest.mark.parametrize("name", EVERY)
def test_replicas_and_masks_are_subsets(name, home):
    """Loss and metric of replica r are those of its own predictions on its own graphs alone."""
    task = small(name, home)
    data = batch(task.graphs)
    count = len(task.graphs)
    out = predictions(task, data, 3)
    mask = torch.rand(3, count) < 0.6
    mask[:, 0] = True
    mask[2] = True
    mask[2, 0] = count > 2  # with two graphs this is a mask of one of them
    for measure in (task.loss, task.metric):
        together = measure(out, data)
        masked = measure(out, data, mask)
        shared = measure(out, data, mask[0])
        assert together.shape == masked.shape == shared.shape == (3,)
        for r in range(3):
            torch.testing.assert_close(together[r], measure(out[r], data))
            for m, found in ((mask[r], masked[r]), (mask[0], shared[r])):
                chosen = m.nonzero()[:, 0]
                rows = m[data.batch] if task.pool is None else m
                alone = measure(out[r][rows], batch(task.graphs[g] for g in chosen))
                torch.testing.assert_close(found, alone, equal_nan=True)
                torch.testing.assert_close(found, measure(out[r], data, m), equal_nan=True)
        torch.testing.assert_close(measure(out[0], data, mask)[0], masked[0], equal_nan=True)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_stay_within_the_mask(name, home):
    """Graphs that do not count have no gradient; those that count have a finite one."""
    task = small(name, home)
    data = batch(task.graphs)
    out = predictions(task, data, 2).requires_grad_()
    mask = torch.zeros(2, len(task.graphs), dtype=torch.bool)
    mask[0, 0] = mask[1, 1] = True
    task.loss(out, data, mask).sum().backward()
    rows = mask[:, data.batch] if task.pool is None else mask
    assert torch.equal(out.grad.abs().sum(-1) > 0, rows)
    assert out.grad.isfinite().all()


@pytest.mark.parametrize("name", EVERY)
def test_a_model_learns_from_it(name, home):
    """The task's widths build a model; its loss, fold by fold, reaches every replica."""
    task = small(name, home)
    for g in task.graphs:
        assert g.x.dtype == torch.float32
        assert g.x.shape == (g.num_nodes, task.in_channels)
        assert (g.edge_attr is None) == (task.edge_dim is None)
        if g.edge_attr is not None:
            assert g.edge_attr.dtype == torch.float32
            assert g.edge_attr.shape == (g.num_edges, task.edge_dim)
    data = batch(task.graphs)
    widths = {"out_channels": task.out_channels, "edge_dim": task.edge_dim, "pool": task.pool}
    model = EnergyGNN(task.in_channels, **widths, replicas=2)
    out = model(data.x, data.edge_index, data.edge_attr, data.batch)
    mask = torch.zeros(2, len(task.graphs), dtype=torch.bool)
    mask[0, ::2] = mask[1, 1::2] = True
    task.loss(out, data, mask).sum().backward()
    slopes = torch.cat([p.grad.flatten(1) for p in model.conv.parameters()], 1)
    assert slopes.isfinite().all()
    assert (slopes.abs().amax(1) > 1e-6).all()
    assert task.metric(out, data, mask).shape == (2,)


@pytest.mark.parametrize("name", EVERY)
def test_splits(name, home):
    task = small(name, home)
    everyone = torch.arange(len(task.graphs))
    if task.fixed is None:
        splits = task.splits()
        assert len(splits) == 10
        tested = torch.cat([s.test for s in splits])
        assert torch.equal(tested.sort().values, everyone)
        assert max(len(s.test) for s in splits) - min(len(s.test) for s in splits) <= 1
        for s, t in zip(splits, task.splits(), strict=True):
            assert torch.equal(s.test, t.test)
            assert torch.equal(torch.cat([s.train, s.test]).sort().values, everyone)
            assert torch.equal(s.val, s.train)
            assert torch.equal(s.train, s.train.sort().values)
        other = task.splits(seed=1)
        assert any(not torch.equal(s.test, t.test) for s, t in zip(splits, other, strict=True))
        for s in task.splits(4, validation=True):
            assert torch.equal(torch.cat([s.train, s.val, s.test]).sort().values, everyone)
            assert len(s.val)
    else:
        (split,) = task.splits()
        for part in (split.train, split.val, split.test):
            assert len(part)
            assert part.dtype == torch.long
        with pytest.raises(ConfigError, match="one fixed split"):
            task.splits(5)


@pytest.mark.parametrize("folds", [1, 13, True, 2.0])
def test_impossible_folds(folds):
    with pytest.raises(ConfigError, match="folds="):
        tasks.get("sums", num_graphs=12, sizes=2).splits(folds)
    with pytest.raises(ConfigError, match="from 3 to"):
        tasks.get("sums", num_graphs=12, sizes=2).splits(2, validation=True)


@pytest.mark.parametrize("name", ["counting", "sums", "coordinates", "mutag", "ppi"])
def test_no_constant_is_better(name, home):
    """On the graphs it is learned from, no other constant beats the constant predictor."""
    task = small(name, home)
    data = batch(task.graphs)
    best = task.constant(data, data)
    value = task._constant(data)
    sign = 1 if task.higher_is_better else -1
    rows = data.num_nodes if task.pool is None else data.num_graphs
    for scale in (0.01, 0.1, 1.0):
        for _ in range(20):
            other = value + scale * value.abs().max() * torch.randn_like(value)
            score = task.metric(other.repeat(rows // len(value), 1), data)
            assert sign * float(score) <= sign * best + 1e-3


def test_bad_predictions_and_masks():
    task = tasks.get("sums", num_graphs=4, sizes=3)
    data = batch(task.graphs)
    with pytest.raises(FeatureError, match=r"out has shape \(12,\).*\[12, 1\]"):
        task.loss(torch.zeros(12), data)
    with pytest.raises(FeatureError, match=r"\(4, 1\)"):
        task.metric(torch.zeros(4, 1), data)
    for mask in (torch.ones(4), torch.ones(12).bool(), torch.ones(3, 4).bool()):
        with pytest.raises(InputError, match=r"expected bool \[4\] or \[2, 4\]"):
            task.loss(torch.zeros(2, 12, 1), data, mask)


def test_an_empty_mask_gives_nan():
    task = tasks.get("sums", num_graphs=2, sizes=3)
    assert task.loss(torch.zeros(6, 1), batch(task.graphs), torch.zeros(2).bool()).isnan()


def test_get():
    assert isinstance(tasks.get("chains", length=3), tasks.Chains)
    with pytest.raises(ConfigError, match=r"did you mean 'counting'.*: chains, coordinates,"):
        tasks.get("couning")
    with pytest.raises(ConfigError, match=r"did you mean 'length'.*classes, length"):
        tasks.get("chains", lenght=3)
    with pytest.raises(ConfigError, match="unknown task 'zzz'; expected one of"):
        tasks.get("zzz")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sums", {"num_graphs": 6, "sizes": (4, 7), "graphs": "rgg"}),
        ("counting", {"sizes": (5, 9), "graphs": "tree"}),
        ("coordinates", {"num_graphs": 6}),
    ],
)
def test_a_function_of_the_seed(name, options):
    """The same again from the same seed, another from another."""
    one, two, other = (tasks.get(name, **options, seed=seed).graphs for seed in (3, 3, 4))
    for key in ("x", "edge_index", "y"):
        assert all(torch.equal(a[key], b[key]) for a, b in zip(one, two, strict=True))

    def same(a, b):
        return a.x.equal(b.x) and a.edge_index.equal(b.edge_index)

    assert not all(same(a, b) for a, b in zip(one, other, strict=True))
