"""What all models share: inputs that are refused, precisions, ``torch.compile``."""

import copy

import pytest
import torch
from helpers import DOUBLE, batch_of, chain, cycle, edges, features, star
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from hogwild import (
    GCN,
    GSDGNN,
    IGNN,
    EnergyConv,
    EnergyGNN,
    Inputs,
    certify,
    robustness,
    simulate,
    train,
    wrap,
)
from hogwild.errors import (
    ConfigError,
    DeviceError,
    DTypeError,
    FeatureError,
    GraphError,
    HogwildError,
    InputError,
)
from hogwild.nn import PICNN
from hogwild.solvers import LBFGS, Newton

NAN, INF = float("nan"), float("inf")


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
@pytest.mark.parametrize("options", [None, {}, {"num_layers": 2}])
def test_bad_input_is_named(name, options):
    """Every bad input raises its own class, saying what was given and what was expected."""
    changes, error, words = BAD[name]
    model = EnergyConv(3, edge_dim=2)
    if options is not None:
        model = EnergyGNN(3, out_channels=2, edge_dim=2, **options)
    model = model.double()
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


def test_bad_input_leaves_no_trace():
    """An error changes neither the parameters nor the next answer."""
    conv = EnergyConv(3).double()
    before = conv(X, cycle(4))
    with pytest.raises(InputError):
        conv(with_value(X, (0, 0), NAN), cycle(4))
    assert torch.equal(conv(X, cycle(4)), before)


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
    conv, x, edge_index = EnergyConv(3).double(), features(4), cycle(4)
    with torch.inference_mode():
        before = conv(x, edge_index)
    after = conv(x, edge_index)
    after.sum().backward()
    assert torch.equal(after, before)


HALF = torch.ones(3, 3, dtype=torch.half)
ONES = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ConfigError, lambda: EnergyConv(3, solver=Newton)),
        (ConfigError, lambda: EnergyConv(3, solve_dtype=torch.bfloat16)),
        (ConfigError, lambda: EnergyConv(3, solve_dtype="float64")),
        (ConfigError, lambda: EnergyConv(3, heads=True)),
        (ConfigError, lambda: EnergyConv(3, beta=float("inf"))),
        (ConfigError, lambda: EnergyGNN(3, out_channels=0)),
        (ConfigError, lambda: Newton(max_iter=1e3)),
        (ConfigError, lambda: LBFGS(max_backtracks=0)),
        (HogwildError, lambda: EnergyConv(3)([[1.0] * 3], cycle(3))),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), [[0], [1]])),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), torch.tensor(1))),
        (HogwildError, lambda: EnergyConv(3)(torch.randn(3, 3), cycle(3), h0=[0.0])),
        (DTypeError, lambda: EnergyConv(3)(torch.randn(3, 3), cycle(3), h0=torch.ones(3, 2) * 1j)),
        (FeatureError, lambda: EnergyConv(3).energy(torch.ones(4, 2), Inputs(ONES, cycle(3)))),
        (DTypeError, lambda: EnergyConv(3, solve_dtype=None).half()(HALF, cycle(3))),
        (FeatureError, lambda: PICNN(2, 2, (4, 1))(torch.randn(5, 2), torch.randn(5, 1))),
    ],
)  # fmt: skip
def test_misuse_is_refused(error, call):
    with pytest.raises(error):
        call()


def test_edge_weight_in_the_place_of_edge_attr():
    with pytest.raises(FeatureError, match=r"pass one number for each edge as edge_weight="):
        EnergyConv(3)(torch.randn(4, 3), cycle(4), torch.ones(8))


class Sandwich(nn.Module):
    """A user's module: a layer, a solve, a layer."""

    def __init__(self):
        super().__init__()
        self.before, self.conv, self.after = (
            nn.Linear(3, 4),
            EnergyConv(4, hidden_channels=2),
            nn.Linear(2, 1),
        )

    def forward(self, x, edge_index, batch):
        return self.after(self.conv(self.before(x).relu(), edge_index, batch=batch))


