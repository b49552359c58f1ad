"""The compiled solve of energies: it equals the solve on torch."""

from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE, chain, grid
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    NAMED,
    assert_alike,
    engine_of,
    layer,
    layers,
    needs_library,
    odd_graph,
    on_torch,
    solved,
    variables,
)

from hogwild import EnergyConv, EnergyGNN, Inputs
from hogwild.engines.cpu import CpuEngine, Sizes
from hogwild.errors import FeatureError
from hogwild.kernels.native import library
from hogwild.problems.energy import Design
from hogwild.solvers import Newton

pytestmark = needs_library


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    st.data(), st.integers(0, 10**6), st.lists(st.integers(1, 20), min_size=1, max_size=6),
    st.floats(0.0, 4.0), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.1, 0.5]),
)  # fmt: skip
def test_many_random_energies(data, seed, sizes, density, directed, weighted, scale):
    conv = layer(seed, scale, **data.draw(layers()))
    assert_alike(conv, odd_graph(seed, sizes, density, directed, conv.edge_dim, weighted))


@pytest.mark.parametrize("options", [NAMED["edge"], NAMED["normalize"], NAMED["node-heads"]])
def test_part_of_a_larger_graph(options):
    """``heard`` takes the place of the senders' features, ``degrees`` that of the edges' sums."""
    conv = layer(2, 0.1, **options)
    inputs = odd_graph(4, [9, 4], 1.5, edge_dim=conv.edge_dim, weighted=True)
    heard = torch.randn(inputs.edge_index.size(1), 3, **DOUBLE)
    assert_alike(conv, replace(inputs, heard=heard))
    if conv.attention is None:
        degrees = 5.0 + torch.rand(13, 2, **DOUBLE)
        assert_alike(conv, replace(inputs, heard=heard, degrees=degrees))


def test_features_of_every_replica():
    conv = layer(replicas=3, heads=2)
    inputs = odd_graph(5, [6, 5], 2.0)
    x = torch.randn(3, 11, 3, **DOUBLE)
    heard = torch.randn(3, inputs.edge_index.size(1), 3, **DOUBLE)
    assert_alike(conv, replace(inputs, x=x))
    assert_alike(conv, replace(inputs, x=x, heard=heard))


def test_tensors_that_are_not_contiguous():
    conv = layer(edge_dim=2)
    inputs = odd_graph(6, [7, 3], 2.0, edge_dim=2, weighted=True)
    plain, _ = solved(conv, inputs)
    e = inputs.edge_index.size(1)
    strided = replace(
        inputs, x=inputs.x.T.contiguous().T, edge_attr=inputs.edge_attr.T.contiguous().T,
        edge_index=inputs.edge_index.T.contiguous().T,
        edge_weight=torch.stack([inputs.edge_weight, torch.ones(e, **DOUBLE)], 1)[:, 0],
    )  # fmt: skip
    assert_alike(conv, strided, torch.ones(2, 10, **DOUBLE).T)
    assert torch.equal(conv.embed(strided).value, plain.value)
    one = replace(inputs, edge_weight=torch.tensor(0.5, **DOUBLE).expand(e))
    assert_alike(conv, one)


@pytest.mark.parametrize(("scale", "rounding"), [(30.0, 1e-9), (300.0, 1e-4)])
def test_large_features_need_secant_curvature(scale, rounding):
    """Far from the minimum the energy is nearly piecewise linear, and the way is long. On a longer
    way rounding decides which kink comes next, and the tolerance grows with the scale."""
    conv = layer(3, 0.3, solver=Newton())
    inputs = odd_graph(7, [12, 5], 1.5, False)
    inputs = replace(inputs, x=scale * inputs.x)
    here = conv.embed(inputs)
    with on_torch():
        there = conv.embed(inputs)
    assert int(here.iterations.min()) > conv.solver.patience
    assert torch.equal(here.status, there.status)
    if scale == 30.0:
        assert int((here.iterations - there.iterations).abs().max()) <= 1
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=rounding)


def test_warm_starts():
    conv, inputs = layer(), odd_graph(8, [9, 1, 4], 1.5)
    h = conv.embed(inputs).value.detach()
    assert int(conv.embed(inputs, h).iterations.max()) == 0
    near = assert_alike(conv, inputs, h + 1e-3)
    assert int(near.iterations.max()) < int(conv.embed(inputs).iterations.max())
    assert_alike(conv, inputs, 100.0 * torch.ones_like(h))


def test_warm_start_in_another_precision():
    """The library reads float64; a start in float32 is converted."""
    conv, inputs = layer(solve_dtype=None), odd_graph(8, [9, 4], 1.5)
    h = conv.embed(inputs).value.detach()
    again = conv.embed(inputs, h.float())
    torch.testing.assert_close(again.value, h, rtol=0, atol=1e-9)
    assert int(again.iterations.max()) <= 2  # it began within 1e-6


def test_stacked_layers():
    torch.manual_seed(0)
    model = EnergyGNN(3, out_channels=2, num_layers=2, solver=Newton(atol=1e-11)).double()
    inputs = odd_graph(9, [5, 8], 2.0, False)
    assert [path.split()[0] for path in model.solver_path(inputs)] == ["compiled"] * 2

    def gradients():
        over = list(model.parameters())
        return torch.autograd.grad(model.predict(inputs).square().sum(), over)

    here = gradients()
    with on_torch():
        there = gradients()
    for mine, other in zip(here, there, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)


