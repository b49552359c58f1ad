"""What is kept: analyses with their graph; graphs of tensors that were seen before, which are found
again, never stale, never kept alive."""

import gc
import weakref

import pytest
import torch
from helpers import batch_of, chain, cycle, edges

from hogwild.errors import GraphError
from hogwild.graph import Graph, cached
from hogwild.graph.cached import Recent


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch):
    monkeypatch.setattr(Graph, "recent", Recent(256))


def test_same_tensors_same_object():
    edge_index, batch = batch_of((chain(3), 3), (chain(2), 2))
    first = Graph.of(edge_index, 5, batch)
    assert Graph.of(edge_index, 5, batch) is first
    assert Graph.of(edge_index, 5, batch.clone()) is not first
    assert Graph.of(edge_index.clone(), 5, batch) is not first
    assert Graph.of(edge_index, 5) is not first
    assert Graph.of(chain(3), 3) is not Graph.of(chain(3), 4)


def test_tensors_without_memory_are_not_kept():
    table = Recent(4)

    def seen(x):
        table.put("made", (x,))
        assert table.get((x,)) is None
        return x.sum()

    torch.func.grad(seen)(torch.ones(3))
    assert len(table) == 0


def test_in_place_change_makes_a_new_object():
    edge_index, batch = batch_of((chain(3), 3), (chain(2), 2))
    first = Graph.of(edge_index, 5, batch)
    edge_index[:, 0] = torch.tensor([2, 0])
    second = Graph.of(edge_index, 5, batch)
    assert second is not first
    assert second.src[0] == 2
    batch[2] = 0  # the same value: the version still moves
    assert Graph.of(edge_index, 5, batch) is not second
    edge_index[0, 0] = 99
    with pytest.raises(GraphError, match="99"):
        Graph.of(edge_index, 5, batch)


def test_in_place_change_leaves_an_analysed_graph_consistent():
    """What was derived from the connectivity stays true of the graph it was derived for."""
    edge_index = chain(3)
    first = Graph.of(edge_index, 3)
    rows = first.pattern.rows[: first.num_edges].clone()
    edge_index.copy_(edges((0, 2), (2, 0), (1, 2), (2, 1)))
    assert torch.equal(first.dst, rows)


def test_freed_tensors_are_not_kept_alive():
    """The cache holds no tensor that nobody else holds."""
    edge_index, batch = batch_of((chain(50), 50), (chain(2), 2))
    Graph.of(edge_index, 52, batch).pattern  # noqa: B018
    alive = weakref.ref(edge_index), weakref.ref(batch)
    del edge_index, batch
    gc.collect()
    assert alive[0]() is None
    assert alive[1]() is None


def test_freed_tensors_leave_the_cache():
    """A graph goes with its tensors: nothing of a past mini-batch is kept."""
    edge_index = chain(50)
    found = weakref.ref(Graph.of(edge_index, 50))
    assert found() is not None
    del edge_index
    gc.collect()
    assert found() is None


def test_reused_addresses_do_not_alias():
    """A tensor at the address of a freed one gets its own graph."""
    for i in range(300):
        edge_index = edges((0, i % 7 + 1), (i % 7 + 1, 0))
        assert int(Graph.of(edge_index, 8).dst[0]) == i % 7 + 1
        del edge_index


def test_cache_is_bounded():
    keep = [chain(3) for _ in range(Graph.recent.size + 20)]
    for edge_index in keep:
        Graph.of(edge_index, 3)
    assert len(Graph.recent) <= Graph.recent.size
    assert Graph.of(keep[-1], 3) is Graph.of(keep[-1], 3)


def test_least_recently_used_graph_goes_first(monkeypatch):
    monkeypatch.setattr(Graph, "recent", Recent(2))
    old, mid, new = chain(3), chain(3), chain(3)
    first, second = Graph.of(old, 3), Graph.of(mid, 3)
    assert Graph.of(old, 3) is first  # used again: the other one goes
    Graph.of(new, 3)
    assert Graph.of(old, 3) is first
    assert Graph.of(mid, 3) is not second


def test_a_freed_batch_frees_its_graph():
    """Also where the edges live on."""
    edge_index, batch = batch_of((chain(3), 3), (chain(2), 2))
    found = weakref.ref(Graph.of(edge_index, 5, batch))
    del batch
    gc.collect()
    assert found() is None
    assert len(Graph.recent) == 0


def test_graph_built_in_inference_mode_can_train_afterwards():
    """A first call under ``inference_mode`` must not poison the cached graph for autograd."""
    edge_index = chain(3)
    with torch.inference_mode():
        Graph.of(edge_index, 3).ends  # noqa: B018
    x = torch.randn(1, 2, 3, requires_grad=True)
    found = Graph.of(edge_index, 3)
    (x[..., found.ends] ** 2).sum().backward()
    (found.sum(x) ** 2).sum().backward()
    assert bool(torch.isfinite(x.grad).all())


def test_inference_tensors_are_not_cached():
    """Torch counts no versions for them, so a change would go unnoticed."""
    with torch.inference_mode():
        edge_index = chain(3)
        first = Graph.of(edge_index, 3)
        edge_index[0, 0] = 2
        assert Graph.of(edge_index, 3) is not first


def test_replaced_data_is_another_graph():
    edge_index = cycle(4)
    graph = Graph.of(edge_index, 4)
    edge_index.data = cycle(3)
    assert Graph.of(edge_index, 4) is not graph


def test_values_are_kept_once_for_each_function_graph_and_arguments():
    """Two functions do not share a place, whatever their names; values go with the graph."""
    calls = []

    def degree(graph, power=1):
        calls.append(power)
        return graph.in_degree**power

    one, other, g, h = cached(degree), cached(degree), Graph.of(chain(3), 3), Graph.of(chain(4), 4)
    assert one(g) is one(g)
    assert one(g) is not other(g)
    assert one(g, 2).tolist() == [1, 4, 1]
    assert one(g, power=2) is one(g, power=2)
    assert one(h).tolist() == [1, 2, 2, 1]
    assert calls == [1, 1, 2, 2, 1]
    assert one.__name__ == "degree"


def test_kept_in_inference_mode_serves_training():
    g, weight = Graph.of(chain(3), 3), torch.ones(3, requires_grad=True)
    found = cached(lambda graph: graph.in_degree.double())
    with torch.inference_mode():
        found(g)
    (found(g) * weight).sum().backward()
    assert weight.grad.tolist() == [1.0, 2.0, 1.0]


def test_kept_keeps_no_failure():
    fail = [True]

    @cached
    def analysis(graph):
        if fail.pop():
            raise ValueError("not now")
        fail.append(False)

    g = Graph.of(chain(3), 3)
    with pytest.raises(ValueError, match="not now"):
        analysis(g)
    fail.append(False)
    assert analysis(g) is analysis(g) is None
    assert fail == [False]
