"""Problems are posed alike by the compiled library and by torch, and gradients come back alike."""

from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE
from kernel_cases import layer, needs_library, odd_graph

from hogwild.kernels import posing

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
        return conv.kernel(inputs).posing

    mine = posed()
    assert mine._native is not None
    monkeypatch.setattr(posing, "SMALL", 0)  # products on torch
    products = posed()
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # everything on torch
    other = posed()
    assert other._native is None
    monkeypatch.undo()
    torch.manual_seed(5)
    seeds = [None if t is None else torch.randn_like(t) for t in mine.tensors.every()]
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
