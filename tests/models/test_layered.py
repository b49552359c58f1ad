"""Explicit models: the forward against PyG's layers, what layers fit, and what is refused."""

import copy
import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import (
    DOUBLE,
    ODD,
    ODD_NODES,
    batch_of,
    chain,
    circulant,
    cycle,
    features,
    refused,
)
from torch import nn
from torch_geometric.utils import softmax

from hogwild import GAT, GCN, Inputs, LayeredGNN
from hogwild.errors import AsynchronyError, ConfigError, FeatureError, GraphError
from hogwild.models.base import Kind
from hogwild.testing import check_model

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def of(*convs, **options):
    return lambda: LayeredGNN(list(convs), 3, out_channels=2, **({"hidden_channels": 4} | options))


# -- conformance ----------------------------------------------------------------------------------

SIZES = {
    "gcn": lambda **kw: GCN(3, out_channels=2, **kw),
    "gcn, small": lambda **kw: GCN(
        3, out_channels=2, hidden_channels=4, num_layers=2, bias=False, act="tanh", **kw
    ),
    "gat": lambda **kw: GAT(3, out_channels=2, **kw),
    "gat, one head": lambda **kw: GAT(
        3, out_channels=2, hidden_channels=4, heads=1, num_layers=1, **kw
    ),
    "list": lambda **kw: LayeredGNN(
        [pyg.GCNConv(4, 4), pyg.GATv2Conv(4, 2, heads=2), pyg.GraphConv(4, 4)],
        3, out_channels=2, act="elu", norm=nn.LayerNorm(4), **kw,
    ),
}  # fmt: skip


@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("make", SIZES.values(), ids=SIZES)
def test_conformance(make, pool, device):
    check_model(lambda **kw: make(pool=pool, **kw), device=device)


def test_conformance_with_edge_features(device):
    check_model(lambda **kw: GAT(3, out_channels=2, edge_dim=2, **kw), edge_dim=2, device=device)


@pytest.mark.parametrize("model", [GCN, GAT])
def test_function_transforms(model):
    """An explicit model is a function of torch."""
    net, x = model(3, out_channels=1).double(), torch.randn(4, 3, **DOUBLE)
    found = torch.func.jacrev(lambda x: net(x, cycle(4)))(x)
    expected = torch.autograd.functional.jacobian(lambda x: net(x, cycle(4)), x)
    torch.testing.assert_close(found, expected, **TIGHT)


def test_sizes_are_the_papers():
    """Five layers of width 10, and five of three heads of width 3."""
    gcn, gat = GCN(3, out_channels=1), GAT(3, out_channels=1)
    assert [tuple(layer.conv.lin.weight.shape) for layer in gcn.conv.layers] == [(10, 10)] * 5
    assert [tuple(layer.conv.lin.weight.shape) for layer in gat.conv.layers] == [(9, 9)] * 5
    heads = [(layer.conv.heads, layer.conv.out_channels) for layer in gat.conv.layers]
    assert heads == [(3, 3)] * 5
    assert gcn.readout.node.channels == (10, 4, 4, 1)
    assert {gcn.kind, gat.kind} == {Kind.EXPLICIT}


# -- against independent references ---------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_is_the_papers_equation(weighted):
    """H⁽ˡ⁺¹⁾ = ReLU(Ã H W), Ã = (D + I)^{-1/2} (A + I) (D + I)^{-1/2}, with dense matrices."""
    model, n = GCN(3, out_channels=2, bias=False).double(), 6
    edge_index, x = torch.cat([cycle(n), cycle(n)[:, :1]], 1), features(n)  # one edge doubled
    weight = torch.rand(edge_index.size(1), **DOUBLE) if weighted else None
    entries = torch.ones(edge_index.size(1), **DOUBLE) if weight is None else weight
    a = torch.zeros(n, n, **DOUBLE).index_put((edge_index[1], edge_index[0]), entries, True)
    root = (a.sum(1) + 1.0).rsqrt().diag()
    a = root @ (a + torch.eye(n, **DOUBLE)) @ root
    h = model.conv.encoder(x)
    for layer in model.conv.layers:
        h = torch.relu(a @ h @ layer.conv.lin.weight.mT)
    out = model.embed(Inputs(x, edge_index, edge_weight=weight)).value
    torch.testing.assert_close(out, h, **TIGHT)


