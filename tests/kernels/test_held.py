"""The compiled solve with some nodes held: it equals the solve on torch."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import NAMED, TIGHT, engine_of, layer, layers, needs_library, odd_graph, on_torch

from hogwild.engines.cpu import CpuEngine
from hogwild.problems.pinned import PinnedObjective
from hogwild.solvers.loop import solve

pytestmark = needs_library


def posed(conv, inputs, share, seed=0):
    """The kernel with some nodes held, the same problem on torch, and where they start."""
    kernel = engine_of(conv, inputs)
    assert isinstance(kernel, CpuEngine)
    with torch.no_grad():
        problem = conv.problem(inputs).detach()
    rng = torch.Generator().manual_seed(seed)
    held = torch.rand(inputs.num_nodes, generator=rng) < share
    shape = (problem.replicas, problem.channels, inputs.num_nodes)
    h0 = torch.randn(shape, generator=rng, **DOUBLE)
    return kernel.holding(held), PinnedObjective(problem.graph, problem, ~held), held, h0


def assert_solved_alike(conv, inputs, share, direct):
    kernel, problem, held, h0 = posed(conv, inputs, share)
    kernel.__dict__["direct"] = direct
    here, there = kernel.solve(h0, TIGHT), solve(problem, TIGHT, h0)
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    assert torch.equal(here.value[..., held], h0[..., held])
    assert here.converged.all()
    assert there.converged.all()
    # The tolerance is near the rounding errors, where the last iterations may differ.
    assert int((here.iterations - there.iterations).abs().max()) <= 2
    gradient, scale = kernel.gradient(h0)
    at = problem.evaluate(h0)
    torch.testing.assert_close(gradient, at.gradient, rtol=1e-12, atol=1e-10)
    assert bool((scale <= at.scale * (1 + 1e-9)).all())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.data(), st.integers(0, 999), st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.sampled_from([0.5, 1.5, 3.0]), st.booleans(), st.booleans(), st.sampled_from([0.2, 0.7]),
    st.booleans(),
)  # fmt: skip
def test_random_energies(data, seed, sizes, density, directed, weighted, share, direct):
    conv = layer(seed, 0.1, **data.draw(layers()))
    inputs = odd_graph(seed, sizes, density, directed, conv.edge_dim, weighted)
    assert_solved_alike(conv, inputs, share, direct)


OPTIONS = ("edge", "node", "node-heads", "wide", "squareplus", "replicas")


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_node_and_every_node(share, direct):
    conv = layer(2, 0.1)
    inputs = odd_graph(1, [7, 12], 1.0)
    assert_solved_alike(conv, inputs, share, direct)


def test_a_crew_of_threads():
    """Several threads compute one large graph."""
    conv = layer(3, 0.05, hidden_channels=4)
    inputs = odd_graph(5, [11_000], 2.0, edge_dim=None)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert_solved_alike(conv, inputs, 0.3, direct=False)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_in_parameters(name, direct):
    """The adjoint with held nodes: λ = H⁻¹ w at the nodes that move, zero at the others."""
    conv = layer(4, 0.1, **NAMED[name])
    inputs = odd_graph(6, [9, 5], 1.2, False, conv.edge_dim)
    over = [inputs.x.requires_grad_(), *conv.parameters()]
    kernel, problem, held, h0 = posed(conv, inputs, 0.3)
    kernel.__dict__["direct"] = direct
    h = solve(problem, TIGHT, h0).value
    rng = torch.Generator().manual_seed(8)
    wanted = torch.randn(h.shape, generator=rng, **DOUBLE)
    ended, seeds = kernel.vjp(h, wanted)
    assert ended.converged.all()
    matrix = torch.stack([
        problem.evaluate(h).hessian().apply(e.view_as(h[:1]).expand_as(h)).flatten(1)
        for e in torch.eye(h[0].numel(), **DOUBLE)
    ], -1)  # fmt: skip
    dual = torch.linalg.solve(matrix, torch.where(held, 0.0, wanted).flatten(1)).view_as(h)
    residual = conv.problem(inputs).residual(h)
    expected = torch.autograd.grad(residual, over, -dual, allow_unused=True)
    pairs = zip(kernel.problem.sources, seeds, strict=True)
    pairs = [(x, g) for x, g in pairs if x is not None and x.requires_grad]
    outputs, seeds = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, over, seeds, allow_unused=True)
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    for mine, other in zip(found, expected, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("compiled", [True, False])
def test_an_attached_solution_with_held_nodes(compiled):
    """First and second derivatives are those of the solve in which some nodes stay."""
    conv, inputs = layer(7, 0.1, widths=(2,)), odd_graph(2, [4], 1.5, False)
    held, h0 = torch.tensor([True, False, False, True]), torch.randn(1, 2, 4, **DOUBLE)

    def answer(x):
        with nullcontext() if compiled else on_torch():
            kernel = engine_of(conv, replace(inputs, x=x)).holding(held)
        assert isinstance(kernel, CpuEngine) == compiled
        return kernel.attach(kernel.solve(h0).value, "raise")

    x = inputs.x.requires_grad_()
    assert torch.autograd.gradcheck(answer, x)
    assert torch.autograd.gradgradcheck(answer, x)
    once, recorded = (
        torch.autograd.grad(answer(x).square().sum(), x, create_graph=again)[0]
        for again in (False, True)
    )
    torch.testing.assert_close(recorded, once, rtol=0, atol=1e-9)
