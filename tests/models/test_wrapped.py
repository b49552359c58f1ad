"""``wrap``: a user's forward on stars, in step and out of step, equals the forward on the whole
graph; the models that it takes, and the functions that take a wrapped model."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, HARSH, ODD, ODD_NODES, cycle, grid, refused
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import add_self_loops, degree
from users_models import Given, OfData, Relations, graphs, in_turn

import hogwild
from hogwild import LayeredGNN, certify, robustness, simulate, sweep, wrap
from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.errors import AsynchronyError, ConfigError, FeatureError


class Mine(nn.Module):
    """An encoder, residuals, a convolution that is called twice, norms, attention, a head."""

    def __init__(self, width=8):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, width), nn.Linear(width, 2)
        self.first, self.second = pyg.SAGEConv(width, width), pyg.GATConv(width, width // 2, 2)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x, edge_index):
        x = self.encoder(x)
        x = x + self.norm(self.first(x, edge_index)).relu()
        x = x + nn.functional.dropout(self.second(x, edge_index).tanh(), training=self.training)
        x = x + self.norm(self.first(x, edge_index)).relu()
        return self.head(x)


class Graphs(nn.Module):
    """Predicts for graphs: pools after its last convolution."""

    def __init__(self):
        super().__init__()
        self.gin, self.norm, self.head = pyg.GIN(3, 8, 3), pyg.GraphNorm(8), nn.Linear(8, 2)

    def forward(self, x, edge_index, batch):
        x = self.norm(self.gin(x, edge_index), batch)  # after the last convolution: by the reader
        return self.head(pyg.global_mean_pool(x, batch)).softmax(-1)


MODELS = {
    "gcn": lambda: pyg.GCN(3, 16, 5, 1),
    "gcn, jk": lambda: pyg.GCN(3, 6, 3, 2, jk="last", norm=pyg.LayerNorm(6, mode="node")),
    "graphsage": lambda: pyg.GraphSAGE(3, 8, 3, 2, jk="cat", norm="batch_norm", dropout=0.5),
    "gin": lambda: pyg.GIN(3, 8, 3, norm="batch_norm", act_first=True),
    "gat": lambda: pyg.GAT(3, 8, 3, 2, heads=2, edge_dim=2, jk="max", dropout=0.3),
    "mine": Mine,
    "graphs": Graphs,
}  # fmt: skip


def trained(make, data, steps=3):
    """A model after a few steps of Adam, in training mode with its own batch statistics."""
    torch.manual_seed(0)
    model = make().to(data.x.dtype)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        forward(model, data).square().mean().backward()
        optimiser.step()
    return model


def forward(model, data):
    """As the user calls it."""
    inner = getattr(model, "model", model)
    if isinstance(inner, Graphs):
        return model(data.x, data.edge_index, data.batch)
    if isinstance(inner, pyg.GAT):
        return model(data.x, data.edge_index, edge_attr=data.edge_attr)
    if isinstance(inner, pyg.GCN):
        return model(data.x, data.edge_index, edge_weight=data.edge_weight)
    return model(data.x, data.edge_index)


@pytest.mark.parametrize("name", MODELS)
def test_synchronous_runs_equal_the_users_forward(name):
    """To 1e-6 in float32, with the user's parameters and no others."""
    data = graphs(dtype=torch.float32)
    model = trained(MODELS[name], data).eval()
    before = copy.deepcopy(model.state_dict())
    wrapped = wrap(model)
    assert {id(p) for p in wrapped.parameters()} == {id(p) for p in model.parameters()}
    with torch.no_grad():
        expected = forward(model, data)
        assert torch.equal(forward(wrapped, data), expected)
    run = simulate(wrapped, data, stagger=1, delay=0, runs=2, history=1)
    assert bool(run.converged.all())
    torch.testing.assert_close(run.predictions, expected.expand(2, -1, -1), rtol=0, atol=1e-6)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", MODELS)
