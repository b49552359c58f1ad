"""Explicit models: forward against PyG's layers composed by hand, bad input, refusals."""

import copy
import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, ODD, ODD_NODES, batch_of, chain, cycle, edges
from torch import nn
from torch_geometric.utils import softmax

from hogwild import GAT, GCN, EnergyGNN, Inputs, LayeredGNN
from hogwild.errors import (
    AsynchronyError,
    ConfigError,
    DTypeError,
    FeatureError,
    GraphError,
)
from hogwild.models.base import Kind
from hogwild.testing import check_model


def features(n, width=3):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(2), **DOUBLE)


def by_hand(model, convs, x, edge_index, act=torch.relu, **options):
    """Encoder, convolutions of PyG with the model's parameters, readout."""
    h = x @ model.encoder.weight[0].mT + model.encoder.bias[0]
    for layer, conv in zip(model.layers, convs, strict=True):
        conv.double().load_state_dict(layer.conv.state_dict())
        h = act(conv(h, edge_index, **options))
    return h


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
    "graphsage": lambda **kw: LayeredGNN(pyg.GraphSAGE(8, 8, 3), 3, out_channels=2, **kw),
    "list": lambda **kw: LayeredGNN(
        [pyg.GCNConv(4, 4), pyg.GATv2Conv(4, 2, heads=2), pyg.GraphConv(4, 4)],
        3,
        out_channels=2,
        act="elu",
        norm=nn.LayerNorm(4),
        **kw,
    ),
    "tagged": lambda **kw: LayerTagged(GCN(3, out_channels=2, num_layers=2, **kw)),
}


@pytest.mark.parametrize("pool", [None, "mean"])
@pytest.mark.parametrize("make", SIZES.values(), ids=SIZES)
def test_conformance(make, pool, device):
    check_model(lambda **kw: make(pool=pool, **kw), device=device)


def test_conformance_with_edge_features(device):
    check_model(lambda **kw: GAT(3, out_channels=2, edge_dim=2, **kw), edge_dim=2, device=device)


def test_sizes_are_the_papers():
    """Five layers of width 10, and five of three heads of width 3."""
    gcn, gat = GCN(3, out_channels=1), GAT(3, out_channels=1)
    assert [tuple(layer.conv.lin.weight.shape) for layer in gcn.layers] == [(10, 10)] * 5
    assert [tuple(layer.conv.lin.weight.shape) for layer in gat.layers] == [(9, 9)] * 5
    assert [(layer.conv.heads, layer.conv.out_channels) for layer in gat.layers] == [(3, 3)] * 5
    assert gcn.readout.node.channels == (10, 4, 4, 1)
    assert {gcn.kind, gat.kind, LayerTagged(gcn).kind} == {Kind.EXPLICIT}


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
    h = model.encoder(x)
    for layer in model.layers:
        h = torch.relu(a @ h @ layer.conv.lin.weight.mT)
    out = model.embed(Inputs(x, edge_index, edge_weight=weight)).value
    torch.testing.assert_close(out, h, rtol=1e-12, atol=1e-12)


def test_gat_is_the_papers_equation():
    """Softmax over N(i) ∪ {i} of LeakyReLU(aᵀ[W h_i ‖ W h_j]), heads concatenated."""
    model, n = GAT(3, out_channels=2, bias=False).double(), 6
    edge_index, x = cycle(n), features(n)
    src, dst = torch.cat([edge_index, torch.arange(n).expand(2, n)], 1)
    h = model.encoder(x)
    for layer in model.layers:
        conv = layer.conv
        z = (h @ conv.lin.weight.mT).view(n, 3, 3)
        a = torch.cat([conv.att_dst, conv.att_src], -1)
        score = nn.functional.leaky_relu((a * torch.cat([z[dst], z[src]], -1)).sum(-1), 0.2)
        alpha = softmax(score, dst, num_nodes=n)
        h = torch.zeros(n, 3, 3, **DOUBLE).index_add(0, dst, alpha.unsqueeze(-1) * z[src])
        h = torch.relu(h.flatten(1))
    torch.testing.assert_close(model.embed(Inputs(x, edge_index)).value, h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}], ids=str)