def test_float32_model():
    """The solve runs in float64, from parameters in float32."""
    for options in ({}, {"heads": 2}, {"normalize": True}):
        conv = layer(**options).float()
        inputs = odd_graph(10, [6, 9], 1.5, weighted=True)
        inputs = replace(inputs, x=inputs.x.float(), edge_weight=inputs.edge_weight.float())

        def all_of(conv=conv, inputs=inputs):
            inputs, wanted = variables(inputs)
            h = conv.embed(inputs).value
            over = [*wanted, *conv.parameters()]
            return h.detach(), torch.autograd.grad(h.square().sum(), over)

        assert conv.solver_path(inputs)[0].startswith("compiled")
        h, mine = all_of()
        with on_torch():
            other_h, others = all_of()
        assert h.dtype == torch.float32
        torch.testing.assert_close(h, other_h)
        for a, b in zip(mine, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# -- what does not change an answer -------------------------------------------------------------


@pytest.mark.parametrize("options", [NAMED["edge"], NAMED["normalize"], NAMED["replicas"]])
def test_a_graph_alone_equals_the_graph_in_a_batch(options):
    """Bit for bit, posed by the same numbers."""
    conv = layer(1, 0.1, **options)
    inputs = odd_graph(15, [9, 1, 17], 1.5, False, conv.edge_dim)
    with torch.no_grad():
        whole = engine_of(conv, inputs)
    together = whole.solve(None)
    gradient = torch.randn(together.value.shape, **DOUBLE)
    _, all_gradients = whole.adjoint(together.value, gradient)
    for g in range(3):
        problem, nodes = whole.problem.select(torch.arange(whole.replicas), torch.tensor([g]))
        alone = CpuEngine(whole.native, problem, whole.solver)
        found = alone.solve(None)
        assert torch.equal(found.value, together.value[..., nodes])
        assert torch.equal(found.iterations[:, 0], together.iterations[:, g])
        assert torch.equal(found.residual[:, 0], together.residual[:, g])
        _, own = alone.adjoint(found.value, gradient[..., nodes])
        assert torch.equal(own.nodes, all_gradients.nodes[..., nodes])


def test_threads_do_not_change_an_answer():
    """Bit for bit, gradients of parameters too, on more graphs than a task of the adjoint has."""
    conv = layer(1, 0.1, replicas=2)
    inputs = odd_graph(16, [3, 8, 1, 12] * 12, 1.5, False)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with torch.no_grad():
                kernel = engine_of(conv, inputs)
            h = kernel.solve(None).value
            _, gradients = kernel.adjoint(h, torch.ones_like(h))
            found.append([h, *(g for g in gradients.every() if g is not None)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 17])
def test_sizes_around_a_pack_of_rows(n):
    assert_alike(layer(1, 0.1), Inputs(torch.randn(n, 3, **DOUBLE), chain(n)))


def test_wide_layers_and_many_heads():
    """Scratch memory fits whatever is the widest part of a model."""
    for options in (
        {"widths": (70,), "hidden_channels": 1, "message_channels": 1},
        {"widths": (), "hidden_channels": 1, "message_channels": 30},
        {"widths": (2,), "heads": 9, "message_channels": 3},
        {"widths": (1, 40, 1), "hidden_channels": 12},
    ):
        assert_alike(layer(**options), Inputs(torch.randn(6, 3, **DOUBLE), grid(2, 3)), atol=1e-8)


def test_wrong_shapes_never_reach_the_library():
    conv, inputs = layer(), odd_graph(18, [4, 3], 2.0)
    with torch.no_grad():
        kernel = engine_of(conv, inputs)
    p = kernel.problem
    for wrong in (
        replace(p, x=p.x[..., :-1]),
        replace(p, weight=torch.ones(1, 1, 1, 3, **DOUBLE)),
        replace(p, loop_weight=torch.ones(3, **DOUBLE)),
    ):
        with pytest.raises(FeatureError, match="kernel's input"):
            CpuEngine(kernel.native, wrong, kernel.solver)


def test_the_library_refuses_sizes_that_do_not_fit_together():
    conv, inputs = layer(), odd_graph(18, [4, 3], 2.0)
    with torch.no_grad():
        design = engine_of(conv, inputs).design
    fields = {name: getattr(design, name) for name in Design.__dataclass_fields__}
    for wrong in ({"channels": 3}, {"heads": 0}, {"heads": 5}, {"message_channels": 1}):
        assert Sizes.of(library(), Design(**fields | wrong)) is None


def test_kernels_pass_the_checks_of_a_solver():
    """``energy`` knows nothing of the kernels: the answer is its stationary point."""
    conv = EnergyConv(3, heads=2, solver=Newton(atol=1e-11)).double()
    inputs = odd_graph(19, [6, 8], 2.0, weighted=True)
    h = conv.embed(inputs).value.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(conv.energy(h, inputs).sum(), h)
    assert float(gradient.abs().max()) < 1e-10