def test_asynchronous_runs_equal_the_users_forward(name):
    """S = 5, D = 2, with loss, stragglers, reordering, duplication, cold crashes: to 1e-12, by
    handing the plain model to ``simulate``; in training mode, in which the model is left."""
    data = graphs()
    model = trained(MODELS[name], data).train()
    run = simulate(model, data, runs=2, impairments=HARSH, tol=1e-13)
    assert run.rule == "caching"
    assert model.training
    with torch.no_grad():
        expected = forward(model.eval(), data)
    assert float((run.predictions - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    assert not bool((run.predictions[0] == 0).all())


class Degrees(Given):
    """Reads degrees off the edges."""

    def forward(self, x, edge_index):
        count = degree(edge_index[1], x.size(0), dtype=x.dtype)
        x = self.a(torch.cat([x, count.unsqueeze(1)], 1), edge_index)
        return self.b(x.relu() / (1 + count.unsqueeze(1)), edge_index)


class OwnNorm(Given):
    """Normalises in its forward, with loops of its own."""

    def forward(self, x, edge_index):
        index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        root = degree(index[1], x.size(0), dtype=x.dtype).rsqrt()
        weight = root[index[0]] * root[index[1]]
        return self.b(self.a(x, index, weight).relu(), index, weight)


class Distances(Given):
    """Weighs edges by the distance of their ends."""

    def forward(self, x, edge_index, pos):
        weight = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=1)
        return self.b(self.a(x, edge_index, weight).relu(), edge_index, weight)


class EdgeEncoder(Given):
    def forward(self, x, edge_index, edge_attr):
        edge_attr = self.edges(edge_attr)
        return self.b(self.a(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class Initial(Given):
    """The first values enter every layer (GCN2)."""

    def forward(self, x, edge_index):
        x = first = self.encoder(x)
        for _ in range(3):
            x = self.a(x, first, edge_index).relu()
        return x


class Column(Given):
    def forward(self, x, edge_index):
        return self.b(self.a((x, x), edge_index).relu(), edge_index).squeeze(-1)


class Embedded(Given):
    """Of integers."""

    def forward(self, kind, edge_index):
        return self.b(self.a(self.table(kind), edge_index).relu(), edge_index)


# How to make a model, and the attributes of the data that its user calls it with.
PLAIN = ("x", "edge_index")

LOCAL = {
    "degrees": (lambda: Degrees(a=pyg.SAGEConv(4, 8), b=pyg.GraphConv(8, 2)), PLAIN),
    "own norm": (lambda: OwnNorm(a=pyg.GraphConv(3, 8), b=pyg.GraphConv(8, 2)), PLAIN),
    "distances": (
        lambda: Distances(a=pyg.GCNConv(3, 8), b=pyg.GCNConv(8, 2)),
        (*PLAIN, "pos"),
    ),
    "edge encoder": (
        lambda: EdgeEncoder(
            edges=nn.Linear(2, 4),
            a=pyg.GATConv(3, 8, edge_dim=4),
            b=pyg.GATv2Conv(8, 2, edge_dim=4),
        ),
        (*PLAIN, "edge_attr"),
    ),
    "relations": (
        lambda: Relations(a=pyg.RGCNConv(3, 8, 3), b=pyg.RGCNConv(8, 2, 3)),
        (*PLAIN, "edge_type"),
    ),
    "cached": (
        lambda: OfData(a=pyg.GCNConv(3, 8, cached=True), b=pyg.GCNConv(8, 2, improved=True)),
        ("data",),
    ),
    "initial": (lambda: Initial(encoder=nn.Linear(3, 8), a=pyg.GCN2Conv(8, 0.1)), PLAIN),
    "column": (lambda: Column(a=pyg.SAGEConv(3, 8), b=pyg.LEConv(8, 1)), PLAIN),
    "one hop of many": (
        lambda: pyg.Sequential(*in_turn(pyg.SGConv(3, 8), nn.Tanh(), pyg.ChebConv(8, 2, K=2))),
        PLAIN,
    ),
    "inside a module": (
        lambda: pyg.Sequential(
            "x, edge_index",
            [
                (pyg.GCNConv(3, 8), "x, edge_index -> x"),
                (pyg.AntiSymmetricConv(8, num_iters=2), "x, edge_index -> x"),
            ],
        ),
        PLAIN,
    ),
}


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("name", LOCAL)
def test_whatever_is_local_runs(name, odd):
    """On a batch of graphs, and on one graph with loops, doubled and one-way edges."""
    torch.manual_seed(0)
    make, names = LOCAL[name]
    model, data = make().double().eval(), graphs()
    data.edge_weight = None
    if odd:
        m, pos = ODD.size(1), torch.randn(ODD_NODES, 2, **DOUBLE)
        data = Data(
            x=torch.randn(ODD_NODES, 3, **DOUBLE), edge_index=ODD, pos=pos,
            edge_attr=torch.randn(m, 2, **DOUBLE), edge_type=torch.arange(m) % 3,
        )  # fmt: skip
    with torch.no_grad():
        expected = model(data) if names == ("data",) else model(*(data[name] for name in names))
    run = simulate(model, data, runs=2, history=1, tol=1e-13)
    assert bool(run.converged.all())
    expected = expected.unsqueeze(-1) if expected.dim() == 1 else expected
    torch.testing.assert_close(run.predictions[1], expected, rtol=0, atol=1e-12)


def test_integer_features():
    model = Embedded(table=nn.Embedding(3, 4), a=pyg.SAGEConv(4, 4), b=pyg.SAGEConv(4, 2)).eval()
    data = Data(x=torch.zeros(6, 1), kind=torch.tensor([0, 1, 2, 0, 1, 2]), edge_index=grid(2, 3))
    run = simulate(model, data)
    with torch.no_grad():
        torch.testing.assert_close(run.predictions[0], model(data.kind, data.edge_index))


def test_the_model_is_left_as_it_was():
    """Its caches, its modes and its methods."""
    data = graphs()
    model = OfData(a=pyg.GCNConv(3, 8, cached=True), b=pyg.GCNConv(8, 2)).double().eval()
    with torch.no_grad():
        model(data)
    kept = model.a._cached_edge_index
    simulate(model, data)
    assert model.a._cached_edge_index is kept
    assert model.a.cached
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_overwriting_is_the_papers():
    """One value a node, as a LayeredGNN of the same layers has it."""
    torch.manual_seed(0)
    data = graphs()
    data.x, data.edge_attr, data.edge_weight = torch.randn(16, 8, **DOUBLE), None, None
    inner = pyg.GCN(8, 8, 3).double().eval()
    layered = LayeredGNN(list(inner.convs), 8, out_channels=2, encoder=False).double()
    layered.conv.layers[-1].act = None
    expected = simulate(layered, data, runs=3, rule="overwriting")
    run = simulate(inner, data, runs=3, rule="overwriting")
    torch.testing.assert_close(run.h[..., -8:], expected.h, rtol=0, atol=1e-12)
    torch.testing.assert_close(run.predictions, expected.h, rtol=0, atol=1e-12)
    assert float(run.deviation.min()) > 1e-3
    assert torch.equal(run.updates, expected.updates)
    assert torch.equal(run.bytes, expected.bytes)
    run = simulate(Mine().double(), graphs(), rule="overwriting")  # equal widths between the ends
    assert float(run.deviation.min()) > 1e-3


def test_overwriting_needs_one_width():
    with pytest.raises(AsynchronyError, match=r"widths 3, 8, 8, 2 .*rule='caching'"):
        simulate(pyg.GCN(3, 8, 3, 2).double(), graphs(), rule="overwriting")


# -- what is wrapped ------------------------------------------------------------------------------


def test_a_model_with_its_own_head():
    """Where the model ends at the nodes; also to pick from whatever a forward gives."""
    torch.manual_seed(0)
    data, head = graphs(), nn.Linear(8, 2).double()
    model = pyg.GIN(3, 8, 2).double().eval()
    wrapped = wrap(model, lambda h, batch: head(pyg.global_add_pool(h, batch)))
    with torch.no_grad():
        expected = head(pyg.global_add_pool(model(data.x, data.edge_index), data.batch))
        assert torch.equal(wrapped(data.x, data.edge_index, batch=data.batch), expected)
        alone = wrapped(data.x, data.edge_index)  # without a batch vector all is one graph
        torch.testing.assert_close(alone, head(model(data.x, data.edge_index).sum(0, True)))
    run = simulate(wrapped, data, runs=2, tol=1e-13)
    torch.testing.assert_close(run.predictions[1], expected, rtol=0, atol=1e-12)

    class Both(Given):
        def forward(self, x, edge_index):
            return self.a(x, edge_index), x

    both = Both(a=pyg.SAGEConv(3, 2)).double().eval()
    with pytest.raises(ConfigError, match=r"Both gives tuple; .*head=lambda out, batch"):
        simulate(both, data)
    run = simulate(wrap(both, lambda out, batch: out[0]), data)
    assert run.predictions.shape == (1, data.num_nodes, 2)


@pytest.mark.parametrize("run", [simulate, robustness, certify])
def test_models_without_convolutions_are_refused(run):
    with pytest.raises(ConfigError, match=r"model is a Linear and holds no .*MessagePassing"):
        run(nn.Linear(3, 2), graphs())
    with pytest.raises(ConfigError, match="model is a function; expected"):
        run(lambda x: x, graphs())


class Head(nn.Module):
    """A user's module around something."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.head = model, nn.Linear(1, 1)

    def forward(self, x, edge_index):
        return self.head(self.inner(x, edge_index))


@pytest.mark.parametrize("make", [hogwild.EnergyGNN, hogwild.GCN])
def test_the_error_for_a_module_around_a_library_model_says_what_to_do(make):
    name = make.__name__
    words = [f"a Head around inner, a {name} of hogwild", "model.inner, data)", "readout=(16, 16)"]
    refused(lambda: simulate(Head(make(3, out_channels=1)), graphs()), ConfigError, words)
    with pytest.raises(ConfigError, match=rf"a {name} of hogwild.*simulate\(model, data\)"):
        wrap(make(3, out_channels=1))


def test_an_implicit_layer_needs_a_readout():
    for model in (
        hogwild.EnergyConv(3, hidden_channels=1),
        Head(hogwild.EnergyConv(3, hidden_channels=1)),
    ):
        with pytest.raises(ConfigError, match=r"EnergyConv of hogwild.*such as hogwild.EnergyGNN"):
            simulate(model, graphs())


def test_wrapping_twice_is_wrapping_once():
    wrapped = wrap(pyg.GCN(3, 8, 2))
    assert wrap(wrapped) is wrapped
    for options in ({"head": lambda out, batch: out}, {"arguments": ["x", "edge_index"]}):
        with pytest.raises(ConfigError, match=r"wrapped already, around GCN.*wrap\(model.model"):
            wrap(wrapped, **options)


def test_robustness_sweep_and_certify_take_a_plain_module():
    torch.manual_seed(0)
    data = graphs()
    model = pyg.GraphSAGE(3, 8, 2, 2).double()
    with torch.no_grad():
        data.y = model.eval()(data.x, data.edge_index).argmax(-1)
    found = robustness(model, data, runs=3, impairments=BernoulliLoss(0.3))
    assert found.model == "GraphSAGE"
    assert float(found.synchronous) == float(found.asynchronous.min()) == 1.0
    assert float(found.distance.max()) < 1e-6
    worse = sweep(pyg.GCN(8, 8, 3).double(), wide(data), staggers=(5,), delays=(2,), runs=2,
                  rule="overwriting")  # fmt: skip
    assert float(worse.first.distance.max()) > 1e-3
    certificate = certify(model, data, 5, 2)
    assert certificate.guaranteed
    assert certificate.constants["ticks_to_answer"] == 2 * (5 + 2)
    assert not certify(pyg.GCN(8, 8, 3).double(), wide(data), rule="overwriting").guaranteed


def wide(data):
    return Data(x=torch.randn(16, 8, **DOUBLE), edge_index=data.edge_index, batch=data.batch)


def test_a_list_of_graphs_and_one_graph_without_a_batch():
    torch.manual_seed(0)
    model = pyg.GraphSAGE(3, 8, 2, 2).double().eval()
    each = [Data(x=torch.randn(4, 3, **DOUBLE), edge_index=cycle(4)) for _ in range(3)]
    with torch.no_grad():
        both = Batch.from_data_list(each)
        torch.testing.assert_close(
            simulate(model, each).predictions[0], model(both.x, both.edge_index), atol=1e-6, rtol=0
        )
        torch.testing.assert_close(
            simulate(model, each[0]).predictions[0],
            model(each[0].x, each[0].edge_index),
            atol=1e-6, rtol=0,
        )  # fmt: skip


def test_features_that_are_no_numbers_are_refused():
    """Before any tick, as the models of this library refuse them."""
    data = Data(x=torch.full((2, 3), float("nan")), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for ask in (simulate, certify):
        with pytest.raises(FeatureError, match="x holds NaN or infinite values"):
            ask(pyg.GCN(3, 4, 2, 1).eval(), data)
