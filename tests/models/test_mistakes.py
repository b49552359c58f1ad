"""Common mistakes: the error names the class that was called, what was given and what to do."""

import copy
import inspect
import pickle
import re

import pytest
import torch
from helpers import chain
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv

import hogwild
from hogwild import GAT, GCN, GNN, IGNN, EnergyConv, EnergyGNN, LayeredGNN, Readout
from hogwild.errors import ConfigError, DTypeError, FeatureError, GraphError, InputError
from hogwild.models import GSDConv, IGNNConv, ImplicitConv, Kind, ScarselliConv, Stack
from hogwild.solvers import Picard

X, EDGES = torch.randn(4, 3), chain(4)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: EnergyGNN(3, hiden_channels=2), "EnergyGNN"),
        (lambda: EnergyConv(3, hiden_channels=2), "EnergyConv"),
        (lambda: GCN(3, out_channels=2, hiden_channels=2), "GCN"),
        (lambda: GAT(3, out_channels=2, hiden_channels=2), "GAT"),
        (lambda: LayeredGNN([GCNConv(4, 4)], 3, hiden_channels=2), "LayeredGNN"),
    ],
)
def test_a_misspelt_keyword(make, name):
    expected = f"^{name} has no argument 'hiden_channels'; did you mean 'hidden_channels'"
    with pytest.raises(TypeError, match=expected):
        make()
    with pytest.raises(TypeError, match=r"^GNN has no argument .* did you mean 'out_channels'"):
        GNN(EnergyConv(3), out_chanels=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: EnergyGNN(3, 16, 7), "EnergyGNN takes in_channels by position, and was given 16, "
         "7, too; .*EnergyGNN(in_channels, hidden_channels=16, out_channels=7)"),
        (lambda: IGNN(3, 16, 2, 7),
         "IGNN(in_channels, hidden_channels=16, num_layers=2, out_channels=7)"),
        (lambda: GCN(3, 16), "GCN(in_channels, hidden_channels=16, out_channels=...)"),
        (lambda: EnergyConv(3, 16), "EnergyConv(in_channels, out_channels=16)"),
        (lambda: GNN(EnergyConv(3), (4,), 7), "GNN(conv, readout, out_channels=7)"),
        (lambda: LayeredGNN([], 3, 7), "LayeredGNN(layers, in_channels, out_channels=7)"),
        (lambda: EnergyGNN(out_channels=2), "EnergyGNN: missing a required argument: 'in_chann"),
        (lambda: Stack([EnergyConv(3)], out_channels=2), "Stack has no argument 'out_channels'"),
        (lambda: EnergyConv(3, out_channels=4, hidden_channels=5), "EnergyConv was given "
         "out_channels=4 and hidden_channels=5, which are two names"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(make, says):
    """As PyG's classes take them by position: the error names the class and the keywords."""
    with pytest.raises(TypeError, match=re.escape(says).replace(re.escape(".*"), ".*")):
        make()


@pytest.mark.parametrize("make", [EnergyConv, GSDConv, IGNNConv, ScarselliConv])
def test_out_channels_of_a_layer_is_its_width(make):
    layer = make(3, out_channels=4)
    assert layer.hidden_channels == layer.out_channels == layer(X, EDGES).size(-1) == 4
    assert copy.deepcopy(layer).out_channels == pickle.loads(pickle.dumps(layer)).out_channels == 4


def test_help_shows_the_arguments():
    assert list(inspect.signature(EnergyGNN).parameters)[:2] == ["in_channels", "out_channels"]
    assert "hidden_channels" in inspect.signature(EnergyConv).parameters


@pytest.mark.parametrize(
    ("model", "conv"),
    [
        (EnergyGNN(3, out_channels=2, heads=2), "EnergyConv(3, hidden_channels=2, "
         "message_channels=2, heads=2)"),
        (EnergyGNN(3, out_channels=2, aggr="mean", num_layers=2), "aggr='mean'"),
        (GCN(3, out_channels=2, replicas=2), "Layers(3, hidden_channels=10, 5 layers of "
         "GCNConv(10, 10), replicas=2)"),
    ],
)  # fmt: skip
def test_a_model_is_printed_in_a_few_lines(model, conv):
    lines = repr(model).splitlines()
    assert len(lines) == 5
    assert conv in lines[1]
    assert "Readout(" in lines[2]
    assert "out_channels=2, widths=(4, 4)" in lines[2]


def test_add_means_sum():
    torch.manual_seed(0)
    one = EnergyConv(3, aggr="sum")
    two = EnergyConv(3, aggr="add")
    two.load_state_dict(one.state_dict())
    assert two.aggr == "sum"
    assert torch.equal(two(X, EDGES), one(X, EDGES))


@pytest.mark.parametrize("make", [lambda **o: EnergyGNN(3, **o), lambda **o: GCN(3, **o)])
def test_the_readout(make):
    for wrong in (4, "4", (0,), (2.5,), None):
        with pytest.raises(ConfigError, match=r"^readout=.*expected"):
            make(out_channels=2, readout=wrong)
    with pytest.raises(ConfigError, match="without out_channels"):
        make()
    width = make(out_channels=2).hidden_channels
    head = Readout(width, out_channels=5, widths=[3])
    assert make(readout=head).readout is head
    assert make(readout=head).out_channels == 5
    with pytest.raises(ConfigError, match="beside a Readout"):
        make(readout=head, out_channels=5)
    with pytest.raises(ConfigError, match=r"widths=\(0,\)"):
        Readout(2, out_channels=1, widths=(0,))


def test_gnn_takes_widths_too():
    one = GNN(EnergyConv(3), (3,), out_channels=2, pool="mean")
    two = EnergyGNN(3, readout=(3,), out_channels=2, pool="mean")
    assert [p.shape for p in one.parameters()] == [p.shape for p in two.parameters()]


@pytest.mark.parametrize("layers", [3, None, "GCNConv", [GCNConv], [3], torch.nn.Linear(4, 4)])
def test_layers_that_are_none(layers):
    with pytest.raises(ConfigError, match="expected"):
        LayeredGNN(layers, 3, out_channels=2)
    with pytest.raises(ConfigError, match=r"in_channels=\[3\]"):
        LayeredGNN([GCNConv(4, 4)], [3], out_channels=2)


ATTR, WEIGHT = torch.randn(6, 2), torch.rand(6)


@pytest.mark.parametrize(
    ("model", "given", "error", "does", "never"),
    [
        (GCN, {"edge_attr": ATTR}, FeatureError, "edge_weight=", "edge_dim="),
        (IGNN, {"edge_attr": ATTR}, FeatureError, "edge_weight=", "edge_dim="),
        (GAT, {"edge_attr": ATTR}, FeatureError, "edge_dim=2", "edge_weight="),
        (EnergyGNN, {"edge_attr": ATTR}, FeatureError, "edge_dim=2.*edge_weight=", "None"),
        (GAT, {"edge_weight": WEIGHT}, GraphError, r"edge_attr=.*edge_dim=1", "leave"),
    ],
)
def test_advice_on_edges_is_true_of_the_model(model, given, error, does, never):
    with pytest.raises(error, match=does) as found:
        model(3, out_channels=1)(X, EDGES, **given)
    assert never not in str(found.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_features_that_are_no_floats(dtype):
    """Also where they are looked at first, in training."""
    ones = torch.ones(4, 3, dtype=dtype)
    with pytest.raises(DTypeError, match=f"x has dtype {dtype}; expected floating-point features"):
        EnergyGNN(3, out_channels=1)(ones, EDGES)
    with pytest.raises(DTypeError, match=f"edge_attr has dtype {dtype}; expected floating-point"):
        EnergyGNN(3, out_channels=1, edge_dim=3)(X, EDGES, ones[:1].expand(EDGES.size(1), 3))


def test_a_class_in_place_of_a_model():
    data = Data(x=X, edge_index=EDGES)
    for ask in (hogwild.simulate, hogwild.export):
        with pytest.raises(ConfigError, match="model is the class EnergyGNN; expected a model"):
            ask(EnergyGNN, data)


def test_hetero_data():
    with pytest.raises(InputError, match="to_homogeneous"):
        EnergyGNN(3, out_channels=1)(HeteroData())


def test_senders_and_receivers():
    with pytest.raises(GraphError, match="senders in row 0 and receivers in row 1"):
        EnergyGNN(3, out_channels=1)(X, EDGES.T)


class Plain(ImplicitConv):
    """The layer of EnergyConv, without parameters of its own."""

    kind = Kind.OPTIMISATION

    def __init__(self):
        super().__init__(3, 3)
        self.inner = [hogwild.models.GSDConv(3, hidden_channels=3, widths=())]  # not registered

    def reset_parameters(self):
        pass

    def default_solver(self):
        return Picard()

    def problem(self, inputs):
        return self.inner[0].problem(inputs)


def test_a_convolution_without_parameters():
    assert Plain()(X, EDGES).shape == (4, 3)
