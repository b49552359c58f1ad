"""Energies by factorisations, by products with the Hessian, and by products with its blocks: every
way equals the solve on torch."""

import pytest
import torch
from helpers import DOUBLE, grid, star
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    NAMED,
    WAYS,
    assert_alike,
    by,
    engine_of,
    layer,
    layers,
    needs_library,
    odd_graph,
    solved,
)

from hogwild.graph.inputs import Inputs
from hogwild.solvers import Newton

pytestmark = needs_library

WIDE = {
    "three heads": {"hidden_channels": 9, "heads": 3, "concat": False},
    "twenty": {"hidden_channels": 20, "message": "node"},
    "thirty-three": {"hidden_channels": 33, "edge_dim": 2},
}


@pytest.mark.parametrize("options", (NAMED | WIDE).values(), ids=NAMED | WIDE)
def test_products_of_every_width(options):
    """Groups of eight numbers that are full or not. ``test_engines.py`` has the other ways."""
    conv = layer(**options)
    inputs = odd_graph(3, [1, 4, 17, 30], edge_dim=conv.edge_dim, weighted=True)
    with by("products"):
        kernel = engine_of(conv, inputs)
        assert not kernel.direct
        assert not kernel.direct_adjoint
        assert_alike(conv, inputs)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.data(), st.sampled_from(list(WAYS)), st.integers(0, 999),
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 1.5, 3.0]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_random_energies(data, way, seed, sizes, density, directed, weighted):
    conv = layer(seed, **data.draw(layers()))
    with by(way):
        inputs = odd_graph(seed, sizes, density, directed, conv.edge_dim, weighted)
        assert_alike(conv, inputs, apart=1 if way == "factors" else 2)


@pytest.mark.parametrize("scale", [0.1, 0.2])
@pytest.mark.parametrize(("way", "k", "apart"), [("products", 8, 2), ("blocks", 2, 1)])
def test_stiff_energies(way, k, apart, scale):
    """Larger weights make the Hessian worse conditioned. Torch factorises it, and conjugate
    gradients end Newton's systems earlier; the iteration may become late."""
    conv = layer(scale=scale, hidden_channels=k)
    inputs = Inputs(torch.randn(60, 3, **DOUBLE), grid(6, 10))
    with by(way):
        assert_alike(conv, inputs, atol=1e-8, apart=apart)


@pytest.mark.parametrize(("way", "n"), [("products", 300), ("blocks", 3000)])
def test_hubs(way, n):
    """Nodes of very different degrees: their masses precondition products, and the edges of one
    node are more than a chunk of blocks."""
    with by(way):
        assert_alike(layer(), Inputs(torch.randn(n, 3, **DOUBLE), star(n)))


def test_the_tolerance_of_the_adjoint():
    """The solver's tolerance is kept, and parameters in float32 ask for fewer digits."""
    inputs = Inputs(torch.randn(40, 3, **DOUBLE), grid(4, 10))
    gradients = {}
    for rtol in (None, 1e-10, 1e-6, 0.1):
        conv = layer(hidden_channels=8)
        conv.solver = Newton(atol=1e-11, adjoint_rtol=rtol)
        with by("products"):
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
