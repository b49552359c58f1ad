"""Forwards in which nodes exchange values outside of one-hop convolutions are refused."""

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, refused
from torch import nn
from torch_geometric.utils import degree
from users_models import Given, graphs, in_turn

from hogwild import certify, simulate, wrap
from hogwild.errors import AsynchronyError


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


def convs(*parts):
    return pyg.Sequential(*in_turn(*parts))


def two(module=None, **options):
    parts = [pyg.GCNConv(3, 8, **options), module, pyg.GCNConv(8, 2)]
    return convs(*(part for part in parts if part is not None))


REFUSED = {
    "pooling": (lambda: PoolsBetween(a=pyg.GCNConv(3, 8), b=pyg.GCNConv(8, 2)),
                ["forward itself does between a (GCNConv) and b (GCNConv)", "head="]),
    "aggregation": (lambda: Aggregates(a=pyg.SAGEConv(3, 8), b=pyg.SAGEConv(8, 2)),
                    ["between a (SAGEConv) and b (SAGEConv)", "outside of MessagePassing"]),
    "GraphNorm": (lambda: two(pyg.GraphNorm(8)), ["module_1 (GraphNorm) between", "single nodes"]),
    "pyg model": (lambda: pyg.GCN(3, 8, 2, norm="graph_norm"), ["norms.0 (GraphNorm) between"]),
    "APPNP": (lambda: convs(nn.Linear(3, 8), pyg.APPNP(3, 0.1)), ["module_1 (APPNP)", "hops"]),
    "flow": (lambda: two(flow="target_to_source"), ["module_0 (GCNConv)", "flip edge_index"]),
    "attention": (lambda: pyg.Sequential("x, edge_index, batch", [
                      (pyg.GPSConv(3, pyg.GCNConv(3, 3)), "x, edge_index, batch -> x"),
                      (pyg.GCNConv(3, 2), "x, edge_index -> x")]), ["module_0.conv (GCNConv)"]),
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
    refused(lambda: simulate(wrapped, data), AsynchronyError, words)
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
    words = [*words, "reads more than single nodes"]
    refused(lambda: simulate(model, data), AsynchronyError, words)
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
