"""Layers of PyG in one model: which layers fit, and which are refused."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import ODD, ODD_NODES, chain, cycle, features, refused
from torch import nn

from hogwild import GAT, GCN, Inputs, LayeredGNN
from hogwild.errors import (
    AsynchronyError,
    ConfigError,
)

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
    for layer, conv, norm in zip(model.conv.layers, inner.convs, inner.norms, strict=True):
        conv.load_state_dict(layer.conv.state_dict())
        if layer.norm is not None:
            norm.load_state_dict(layer.norm.state_dict())
    inner.double().eval()
    attr = {"edge_attr": features(ODD.size(1), 2)} if "edge_dim" in options else {}
    expected = inner(model.conv.encoder(features(ODD_NODES)), ODD, **attr)
    found = model.embed(Inputs(features(ODD_NODES), ODD, **attr))
    torch.testing.assert_close(found.value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        model(features(ODD_NODES), ODD, **attr), model.readout(expected), rtol=1e-12, atol=1e-12
    )


def test_layers_become_part_of_the_model():
    given = [pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 8)]
    model = LayeredGNN(given, 3, out_channels=2)
    assert [layer.conv for layer in model.conv.layers] == given


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
        ["layer 0 (GCNConv)", "[3, 3] to [3, 4]", "encoder"],
    ),
    "pyg model": (
        lambda: LayeredGNN(pyg.GraphSAGE(3, 8, 2), 3, out_channels=2),
        ["layer 0 (SAGEConv)", "width 8 to width 8", "encoder"],
    ),
    "width unknown": (
        lambda: LayeredGNN([pyg.GINConv(nn.Linear(4, 4))], 3, out_channels=2),
        ["hidden_channels=k", "no in_channels"],
    ),
    "width contradicted": (
        lambda: LayeredGNN(pyg.GraphSAGE(8, 8, 2), 3, out_channels=2, hidden_channels=4),
        ["hidden_channels=4", "width 8"],
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
    "two acts": (
        lambda: LayeredGNN(pyg.GCN(8, 8, 2), 3, out_channels=2, act="tanh"),
        ["GCN has its own activation", "act"],
    ),
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
    "inside": (
        lambda: LayeredGNN(pyg.GIN(4, 4, 2, norm="graph_norm"), 3, out_channels=2),
        "layer 0 (GINConv, GraphNorm)",
    ),
    "flow": (of(pyg.GCNConv(4, 4, flow="target_to_source")), "flip edge_index"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_more_than_one_hop_is_refused(name):
    """Where nodes would compute it; in step there is nothing wrong with it."""
    torch.manual_seed(0)
    make, word = BEYOND[name]
    model = make().double().eval()
    model(features(12), chain(12))
    refused(
        lambda: model.problem(Inputs(features(12), chain(12))),
        AsynchronyError,
        ["layer 0", word, "beyond a node", "one hop"],
    )


@pytest.mark.parametrize("jk", ["cat", "last"])
def test_jumping_knowledge_is_refused(jk):
    refused(
        lambda: LayeredGNN(pyg.GCN(4, 4, 2, jk=jk), 3, out_channels=2),
        AsynchronyError,
        [f"jk={jk!r}", "jk=None"],
    )


def test_replicas_of_a_layer_that_cannot_be_vectorised():
    class Branching(pyg.SAGEConv):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) if float(x.detach().sum()) > 0 else x

    assert LayeredGNN([Branching(4, 4)], 3, out_channels=2).double()(
        features(4), cycle(4)
    ).shape == (4, 2)
    with pytest.raises(ConfigError, match=r"Branching\), 2 replicas at once, raised"):
        LayeredGNN([Branching(4, 4)], 3, out_channels=2, replicas=2)