def test_gat_is_the_papers_equation():
    """Softmax over N(i) ∪ {i} of LeakyReLU(aᵀ[W h_i ‖ W h_j]), heads concatenated."""
    model, n = GAT(3, out_channels=2, bias=False).double(), 6
    edge_index, x = cycle(n), features(n)
    src, dst = torch.cat([edge_index, torch.arange(n).expand(2, n)], 1)
    h = model.conv.encoder(x)
    for layer in model.conv.layers:
        conv = layer.conv
        z = (h @ conv.lin.weight.mT).view(n, 3, 3)
        a = torch.cat([conv.att_dst, conv.att_src], -1)
        score = nn.functional.leaky_relu((a * torch.cat([z[dst], z[src]], -1)).sum(-1), 0.2)
        alpha = softmax(score, dst, num_nodes=n)
        h = torch.zeros(n, 3, 3, **DOUBLE).index_add(0, dst, alpha.unsqueeze(-1) * z[src])
        h = torch.relu(h.flatten(1))
    torch.testing.assert_close(model.embed(Inputs(x, edge_index)).value, h, **TIGHT)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}], ids=str)
def test_gcnconv_is_pygs(options, weighted):
    """Weights normalised once, outside of the layers, are those that PyG normalises in each: on a
    graph with loops, doubled and one-way edges; values and gradients."""
    convs = [pyg.GCNConv(4, 4, **options) for _ in range(3)]
    model, x = LayeredGNN(convs, 3, out_channels=2).double(), features(ODD_NODES)
    weight = torch.rand(ODD.size(1), **DOUBLE).requires_grad_() if weighted else None
    expected = model.conv.encoder(x)
    for conv in convs:
        expected = torch.relu(conv(expected, ODD, edge_weight=weight))
    out = model.embed(Inputs(x, ODD, edge_weight=weight)).value
    torch.testing.assert_close(out, expected, **TIGHT)
    assert all(conv.normalize for conv in convs)  # the user's layers are untouched
    if weighted:
        (one,) = torch.autograd.grad(out.square().sum(), weight)
        (two,) = torch.autograd.grad(expected.square().sum(), weight)
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


DEGREES = torch.tensor([1, 2, 3, 1])
PNA = {"aggregators": ["mean", "max"], "scalers": ["identity", "amplification"], "deg": DEGREES}
PYG_MODELS = {
    "gcn": (pyg.GCN, {}, None),
    "graphsage": (pyg.GraphSAGE, {"norm": "batch_norm"}, "batch_norm"),
    "gin": (pyg.GIN, {"norm": "batch_norm"}, "batch_norm"),
    "gat": (pyg.GAT, {"heads": 2, "v2": True, "edge_dim": 2, "dropout": 0.5}, None),
    "pna": (pyg.PNA, PNA, None),
    "edgecnn": (
        pyg.EdgeCNN, {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}, nn.LayerNorm(8)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "options", "norm"), PYG_MODELS.values(), ids=PYG_MODELS)
def test_layers_compute_what_a_pyg_model_of_them_computes(make, options, norm):
    """Encoder, then exactly what PyG's model computes (its last layer has no norm and no
    activation), then the readout."""
    inner, width = make(8, 8, 3, **options).eval(), {"out_channels": 2, "hidden_channels": 8}
    model = LayeredGNN(list(inner.convs), 3, norm=norm, **width).double().eval()
    last = model.conv.layers[-1]
    last.norm = last.act = None
    x = features(ODD_NODES)
    attr = {"edge_attr": features(ODD.size(1), 2)} if "edge_dim" in options else {}
    expected = inner.double()(model.conv.encoder(x), ODD, **attr)
    torch.testing.assert_close(model.embed(Inputs(x, ODD, **attr)).value, expected, **TIGHT)
    torch.testing.assert_close(model(x, ODD, **attr), model.readout(expected), **TIGHT)