class Plain(nn.Module):
    """A model of this library, called as :class:`Sandwich` is."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, batch):
        return self.model(x, edge_index, batch=batch)


MODELS = {
    "own module": Sandwich,
    "EnergyGNN": lambda: Plain(EnergyGNN(3, out_channels=1)),
    "pooled": lambda: Plain(EnergyGNN(3, out_channels=1, pool="mean")),
    "stack": lambda: Plain(EnergyGNN(3, out_channels=1, num_layers=2)),
    "IGNN": lambda: Plain(IGNN(3, out_channels=1)),
    "GSDGNN": lambda: Plain(GSDGNN(3, out_channels=1)),
}


@pytest.fixture
def fresh():
    """No compiled code, and no counts, of another test."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs(*sizes):
    """A batch of a chain, a cycle and a star."""
    made = zip((chain, cycle, star), sizes, strict=True)
    edge_index, batch = batch_of(*((make(n), n) for make, n in made))
    return torch.randn(batch.numel(), 3, **DOUBLE), edge_index, batch


def same(model, compiled, given):
    """Values and gradients, with gradients and without."""
    expected, found = model(*given), compiled(*given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), expected.detach(), rtol=1e-10, atol=1e-12)
    wanted, got = (
        torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True)
        for y in (expected, found)
    )
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name not in ("own module", "IGNN") else name
        for name in MODELS
    ],
)
@pytest.mark.usefixtures("fresh")
def test_compiled_models_give_the_same_answers(name):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    compiled = torch.compile(model, backend="aot_eager" if name == "own module" else "eager")
    for sizes in ((4, 3, 5), (6, 7, 9)):
        same(model, compiled, graphs(*sizes))
    # What comes before and after a solve, with gradients and without, and again for sizes that
    # vary: a handful of graphs, and none for further sizes.
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert count <= 24
    same(model, compiled, graphs(20, 13, 17))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_compiled_by_the_default_backend():
    torch.manual_seed(0)
    model = Sandwich().double()
    same(model, torch.compile(model), graphs(4, 3, 5))


COMPILED = {
    "EnergyGNN": lambda: EnergyGNN(3, out_channels=1, beta=1.0),
    "GCN": lambda: GCN(3, out_channels=1),
    "trained": lambda: pyg.GCN(3, 4, 2, 1),
    "wrapped": lambda: wrap(pyg.GCN(3, 4, 2, 1)),
}


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.usefixtures("fresh")
def test_compiled_models_run_asynchronously_as_the_one_that_was_compiled(name):
    torch.manual_seed(0)
    model, data = COMPILED[name]().double(), Data(torch.randn(4, 3, **DOUBLE), cycle(4))
    compiled = torch.compile(model, backend="eager")
    expected = simulate(model, data)
    run = simulate(compiled, data)
    assert run.rule == expected.rule
    assert torch.equal(run.predictions, expected.predictions)
    assert certify(compiled, data).data == certify(model, data).data
    assert robustness(compiled, data, runs=1).model == robustness(model, data, runs=1).model


@pytest.mark.usefixtures("fresh")
def test_certify_takes_a_compiled_layer():
    conv, data = EnergyConv(3), Data(torch.randn(6, 3), cycle(6))
    compiled = torch.compile(conv, backend="eager")
    assert certify(compiled, data).data == certify(conv, data).data


@pytest.mark.usefixtures("fresh")
def test_parts_of_a_trained_model_may_be_compiled():
    torch.manual_seed(0)
    model = pyg.GCN(3, 4, 3, 1).double().eval()
    data = Data(torch.randn(6, 3, **DOUBLE), cycle(6))
    expected = simulate(model, data).predictions
    model.convs[0] = torch.compile(model.convs[0], backend="eager")
    model.convs[1].compile(backend="eager")
    kept = model.convs[0].forward, model.convs[1]._compiled_call_impl
    assert torch.equal(simulate(model, data).predictions, expected)
    assert (model.convs[0].forward, model.convs[1]._compiled_call_impl) == kept


@pytest.mark.usefixtures("fresh")
def test_a_compiled_model_is_trained_in_place():
    model = EnergyGNN(2, out_channels=1)
    before = [p.clone() for p in model.parameters()]
    train("chains", torch.compile(model, backend="eager"), epochs=1, progress=False)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