def test_gcnconv_is_pygs(options, weighted):
    """Weights normalised once, outside of the layers, are those that PyG normalises in each: on a
    graph with loops, doubled and one-way edges; values and gradients."""
    make = lambda: [pyg.GCNConv(4, 4, **options) for _ in range(3)]  # noqa: E731
    model, x = LayeredGNN(make(), 3, out_channels=2).double(), features(ODD_NODES)
    weight = torch.rand(ODD.size(1), **DOUBLE).requires_grad_() if weighted else None
    expected = by_hand(model, make(), x, ODD, edge_weight=weight)
    out = model.embed(Inputs(x, ODD, edge_weight=weight)).value
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    assert all(layer.conv.normalize for layer in model.layers)  # the user's layers are untouched
    if weighted:
        (one,) = torch.autograd.grad(out.square().sum(), weight)
        (two,) = torch.autograd.grad(expected.square().sum(), weight)
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


DEGREES = torch.tensor([1, 2, 3, 1])
PYG_MODELS = {
    "gcn": (pyg.GCN, {}),
    "graphsage": (pyg.GraphSAGE, {"norm": "batch_norm"}),
    "gin": (pyg.GIN, {"norm": "batch_norm", "act_first": True}),
    "gat": (pyg.GAT, {"heads": 2, "v2": True, "edge_dim": 2, "dropout": 0.5}),
    "pna": (
        pyg.PNA,
        {"aggregators": ["mean", "max"], "scalers": ["identity", "amplification"], "deg": DEGREES},
    ),
    "edgecnn": (pyg.EdgeCNN, {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}),
}


@pytest.mark.parametrize(("make", "options"), PYG_MODELS.values(), ids=PYG_MODELS)
def test_a_pyg_model_keeps_its_forward(make, options):
    """Encoder, then exactly what PyG's model computes, then the readout."""
    inner = make(8, 8, 3, **options)
    model = LayeredGNN(inner, 3, out_channels=2).double().eval()
    for layer, conv, norm in zip(model.layers, inner.convs, inner.norms, strict=True):
        conv.load_state_dict(layer.conv.state_dict())  # the model's own, freshly drawn
        if layer.norm is not None:
            norm.load_state_dict(layer.norm.state_dict())
    inner.double().eval()
    attr = {"edge_attr": features(ODD.size(1), 2)} if "edge_dim" in options else {}
    expected = inner(model.encoder(features(ODD_NODES)), ODD, **attr)
    found = model.embed(Inputs(features(ODD_NODES), ODD, **attr))
    torch.testing.assert_close(found.value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        model(features(ODD_NODES), ODD, **attr), model.readout(expected), rtol=1e-12, atol=1e-12
    )


def test_embed_reports_its_layers():
    edge_index, batch = batch_of((chain(3), 3), (cycle(4), 4))
    found = GCN(3, out_channels=2).double().embed(Inputs(features(7), edge_index, None, batch))
    assert found.iterations.tolist() == [5, 5]
    assert found.residual.tolist() == [0.0, 0.0]
    assert bool(found.converged.all())
    found = (
        GCN(3, out_channels=2, replicas=4)
        .double()
        .embed(Inputs(features(7), edge_index, None, batch))
    )
    assert found.status.shape == (4, 2)


def test_without_an_encoder_the_features_are_the_start():
    model = GCN(10, out_channels=2, encoder=False).double()
    assert model.encoder is None
    x = features(4, 10)
    assert torch.equal(model.problem(Inputs(x, cycle(4))).start(), x.mT.unsqueeze(0))
    ensemble = GCN(10, out_channels=2, encoder=False, replicas=2).double()
    assert ensemble(x, cycle(4)).shape == (2, 4, 2)


