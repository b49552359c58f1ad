"""What models accept and refuse, and what odd graphs mean."""

import copy

import pytest
import torch
from helpers import DOUBLE, ODD, ODD_NODES, batch_of, chain, cycle, edges

from hogwild import EnergyConv, EnergyGNN, Inputs
from hogwild.errors import (
    AsynchronyError,
    ConfigError,
    DeviceError,
    DTypeError,
    FeatureError,
    GraphError,
    HogwildError,
    InputError,
)
from hogwild.solvers import Newton

NAN, INF = float("nan"), float("inf")
TIGHT = Newton(atol=1e-12)


def good(**changes):
    """Valid arguments of a model with 3 features and 2 edge features, with some replaced."""
    torch.manual_seed(0)
    edge_index = cycle(4)
    out = {
        "x": torch.randn(4, 3, **DOUBLE),
        "edge_index": edge_index,
        "edge_attr": torch.randn(8, 2, **DOUBLE),
        "batch": None,
        "edge_weight": None,
        "h0": None,
        "batch_size": None,
    }
    return out | changes


def with_value(t, at, value):
    t = t.clone()
    t[at] = value
    return t


X, ATTR = good()["x"], good()["edge_attr"]
TWO = batch_of((chain(2), 2), (chain(2), 2))
BAD = {
    "width": ({"x": X[:, :2]}, FeatureError, ["(4, 2)", "[num_nodes, 3]"]),
    "dim": ({"x": X[0]}, FeatureError, ["(3,)", "[num_nodes, 3]"]),
    "replicated x": ({"x": X.expand(2, 4, 3)}, FeatureError, ["(2, 4, 3)", "[num_nodes, 3]"]),
    "attr missing": ({"edge_attr": None}, FeatureError, ["missing", "edge_dim=2", "[8, 2]"]),
    "attr rows": ({"edge_attr": ATTR[:5]}, FeatureError, ["(5, 2)", "[8, 2]"]),
    "attr width": ({"edge_attr": ATTR[:, :1]}, FeatureError, ["(8, 1)", "[8, 2]"]),
    "attr flat": ({"edge_attr": ATTR[:, 0]}, FeatureError, ["(8,)", "[8, 2]"]),
    "index range": (
        {"edge_index": with_value(cycle(4), (0, 0), 4)},
        GraphError,
        ["0 to 4", "0 to 3", "4 rows"],
    ),
    "index negative": (
        {"edge_index": with_value(cycle(4), (0, 0), -1)},
        GraphError,
        ["-1 to 3", "0 to 3"],
    ),
    "index shape": (
        {"edge_index": cycle(4).T.contiguous(), "edge_attr": ATTR[:2]},
        GraphError,
        ["(8, 2)", "[2, num_edges]"],
    ),
    "index dtype": ({"edge_index": cycle(4).int()}, DTypeError, ["torch.int32", "torch.int64"]),
    "x nan": ({"x": with_value(X, (2, 1), NAN)}, FeatureError, ["x", "(2, 1)", "finite"]),
    "x inf": ({"x": with_value(X, (0, 2), -INF)}, FeatureError, ["x", "(0, 2)", "finite"]),
    "attr nan": (
        {"edge_attr": with_value(ATTR, (3, 0), NAN)},
        FeatureError,
        ["edge_attr", "(3, 0)", "finite"],
    ),
    "weight negative": (
        {"edge_weight": with_value(torch.ones(8, **DOUBLE), 5, -0.5)},
        GraphError,
        ["edge_weight[5]", "-0.5", "nonnegative"],
    ),
    "weight nan": (
        {"edge_weight": with_value(torch.ones(8, **DOUBLE), 5, NAN)},
        FeatureError,
        ["edge_weight", "(5,)", "finite"],
    ),
    "weight shape": ({"edge_weight": torch.ones(8, 1, **DOUBLE)}, GraphError, ["(8, 1)", "[8]"]),
    "weight dtype": (
        {"edge_weight": torch.ones(8)},
        DTypeError,
        ["edge_weight", "torch.float32", "torch.float64"],
    ),
    "empty": (
        {"x": X[:0], "edge_index": edges(), "edge_attr": ATTR[:0]},
        GraphError,
        ["no nodes", "at least one"],
    ),
    "batch unsorted": ({"batch": torch.tensor([0, 1, 0, 1])}, GraphError, ["not sorted", "node 1"]),
    "batch length": ({"batch": torch.tensor([0, 0, 0])}, GraphError, ["(3,)", "[4]"]),
    "batch dtype": ({"batch": torch.zeros(4)}, DTypeError, ["torch.float32", "torch.int64"]),
    "batch crossing": (
        {"batch": torch.tensor([0, 0, 1, 1])},
        GraphError,
        ["join different graphs", "within one graph"],
    ),
    "batch gap": (
        {"edge_index": TWO[0], "edge_attr": ATTR[:4], "batch": 2 * TWO[1]},
        GraphError,
        ["1 of 3", "graph 1"],
    ),
    "batch size": ({"batch_size": 2}, GraphError, ["batch_size=2", "batch [N]"]),
    "x float32": ({"x": X.float()}, DTypeError, ["torch.float32", "torch.float64", "x.to("]),
    "x integer": ({"x": X.long()}, DTypeError, ["torch.int64", "floating-point"]),
    "attr float32": (
        {"edge_attr": ATTR.float()},
        DTypeError,
        ["edge_attr", "torch.float32", "torch.float64"],
    ),
    "h0 shape": ({"h0": torch.zeros(2, 4, **DOUBLE)}, FeatureError, ["(2, 4)", "[4, 2]"]),
    "h0 nan": (
        {"h0": torch.full((4, 2), NAN, **DOUBLE)},
        FeatureError,
        ["h0", "NaN", "finite starting point"],
    ),
    "attr device": ({"edge_attr": ATTR.to("meta")}, DeviceError, ["edge_attr is on meta", "cpu"]),
    "index device": ({"edge_index": cycle(4).to("meta")}, DeviceError, ["edge_index is on meta"]),
    "batch device": (
        {"batch": torch.zeros(4).long().to("meta")},
        DeviceError,
        ["batch is on meta", "edge_index on cpu"],
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("make", [EnergyConv, EnergyGNN, EnergyGNN])
def test_bad_input_is_named(name, make):
    """Every bad input raises its own class, saying what was given and what was expected."""
    changes, error, words = BAD[name]
    width = () if make is EnergyConv else (2,)
    model = make(3, *width, edge_dim=2).double()
    inputs = good(**changes)
    with pytest.raises(error) as caught:
        model(inputs.pop("x"), inputs.pop("edge_index"), **inputs)
    assert isinstance(caught.value, InputError | HogwildError)
    for word in words:
        assert word in str(caught.value)


def test_unexpected_edge_attr():
    with pytest.raises(FeatureError, match=r"\(8, 2\).*edge_dim=2"):
        EnergyConv(3).double()(X, cycle(4), ATTR)


def test_float64_features_into_a_float32_model():
    with pytest.raises(DTypeError) as caught:
        EnergyConv(3)(X, cycle(4))
    for word in ("torch.float64", "torch.float32", "x.to(torch.float32)", "model.to("):
        assert word in str(caught.value)


def test_replicas_take_features_of_their_own():
    """With R replicas, x may be [N, p] or [R, N, p], nothing else."""
    conv = EnergyConv(3, replicas=2).double()
    own = torch.randn(2, 4, 3, **DOUBLE)
    out = conv(own, cycle(4))
    for r in range(2):
        torch.testing.assert_close(out[r], conv(own[r], cycle(4))[r], rtol=0, atol=1e-7)
    with pytest.raises(FeatureError) as caught:
        conv(torch.randn(3, 4, 3, **DOUBLE), cycle(4))
    assert "[num_nodes, 3] or [2, num_nodes, 3]" in str(caught.value)
    with pytest.raises(FeatureError) as caught:
        conv(X, cycle(4), h0=torch.zeros(3, 4, 2, **DOUBLE))
    assert "[4, 2] or [2, 4, 2]" in str(caught.value)


UNCHECKED = {
    "x nan": {"x": with_value(X, (0, 0), NAN)},
    "attr inf": {"edge_attr": with_value(ATTR, (0, 0), INF)},
    "weight negative": {"edge_weight": torch.full((8,), -1e-3, **DOUBLE)},
    "h0 nan": {"h0": torch.full((4, 2), NAN, **DOUBLE)},
}


@pytest.mark.parametrize("changes", UNCHECKED.values(), ids=UNCHECKED)
def test_validate_false_reads_no_values(changes):
    """The same inputs are refused with ``validate=True``; without, nothing looks at the values."""
    inputs = good(**changes)
    x, edge_index = inputs.pop("x"), inputs.pop("edge_index")
    with pytest.raises(InputError):
        EnergyConv(3, edge_dim=2).double()(x, edge_index, **inputs)
    conv = EnergyConv(3, edge_dim=2, validate=False, on_failure="ignore").double()
    out = conv(x, edge_index.clone(), **inputs)
    assert out.shape == (4, 2)
    with pytest.raises(FeatureError):  # shapes are still checked
        conv(x[:, :2], edge_index, **inputs)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"message": "both"}, ["'both'", "'edge' or 'node'"]),
        ({"aggr": "max"}, ["'max'", "'sum' or 'mean'", "convex"]),
        ({"in_channels": 0}, ["in_channels=0", "positive integer"]),
        ({"hidden_channels": -1}, ["hidden_channels=-1", "positive integer"]),
        ({"message_channels": 0}, ["message_channels=0", "positive integer"]),
        ({"num_layers": 0}, ["num_layers=0", "positive integer"]),
        ({"num_layers": 1.5}, ["num_layers=1.5", "positive integer"]),
        ({"heads": 0}, ["heads=0", "positive integer"]),
        ({"edge_dim": 0}, ["edge_dim=0", "positive integer"]),
        ({"replicas": 0}, ["replicas=0", "positive integer"]),
        ({"beta": 0.0}, ["beta=0.0", "positive"]),
        ({"beta": -1.0}, ["beta=-1.0", "positive"]),
        ({"beta": NAN}, ["beta=nan", "positive"]),
        ({"heads": 2, "aggr": "mean"}, ["heads", "aggr='mean'"]),
        ({"heads": 2, "normalize": True}, ["heads", "normalize=True"]),
        ({"message": "node", "edge_dim": 2}, ["node-wise", "message='edge'"]),
        ({"act": "relu"}, ["'relu'", "softplus"]),
        ({"gate": "abs"}, ["'abs'", "softplus"]),
        ({"widths": (4, 0)}, ["positive widths", "(4, 0"]),
        ({"on_failure": "panic"}, ["'panic'", "raise", "warn", "ignore"]),
    ],
    ids=str,
)
def test_constructor_errors(kwargs, words):
    with pytest.raises(ConfigError) as caught:
        EnergyConv(**({"in_channels": 3} | kwargs))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EnergyGNN(3, out_channels=1, num_layers=0), ["num_levels=0", "positive integer"]),
        (lambda: EnergyGNN(3, out_channels=1, pool="max"), ["'max'", "'mean'"]),
        (lambda: Newton(atol=-1.0), ["atol=-1.0", "nonnegative"]),
        (lambda: Newton(rtol=NAN), ["rtol=nan", "nonnegative"]),
        (lambda: Newton(max_iter=-1), ["max_iter=-1", "nonnegative"]),
        (lambda: Newton(linear="lu"), ["'lu'", "direct", "cg"]),
    ],
)
def test_other_constructor_errors(make, words):
    with pytest.raises(ConfigError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_bad_input_leaves_no_trace():
    """An error changes neither the parameters nor the next answer."""
    conv = EnergyConv(3).double()
    before = conv(X, cycle(4))
    with pytest.raises(InputError):
        conv(with_value(X, (0, 0), NAN), cycle(4))
    assert torch.equal(conv(X, cycle(4)), before)


# -- what odd graphs mean -------------------------------------------------------------------------


def conv_of(**options):
    torch.manual_seed(1)
    return EnergyConv(3, solver=TIGHT, **options).double()


def features(n):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(2), **DOUBLE)


