"""Where features enter a model: everything a model does sees standardised ones."""

import copy
import pickle

import pytest
import torch
from helpers import DOUBLE, chain, cycle
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import hogwild
from hogwild import EnergyConv, Inputs
from hogwild.errors import ConfigError, DTypeError, FeatureError, HogwildError, InputError
from hogwild.models import (
    EIGNN,
    GAT,
    GCN,
    GNN,
    GSDGNN,
    IGNN,
    EnergyGNN,
    Features,
    GSDConv,
    ScarselliGNN,
    SoftEnergyGNN,
)

MODELS = {
    "energy-edge": lambda **o: EnergyGNN(3, out_channels=2, edge_dim=2, **o),
    "energy-attention": lambda **o: EnergyGNN(3, out_channels=2, edge_dim=2, heads=2, **o),
    "stacked energies": lambda **o: EnergyGNN(3, out_channels=2, **o, num_layers=2),
    "gsdgnn": lambda **o: GSDGNN(3, out_channels=2, **o),
    "ignn": lambda **o: IGNN(3, out_channels=2, **o),
    "stacked ignn": lambda **o: IGNN(3, out_channels=2, num_layers=2, act="leaky_relu", **o),
    "eignn": lambda **o: EIGNN(3, out_channels=2, **o),
    "scarselli": lambda **o: ScarselliGNN(3, out_channels=2, edge_dim=2, **o),
    "soft": lambda **o: SoftEnergyGNN(3, out_channels=2, edge_dim=2, hidden_channels=4, **o),
    "stacked soft": lambda **o: SoftEnergyGNN(
        3, out_channels=2, hidden_channels=4, num_layers=2, encoder=None, **o
    ),
    "gcn": lambda **o: GCN(3, out_channels=2, **o),
    "gat": lambda **o: GAT(3, out_channels=2, edge_dim=2, **o),
}
LATE = {"stacked energies", "stacked ignn", "stacked soft"}  # pose one problem a level


def graph(edges=True, n=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    edge_index = cycle(n)
    attr = torch.randn(edge_index.size(1), 2, generator=random, **DOUBLE)
    x = torch.randn(n, 3, generator=random, **DOUBLE)
    data = Data(x=x * 5 + torch.tensor([7.0, -20.0, 0.0]), edge_index=edge_index)
    data.edge_attr = 30 * attr - 4 if edges else None
    return data


def by_hand(model, data):
    """The features standardised outside of the model."""
    out = data.clone()
    door = model.features
    out.x = (data.x - door.nodes.offset) / door.nodes.scale
    if door.edges is not None:
        out.edge_attr = (data.edge_attr - door.edges.offset) / door.edges.scale
    return out


@pytest.mark.parametrize("name", MODELS)
def test_everything_sees_standardised_features(name):
    plain = MODELS[name]().double()
    edges = plain.features.edges is not None
    data = graph(edges)
    model = copy.deepcopy(plain).standardize([data, graph(edges, n=4, seed=1)])
    assert not plain.features.fitted
    assert model.features.fitted
    other = by_hand(model, data)
    mine, theirs = ((g.x, g.edge_index, g.edge_attr) for g in (data, other))
    assert torch.equal(model(*mine), plain(*theirs))
    found, expected = model.embed(Inputs(*mine)), plain.embed(Inputs(*theirs))
    assert torch.equal(found.value, expected.value)
    assert not torch.allclose(found.value, plain.embed(Inputs(*mine)).value)
    named = {"x": data.x, "edge_index": data.edge_index, "edge_attr": data.edge_attr}
    assert torch.equal(model.embed(Inputs(**named)).value, expected.value)
    if name not in LATE:
        assert torch.equal(
            model.problem(Inputs(*mine)).start(), plain.problem(Inputs(*theirs)).start()
        )
    if isinstance(model, EnergyGNN) and isinstance(model.conv, EnergyConv):
        h = torch.randn_like(found.value)
        assert torch.equal(model.energy(h, Inputs(*mine)), plain.energy(h, Inputs(*theirs)))
    if isinstance(model, ScarselliGNN):
        h = torch.randn_like(found.value)
        assert torch.equal(model.penalty(h, Inputs(*mine)), plain.penalty(h, Inputs(*theirs)))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("energy-edge", "messages"),
        ("stacked energies", "gradient"),
        ("stacked soft", "gradient"),
        ("ignn", "auto"),
        ("gcn", "auto"),
    ],
)
def test_simulate_and_certify_see_them_too(name, rule):
    plain = MODELS[name]().double()
    data = graph(plain.features.edges is not None)
    model = copy.deepcopy(plain).standardize(data)
    other = by_hand(model, data)
    options = {"ticks": 9, "stagger": 2, "delay": 1, "tol": None, "rule": rule}
    mine = hogwild.simulate(model, data, **options)
    theirs = hogwild.simulate(plain, other, **options)
    assert torch.equal(mine.reference, theirs.reference)
    assert torch.equal(mine.h, theirs.h)
    assert torch.equal(mine.predictions, theirs.predictions)
    certificates = hogwild.certify(model, data), hogwild.certify(plain, other)
    assert certificates[0].constants == certificates[1].constants