def test_replicas_take_features_of_their_own():
    model, own = GAT(3, out_channels=2, replicas=2).double(), torch.randn(2, 4, 3, **DOUBLE)
    out = model(own, cycle(4))
    for r in range(2):
        torch.testing.assert_close(out[r], model(own[r], cycle(4))[r], rtol=0, atol=1e-12)


def test_a_new_model_has_parameters_of_its_own():
    """Layers given are a pattern: nothing of a trained network lives on in another one, and what
    was given is not touched."""
    for given, conv in (
        (pyg.GraphSAGE(8, 8, 2, norm="batch_norm"), lambda g: g.convs[0]),
        ([pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 8)], lambda g: g[0]),
    ):
        before = copy.deepcopy(conv(given).state_dict())
        own = LayeredGNN(given, 3, out_channels=2).layers[0].conv
        assert own is not conv(given)
        for name, value in conv(given).state_dict().items():
            assert torch.equal(value, before[name])
            assert not torch.equal(value, own.state_dict()[name]), name


def test_layers_in_training_are_refused():
    inner = pyg.GCN(8, 8, 2)
    inner(torch.randn(4, 8), cycle(4)).sum().backward()
    for layers in (inner, list(inner.convs)):
        with pytest.raises(ConfigError, match=r"GCN.* have gradients.*hogwild\.wrap"):
            LayeredGNN(layers, 3, out_channels=2)


def test_replicas_draw_anew_and_keep_the_pattern():
    """The given layers are only copied."""
    conv = pyg.GCNConv(4, 4)
    ensemble = LayeredGNN([conv], 3, out_channels=2, replicas=3)
    assert conv.lin.weight.shape == (4, 4)
    weight = ensemble.layers[0].conv.lin.weight
    assert weight.shape == (3, 4, 4)
    assert float((weight[0] - weight[1]).detach().abs().min()) > 0
    before = copy.deepcopy(dict(ensemble.named_parameters()))
    ensemble.reset_parameters()
    changed = {k for k, v in ensemble.named_parameters() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if not k.endswith("conv.bias")}  # which stay zero


def test_reset_parameters_redraws_everything():
    model = GAT(3, out_channels=2)
    before = copy.deepcopy(dict(model.named_parameters()))
    model.reset_parameters()
    changed = {k for k, v in model.named_parameters() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if not k.endswith("conv.bias")}


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


# -- bad input ------------------------------------------------------------------------------------

NAN = features(4)
NAN[2, 1] = float("nan")
BAD = {
    "width": ({"x": features(4, 2)}, FeatureError, ["(4, 2)", "[num_nodes, 3]"]),
    "nan": ({"x": NAN}, FeatureError, ["x", "(2, 1)", "finite"]),
    "dtype": ({"x": features(4).float()}, DTypeError, ["torch.float32", "torch.float64"]),
    "range": ({"edge_index": cycle(5)[:, :8]}, GraphError, ["0 to 4", "0 to 3"]),
    "attr missing": ({"edge_attr": None}, FeatureError, ["missing", "edge_dim=2", "[8, 2]"]),
    "attr width": ({"edge_attr": features(8, 3)}, FeatureError, ["(8, 3)", "[8, 2]"]),
    "weight": (
        {"edge_weight": torch.ones(8, **DOUBLE)},
        GraphError,
        ["edge_weight", "GATConv", "do not read"],
    ),
    "batch": ({"batch": torch.tensor([0, 1, 0, 1])}, GraphError, ["not sorted"]),
    "h0": ({"h0": torch.zeros(4, 9, **DOUBLE)}, ConfigError, ["h0", "explicit", "h0=None"]),
}


