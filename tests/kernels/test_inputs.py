"""Inputs of kernels, and gradients, are the same from the compiled library and from torch."""

import copy
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE
from kernel_cases import assert_alike, engine_of, layer, needs_library, odd_graph
from torch.nn.utils.parametrize import register_parametrization

from hogwild.engines import inputs as kernel_inputs
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.inputs import Tensors
from hogwild.errors import FeatureError

pytestmark = needs_library
OPTIONS = {
    "edges": {},
    "attributes": {"edge_dim": 2},
    "nodes": {"message": "node"},
    "heads": {"heads": 2, "edge_dim": 1},
    "replicas": {"replicas": 3, "edge_dim": 1, "heads": 3, "concat": False},
    "one layer": {"widths": (), "hidden_channels": 3},
}


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_compiled_equals_torch(monkeypatch, options, heard):
    conv = layer(2, 0.1, **options)
    inputs = odd_graph(1, [9, 30, 1], 1.4, False, conv.edge_dim)
    edges = inputs.edge_index.size(1)
    inputs.x.requires_grad_()
    if heard:
        inputs = replace(inputs, heard=torch.randn(edges, 3, **DOUBLE).requires_grad_())

    def posed():
        return engine_of(conv, inputs).inputs

    mine = posed()
    assert mine._native is not None
    monkeypatch.setattr(kernel_inputs, "SMALL", 0)  # products on torch
    products = posed()
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # everything on torch
    other = posed()
    assert other._native is None
    monkeypatch.undo()
    torch.manual_seed(5)
    seeds = Tensors(*(None if t is None else torch.randn_like(t) for t in mine.tensors.every()))
    for one in (mine, products):
        for a, b in zip(one.tensors.every(), other.tensors.every(), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
        for a, b in zip(one.back(seeds), other.back(seeds), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_parameters_apart_in_memory():
    """A parameter that is not contiguous is laid out by torch."""
    conv = layer(2, 0.1)
    inputs = odd_graph(1, [9], 1.4, False, conv.edge_dim)
    expected = conv.embed(inputs).value
    weight = conv.message_nets[0].wy[1]
    weight.data = weight.data.mT.contiguous().mT
    assert not weight.is_contiguous()
    torch.testing.assert_close(conv.embed(inputs).value, expected)


@pytest.mark.parametrize("change", ["bfloat16", "one of another dtype"])
def test_parameters_of_other_dtypes(change):
    """The compiled library reads single and double precision; torch converts the rest."""
    conv = layer(2, 0.1)
    inputs = odd_graph(1, [9], 1.4, False, conv.edge_dim)
    dtype = torch.bfloat16 if change == "bfloat16" else torch.float32
    inputs = replace(inputs, x=inputs.x.to(dtype))
    same = copy.deepcopy(conv.to(dtype)).double()
    if dtype == torch.float32:
        conv.loop_nets.double()
    assert isinstance(engine_of(conv, inputs), CpuEngine)
    found, expected = conv.embed(inputs), same.embed(replace(inputs, x=inputs.x.double()))
    torch.testing.assert_close(found.value.double(), expected.value, rtol=2e-2, atol=2e-2)
    found.value.sum().backward()
    expected.value.sum().backward()
    for mine, other in zip(conv.parameters(), same.parameters(), strict=True):
        assert mine.grad.dtype == mine.dtype
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=2e-2, atol=2e-2)


def test_parameters_that_torch_computes():
    """Gradients go through what computes them."""
    conv = layer(2, 0.1)
    register_parametrization(conv.message_nets[0].wy, "1", torch.nn.Tanh())
    assert_alike(conv, odd_graph(1, [9], 1.4, False, conv.edge_dim))


@pytest.mark.parametrize("name", ["solve", "gradient", "adjoint"])
def test_embeddings_of_another_shape_are_refused(name):
    """The library would read behind their end."""
    conv = layer(2, 0.1)
    kernel = engine_of(conv, odd_graph(1, [9], 1.4, False, conv.edge_dim))
    h = torch.zeros(1, kernel.design.channels, 9, **DOUBLE)
    calls = {
        "solve": kernel.solve,
        "gradient": kernel.gradient,
        "adjoint": lambda h: kernel.adjoint(h, h),
    }
    calls[name](h.float())  # another dtype is converted
    for wrong in (h[..., :8], h[0], h.expand(2, -1, -1)):
        with pytest.raises(FeatureError, match="expected"):
            calls[name](wrong)


@pytest.mark.parametrize("change", ["dtype", "layout", "size"])
def test_parameters_that_changed_since_are_not_written_like_the_old_ones(change):
    """Nobody counts what is assigned to ``.data`` between the two passes. Compiled code must not
    write gradients of the old sizes into arrays of the new ones."""
    conv = layer(2, 0.1)
    posed = engine_of(conv, odd_graph(1, [9, 30, 1], 1.4, False, None)).inputs
    layout, given = posed._layout, posed._given
    assert layout.reads(given)
    one = next(p for p in given if p.dim() > 1 and min(p.shape[-2:]) > 1)
    if change == "dtype":
        one.data = one.data.float()
    elif change == "layout":
        one.data = one.data.mT.contiguous().mT
    else:
        one.data = one.data[..., :1, :].clone()
    assert not layout.reads(given)
    if change != "size":
        parts = [torch.randn(shape, **DOUBLE) for shape in layout.shapes]
        for p, g in zip(given, layout.original(parts, given, posed._native), strict=True):
            assert g.shape == p.shape
            assert g.dtype == torch.float64