def test_layers_become_part_of_the_model():
    given = [pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 8)]
    model = LayeredGNN(given, 3, out_channels=2)
    assert [layer.conv for layer in model.conv.layers] == given


def test_embed_reports_its_layers():
    edge_index, batch = batch_of((chain(3), 3), (cycle(4), 4))
    inputs = Inputs(features(7), edge_index, None, batch)
    found = GCN(3, out_channels=2).double().embed(inputs)
    assert found.iterations.tolist() == [5, 5]
    assert found.residual.tolist() == [0.0, 0.0]
    assert bool(found.converged.all())
    assert GCN(3, out_channels=2, replicas=4).double().embed(inputs).status.shape == (4, 2)


def test_without_an_encoder_the_features_are_the_start():
    model, x = GCN(10, out_channels=2, encoder=False).double(), features(4, 10)
    assert model.conv.encoder is None
    assert torch.equal(model.problem(Inputs(x, cycle(4))).start(), x.mT.unsqueeze(0))
    ensemble = GCN(10, out_channels=2, encoder=False, replicas=2).double()
    assert ensemble(x, cycle(4)).shape == (2, 4, 2)


@pytest.mark.parametrize("replicas", [None, 2])
def test_inference_mode_first_then_training(replicas):
    """What is kept with the graph serves autograd, too, and other models."""
    model, edge_index = GCN(3, out_channels=2, replicas=replicas).double(), cycle(4)
    with torch.inference_mode():
        before = model(features(4), edge_index)
    after = model(features(4), edge_index)
    after.sum().backward()
    assert torch.equal(after, before)
    single = GCN(3, out_channels=2).double()
    fresh = single(features(4), edge_index.clone())
    torch.testing.assert_close(single(features(4), edge_index), fresh, rtol=0, atol=1e-15)


# -- replicas -------------------------------------------------------------------------------------


def test_replicas_draw_anew_and_keep_the_pattern():
    """The given layers are only copied."""
    conv = pyg.GCNConv(4, 4)
    ensemble = LayeredGNN([conv], 3, out_channels=2, replicas=3)
    assert conv.lin.weight.shape == (4, 4)
    weight = ensemble.conv.layers[0].conv.lin.weight
    assert weight.shape == (3, 4, 4)
    assert float((weight[0] - weight[1]).detach().abs().min()) > 0
    before = copy.deepcopy(dict(ensemble.named_parameters()))
    ensemble.reset_parameters()
    changed = {k for k, v in ensemble.named_parameters() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if not k.endswith("conv.bias")}  # which stay zero


def test_replicas_of_a_layer_that_cannot_be_vectorised():
    class Branching(pyg.SAGEConv):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) if float(x.detach().sum()) > 0 else x

    assert of(Branching(4, 4))().double()(features(4), cycle(4)).shape == (4, 2)
    with pytest.raises(ConfigError, match=r"Branching\), 2 replicas at once, raised"):
        of(Branching(4, 4), replicas=2)()


