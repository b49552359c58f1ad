"""Training on parts: gradients are those of one process."""

import pytest
import torch
from torch.nn.functional import mse_loss
from torch_geometric.data import Data

from hogwild import EIGNN, GSDGNN, IGNN, EnergyGNN, SoftEnergyGNN
from hogwild.cluster import Disorder, Trainer, fit
from hogwild.errors import ConfigError
from hogwild.testing import random_graph

MODELS = {
    "energy": lambda: EnergyGNN(3, out_channels=2, normalize=True),
    "energy-attention": lambda: EnergyGNN(3, out_channels=2, heads=2, edge_dim=2),
    "gsd": lambda: GSDGNN(3, out_channels=2),
    "soft": lambda: SoftEnergyGNN(3, out_channels=2, hidden_channels=4, norm="layer"),
    "ignn": lambda: IGNN(3, out_channels=2, hidden_channels=4, act="tanh"),
    "eignn": lambda: EIGNN(3, out_channels=2, hidden_channels=4),
}


def case(name, seed=0):
    torch.manual_seed(seed)
    graph = random_graph([10, 1, 4], seed=seed)
    n = graph.num_nodes
    data = Data(
        x=30.0 * torch.randn(n, 3, dtype=torch.float64) + 100.0,
        edge_index=torch.stack([graph.src, graph.dst]),
        y=torch.randn(n, 2, dtype=torch.float64), train_mask=torch.rand(n) < 0.6,
    )  # fmt: skip
    model = MODELS[name]().double()
    if model.edge_dim is not None:
        data.edge_attr = 30.0 * torch.randn(data.num_edges, 2, dtype=torch.float64) + 100.0
    return model.standardize(data), data


@pytest.mark.parametrize("large", [1, 10**9], ids=["large", "small"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_one_process(name, large, monkeypatch):
    """Of features of any scale, which the model standardises."""
    monkeypatch.setattr("hogwild.problems.energy.LARGE", {"cpu": large})
    monkeypatch.setattr("hogwild.problems.energy.BLOCK_EDGES", 20)
    model, data = case(name)
    out = model(data.x, data.edge_index, data.edge_attr)
    loss = mse_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    loss = loss.detach()
    exact = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    options = {"mask": "train_mask", "tol": 1e-9, "disorder": Disorder(seed=1, delay=2)}
    with Trainer(model, data, 3, loss=mse_loss, partition="search", **options) as closure:
        found = closure()
        again = closure()  # from warm starts
    assert float(found) == pytest.approx(loss.item(), rel=1e-7)
    assert float(again) == pytest.approx(loss.item(), rel=1e-7)
    size = max(float(g.abs().max()) for g in exact.values())
    assert size > 0
    for n, p in model.named_parameters():
        if n in exact:
            torch.testing.assert_close(p.grad, exact[n], rtol=1e-6, atol=1e-6 * size)


@pytest.mark.parametrize("name", ["energy", "gsd", "ignn"])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_in_float32_at_the_default_tolerance(name, seed):
    """The adjoint settles although the loss at a node is rounded differently in every part."""
    torch.manual_seed(seed)
    graph = random_graph([40], extra=1.5, seed=seed)
    x = 50.0 * torch.randn(40, 3) + 100.0
    data = Data(x=x, edge_index=torch.stack([graph.src, graph.dst]), y=torch.randn(40, 2))
    model = MODELS[name]().standardize(data)
    mse_loss(model(data.x, data.edge_index), data.y).backward()
    exact = {n: p.grad.clone() for n, p in model.named_parameters()}
    with Trainer(model, data, 3, loss=mse_loss, disorder=Disorder(seed=seed)) as closure:
        closure()
    size = max(float(g.abs().max()) for g in exact.values())
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, exact[n], rtol=1e-4, atol=1e-5 * size)


def test_fit_follows_the_steps_of_one_process():
    model, data = case("gsd")
    losses = []
    twin, _ = case("gsd")
    optimiser = torch.optim.Adam(twin.parameters(), lr=0.02)
    for _ in range(5):
        optimiser.zero_grad()
        loss = mse_loss(twin(data.x, data.edge_index), data.y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    found = fit(model, data, 2, loss=mse_loss, steps=5, lr=0.02, tol=1e-9, disorder=Disorder())
    assert found.losses == pytest.approx(losses, rel=1e-5)
    assert "5 steps" in str(found)


def test_what_training_refuses():
    model, data = case("gsd")
    with pytest.raises(ConfigError, match="'z'"):
        Trainer(model, data, 2, loss=mse_loss, target="z", disorder=Disorder())
    data.train_mask[:] = False
    with pytest.raises(ConfigError, match="selects no node"):
        Trainer(model, data, 2, loss=mse_loss, mask="train_mask", disorder=Disorder())
    pooled = GSDGNN(3, out_channels=2, pool="mean").double()
    with pytest.raises(ConfigError, match="pools"):
        Trainer(pooled, data, 2, loss=mse_loss, disorder=Disorder())


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"norm": "batch"}])
def test_parts_would_draw_and_average_for_themselves(options):
    _, data = case("gsd")
    model = SoftEnergyGNN(-1, out_channels=2, hidden_channels=4, **options).double()
    given = {"loss": mse_loss, "mask": "train_mask", "disorder": Disorder()}
    with pytest.raises(ConfigError, match=r"dropout or a BatchNorm .* expected model\.eval"):
        Trainer(model, data, 2, **given)
    with Trainer(model.eval(), data, 2, **given) as closure:
        out = model(data.x, data.edge_index)
        exact = mse_loss(out[data.train_mask], data.y[data.train_mask])
        assert float(closure()) == pytest.approx(float(exact.detach()), rel=1e-5)
