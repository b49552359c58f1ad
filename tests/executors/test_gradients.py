"""Differentiable asynchronous runs: against the simulator, the forward pass, finite differences."""

import pytest
import torch
import torch_geometric.nn as pyg
from helpers import DOUBLE, ODD, ODD_NODES, chain, cycle, example
from torch import nn
from torch.nn.functional import mse_loss
from torch_geometric.data import Batch, Data

from hogwild import (
    GAT,
    GCN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    Inputs,
    LayeredGNN,
    SoftEnergyGNN,
    simulate,
)
from hogwild.asynchrony.impairments import (
    BernoulliLoss,
    Crashes,
    GeometricDelay,
    Quantisation,
    Reordering,
    Stragglers,
)
from hogwild.errors import AsynchronyError, ConfigError, InputError
from hogwild.executors.gradients import asynchronous_forward

MODELS = {
    "gcn": lambda **kw: GCN(3, out_channels=2, **kw),
    "gat": lambda **kw: GAT(3, out_channels=2, **kw),
    "graphsage": lambda **kw: LayeredGNN(
        [pyg.SAGEConv(8, 8) for _ in range(3)], 3, out_channels=2, **kw
    ),
}


@pytest.mark.parametrize(
    ("name", "pool", "replicas"),
    [
        ("gcn", None, None),
        ("gcn", "mean", 2),
        ("gat", None, 3),
        ("graphsage", None, None),
    ],
)
def test_equals_the_simulator_and_the_forward_pass(name, pool, replicas):
    make = MODELS[name]
    model = make(pool=pool, replicas=replicas).double()
    data = Batch.from_data_list([example(), example(ODD, ODD_NODES)])
    arguments = data.x, data.edge_index, None, data.batch
    for seed in (0, 7):
        expected = simulate(model, data, seed=seed, rule="overwriting").predictions[0]
        out = asynchronous_forward(model, data, seed=seed)
        assert torch.allclose(out, expected, rtol=0, atol=1e-12)
        assert torch.equal(asynchronous_forward(model, Inputs(*arguments), seed=seed), out)
    forward = model(*arguments)
    assert torch.allclose(
        asynchronous_forward(model, data, stagger=1, delay=0), forward, rtol=0, atol=1e-12
    )
    assert (out - forward).abs().max() > 1e-3  # the schedule was one


IMPAIRMENTS = [
    BernoulliLoss(0.4),
    BernoulliLoss(0.4, burst=2),
    Stragglers(0.5),
    GeometricDelay(0.3),
    Reordering(0.5),
    Crashes(0.5, period=8, downtime=5, rejoin="cold", until=40),
]


@pytest.mark.parametrize("impairment", IMPAIRMENTS, ids=lambda i: type(i).__name__)
def test_equals_the_impaired_simulator(impairment):
    model, data = GCN(3, out_channels=2).double(), example()
    options = {"stagger": 3, "delay": 2, "seed": 5, "impairments": impairment}
    expected = simulate(model, data, rule="overwriting", **options).predictions[0]
    out = asynchronous_forward(model, data, **options)
    assert torch.allclose(out, expected, rtol=0, atol=1e-12)


def test_edge_features_and_weights():
    data = example()
    data.edge_attr = torch.randn(data.num_edges, 2, **DOUBLE)
    model = GAT(3, out_channels=2, edge_dim=2).double()
    out = asynchronous_forward(model, data, seed=3)
    expected = simulate(model, data, seed=3, rule="overwriting").predictions[0]
    assert torch.allclose(out, expected, rtol=0, atol=1e-12)
    data.edge_attr, data.edge_weight = None, torch.rand(data.num_edges, **DOUBLE)
    model = GCN(3, out_channels=2).double()
    out = asynchronous_forward(model, data, seed=3)
    expected = simulate(model, data, seed=3, rule="overwriting").predictions[0]
    assert torch.allclose(out, expected, rtol=0, atol=1e-12)
    tensors = Inputs(data.x, data.edge_index, edge_weight=data.edge_weight)
    same = asynchronous_forward(model, tensors, seed=3)
    assert torch.equal(same, out)


def neighbourhood_means(count, seed):
    """Chains whose nodes are asked for the mean of a feature over two hops."""
    rng = torch.Generator().manual_seed(seed)
    graphs = []
    for _ in range(count):
        x = torch.randn(8, 1, generator=rng, **DOUBLE)
        near = (torch.arange(8) - torch.arange(8).unsqueeze(1)).abs() <= 2
        near = near.to(x.dtype)
        graphs.append(Data(x=x, edge_index=chain(8), y=near @ x / near.sum(1, keepdim=True)))
    return Batch.from_data_list(graphs)


def test_training_under_schedules_helps():
    """On unseen graphs and schedules a GCN trained under schedules errs less than one that was
    trained in step; in step it is the other way round."""
    train, test = neighbourhood_means(20, 0), neighbourhood_means(20, 1)
    models = {}
    for name in ("synchronous", "asynchronous"):
        torch.manual_seed(3)
        models[name] = model = GCN(1, out_channels=1, num_layers=2, act="tanh").double()
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for step in range(60):
            if name == "synchronous":
                out = model(train.x, train.edge_index, None, train.batch)
            else:
                out = asynchronous_forward(model, train, seed=step)
            optimiser.zero_grad()
            mse_loss(out, train.y).backward()
            optimiser.step()

    def errors(model):
        run = simulate(model, test, runs=10, seed=10**6, rule="overwriting")
        with torch.no_grad():
            alone = mse_loss(model(test.x, test.edge_index, None, test.batch), test.y)
        return float(alone), float(mse_loss(run.predictions, test.y.expand_as(run.predictions)))

    (alone, late), (alone_trained, late_trained) = map(errors, models.values())
    assert late_trained < 0.5 * late
    assert alone < alone_trained