@pytest.mark.parametrize("wrap", [lambda m: m, LayerTagged], ids=["plain", "tagged"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name, wrap):
    changes, error, words = BAD[name]
    given = {"x": features(4), "edge_index": cycle(4), "edge_attr": features(8, 2)} | changes
    model = wrap(GAT(3, out_channels=2, edge_dim=2).double())
    with pytest.raises(error) as caught:
        model(given.pop("x"), given.pop("edge_index"), **given)
    for word in words:
        assert word in str(caught.value)


def test_unexpected_edge_attr():
    with pytest.raises(FeatureError, match=r"\(8, 2\).*edge_dim=2"):
        GCN(3, out_channels=2).double()(features(4), cycle(4), features(8, 2))


# -- refusals -------------------------------------------------------------------------------------


def of(*convs, **options):
    return lambda: LayeredGNN(list(convs), 3, out_channels=2, **({"hidden_channels": 4} | options))


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
        ["in_channels=3, 4", "width k to width k", "encoder"],
    ),
    "pyg model": (
        lambda: LayeredGNN(pyg.GraphSAGE(3, 8, 2), 3, out_channels=2),
        ["layer 0 (SAGEConv)", "width 8 to width 8", "encoder"],
    ),
    "width unknown": (
        lambda: LayeredGNN([pyg.GINConv(nn.Linear(4, 4))], 3, out_channels=2),
        ["hidden_channels=k", "do not tell"],
    ),
    "width contradicted": (
        lambda: LayeredGNN(pyg.GraphSAGE(8, 8, 2), 3, out_channels=2, hidden_channels=4),
        ["hidden_channels=4", "width 8"],
    ),
    "lazy": (of(pyg.SAGEConv(-1, 4)), ["SAGEConv", "in_channels=4"]),
    "cached": (of(pyg.GCNConv(4, 4, cached=True)), ["cached=True", "cached=False"]),
    "initial values": (of(pyg.GCN2Conv(4, 0.1)), ["GCN2Conv", "x_0", "layer(x, edge_index)"]),
    "no edges": (of(nn.Linear(4, 4)), ["Linear.forward", "layer(x, edge_index)"]),
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
    "two acts": (
        lambda: LayeredGNN(pyg.GCN(8, 8, 2), 3, out_channels=2, act="tanh"),
        ["GCN brings its own activation", "act"],
    ),
    "replicas": (of(PerNode(), replicas=2), ["PerNode", "reset_parameters()"]),
    "pool": (of(pyg.GCNConv(4, 4), pool="max"), ["'max'", "'mean'"]),
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
    "tagged": (
        lambda: LayerTagged(EnergyGNN(3, out_channels=2)),
        ["EnergyGNN", "no layers", "LayeredGNN"],
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused(name):
    make, words = MISFITS[name]
    with pytest.raises(ConfigError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def conv():
    return pyg.GCNConv(4, 4)


BEYOND = {
    "GraphNorm": (of(conv(), norm="graph_norm"), ["GraphNorm", "all nodes"]),
    "PairNorm": (of(conv(), norm=pyg.PairNorm()), ["PairNorm", "all nodes"]),
    "InstanceNorm": (of(conv(), norm="instance_norm"), ["InstanceNorm", "all nodes"]),
    "LayerNorm": (of(conv(), norm="layer_norm"), ["mode='graph'", "mode='node'"]),
    "MeanSubtractionNorm": (of(conv(), norm=pyg.MeanSubtractionNorm()), ["mean", "all nodes"]),
    "GraphSizeNorm": (of(conv(), norm=pyg.GraphSizeNorm()), ["number of nodes"]),
    "BatchNorm": (
        of(conv(), norm=nn.BatchNorm1d(4, track_running_stats=False)),
        ["BatchNorm1d(track_running_stats=False)", "all nodes"],
    ),
    "inside": (
        lambda: LayeredGNN(pyg.GIN(4, 4, 2, norm="graph_norm"), 3, out_channels=2),
        ["GraphNorm", "all nodes"],
    ),
    "jk": (
        lambda: LayeredGNN(pyg.GCN(4, 4, 2, jk="cat"), 3, out_channels=2),
        ["jk='cat'", "jk=None"],
    ),
    "jk last": (lambda: LayeredGNN(pyg.GCN(4, 4, 2, jk="last"), 3, out_channels=2), ["jk='last'"]),
    "GPSConv": (of(pyg.GPSConv(4, conv())), ["GPSConv", "attends to all nodes"]),
    "APPNP": (of(pyg.APPNP(3, 0.1)), ["APPNP", "3 hops"]),
    "SGConv": (of(pyg.SGConv(4, 4, K=2)), ["SGConv", "2 hops", "layers of one hop"]),
    "SSGConv": (of(pyg.SSGConv(4, 4, 0.1, K=2)), ["SSGConv", "2 hops"]),
    "TAGConv": (of(pyg.TAGConv(4, 4)), ["TAGConv", "3 hops"]),
    "ChebConv": (of(pyg.ChebConv(4, 4, K=3)), ["ChebConv", "2 hops"]),
    "MixHopConv": (of(pyg.MixHopConv(4, 2, powers=[0, 2])), ["MixHopConv", "2 hops"]),
    "ARMAConv": (of(pyg.ARMAConv(4, 4, num_layers=2)), ["ARMAConv", "2 hops"]),
    "GatedGraphConv": (of(pyg.GatedGraphConv(4, 2)), ["GatedGraphConv", "2 hops"]),
    "AntiSymmetricConv": (of(pyg.AntiSymmetricConv(4, num_iters=2)), ["2 hops"]),
    "flow": (of(pyg.GCNConv(4, 4, flow="target_to_source")), ["flow", "flip edge_index"]),
}


@pytest.mark.parametrize("name", BEYOND)
def test_more_than_one_hop_is_refused(name):
    make, words = BEYOND[name]
    with pytest.raises(AsynchronyError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_replicas_of_a_layer_that_cannot_be_vectorised():
    class Branching(pyg.SAGEConv):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) if float(x.detach().sum()) > 0 else x

    assert LayeredGNN([Branching(4, 4)], 3, out_channels=2).double()(
        features(4), cycle(4)
    ).shape == (4, 2)
    with pytest.raises(ConfigError, match=r"Branching\), 2 replicas at once, raised"):
        LayeredGNN([Branching(4, 4)], 3, out_channels=2, replicas=2)


# -- the local synchroniser -----------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [None, 2])
def test_layer_tagged_only_waits(replicas):
    model = GCN(3, out_channels=2, replicas=replicas).double()
    tagged = LayerTagged(model)
    x, edge_index = features(4), cycle(4)
    assert torch.equal(tagged(x, edge_index), model(x, edge_index))
    assert torch.equal(
        tagged.embed(Inputs(x, edge_index)).value, model.embed(Inputs(x, edge_index)).value
    )
    assert tagged.replicas == replicas
    assert tagged.readout is model.readout
    plain, waiting = model.problem(Inputs(x, edge_index)), tagged.problem(Inputs(x, edge_index))
    assert (plain.usual, waiting.usual) == ("overwriting", "waiting")
    assert torch.equal(plain.start(), waiting.start())
    tagged.require_asynchronous(edge_index, 4)
    before = model.encoder.weight[0].clone()
    tagged.reset_parameters()
    assert not torch.equal(model.encoder.weight[0], before)


def test_graph_without_edges():
    for model in (
        GCN(3, out_channels=2),
        GAT(3, out_channels=2),
        GCN(3, out_channels=2, replicas=2),
    ):
        model.double()
        x = features(3)
        together = model(x, edges())
        for i in range(3):
            alone = model(x[i : i + 1], edges())
            torch.testing.assert_close(together[..., i : i + 1, :], alone, rtol=0, atol=1e-12)


def test_no_warnings_from_replicas():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (GCN, GAT):
            model = make(3, 2, replicas=2).double()
            model(features(4), cycle(4)).sum().backward()
