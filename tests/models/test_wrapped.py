"""`wrap`: the models that it takes, and the functions that take a wrapped model."""

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, cycle
from torch import nn
from torch_geometric.data import Batch, Data
from users_models import Given, graphs

import hogwild
from hogwild import certify, robustness, simulate, sweep, wrap
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
)
from hogwild.errors import AsynchronyError, ConfigError, FeatureError
from hogwild.graph.inputs import Inputs


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


@pytest.mark.parametrize("make", [hogwild.EnergyGNN, hogwild.GCN])
def test_the_error_for_a_module_around_a_library_model_says_what_to_do(make):
    name = make.__name__
    with pytest.raises(ConfigError) as caught:
        simulate(Head(make(3, out_channels=1)), graphs())
    for word in (f"a Head around inner, a {name} of hogwild", "simulate(model.inner, data)",
                 "readout=(16, 16)"):  # fmt: skip
        assert word in str(caught.value)
    with pytest.raises(
        ConfigError, match=rf"a {name} of hogwild.*simulate\(model, data\)"
    ):
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


def test_training_mode_is_refused_where_it_would_matter():
    wrapped, data = wrap(pyg.GIN(3, 8, 2, norm="batch_norm").double()), graphs()
    with pytest.raises(AsynchronyError, match=r"GIN.forward is in training mode.*model.eval\(\)"):
        wrapped.problem(Inputs.of(data))


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


def test_features_that_are_no_numbers_are_refused():
    """Before any tick, as the models of this library refuse them."""
    data = Data(x=torch.full((2, 3), float("nan")), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for ask in (simulate, certify):
        with pytest.raises(FeatureError, match="x holds NaN or infinite values"):
            ask(pyg.GCN(3, 4, 2, 1).eval(), data)
