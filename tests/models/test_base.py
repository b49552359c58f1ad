"""Every model: replicas, precision, gradient modes."""

import copy

import pytest
import torch
from helpers import DOUBLE, cycle, features
from torch import nn

from hogwild import GCN, GSDGNN, IGNN, EnergyConv, EnergyGNN, Inputs, SoftEnergyGNN
from hogwild.errors import FeatureError


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
        conv(torch.zeros(4, 3, **DOUBLE), cycle(4), h0=torch.zeros(3, 4, 2, **DOUBLE))
    assert "[4, 2] or [2, 4, 2]" in str(caught.value)


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
    torch.testing.assert_close(grads_again, grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, IGNN, GCN])
def test_an_encoder_under_autocast(make, device):
    """Its features are those of the encoder, rounded, and its gradients reach the encoder."""
    torch.manual_seed(0)
    model, encoder = make(3, out_channels=2).to(device), nn.Linear(5, 3, device=device)
    x, edges = torch.randn(6, 5, device=device), cycle(6).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        z = encoder(x)
        assert z.dtype == torch.bfloat16
        out = model(z, edges)
        expected = model(z.detach().float(), edges)
    near = 0.0 if device == "cpu" else 0.02
    torch.testing.assert_close(out, expected, rtol=near, atol=near)
    out.float().square().sum().backward()
    slope = encoder.weight.grad
    assert bool(slope.isfinite().all())
    assert float(slope.abs().max()) > 0


@pytest.mark.parametrize("make", [EnergyGNN, SoftEnergyGNN, GSDGNN, IGNN, GCN])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_half_precision(make, dtype):
    """The solve stays in float64, or float32 (soft energies). Features are rounded like the
    parameters."""
    torch.manual_seed(0)
    model, x = make(3, out_channels=2).to(dtype), torch.randn(6, 3)
    out = model(x, cycle(6))
    assert out.dtype == dtype
    assert torch.equal(out, model(x.to(dtype), cycle(6)))
    out.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_inference_mode_first_then_training():
    """Evaluating before the first epoch leaves nothing that autograd cannot use."""
    conv, x, edge_index = EnergyConv(3).double(), features(4), cycle(4)
    with torch.inference_mode():
        before = conv(x, edge_index)
    after = conv(x, edge_index)
    after.sum().backward()
    assert torch.equal(after, before)
