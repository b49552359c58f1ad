"""Streams: the same answers as cold solves, from nearer starts."""

import pytest
import torch
from kernel_cases import needs_library
from motion import joining, ring

from hogwild import GCN, GSDGNN, IGNN, EnergyGNN, Stream
from hogwild.errors import FeatureError
from hogwild.linalg import direct

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2),
    "ignn": lambda: IGNN(3, out_channels=2),
    "gcn": lambda: GCN(3, out_channels=2),
    "stack": lambda: EnergyGNN(3, out_channels=2, num_layers=2),
    "replicas": lambda: EnergyGNN(3, out_channels=2, replicas=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_cold_solves(name):
    """Through nodes that come and go in another order, and through a change of features."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    stream = Stream(model)
    frames = [frame.data for frame in joining()]
    moved = frames[1].clone()
    moved.x = moved.x + 0.1
    for data in (*frames, moved, frames[0]):
        found = stream.update(data)
        with torch.no_grad():
            cold = model.embed(data)
            prediction = model.predict(data)
        assert bool(found.converged.all())
        torch.testing.assert_close(found.value, cold.value, rtol=0, atol=1e-6)
        torch.testing.assert_close(stream.predict(data), prediction, rtol=0, atol=1e-5)


def test_nodes_begin_where_they_were():
    """A solve that begins at the answer has nothing to do, even if the rows have been reordered."""
    torch.manual_seed(0)
    stream = Stream(EnergyGNN(3, out_channels=2).double())
    data = ring([3, 1, 4, 5, 9])
    assert int(stream.update(data).iterations.max()) > 2
    order = torch.tensor([2, 0, 4, 1, 3])
    place = torch.empty_like(order)
    place[order] = torch.arange(5)
    again = data.clone()
    again.x, again.node_id = data.x[order], data.node_id[order]
    again.edge_index = place[data.edge_index]
    found = stream.update(again)
    assert int(found.iterations.max()) == 0
    del again.node_id  # now they are matched by their rows, and have moved
    assert int(stream.update(data).iterations.max()) == 0
    assert int(stream.update(again).iterations.max()) > 0


def test_analyses_are_used_again_while_edges_stay():
    stream = Stream(GSDGNN(3, out_channels=2).double())
    data = ring(list(range(6)))
    stream.update(data)
    first = stream.graph
    other = data.clone()
    other.x = data.x + 1.0
    other.edge_index = data.edge_index.clone()
    stream.update(other)
    assert stream.graph is first
    other.edge_index = data.edge_index[:, 2:]
    stream.update(other)
    assert stream.graph is not first


@needs_library
def test_the_search_for_separators_is_not_repeated(monkeypatch):
    """Where it found none, a graph that is nearly the same is not searched again."""
    stream, searched = Stream(IGNN(3, out_channels=2).double()), []
    monkeypatch.setattr(direct, "_is_cheaper", lambda *_: searched.append(1))
    for missing in (0, 1, 2):
        data = ring(list(range(20)))
        data.edge_index = data.edge_index[:, 2 * missing :]
        stream.update(data)
    assert searched == [1]


def test_identities_must_differ():
    data = ring([0, 1, 2])
    data.node_id = torch.tensor([0, 1, 1])
    with pytest.raises(FeatureError, match=r"node_id is .* expected different integers"):
        Stream(GSDGNN(3, out_channels=2).double()).update(data)