# -- training mode ---------------------------------------------------------------------------------


def test_dropout_is_drawn_and_the_mode_left_alone():
    model, data = GCN(3, out_channels=2, dropout=0.5).double(), example()
    one, two = (asynchronous_forward(model, data) for _ in range(2))
    assert (one - two).abs().max() > 1e-3
    assert all(module.training for module in model.modules())
    model.eval()
    out = asynchronous_forward(model, data)
    assert torch.equal(out, asynchronous_forward(model, data))
    assert not any(module.training for module in model.modules())


def test_batch_norm():
    model, data = GCN(3, out_channels=2, norm="batch_norm").double(), example()
    with pytest.raises(AsynchronyError, match="BatchNorm in training mode"):
        asynchronous_forward(model, data)
    model.eval()
    expected = simulate(model, data, rule="overwriting").predictions[0]
    assert torch.allclose(asynchronous_forward(model, data), expected, rtol=0, atol=1e-12)
    soft = SoftEnergyGNN(3, out_channels=2, hidden_channels=3, norm="batch").double()
    with pytest.raises(AsynchronyError, match="BatchNorm in training mode"):
        asynchronous_forward(soft, data, updates=3)
    assert asynchronous_forward(soft.eval(), data, updates=3).shape == (data.num_nodes, 2)


# -- implicit models -------------------------------------------------------------------------------


def implicit_data():
    return Batch.from_data_list([example(cycle(5), 5), example(chain(4), 4)])


IMPLICIT = {
    "gradient": (lambda **kw: EnergyGNN(3, out_channels=2, **kw), {"rule": "gradient"}),
    "fixed-point": (lambda **kw: IGNN(3, out_channels=2, **kw), {}),
    "denoising": (lambda **kw: GSDGNN(3, out_channels=2, **kw), {"rule": "gradient"}),
}


@pytest.mark.parametrize("name", IMPLICIT)
@pytest.mark.parametrize("replicas", [None, 2])
def test_answers_in_time_are_those_of_the_simulator(name, replicas):
    make, options = IMPLICIT[name]
    torch.manual_seed(0)
    model, data = make(replicas=replicas).double(), implicit_data()
    for updates in (1, 6):
        out = asynchronous_forward(model, data, updates=updates, seed=3, **options)
        run = simulate(model, data, ticks=3 * updates + 1, tol=None, seed=3, **options)
        assert torch.allclose(out, run.predictions[0], rtol=0, atol=1e-9)


GRADIENTS = {
    "gcn": (lambda: GCN(3, out_channels=2, act="tanh"), {}),
    "gat, replicas": (lambda: GAT(3, out_channels=2, act="tanh", replicas=2), {}),
} | {name: (make, {"updates": 5, **options}) for name, (make, options) in IMPLICIT.items()}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    """Against central differences in a random direction of all parameters and features."""
    make, options = GRADIENTS[name]
    torch.manual_seed(1)
    model, data = make().double(), implicit_data()
    data.x.requires_grad_()
    leaves = [data.x, *model.parameters()]

    def loss():
        return (asynchronous_forward(model, data, seed=2, **options) - 1.0).square().mean()

    found = torch.autograd.grad(loss(), leaves, allow_unused=True)
    along = [torch.randn_like(leaf) for leaf in leaves]
    exact = sum(float((g * d).sum()) for g, d in zip(found, along, strict=True) if g is not None)
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for leaf, direction in zip(leaves, along, strict=True):
                leaf.add_(direction, alpha=step)
            values.append(float(loss()))
    assert exact != 0.0
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(exact, rel=1e-5, abs=1e-9)


# -- refusals --------------------------------------------------------------------------------------


def test_implicit_models_need_a_deadline_and_explicit_ones_have_none():
    model = EnergyGNN(3, out_channels=2).double()
    with pytest.raises(ConfigError, match=r"EnergyGNN was given without updates"):
        asynchronous_forward(model, implicit_data())
    with pytest.raises(ConfigError, match="updates=0"):
        asynchronous_forward(model, implicit_data(), updates=0)
    with pytest.raises(ConfigError, match=r"updates=3 .* ends after its last layer"):
        asynchronous_forward(GCN(3, out_channels=2).double(), example(), updates=3)
    with pytest.raises(
        ConfigError, match=r"rule='caching' has no gradients; expected one of overwriting"
    ):
        asynchronous_forward(GCN(3, out_channels=2).double(), example(), rule="caching")
    for rule in ("balls", "messages"):
        with pytest.raises(ConfigError, match=f"rule='{rule}' has no gradients"):
            asynchronous_forward(model, implicit_data(), updates=2, rule=rule)
    with torch.no_grad():  # but they have answers
        out = asynchronous_forward(model, implicit_data(), updates=2, rule="balls")
    assert out.shape == (9, 2)
    stack = EnergyGNN(3, out_channels=2, num_layers=2).double()
    with pytest.raises(ConfigError, match="num_layers=1"):
        asynchronous_forward(stack, implicit_data(), updates=3)


def test_bad_input():
    model, data = GCN(3, out_channels=2).double(), example()
    with pytest.raises(ConfigError, match="Linear is not trained under schedules"):
        asynchronous_forward(nn.Linear(3, 2), data)
    with pytest.raises(InputError, match="data is a Tensor"):
        asynchronous_forward(model, data.x)
    with pytest.raises(ConfigError, match=r"Quantisation.*no gradient"):
        asynchronous_forward(model, data, impairments=Quantisation())
    with pytest.raises(ConfigError, match="stagger=0"):
        asynchronous_forward(model, data, stagger=0)
