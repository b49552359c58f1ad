"""Warm starts by graph: the same answers, fewer iterations, and what cannot work."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, chain
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import hogwild
from hogwild import GCN, EnergyGNN, WarmStart
from hogwild.errors import ConfigError, GraphError, InputError

KINDS = {
    "one": {},
    "replicas": {"replicas": 3},
    "stack": {"num_layers": 2},
    "stack of replicas": {"num_layers": 2, "replicas": 2},
}


def graphs(count=9):
    random = torch.Generator().manual_seed(0)
    return [
        Data(x=torch.randn(n, 3, generator=random, **DOUBLE), edge_index=chain(n))
        for n in range(3, 3 + count)
    ]


def moved(model, size=1e-3):
    """The model after a small step of some optimiser."""
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn_like(p)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_epoch_takes_fewer_iterations_to_the_same_answers(kind):
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, pool="mean", **KINDS[kind]).double()
    warm, data = WarmStart(model), WarmStart.numbered(graphs())
    for batch in DataLoader(data, batch_size=4, shuffle=True):
        torch.testing.assert_close(warm(batch), model.predict(batch))
    moved(model)
    for batch in DataLoader(data, batch_size=3, shuffle=True):  # in other company
        cold, found = model.embed(batch), warm.embed(batch)
        assert bool((found.iterations < cold.iterations).all())
        torch.testing.assert_close(found.value, cold.value, rtol=1e-6, atol=1e-7)


def test_gradients_are_those_of_the_model():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1, pool="mean").double()
    warm, batch = WarmStart(model), Batch.from_data_list(list(WarmStart.numbered(graphs(3))))
    warm(batch)
    found = torch.autograd.grad(warm(batch).sum(), list(model.parameters()))
    expected = torch.autograd.grad(model.predict(batch).sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected)


def start(warm, batch):
    """Where the next solve begins."""
    return warm._memory.get(warm._rows(batch))[0]


def test_rows_come_back_to_their_graphs():
    model = EnergyGNN(3, out_channels=1).double()
    warm, data = WarmStart(model), WarmStart.numbered(graphs(6))
    value = {int(g.graph_id): torch.randn(g.num_nodes, 2, **DOUBLE) for g in data}
    for order in ([0], [3, 1], [5, 2, 4]):  # the memory grows twice
        batch = Batch.from_data_list([data[i] for i in order])
        h = torch.cat([value[int(n)] for n in batch.graph_id])
        warm._memory.put(h.unsqueeze(0), warm._rows(batch))
    batch = Batch.from_data_list([data[i] for i in (4, 0, 5, 1, 2, 3)])
    assert torch.equal(start(warm, batch), torch.cat([value[int(n)] for n in batch.graph_id]))
    alone = data[2]
    assert torch.equal(start(warm, alone), value[alone.graph_id])


def test_new_and_failed_graphs_start_at_zero():
    torch.manual_seed(0)
    solver = hogwild.solvers.Newton(max_iter=1)
    model = EnergyGNN(3, out_channels=1, solver=solver, on_failure="ignore").double()
    warm, data = WarmStart(model), WarmStart.numbered(graphs(2))
    found = warm.embed(Batch.from_data_list([data[0]]))
    assert not bool(found.converged.any())
    assert not start(warm, Batch.from_data_list([data[1], data[0]])).any()


def test_inference_first_and_training_later():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1).double()
    warm, batch = WarmStart(model), Batch.from_data_list(list(WarmStart.numbered(graphs(3))))
    with torch.inference_mode():
        expected = warm(batch).clone()
        warm(Batch.from_data_list(list(WarmStart.numbered(graphs(4)))))  # the memory grows
    out = warm(batch)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), expected)


def test_numbers_survive_splits_and_never_repeat():
    given = graphs(6)
    first, second = WarmStart.numbered(given), WarmStart.numbered(given)
    numbers = [g.graph_id for g in first]
    assert len(first) == 6
    assert len({*numbers, *(g.graph_id for g in second)}) == 12
    mask = torch.tensor([True, False, False, True, False, True])
    for index in (slice(2, 5), [4, 0], torch.tensor([5, 1]), mask):
        expected = torch.tensor(numbers)[index].tolist()
        assert [g.graph_id for g in first[index]] == expected
    for last in (-1, np.int64(5), torch.tensor(5)):
        assert first[last].graph_id == numbers[-1]
    assert first[1:][:2][1].graph_id == numbers[2]
    assert "graph_id" not in given[0]


def test_a_random_transform_of_features_keeps_the_start():
    class Noisy(list):
        def __getitem__(self, i):
            data = super().__getitem__(i).clone()
            data.x = data.x + 1e-4 * torch.randn_like(data.x)
            return data

    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=1).double()
    warm, data = WarmStart(model), WarmStart.numbered(Noisy(graphs(3)))
    batch, again = (next(iter(DataLoader(data, batch_size=3))) for _ in range(2))
    assert not torch.equal(batch.x, again.x)
    warm(batch)
    assert bool((warm.embed(again).iterations < model.embed(again).iterations).all())


def test_what_cannot_work_is_refused():
    model = EnergyGNN(3, out_channels=1).double()
    warm, plain = WarmStart(model), graphs(3)
    with pytest.raises(InputError, match=r"Batch without graph_id.*WarmStart.numbered"):
        warm(Batch.from_data_list(plain))
    with pytest.raises(InputError, match="a batch of 3 graphs has 1 numbers"):
        warm(WarmStart.numbered([Batch.from_data_list(plain)])[0])
    with pytest.raises(InputError, match=r"numbered\(\[data\]\)"):
        WarmStart.numbered(plain[0])
    with pytest.raises(ConfigError, match="GCN, which solves nothing"):
        WarmStart(GCN(3, out_channels=1))
    with pytest.raises(ConfigError, match="expected a model of hogwild"):
        WarmStart(torch.nn.Linear(1, 1))
    small, large = WarmStart.numbered(plain)[:2]
    warm(Batch.from_data_list([small]))
    large.graph_id = small.graph_id
    with pytest.raises(GraphError, match=r"had 3 nodes before and has 4 nodes now.*clear\(\)"):
        warm(Batch.from_data_list([large]))
    warm.clear()
    warm(Batch.from_data_list([large]))