OPTIONS = {
    "edge": {},
    "node": {"message": "node"},
    "mean": {"aggr": "mean"},
    "normalize": {"normalize": True},
    "heads": {"heads": 2},
    "two-rounds": {"num_layers": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_isolated_node_equals_a_single_node_graph(options):
    """An isolated node minimises its own energy, whatever else is in the graph."""
    conv, x = conv_of(**options), features(ODD_NODES)
    alone = conv(x[5:], edges())
    torch.testing.assert_close(conv(x, ODD)[5:], alone, rtol=0, atol=1e-9)
    assert float((conv(x, ODD)[:1] - conv(x[:1], edges())).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["edge", "node", "normalize", "two-rounds"])
def test_multi_edge_counts_and_equals_weight_two(name):
    """Each of several edges counts: twice the edge is the edge with weight two, and not once."""
    conv, x = conv_of(**OPTIONS[name]), features(3)
    once, twice = chain(3), torch.cat([chain(3), chain(3)[:, :1]], 1)
    weight = torch.ones(4, **DOUBLE)
    weight[0] = 2.0
    h = features(3)[:, :2]
    doubled = conv.energy(h, Inputs(x, twice))
    torch.testing.assert_close(doubled, conv.energy(h, Inputs(x, once, edge_weight=weight)))
    assert float((doubled - conv.energy(h, Inputs(x, once))).abs().detach()) > 1e-3
    torch.testing.assert_close(conv(x, twice), conv(x, once, edge_weight=weight), rtol=0, atol=1e-9)


def test_self_loop_is_one_more_message():
    """m_i gains m(h_i, h_i, x_i, x_i), beside the self message that every node has."""
    conv, x, h = conv_of(), features(1), features(1)[:, :2]
    m = conv.loop_nets[0](x, h)
    message = conv.message_nets[0](torch.cat([x, x], 1), h.repeat_interleave(2, 1))
    for count in range(3):
        at = torch.cat([m + count * message, h], 1)
        expected = conv.update_nets[0](x, at)[0, 0] + 0.02 * h.square().sum()
        got = conv.energy(h, Inputs(x, edges(*[(0, 0)] * count)))[0]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ["edge", "node", "normalize", "two-rounds"])
def test_weight_zero_equals_removing_the_edge(name):
    conv, x = conv_of(**OPTIONS[name]), features(ODD_NODES)
    weight = torch.ones(ODD.size(1), **DOUBLE)
    weight[[1, 5, 8]] = 0.0
    kept = ODD[:, weight > 0]
    zeroed = conv(x, ODD, edge_weight=weight)
    torch.testing.assert_close(zeroed, conv(x, kept), rtol=0, atol=1e-9)
    assert float((zeroed - conv(x, ODD)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_weight_one_equals_no_weight(options):
    conv, x = conv_of(**options), features(ODD_NODES)
    one = torch.ones(ODD.size(1), **DOUBLE)
    torch.testing.assert_close(conv(x, ODD, edge_weight=one), conv(x, ODD), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_directed_graphs_solve(options):
    """The gradient vanishes at the answer, and direction matters."""
    conv, x = conv_of(**options), features(4)
    one_way = edges((0, 1), (1, 2), (2, 3), (3, 1))
    found = conv.embed(Inputs(x, one_way))
    assert bool(found.converged.all())
    h = found.value.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(conv.energy(h, Inputs(x, one_way)).sum(), h)
    assert float(gradient.abs().max()) <= 1e-11
    assert float((found.value - conv(x, one_way.flip(0))).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_graph_without_edges(options):
    conv, x = conv_of(**options), features(3)
    together = conv(x, edges())
    for i in range(3):
        torch.testing.assert_close(together[i], conv(x[i : i + 1], edges())[0], rtol=0, atol=1e-9)
    conv(x, edges()).sum().backward()


def test_require_asynchronous():
    """A one-hop energy on an undirected graph can run asynchronously; otherwise the reason."""
    EnergyConv(3).require_asynchronous(cycle(4), 4)
    EnergyConv(3, heads=2).require_asynchronous(edges(), 2)
    with pytest.raises(AsynchronyError) as caught:
        EnergyConv(3, rounds=2).require_asynchronous(cycle(4), 4)
    for word in ("num_layers=2", "2 hops", "num_layers=1", "StackedEnergyGNN"):
        assert word in str(caught.value)
    with pytest.raises(AsynchronyError) as caught:
        EnergyConv(3).require_asynchronous(ODD, ODD_NODES)
    for word in ("no reverse link", "4 -> 0", "to_undirected"):
        assert word in str(caught.value)


# -- precision ------------------------------------------------------------------------------------


def test_float32_parameters_solve_in_float64_by_default():
    """The default equals the float64 model rounded at the end, and returns float32."""
    torch.manual_seed(0)
    conv = EnergyConv(3)
    assert conv.solve_dtype == torch.float64
    x = torch.randn(6, 3)
    found = conv.embed(Inputs(x, cycle(6)))
    assert found.value.dtype == torch.float32
    assert found.residual.dtype == torch.float64
    assert float(found.residual) <= 1e-8
    exact = copy.deepcopy(conv).double()(x.double(), cycle(6))
    assert torch.equal(found.value, exact.float())


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_float32_solve_agrees_with_float64(options):
    torch.manual_seed(0)
    conv = EnergyConv(3, replicas=4, **options)
    x = torch.randn(20, 3)
    exact = conv(x, cycle(20))
    rough = copy.deepcopy(conv)
    rough.solve_dtype = None
    found = rough.embed(Inputs(x, cycle(20)))
    assert bool(found.converged.all())
    assert found.residual.dtype == torch.float32
    torch.testing.assert_close(found.value, exact, rtol=1e-3, atol=1e-3)
    grads = [
        torch.autograd.grad(h.square().sum(), list(model.parameters()))
        for model, h in ((conv, exact), (rough, found.value))
    ]
    for a, b in zip(*grads, strict=True):
        size = max(float(a.abs().max()), 1e-2)
        torch.testing.assert_close(b, a, rtol=0, atol=2e-2 * size)


@pytest.mark.parametrize("solve_dtype", [torch.float64, None])
def test_autocast_changes_nothing(solve_dtype):
    """Embeddings, energies and gradients under autocast are those without it."""
    torch.manual_seed(0)
    conv = EnergyConv(3, solve_dtype=solve_dtype)
    x, parameters = torch.randn(6, 3), list(conv.parameters())
    h = conv(x, cycle(6))
    grads = torch.autograd.grad(h.square().sum(), parameters)
    energy = conv.energy(h.detach(), Inputs(x, cycle(6)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = conv(x, cycle(6))
        assert torch.equal(again, h)
        with torch.inference_mode():
            assert torch.equal(conv(x, cycle(6)), h)
        energy_again = conv.energy(h.detach(), Inputs(x, cycle(6)))
    # Backward outside of autocast, as PyTorch asks.
    grads_again = torch.autograd.grad(again.square().sum(), parameters)
    torch.testing.assert_close(energy_again, energy)
    for a, b in zip(grads_again, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_inference_mode_first_then_training():
    """Evaluating before the first epoch leaves nothing that autograd cannot use."""
    conv, x, edge_index = conv_of(), features(4), cycle(4)
    with torch.inference_mode():
        before = conv(x, edge_index)
    after = conv(x, edge_index)
    after.sum().backward()
    assert torch.equal(after, before)
