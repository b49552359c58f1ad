"""Bad inputs raise errors that name them, and change nothing."""

import pytest
import torch
from helpers import DOUBLE, batch_of, chain, cycle, edges
from torch_geometric.data import Data

from experiments.maximum import MaxGNN
from hogwild import EIGNN, GSDGNN, IGNN, EnergyConv, EnergyGNN, Inputs, ScarselliGNN
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
    "weight dtype": ({"edge_weight": torch.ones(8).long()}, DTypeError, ["edge_weight", "int64"]),
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
    "x integer": ({"x": X.long()}, DTypeError, ["torch.int64", "floating-point"]),
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


MODELS = {
    "conv": lambda: EnergyConv(3, edge_dim=2),
    "model": lambda: EnergyGNN(3, out_channels=2, edge_dim=2),
    "two layers": lambda: EnergyGNN(3, out_channels=2, edge_dim=2, num_layers=2),
    "scarselli": lambda: ScarselliGNN(3, out_channels=2, edge_dim=2),
    "maximum": lambda: MaxGNN(3, out_channels=2, edge_dim=2),
    "gsd": lambda: GSDGNN(3, out_channels=2),
    "ignn": lambda: IGNN(3, out_channels=2),
    "eignn": lambda: EIGNN(3, out_channels=2),
}
SKIPPED = {"maximum": "weight", "gsd": "attr", "ignn": "attr", "eignn": "attr"}  # are not read
CASES = [(m, name) for m in MODELS for name in BAD if not name.startswith(SKIPPED.get(m, "-"))]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_bad_input_is_named(model, name):
    """Every bad input raises its own class, saying what was given and what was expected."""
    changes, error, words = BAD[name]
    inputs = good(**changes)
    if SKIPPED.get(model) == "attr":
        inputs["edge_attr"] = None
    model = MODELS[model]().double()
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["conv", "model", "two layers"])
def test_features_of_a_lower_precision_are_widened(name, dtype):
    """That loses nothing: the answer is that of the same numbers in the parameters' dtype."""
    torch.manual_seed(0)
    model = MODELS[name]()
    if name != "conv":
        model.standardize(Data(x=X.float(), edge_attr=ATTR.float(), edge_index=cycle(4)))
    model, weight = model.double(), torch.rand(8, **DOUBLE)
    rough = [t.to(dtype) for t in (X, ATTR, weight)]
    exact = [t.double() for t in rough]
    out, expected = (model(x, cycle(4), e, edge_weight=w) for x, e, w in (rough, exact))
    assert out.dtype == torch.float64
    assert torch.equal(out, expected)
    inputs = Inputs(rough[0], cycle(4), rough[1], edge_weight=rough[2])
    h = model.embed(inputs).value
    if name != "conv":
        assert torch.equal(
            model.read(h.to(dtype), inputs), model.read(h.to(dtype).double(), inputs)
        )


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
        (FeatureError, lambda: PICNN(2, 2, (4, 1))(torch.randn(5, 2), torch.randn(5, 1))),
    ],
)  # fmt: skip
def test_misuse_is_refused(error, call):
    with pytest.raises(error):
        call()


def test_edge_weight_in_the_place_of_edge_attr():
    with pytest.raises(FeatureError, match=r"pass one number for each edge as edge_weight="):
        EnergyConv(3)(torch.randn(4, 3), cycle(4), torch.ones(8))
