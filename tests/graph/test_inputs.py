"""PyG's data as everything that runs or trains a model takes them."""

import pytest
import torch
from helpers import chain
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_edge_index

import hogwild
from hogwild import GCN, GSDGNN, IGNN, Inputs
from hogwild.errors import DTypeError, GraphError, InputError
from hogwild.graph.inputs import SAMPLED, require_whole


def graph(**more):
    return Data(x=torch.randn(4, 2), edge_index=chain(4), y=torch.zeros(4), **more)


CALLS = {
    "simulate": lambda data: hogwild.simulate(IGNN(2, out_channels=1), data, ticks=1),
    "certify": lambda data: hogwild.certify(GSDGNN(2, out_channels=1), data),
    "robustness": lambda data: hogwild.robustness(GCN(2, out_channels=1), data, runs=1),
    "sweep": lambda data: hogwild.sweep(GCN(2, out_channels=1), data, runs=1),
    "train": lambda data: hogwild.train(data, model="gcn", epochs=1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("key", SAMPLED)
def test_a_part_of_a_graph_is_refused(call, key):
    """Degrees and normalisations belong to the whole graph."""
    part = graph(**{key: torch.arange(4)})
    for data in (part, [graph(), part], Batch.from_data_list([part])):
        with pytest.raises(InputError, match=rf"a sampler left {key} on it.*Expected the whole"):
            call(data)


def test_parts_that_carry_no_sign_of_a_sampler_pass():
    part = next(iter(RandomNodeLoader(graph(), num_parts=2)))
    for data in (part, graph().subgraph(torch.arange(3))):
        assert require_whole(data) is None


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_an_edge_index_of_pyg_is_the_tensor_that_it_holds(call):
    known = graph()
    known.edge_index = EdgeIndex(known.edge_index, sparse_size=(4, 4), sort_order="row")
    batch = Batch.from_data_list([known, known.clone()])
    assert type(batch.edge_index) is EdgeIndex
    for data in (known, [known, known.clone()], batch):
        call(data)


def test_an_edge_index_keeps_the_checks_and_the_analyses_of_its_tensor():
    known = EdgeIndex(chain(4))
    assert type(Inputs(torch.randn(4, 2), known, batch=Index([0, 0, 0, 0])).batch) is torch.Tensor
    for model in (IGNN(2, out_channels=1), GSDGNN(2, out_channels=1), GCN(2, out_channels=1)):
        x = torch.randn(4, 2)
        assert torch.equal(model(x, known), model(x, chain(4)))
        with pytest.raises(GraphError, match="edge_index names nodes 1 to 4"):
            model(x, EdgeIndex(chain(4) + 1))
        with pytest.raises(DTypeError, match=r"torch\.int32; expected torch\.int64"):
            model(x, EdgeIndex(chain(4).int()))
    graphs = [Inputs(torch.randn(4, 2), known).graph() for _ in range(2)]
    assert graphs[0] is graphs[1]  # a training loop analyses it once


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_matrices_are_refused_with_a_remedy_that_works(layout):
    one_way = torch.tensor([[0, 1, 3], [1, 2, 1]])
    data = Data(x=torch.randn(4, 2), edge_index=one_way, edge_weight=torch.tensor([0.5, 2.0, 1.0]))
    sparse = ToSparseTensor(layout=layout, attr="edge_weight")(data.clone())
    model, remedy = GCN(2, out_channels=1), r"to_edge_index\(adj_t\.t\(\)\)"
    with pytest.raises(InputError, match=f"data lacks edge_index.*It has an adj_t: .*{remedy}"):
        model.predict(sparse)
    with pytest.raises(InputError, match=rf"edge_index is a torch\.sparse.*{remedy}"):
        model(data.x, sparse.adj_t)
    edge_index, edge_weight = to_edge_index(sparse.adj_t.t())
    out = model(data.x, edge_index, edge_weight=edge_weight)
    torch.testing.assert_close(out, model(data.x, one_way, edge_weight=data.edge_weight))


def test_a_part_is_not_the_whole():
    """Why: the same nodes, without their neighbours, have another answer."""
    whole = Data(x=torch.randn(6, 2), edge_index=chain(6))
    part = whole.subgraph(torch.arange(4))
    for model in (
        IGNN(2, out_channels=1, act="leaky_relu"),
        GSDGNN(2, out_channels=1),
        GCN(2, out_channels=1),
    ):
        a, b = (model(g.x, g.edge_index)[:4] for g in (whole, part))
        assert not torch.allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_several_types_are_refused(call):
    several = HeteroData()
    several["sensor"].x = torch.randn(3, 2)
    for data in (several, [several], [graph(), several]):
        with pytest.raises(InputError, match=r"HeteroData.*expected a graph of one type"):
            call(data)


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_is_missing(call):
    bare = graph()
    bare.edge_index = None
    for data in (bare, [graph(), bare], Data(edge_index=chain(4), y=torch.zeros(4), num_nodes=4)):
        with pytest.raises(InputError, match=r"lacks|has no edge_index|has no x"):
            call(data)
    with pytest.raises(InputError, match=r"(lacks|has no) edge_index;"):
        call(bare)
    for data in ([], [3]):
        with pytest.raises(InputError, match="expected"):
            call(data)


def test_to():
    x, edge_index = torch.randn(3, 2), chain(3)
    inputs = Inputs(x, edge_index, torch.randn(4, 1), nodes={"z": x, "id": torch.arange(3)})
    double = inputs.to(torch.float64)
    assert (double.x.dtype, double.edge_attr.dtype) == (torch.float64,) * 2
    assert (double.nodes["z"].dtype, double.nodes["id"].dtype) == (torch.float64, torch.long)
    assert double.edge_index is edge_index
    assert (inputs.to("meta").x.is_meta, inputs.x.is_meta) == (True, False)


def test_degrees_of_a_larger_graph_are_carried():
    """Also into copies, other dtypes and selected graphs; equal tensors give one graph."""
    edge_index = torch.tensor([[0, 1], [1, 0]])
    degrees = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    inputs = Inputs(torch.ones(2, 1), edge_index, degrees=degrees)
    graph, weight = inputs.graph(), torch.ones(2, dtype=torch.float64)
    assert inputs.graph() is graph
    assert graph.received(weight).tolist() == [3.0, 5.0]
    assert graph.sent(weight).tolist() == [4.0, 6.0]
    assert Inputs(inputs.x, edge_index).graph().received(weight).tolist() == [1.0, 1.0]
    twice = inputs.repeat(2).graph()
    assert twice.received(weight).tolist() == [3.0, 5.0, 3.0, 5.0]
    assert twice.select(torch.tensor([1]))[0].sent(weight).tolist() == [4.0, 6.0]
    with pytest.raises(GraphError, match="needs the whole graph"):
        graph.require_whole("this")
    with pytest.raises(GraphError, match=r"expected floating-point numbers \[2, 2\]"):
        Inputs(inputs.x, edge_index, degrees=torch.ones(3, 2)).graph()