@pytest.mark.parametrize("many", [Batch.from_data_list, list, tuple, DataLoader])
def test_data_to_standardise_by(many):
    graphs = [graph(seed=i) for i in range(3)]
    model = MODELS["energy-edge"]().double()
    assert model.standardize(many(graphs)) is model
    x = torch.cat([g.x for g in graphs])
    attr = torch.cat([g.edge_attr for g in graphs])
    torch.testing.assert_close(model.features.nodes.offset, x.mean(0))
    torch.testing.assert_close(model.features.edges.scale, attr.std(0, correction=0))


def test_replicas_with_statistics_of_their_own_are_the_models_alone():
    graphs = [graph(seed=i) for i in range(3)]
    members = torch.tensor([[True, True, False], [False, True, True]])
    model = MODELS["energy-edge"](replicas=2).double()
    model.features.fit(graphs, members)
    data = graphs[0]
    out = model(data.x, data.edge_index, data.edge_attr)
    for r in range(2):
        alone = MODELS["energy-edge"]().double()
        alone.load_state_dict({k: v[r] for k, v in model.state_dict().items()})
        found = alone(data.x, data.edge_index, data.edge_attr)
        torch.testing.assert_close(out[r], found, rtol=0, atol=1e-9)


def test_one_number_for_each_edge():
    model = EnergyGNN(3, out_channels=2, edge_dim=1).double()
    data = graph()
    flat, column = data.edge_attr[:, 0], data.edge_attr[:, :1]
    a, b = model(data.x, data.edge_index, flat), model(data.x, data.edge_index, column)
    assert torch.equal(a, b)
    data.edge_attr = flat
    run = hogwild.simulate(model.standardize(data), data, runs=3, ticks=5, tol=None)
    assert torch.equal(run.reference, model.embed(Inputs(data.x, data.edge_index, flat)).value)


def test_edge_features_that_are_left_out():
    model, data = GCN(3, out_channels=2).double(), graph()
    args = (data.x, data.edge_index)
    with pytest.raises(FeatureError, match="built without edge features"):
        model(*args, data.edge_attr)
    model.features.ignores_edges = True
    assert torch.equal(model(*args, data.edge_attr), model(*args))
    with pytest.raises(DTypeError, match="did you mean batch="):
        model(*args, torch.zeros(6, dtype=torch.long))


