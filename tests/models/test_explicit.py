"""Explicit models: forward against PyG's layers composed by hand, bad input, refusals."""

import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, ODD, ODD_NODES, batch_of, chain, cycle, edges, features
from torch import nn
from torch_geometric.utils import softmax

from hogwild import GAT, GCN, Inputs, LayeredGNN
from hogwild.errors import (
    ConfigError,
    FeatureError,
    GraphError,
)
from hogwild.models.base import Kind
from hogwild.testing import check_model


def by_hand(model, convs, x, edge_index, act=torch.relu, **options):
    """Encoder, convolutions of PyG with the model's parameters, readout."""
    h = x @ model.conv.encoder.weight[0].mT + model.conv.encoder.bias[0]
    for layer, conv in zip(model.conv.layers, convs, strict=True):
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
}


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
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_sizes_are_the_papers():
    """Five layers of width 10, and five of three heads of width 3."""
    gcn, gat = GCN(3, out_channels=1), GAT(3, out_channels=1)
    assert [tuple(layer.conv.lin.weight.shape) for layer in gcn.conv.layers] == [(10, 10)] * 5
    assert [tuple(layer.conv.lin.weight.shape) for layer in gat.conv.layers] == [(9, 9)] * 5
    assert [(layer.conv.heads, layer.conv.out_channels) for layer in gat.conv.layers] == [
        (3, 3)
    ] * 5
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
    torch.testing.assert_close(out, h, rtol=1e-12, atol=1e-12)


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
    assert all(
        layer.conv.normalize for layer in model.conv.layers
    )  # the user's layers are untouched
    if weighted:
        (one,) = torch.autograd.grad(out.square().sum(), weight)
        (two,) = torch.autograd.grad(expected.square().sum(), weight)
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


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
    assert model.conv.encoder is None
    x = features(4, 10)
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


# -- bad input ------------------------------------------------------------------------------------

NAN = features(4)
NAN[2, 1] = float("nan")
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
    given = {"x": features(4), "edge_index": cycle(4), "edge_attr": features(8, 2)} | changes
    model = GAT(3, out_channels=2, edge_dim=2).double()
    with pytest.raises(error) as caught:
        model(given.pop("x"), given.pop("edge_index"), **given)
    for word in words:
        assert word in str(caught.value)


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for make in (GCN, GAT):
            model = make(3, out_channels=2, replicas=2).double()
            model(features(4), cycle(4)).sum().backward()
    assert not caught
