"""Trained models as they are: the user's own forward, in step and out of step, or a refusal."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, HARSH, ODD, ODD_NODES, cycle, grid
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import add_self_loops, degree

import hogwild
from hogwild import LayeredGNN, certify, robustness, simulate, sweep, wrap
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
)
from hogwild.errors import AsynchronyError, ConfigError, FeatureError, InputError
from hogwild.graph.inputs import Inputs
from hogwild.models import WrappedGNN
from hogwild.testing.problems import random_graph


def graphs(sizes=(7, 9), dtype=torch.float64, seed=1):
    graph, rng = random_graph(list(sizes), seed=seed), torch.Generator().manual_seed(seed)
    n, m = graph.num_nodes, graph.num_edges
    return Data(
        x=torch.randn(n, 3, generator=rng, **DOUBLE).to(dtype),
        edge_index=torch.stack([graph.src, graph.dst]),
        edge_attr=torch.randn(m, 2, generator=rng, **DOUBLE).to(dtype),
        edge_weight=torch.rand(m, generator=rng, **DOUBLE).to(dtype),
        edge_type=torch.randint(3, (m,), generator=rng),
        pos=torch.randn(n, 2, generator=rng, **DOUBLE).to(dtype),
        batch=graph.batch,
    )


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


def convs(*parts):
    """Modules one after the other, convolutions with the edges."""
    call = {True: "x, edge_index -> x", False: "x -> x"}
    steps = [(m, call[isinstance(m, pyg.MessagePassing)]) for m in parts]
    return pyg.Sequential("x, edge_index", steps)


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


@pytest.mark.parametrize("rule", ["waiting", "resending"])
@pytest.mark.parametrize("name", ["gcn", "mine", "graphs"])
def test_the_other_exact_rules(name, rule):
    data = graphs()
    model = trained(MODELS[name], data).eval()
    run = simulate(model, data, runs=2, rule=rule)
    with torch.no_grad():
        expected = forward(model, data)
    assert float((run.predictions - expected).abs().max()) <= 1e-12


# -- whatever is local ----------------------------------------------------------------------------


class Given(nn.Module):
    """Two convolutions and a function of (this, data's attributes) between the tensors."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


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


class Relations(Given):
    def forward(self, x, edge_index, edge_type):
        return self.b(self.a(x, edge_index, edge_type).relu(), edge_index, edge_type)


class OfData(Given):
    def forward(self, data):
        return self.b(self.a(data.x, data.edge_index).relu(), data.edge_index).log_softmax(-1)


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
        lambda: convs(pyg.SGConv(3, 8), nn.Tanh(), pyg.ChebConv(8, 2, K=2)),
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


# -- arguments ------------------------------------------------------------------------------------


def test_arguments_are_those_of_the_data_unless_they_are_named():
    torch.manual_seed(0)
    data, model = graphs(), pyg.GCN(3, 8, 2, 2).double().eval()
    with torch.no_grad():
        plain = model(data.x, data.edge_index)
        weighted = model(data.x, data.edge_index, edge_weight=data.edge_weight)
        other = (
            model(data.x, data.edge_index, edge_weight=data.length) if "length" in data else None
        )
    assert other is None
    assert float((plain - weighted).abs().max()) > 1e-3
    for arguments, expected in (
        (None, weighted),
        (["x", "edge_index"], plain),
        (["x", "edge_index", "edge_weight"], weighted),
        ({"x": "x", "edge_index": "edge_index", "edge_weight": "edge_weight"}, weighted),
    ):
        run = simulate(wrap(model, arguments=arguments), data, tol=1e-13)
        torch.testing.assert_close(run.predictions[0], expected, rtol=0, atol=1e-12)
    data.edge_attr, data.edge_weight = data.edge_weight, None
    chosen = {"x": "x", "edge_index": "edge_index", "edge_weight": "edge_attr"}
    run = simulate(wrap(model, arguments=chosen), data, tol=1e-13)
    torch.testing.assert_close(run.predictions[0], weighted, rtol=0, atol=1e-12)


def test_what_is_missing_or_does_not_fit_is_named():
    data = graphs()
    with pytest.raises(ConfigError, match=r"arguments=\['x'\].*needs edge_index, x"):
        wrap(pyg.GCN(3, 8, 2), arguments=["x"])
    with pytest.raises(ConfigError, match=r"arguments=\['x', 'edge_index', 'e'\]; expected names"):
        wrap(pyg.GCN(3, 8, 2), arguments=["x", "edge_index", "e"])
    model = Relations(a=pyg.RGCNConv(3, 8, 3), b=pyg.RGCNConv(8, 2, 3)).double()
    data.edge_type = None
    with pytest.raises(InputError, match=r"Relations.forward needs edge_type"):
        simulate(model, data)
    pna = pyg.PNA(3, 8, 2, aggregators=["mean"], scalers=["identity"], deg=torch.tensor([1, 3]))
    with pytest.raises(InputError, match=r"trained without edge_attr .*arguments=\['x', 'edge_ind"):
        simulate(pna.double(), data)
    with pytest.raises(InputError, match=r"GCN.forward raises .*x \[16, 3\] torch.float64"):
        simulate(pyg.GCN(3, 8, 2), data)
    for head in (3, "mean"):
        with pytest.raises(ConfigError, match=f"head is a {type(head).__name__}"):
            wrap(pyg.GCN(3, 8, 2), head)


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


@pytest.mark.parametrize("make", [hogwild.EnergyGNN, hogwild.GCN, hogwild.MaxGNN])
def test_the_error_for_a_module_around_a_library_model_says_what_to_do(make):
    name = make.__name__
    with pytest.raises(ConfigError) as caught:
        simulate(Head(make(3, out_channels=1)), graphs())
    for word in (f"a Head around inner, a {name} of hogwild", "simulate(model.inner, data)",
                 "readout=(16, 16)"):  # fmt: skip
        assert word in str(caught.value)
    with pytest.raises(ConfigError, match=rf"model is a {name} of hogwild.*as it is"):
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


# -- refusals -------------------------------------------------------------------------------------


class PoolsBetween(Given):
    def forward(self, x, edge_index, batch):
        x = self.a(x, edge_index).relu()
        x = x + pyg.global_mean_pool(x, batch)[batch]
        return self.b(x, edge_index)


class Aggregates(Given):
    """Aggregates by hand, beside its convolutions."""

    def forward(self, x, edge_index):
        x = self.a(x, edge_index).relu()
        x = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.b(x, edge_index)


class Adaptive(Given):
    """Calls its convolution as often as its nodes need."""

    def forward(self, x, edge_index):
        for _ in range(1 + x.size(0) // 16):
            x = self.a(x, edge_index)
        return self.b(x, edge_index)


def two(module=None, **options):
    parts = [pyg.GCNConv(3, 8, **options), module, pyg.GCNConv(8, 2)]
    return convs(*(part for part in parts if part is not None))


REFUSED = {
    "pooling": (lambda: PoolsBetween(a=pyg.GCNConv(3, 8), b=pyg.GCNConv(8, 2)),
                ["forward itself does between a (GCNConv) and b (GCNConv)", "head="]),
    "aggregation": (lambda: Aggregates(a=pyg.SAGEConv(3, 8), b=pyg.SAGEConv(8, 2)),
                    ["between a (SAGEConv) and b (SAGEConv)", "outside of MessagePassing"]),
    "GraphNorm": (lambda: two(pyg.GraphNorm(8)), ["module_1 (GraphNorm) between", "single nodes"]),
    "PairNorm": (lambda: two(pyg.PairNorm()), ["module_1 (PairNorm) between"]),
    "BatchNorm": (lambda: two(nn.BatchNorm1d(8, track_running_stats=False)),
                  ["module_1 (BatchNorm1d)", "evaluation mode"]),
    "pyg model": (lambda: pyg.GCN(3, 8, 2, norm="graph_norm"), ["norms.0 (GraphNorm) between"]),
    "APPNP": (lambda: convs(nn.Linear(3, 8), pyg.APPNP(3, 0.1)), ["module_1 (APPNP)", "3 hops"]),
    "ChebConv": (lambda: convs(pyg.ChebConv(3, 8, K=3)), ["module_0 (ChebConv)", "2 hops"]),
    "flow": (lambda: two(flow="target_to_source"), ["module_0 (GCNConv)", "flip edge_index"]),
    "attention": (lambda: pyg.Sequential("x, edge_index, batch", [
                      (pyg.GPSConv(3, pyg.GCNConv(3, 3)), "x, edge_index, batch -> x"),
                      (pyg.GCNConv(3, 2), "x, edge_index -> x")]), ["GPSConv attends to all"]),
    "adaptive": (lambda: Adaptive(a=pyg.SAGEConv(3, 3), b=pyg.SAGEConv(3, 2)),
                 ["Adaptive.forward", "calls other convolutions on a part of the graph"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_local_is_refused(name):
    """With the module that is to blame; also where a certificate is asked for."""
    torch.manual_seed(0)
    make, words = REFUSED[name]
    data = graphs()
    model = make().double()
    wrapped, before = wrap(model), [dict(module.__dict__) for module in model.modules()]
    with pytest.raises(AsynchronyError) as caught:
        simulate(wrapped, data)
    for word in words:
        assert word in str(caught.value)
    found = certify(wrapped, data)
    assert not found.guaranteed
    assert words[0] in found.reason
    for module, kept in zip(model.modules(), before, strict=True):
        assert module.__dict__.get("forward") is kept.get("forward")


class Around(Given):
    """A convolution, or two, with something by hand before, between and after."""

    def __init__(self, before=None, between=None, after=None, **modules):
        super().__init__(**({"a": pyg.GCNConv(3, 4)} | modules))
        self.by_hand = before, between, after

    def forward(self, x, edge_index, batch):
        before, between, after = self.by_hand
        h = x if before is None else before(x, edge_index, batch)
        h = self.a(h, edge_index)
        if hasattr(self, "b"):
            h = h if between is None else between(h, x, edge_index)
            h = self.b(h.relu(), edge_index)
        if hasattr(self, "norm"):
            h = self.norm(h)
        return h if after is None else after(h, edge_index, batch)


def hops(count):
    """So many hops outside of MessagePassing."""

    def run(h, edge_index, batch):
        for _ in range(count):
            heard = h[edge_index[0]].relu()
            h = h + torch.zeros_like(h).index_add(0, edge_index[1], heard)
        return h

    return run


MEETING = {
    "hops after": (lambda: Around(after=hops(5)),
                   ["what the forward itself does after a (GCNConv)", "[graphs, out]"]),
    "one hop after": (lambda: Around(after=hops(1)), ["after a (GCNConv)", "MessagePassing"]),
    "hop before": (lambda: Around(before=hops(1)), ["between the beginning and a (GCNConv)"]),
    "hops before": (lambda: Around(before=hops(2)), ["between the beginning and a (GCNConv)"]),
    "mean after": (lambda: Around(after=lambda h, *_: h - h.mean(0)), ["after a (GCNConv)"]),
    "a little mean": (lambda: Around(after=lambda h, *_: h + 1e-6 * h.mean(0)),
                      ["after a (GCNConv)"]),
    "max after": (lambda: Around(after=lambda h, e, b: h + pyg.global_max_pool(h, b)[b]),
                  ["after a (GCNConv)"]),
    "softmax": (lambda: Around(after=lambda h, *_: h.log_softmax(0)), ["softmax over channels"]),
    "norm after": (lambda: Around(norm=pyg.GraphNorm(4)), ["norm (GraphNorm) after a (GCNConv)"]),
    "features between": (
        lambda: Around(b=pyg.SAGEConv(4, 2),
                       between=lambda h, x, e: h + hops(1)(x, e, None).sum(1, keepdim=True)),
        ["between a (GCNConv) and b (SAGEConv)"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in MEETING]
    + [(name, torch.float32) for name in MEETING if name != "a little mean"],  # below its rounding
)
def test_nodes_that_exchange_values_outside_of_convolutions_are_refused(name, dtype):
    """Before the first convolution and after the last one too: one tick would carry news further
    than one hop."""
    torch.manual_seed(0)
    make, words = MEETING[name]
    model, data = make().to(dtype), graphs(dtype=dtype)
    with pytest.raises(AsynchronyError) as caught:
        simulate(model, data)
    for word in (*words, "reads more than single nodes"):
        assert word in str(caught.value)
    found = certify(model, data)
    assert not found.guaranteed
    assert words[0] in found.reason


APART = {
    "a pooling": lambda h, e, b: pyg.global_max_pool(hops(2)(h, e, b), b),
    "degrees": lambda h, e, b: h / (1 + degree(e[1], h.size(0), dtype=h.dtype).unsqueeze(1)),
    "channels": lambda h, e, b: h.log_softmax(-1).cumsum(1).sort(1).values,
    "the size of the graph": lambda h, e, b: h / h.size(0),
}


@pytest.mark.parametrize("name", APART)
def test_what_follows_the_last_convolution_may_read_the_node_or_pool(name):
    torch.manual_seed(0)
    model, data = Around(after=APART[name]).double().eval(), graphs()
    run = simulate(model, data, tol=1e-13)
    with torch.no_grad():
        expected = model(data.x, data.edge_index, data.batch)
    torch.testing.assert_close(run.predictions[0], expected, rtol=0, atol=1e-12)


def test_features_that_are_indices_are_not_moved_out_of_range():
    """Floating-point features from which a forward looks something up."""

    class Lookup(Given):
        def forward(self, x, edge_index):
            return self.a(self.table(x[:, 0].long()), edge_index)

    class Leaks(Lookup):
        def forward(self, x, edge_index):
            return super().forward(hops(1)(x, edge_index, None).clamp(0, 2), edge_index)

    data = graphs()
    data.x = torch.arange(16, **DOUBLE).remainder(3).unsqueeze(1)
    parts = {"table": nn.Embedding(3, 4), "a": pyg.SAGEConv(4, 2)}
    assert bool(simulate(Lookup(**parts).double(), data).converged.all())
    with pytest.raises(AsynchronyError, match="between the beginning and a"):
        simulate(Leaks(**parts).double(), data)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("before", "another result of a"),
        ("between", "another result of b"),
        ("after", "other pred"),
    ],
)
def test_a_forward_that_is_random_is_refused(place, what):
    """Dropout that was left on, wherever it is."""
    model = Around(**{place: lambda h, *_: nn.functional.dropout(h, 0.5)}, b=pyg.GCNConv(4, 4))
    with pytest.raises(AsynchronyError, match=f"Around.forward is random: .*{what}.*training=self"):
        simulate(model.double(), graphs())


def test_training_mode_is_refused_where_it_would_matter():
    wrapped, data = wrap(pyg.GIN(3, 8, 2, norm="batch_norm").double()), graphs()
    with pytest.raises(AsynchronyError, match=r"GIN is in training mode.*model.eval\(\)"):
        wrapped.problem(Inputs.of(data))


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


# -- overwriting ----------------------------------------------------------------------------------


def test_overwriting_is_the_papers():
    """One value a node, as a LayeredGNN of the same layers has it."""
    torch.manual_seed(0)
    data = graphs()
    data.x, data.edge_attr, data.edge_weight = torch.randn(16, 8, **DOUBLE), None, None
    inner = pyg.GCN(8, 8, 3).double().eval()
    layered = LayeredGNN(inner, 8, out_channels=2, encoder=False).double()
    for layer, conv in zip(layered.conv.layers, inner.convs, strict=True):
        conv.load_state_dict(layer.conv.state_dict())
    expected = simulate(layered, data, runs=3)
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


# -- everywhere a model is taken ------------------------------------------------------------------


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


def test_exported():
    assert hogwild.wrap is wrap
    assert hogwild.models.WrappedGNN is WrappedGNN
    assert "GCN(" in repr(wrap(pyg.GCN(3, 8, 2)))


@pytest.mark.parametrize("conv", [pyg.APPNP(5, 0.1), pyg.SGConv(3, 2, K=2)])
def test_a_model_that_is_one_convolution_of_several_hops_is_refused(conv):
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    data = Data(x=torch.randn(4, 3), edge_index=path)
    with pytest.raises(AsynchronyError, match="looks beyond a node and the neighbours it hears"):
        simulate(conv.eval(), data)


def test_features_that_are_no_numbers_are_refused():
    """Before any tick, as the models of this library refuse them."""
    data = Data(x=torch.full((2, 3), float("nan")), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for ask in (simulate, certify):
        with pytest.raises(FeatureError, match="x holds 6 values that are NaN or infinite"):
            ask(pyg.GCN(3, 4, 2, 1).eval(), data)
