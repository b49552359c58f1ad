"""Compiled conjugate gradients: products in single precision, refined in double precision."""

import pytest
import torch
from helpers import DOUBLE, grid, star
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_alike, engine_of, layer, layers, needs_library, odd_graph, solved

import hogwild.engines.cpu as compiled
from hogwild.graph.inputs import Inputs
from hogwild.solvers import Newton

pytestmark = needs_library

CASES = {
    "one": {"hidden_channels": 1},
    "heads": {"hidden_channels": 5, "heads": 2},
    "eight": {"hidden_channels": 8, "message_channels": 3, "widths": (9, 2)},
    "mean of heads": {"hidden_channels": 9, "heads": 3, "concat": False},
    "nodes": {"hidden_channels": 20, "message": "node"},
    "wide": {"hidden_channels": 33, "edge_dim": 2},
}


@pytest.fixture(autouse=True)
def never_factorise(monkeypatch):
    monkeypatch.setattr(compiled, "PRODUCTS", 0.0)
    monkeypatch.setattr(compiled, "ADJOINT_PRODUCTS", 0.0)


@pytest.mark.parametrize("name", CASES)
def test_every_width(name):
    """Groups of eight numbers that are full or not, graphs of one node, weights."""
    conv = layer(**CASES[name])
    inputs = odd_graph(3, [1, 4, 17, 30], edge_dim=conv.edge_dim, weighted=True)
    with torch.no_grad():
        kernel = engine_of(conv, inputs)
    assert not kernel.direct
    assert not kernel.direct_adjoint
    assert_alike(conv, inputs)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 99), st.booleans())
def test_random_energies(data, seed, directed):
    conv = layer(seed, **data.draw(layers()))
    assert_alike(conv, odd_graph(seed, [1, 9, 2], 1.5, directed, conv.edge_dim))


@pytest.mark.parametrize("scale", [0.1, 0.2])
def test_stiff_energies(scale):
    """Larger weights make the Hessian worse conditioned. Torch factorises it, and conjugate
    gradients end Newton's systems earlier."""
    conv = layer(scale=scale, hidden_channels=8)
    inputs = Inputs(torch.randn(60, 3, **DOUBLE), grid(6, 10))
    assert_alike(conv, inputs, atol=1e-8, apart=2)


def test_hubs():
    """Nodes of very different degrees: their masses precondition."""
    assert_alike(layer(), Inputs(torch.randn(300, 3, **DOUBLE), star(300)))


def test_the_tolerance_of_the_adjoint():
    """The solver's tolerance is kept, and parameters in float32 ask for fewer digits."""
    inputs = Inputs(torch.randn(40, 3, **DOUBLE), grid(4, 10))
    gradients = {}
    for rtol in (None, 1e-10, 1e-6, 0.1):
        conv = layer(hidden_channels=8)
        conv.solver = Newton(atol=1e-11, adjoint_rtol=rtol)
        gradients[rtol] = torch.cat([g.flatten() for g in solved(conv, inputs)[1]])
    assert torch.equal(gradients[None], gradients[1e-10])
    size = gradients[None].norm()
    error = {rtol: float((g - gradients[None]).norm() / size) for rtol, g in gradients.items()}
    assert 1e-5 < error[0.1] < 0.5
    assert error[1e-6] < 1e-6
    conv = layer(hidden_channels=8).float()
    with torch.no_grad():
        assert engine_of(conv, Inputs(torch.randn(40, 3), grid(4, 10))).rtol == 1e-6


def test_ill_conditioned_energies_are_factorised():
    """Where conjugate gradients would cost more than factorisations, factorisations go on: the
    answer, the statuses and the gradients are those of factorisations from the beginning."""
    conv = layer(0, 1.0, hidden_channels=32, solver=Newton())
    inputs = odd_graph(3, [12, 1, 9], 1.2, False)
    kernels = [engine_of(conv, inputs) for _ in range(2)]
    for kernel, direct in zip(kernels, (True, False), strict=True):
        kernel.__dict__.update(direct=direct, direct_adjoint=direct)
    direct, krylov = (kernel.solve(None) for kernel in kernels)
    assert torch.equal(direct.status, krylov.status)
    assert krylov.converged.all()
    torch.testing.assert_close(krylov.value, direct.value, rtol=0, atol=1e-7)
    pairs = [kernel.adjoint(direct.value, torch.ones_like(direct.value)) for kernel in kernels]
    (ended, exact), (other, found) = pairs
    assert torch.equal(ended.status, other.status)
    for mine, right in zip(found.every(), exact.every(), strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, right, rtol=0, atol=1e-7 * float(right.abs().max()))