@pytest.mark.parametrize("make", [GCN, GAT])
def test_no_warnings_from_replicas(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(3, out_channels=2, replicas=2).double()(features(4), cycle(4)).sum().backward()
    assert not caught


# -- what is refused ------------------------------------------------------------------------------

BAD = {
    "attr missing": ({"edge_attr": None}, FeatureError, ["missing", "edge_dim=2", "[8, 2]"]),
    "weight": (
        {"edge_weight": torch.ones(8, **DOUBLE)},
        GraphError,
        ["edge_weight", "GATConv", "does not read", "edge_dim=1"],
    ),
    "h0": ({"h0": torch.zeros(4, 9, **DOUBLE)}, ConfigError, ["h0", "explicit", "h0=None"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    changes, error, words = BAD[name]
    model = GAT(3, out_channels=2, edge_dim=2).double()
    given = {"edge_attr": features(8, 2)} | changes
    refused(lambda: model(features(4), cycle(4), **given), error, words)


class PerNode(pyg.MessagePassing):
    """A user's layer whose reset_parameters is the one inherited: it does nothing."""

    def __init__(self):
        super().__init__(aggr="sum")
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x) @ self.weight


MISFITS = {
    "wide": (
        of(pyg.GCNConv(4, 5)),
        ["layer 0 (GCNConv)", "[3, 4] to [3, 5]", "encoder"],
    ),
    "heads": (of(pyg.GATConv(4, 4, heads=3)), ["GATConv", "[3, 12]", "width 4 to width 4"]),
    "input": (of(pyg.SAGEConv(3, 4)), ["layer 0 (SAGEConv) raised", "width 4 to width 4"]),
    "told": (
        lambda: LayeredGNN([pyg.GCNConv(3, 4), pyg.GCNConv(4, 4)], 3, out_channels=2),
        ["layer 0 (GCNConv)", "[3, 3] to [3, 4]", "encoder"],
    ),
    "pyg model": (
        lambda: LayeredGNN(pyg.GraphSAGE(8, 8, 2), 3, out_channels=2),
        ["one GraphSAGE", "expected a list", "hogwild.wrap"],
    ),
    "width unknown": (
        lambda: LayeredGNN([pyg.GINConv(nn.Linear(4, 4))], 3, out_channels=2),
        ["hidden_channels=k", "no in_channels"],
    ),
    "width contradicted": (
        of(pyg.SAGEConv(8, 8), hidden_channels=4),
        ["width 4 to width 4"],
    ),
    "lazy": (of(pyg.SAGEConv(-1, 4)), ["SAGEConv", "in_channels=4"]),
    "cached": (of(pyg.GCNConv(4, 4, cached=True)), ["cached=True", "cached=False"]),
    "initial values": (
        of(pyg.GCN2Conv(4, 0.1)),
        ["(GCN2Conv) raised", "layer(x, edge_index)"],
    ),
    "no edges": (of(nn.Linear(4, 4)), ["layer 0 (Linear) raised", "layer(x, edge_index)"]),
    "not a module": (of(torch.relu), ["builtin_function", "torch.nn.Module"]),
    "not a list": (
        lambda: LayeredGNN(pyg.GCNConv(4, 4), 3, out_channels=2),
        ["one GCNConv", "a list"],
    ),
    "empty": (of(), ["empty", "at least one"]),
    "no encoder": (of(pyg.GCNConv(4, 4), encoder=False), ["in_channels=3", "encoder=True"]),
    "edge_dim": (of(pyg.GCNConv(4, 4), edge_dim=2), ["edge_dim=2", "edge_attr"]),
    "edge_dim missing": (
        of(pyg.GINEConv(nn.Linear(4, 4))),
        ["layer 0 (GINEConv) raised"],
    ),
    "act": (of(pyg.GCNConv(4, 4), act="wavy"), ["act='wavy'"]),
    "norm": (of(pyg.GCNConv(4, 4), norm="wavy"), ["norm='wavy'"]),
    "replicas": (of(PerNode(), replicas=2), ["PerNode", "reset_parameters()"]),
    "pool": (of(pyg.GCNConv(4, 4), pool="min"), ["'min'", "'mean'"]),
    "num_layers": (
        lambda: GCN(3, out_channels=2, num_layers=0),
        ["num_layers=0", "positive integer"],
    ),
    "heads zero": (lambda: GAT(3, out_channels=2, heads=0), ["heads=0", "positive integer"]),
    "gat edge_dim": (
        lambda: GAT(3, out_channels=2, edge_dim=0),
        ["edge_dim=0", "positive integer"],
    ),
    "in_channels": (lambda: GCN(0, out_channels=2), ["in_channels=0", "positive integer"]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused(name):
    make, words = MISFITS[name]
    refused(make, ConfigError, words)


class Centred(pyg.SAGEConv):
    """Subtracts the mean over all nodes, which no type tells."""

    def forward(self, x, edge_index):
        return super().forward(x - x.mean(0), edge_index)


class TwoHops(pyg.SAGEConv):
    def forward(self, x, edge_index):
        return super().forward(super().forward(x, edge_index), edge_index)


def conv():
    return pyg.GCNConv(4, 4)


NORMS = {
    "GraphNorm": "graph_norm",
    "PairNorm": pyg.PairNorm(),
    "InstanceNorm": "instance_norm",
    "LayerNorm": "layer_norm",
    "MeanSubtractionNorm": pyg.MeanSubtractionNorm(),
    "GraphSizeNorm": pyg.GraphSizeNorm(),
    "BatchNorm1d": nn.BatchNorm1d(4, track_running_stats=False),
}
CONVS = {
    "GPSConv": lambda: pyg.GPSConv(4, conv()),
    "APPNP": lambda: pyg.APPNP(3, 0.1),
    "SGConv": lambda: pyg.SGConv(4, 4, K=2),
    "SSGConv": lambda: pyg.SSGConv(4, 4, 0.1, K=2),
    "TAGConv": lambda: pyg.TAGConv(4, 4),
    "ChebConv": lambda: pyg.ChebConv(4, 4, K=3),
    "MixHopConv": lambda: pyg.MixHopConv(4, 2, powers=[0, 2]),
    "ARMAConv": lambda: pyg.ARMAConv(4, 4, num_layers=2),
    "GatedGraphConv": lambda: pyg.GatedGraphConv(4, 2),
    "AntiSymmetricConv": lambda: pyg.AntiSymmetricConv(4, num_iters=2),
}
BEYOND = {
    **{name: (of(conv(), norm=norm), f"GCNConv, {name}") for name, norm in NORMS.items()},
    **{name: (lambda make=make: of(make())(), name) for name, make in CONVS.items()},
    "mean over all nodes": (of(pyg.SAGEConv(4, 4), Centred(4, 4)), "layer 1 (Centred)"),
    "two hops": (of(pyg.SAGEConv(4, 4), TwoHops(4, 4)), "layer 1 (TwoHops)"),
    "hears the wrong way": (of(pyg.DirGNNConv(pyg.SAGEConv(4, 4))), "(DirGNNConv)"),
    "flow": (of(pyg.GCNConv(4, 4, flow="target_to_source")), "flip edge_index"),
}


REGULAR = ("GraphNorm", "GPSConv", "SGConv", "mean over all nodes", "two hops", "flow")


@pytest.mark.parametrize(
    ("name", "edge_index"),
    [(name, chain(12)) for name in BEYOND]
    + [(name, graph) for name in REGULAR for graph in (cycle(12), circulant(12, 4))],
)
def test_more_than_one_hop_is_refused(name, edge_index):
    """Where nodes would compute it; in step there is nothing wrong with it. On regular graphs as
    well, where statistics over all stars are those over all nodes."""
    torch.manual_seed(0)
    make, word = BEYOND[name]
    model, inputs = make().double().eval(), Inputs(torch.randn(12, 3, **DOUBLE), edge_index)
    assert model.predict(inputs).shape == (12, 2)
    words = ["layer ", word, "beyond a node", "one hop"]
    refused(lambda: model.problem(inputs), AsynchronyError, words)


def test_a_layer_with_a_parameter_for_every_node_is_refused():
    class Numbered(pyg.SAGEConv):
        def __init__(self):
            super().__init__(4, 4)
            self.offset = nn.Parameter(torch.randn(12, 4))

        def forward(self, x, edge_index):
            return super().forward(x + self.offset[: x.size(0)], edge_index)

    model = of(Numbered())().double()
    words = ["a stack of Numbered cannot be run for a node and its neighbours alone"]
    refused(lambda: model.problem(Inputs(features(12), chain(12))), AsynchronyError, words)


def test_on_a_complete_graph_everyone_is_a_neighbour():
    """Where one hop is everything, nothing is refused."""
    model = of(Centred(4, 4))().double()
    model.problem(Inputs(features(2), chain(2)))
    with pytest.raises(AsynchronyError):
        model.problem(Inputs(features(3), chain(3)))