def test_the_condition_of_a_fresh_model():
    """Heavy tails, as in the attribute of PROTEINS, and no training."""
    random = torch.Generator().manual_seed(0)
    x = 40 * torch.randn(12, 1, generator=random, **DOUBLE).mul(1.2).exp()  # up to some hundreds
    data = Data(x=x, edge_index=chain(12))
    raw, conditions = EnergyGNN(1, out_channels=1).double(), []
    for model in (raw, copy.deepcopy(raw).standardize(data)):
        problem = model.problem(Inputs(data.x, data.edge_index)).detach()
        h = model.embed(Inputs(data.x, data.edge_index)).value.detach()
        hessian = problem.evaluate(h.mT.unsqueeze(0)).hessian()
        basis = torch.eye(h.numel(), **DOUBLE).view(-1, 1, h.size(1), h.size(0))
        dense = torch.stack([hessian.apply(v).flatten() for v in basis])
        conditions.append(float(torch.linalg.cond(dense)))
    assert conditions[1] < conditions[0] / 20
    assert conditions[1] < 1e3


EVERY = [MODELS[name] for name in ("energy-edge", "ignn", "gsdgnn", "gcn", "soft")]


@pytest.mark.parametrize("make", EVERY)
def test_wrong_calls_are_refused(make):
    model, data = make().double(), graph()
    x, edge_index, batch = data.x, data.edge_index, torch.zeros(6, dtype=torch.long)
    for call, says in (
        (lambda: model(data), r"called with a Data; expected its tensors: model\(data\.x"),
        (lambda: model(x), "edge_index is missing"),
        (lambda: model(x, None), "edge_index is missing"),
        (lambda: model(None, edge_index), "x is missing"),
        (lambda: model(x, edge_index, batch), r"did you mean batch=\.\.\.\?"),
        (lambda: model.standardize(3), "data is a int"),
        (lambda: model.standardize([x]), "data is a list of Tensor"),
        (lambda: model.standardize([]), "data is a list"),
        (lambda: model.standardize(Data(edge_index=edge_index)), "graph 0 has no x"),
        (lambda: model.standardize(Data(x=x.long(), edge_index=edge_index)), "dtype torch.int64"),
        (lambda: model.standardize(Data(x=x[:, :2], edge_attr=data.edge_attr)), r"\[n, 3\]"),
    ):
        with pytest.raises(HogwildError, match=says):
            call()


def test_missing_edge_features_to_standardise_by():
    model = MODELS["energy-edge"]().double()
    with pytest.raises(FeatureError, match="graph 0 has no edge_attr, and the model reads"):
        model.standardize(graph(edges=False))
    assert not model.features.fitted  # a refusal changes nothing


def test_nan_in_the_targets_is_not_the_solvers_fault():
    for make in (MODELS["energy-edge"], MODELS["ignn"], MODELS["eignn"]):
        model = make().double()
        data = graph(model.features.edges is not None)
        out = model(data.x, data.edge_index, data.edge_attr)
        with pytest.raises(HogwildError, match=r"look for NaN in the targets \(y\)"):
            (out * torch.nan).sum().backward()


def test_inputs_that_are_refused_as_before():
    model, data = MODELS["energy-edge"]().double(), graph()
    model.standardize(data)
    args = (data.edge_index, data.edge_attr)
    with pytest.raises(DTypeError, match=r"x has dtype torch\.float64"):
        model.float()(data.x, *args)
    model.double()
    with pytest.raises(FeatureError, match=r"x has shape \(6, 2\)"):
        model(data.x[:, :2], *args)
    with pytest.raises(FeatureError, match="NaN or infinite"):
        model(data.x * torch.nan, *args)
    with pytest.raises(InputError, match="x is a list"):
        model([1.0], *args)


# -- the encoder -----------------------------------------------------------------------------------


def encoded_model(in_channels=3, **options):
    """A layer of another model, whose features are encoded to width 4."""
    features = Features(in_channels, encoder=(5, 4), **options)
    return GNN(GSDConv(4, hidden_channels=2), out_channels=2, features=features).double()


def test_the_layer_reads_encoded_features():
    """σ(W₂ σ(W₁ x + b₁) + b₂) of standardised x, with gradients."""
    model, data = encoded_model(), graph(edges=False)
    model.standardize(data)
    net, x = model.features.encoder, by_hand(model, data).x
    for weight, bias in zip(net.weight, net.bias, strict=True):
        x = torch.nn.functional.leaky_relu(x @ weight.mT + bias, 0.1)
    expected = model.readout(model.conv(x, data.edge_index))
    found = model(data.x, data.edge_index)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    parameters = list(model.parameters())
    assert model.in_channels == 3
    pairs = (torch.autograd.grad(y.square().sum(), parameters) for y in (found, expected))
    torch.testing.assert_close(*pairs)


