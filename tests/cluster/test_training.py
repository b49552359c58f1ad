"""Training on parts: gradients are those of one process."""

import pytest
import torch
from cluster_parts import case
from torch.nn.functional import mse_loss

from hogwild import GSDGNN, SoftEnergyGNN
from hogwild.cluster import Disorder, Trainer
from hogwild.errors import ConfigError


@pytest.mark.parametrize(
    "name", ["energy-node", "energy-attention", "gsd", "soft", "ignn", "eignn"]
)
def test_gradients_equal_those_of_one_process(name):
    """Of features of any scale, which the model standardises."""
    model, data = case(name, [10, 1, 4], scale=30.0, shift=100.0)
    model.standardize(data)
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
    model, data = case(name, [40], seed=seed, scale=50.0, shift=100.0, dtype=torch.float32)
    model.standardize(data)
    mse_loss(model(data.x, data.edge_index), data.y).backward()
    exact = {n: p.grad.clone() for n, p in model.named_parameters()}
    with Trainer(model, data, 3, loss=mse_loss, disorder=Disorder(seed=seed)) as closure:
        closure()
    size = max(float(g.abs().max()) for g in exact.values())
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, exact[n], rtol=1e-4, atol=1e-5 * size)


def test_a_loop_follows_the_steps_of_one_process():
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
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    with Trainer(model, data, 2, loss=mse_loss, tol=1e-9, disorder=Disorder()) as closure:
        for expected in losses:
            assert float(closure()) == pytest.approx(expected, rel=1e-5)
            optimiser.step()


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
    model = SoftEnergyGNN(3, out_channels=2, hidden_channels=4, **options).double()
    given = {"loss": mse_loss, "mask": "train_mask", "disorder": Disorder()}
    with pytest.raises(ConfigError, match=r"dropout or a BatchNorm .* expected model\.eval"):
        Trainer(model, data, 2, **given)
    with Trainer(model.eval(), data, 2, **given) as closure:
        out = model(data.x, data.edge_index)
        exact = mse_loss(out[data.train_mask], data.y[data.train_mask])
        assert float(closure()) == pytest.approx(float(exact.detach()), rel=1e-5)