def test_features_of_the_wrong_width_are_named():
    model, data = encoded_model(), graph(edges=False)
    with pytest.raises(FeatureError, match=r"x has shape \(6, 2\); expected \[num_nodes, 3\]"):
        model(data.x[:, :2], data.edge_index)
    with torch.no_grad():
        model.features.encoder.weight[0][0, 0] = torch.nan
    with pytest.raises(FeatureError, match=r"the output of the encoder holds NaN.*finite param"):
        model(data.x, data.edge_index)


def test_features_that_do_not_fit_the_layer():
    with pytest.raises(ConfigError, match=r"come with width 3, edge_dim=None.*in_channels=4"):
        GNN(GSDConv(4), out_channels=2, features=Features(3))
    with pytest.raises(ConfigError, match="in_channels=-1 was given without an encoder"):
        Features(-1)
    with pytest.raises(ConfigError, match="in_channels=0"):
        Features(0, encoder=(2,))


def test_dropout_of_features():
    """Of the features, and of the encoder's units, in training only; every replica drops others."""
    ones = torch.ones(50, 20, **DOUBLE)
    out = Features(20, replicas=3, dropout=0.5).encode(ones)
    assert out.shape == (3, 50, 20)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < float((out == 0.0).double().mean()) < 0.6
    assert not torch.equal(out[0], out[1])
    stage = Features(20, dropout=0.5, encoder=(30,)).double()
    assert 0.4 < float((stage.encode(ones) == 0.0).double().mean()) < 0.6
    assert torch.equal(stage.eval().encode(ones), stage.encode(ones))


# -- widths that are not known yet -----------------------------------------------------------------


def lazy(**options):
    torch.manual_seed(0)
    return encoded_model(in_channels=-1, **options)


def test_parameters_are_made_at_the_first_call():
    """An optimizer that was built before trains them all."""
    model, data = lazy(), graph(edges=False)
    assert model.in_channels == -1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(data.x, data.edge_index).square().sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert model.in_channels == 3
    assert model.features.encoder.channels == (3, 5, 4)
    for p, old in zip(model.parameters(), before, strict=True):
        assert p.dtype == torch.float64
        torch.testing.assert_close(p.detach(), old - 0.1 * p.grad)
    with pytest.raises(FeatureError, match=r"expected \[num_nodes, 3\]"):
        model(data.x[:, :2], data.edge_index)


def test_parameters_are_made_by_statistics_and_by_loading():
    data = graph(edges=False)
    model = lazy().standardize(data)
    out = model(data.x, data.edge_index)
    for other in (lazy(), copy.deepcopy(lazy()), pickle.loads(pickle.dumps(lazy())).double()):
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(data.x, data.edge_index), out)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(data.x, data.edge_index), out)


def test_parameters_that_are_made_in_inference_mode_can_be_trained():
    model, data = lazy(), graph(edges=False)
    with torch.inference_mode():
        said = model(data.x, data.edge_index)
    out = model(data.x, data.edge_index)
    out.sum().backward()
    assert torch.equal(out, said)
    assert all(p.grad is not None and not p.is_inference() for p in model.parameters())


def test_what_needs_parameters_says_so():
    model = lazy()
    model.reset_parameters()
    assert "Features(-1, encoder=(5, 4)" in repr(model)
    with pytest.raises(ConfigError, match="no parameters yet, because in_channels=-1"):
        model.state_dict()
    with pytest.raises(ConfigError, match="no parameters yet, because in_channels=-1"):
        hogwild.export(model, "nowhere.hog")
    with pytest.raises(FeatureError, match=r"shape \(3,\); expected \[num_nodes, in_channels\]"):
        model(torch.ones(3, **DOUBLE), chain(3))
