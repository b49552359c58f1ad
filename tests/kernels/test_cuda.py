"""The kernels of a GPU: emulated on a CPU everywhere, and themselves where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from emulated_gpu import EmulatedKernel
from torch_geometric.data import Batch, Data

from hogwild import EnergyConv, Inputs, engines
from hogwild.engines import gpu
from hogwild.kernels.native import library
from hogwild.solvers import Newton

needs_library = pytest.mark.skipif(library() is None, reason="the kernels are not compiled")
EXACT = Newton(atol=1e-11)  # linear solvers may differ, and answers then within the tolerance
OPTIONS = [
    {},
    {"hidden_channels": 3, "widths": (5,)},
    {"heads": 2, "concat": False, "edge_dim": 2},
    {"message": "node", "normalize": True, "act": "squareplus", "gate": "relu"},
    {"replicas": 2, "heads": 2, "widths": (3, 2, 4), "message_channels": 1},
]


def batch(edge_dim, seed=0):
    """Graphs with self-loops and parallel edges, one without edges and one of a single node."""
    rng = torch.Generator().manual_seed(seed)
    graphs = []
    for n in (5, 1, 9, 30):
        half = torch.randint(0, n, (2, 3 * n), generator=rng)
        edge_index = torch.cat([half, half.flip(0)], 1)
        attr = None
        if edge_dim:
            attr = torch.randn(edge_index.size(1), edge_dim, generator=rng).double()
        graphs.append(Data(torch.randn(n, 3, generator=rng).double(), edge_index, attr))
    return Batch.from_data_list(graphs)


def solved(conv, data):
    """Embeddings, iterations and gradients of one solve."""
    data = data.clone()
    data.x.requires_grad_()
    rng = torch.Generator().manual_seed(1)
    weight = torch.rand(data.num_edges, generator=rng).double().to(data.x.device)
    weight.requires_grad_()
    inputs = Inputs(data.x, data.edge_index, data.edge_attr, data.batch, edge_weight=weight)
    found = conv.embed(inputs)
    slope = torch.linspace(-1, 1, found.value.numel()).to(weight).view_as(found.value)
    loss = (slope * found.value).sum()
    gradients = torch.autograd.grad(loss, [data.x, weight, *conv.parameters()])
    return found, gradients, conv.solver_path(inputs)


def agree(one, other):
    (found, gradients, _), (expected, wanted, _) = one, other
    assert torch.equal(found.status.cpu(), expected.status.cpu())
    assert int((found.iterations.cpu() - expected.iterations.cpu()).abs().max()) <= 1
    assert torch.allclose(found.value.cpu(), expected.value.cpu(), rtol=0, atol=1e-9)
    for g, w in zip(gradients, wanted, strict=True):
        assert torch.allclose(g.cpu(), w.cpu(), rtol=0, atol=1e-9 * (1 + float(w.abs().max())))


@needs_library
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_emulated_gpu_agrees_with_the_cpu(options, monkeypatch, tmp_path_factory):
    torch.manual_seed(0)
    conv = EnergyConv(3, solver=EXACT, **options).double()
    data = batch(options.get("edge_dim"))
    expected = solved(conv, data)
    EmulatedKernel.folder = tmp_path_factory.mktemp("emulated")
    monkeypatch.setattr(gpu, "most_shared", lambda device: 200_000)
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 100)
    monkeypatch.setattr(engines, "ENGINES", (EmulatedKernel,))
    found = solved(conv, data)
    assert found[2] == ["compiled (emulated)"]
    agree(found, expected)


@needs_library
@pytest.mark.parametrize(("room", "shared"), [(20_000, 0), (100_000, 1), (1_000_000, 2)])
def test_what_does_not_fit_into_shared_memory(room, shared, monkeypatch, tmp_path):
    torch.manual_seed(0)
    conv, data = EnergyConv(3).double(), batch(None)
    expected = solved(conv, data)
    EmulatedKernel.folder = tmp_path
    monkeypatch.setattr(gpu, "most_shared", lambda device: room)
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 100)
    used = []
    inner = EmulatedKernel._batch
    monkeypatch.setattr(EmulatedKernel, "_batch", lambda self: used.append(inner(self)) or used[-1])
    monkeypatch.setattr(engines, "ENGINES", (EmulatedKernel,))
    agree(solved(conv, data), expected)
    assert {batch.shared for batch, _, _ in used} == {shared}


@needs_library
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("options", "copies"), [*((o, 1) for o in OPTIONS), ({}, 50)], ids=str)
def test_a_gpu_agrees_with_the_cpu(options, copies):
    """With few graphs, and with more graphs than there are multiprocessors."""
    torch.manual_seed(0)
    conv = EnergyConv(3, solver=EXACT, **options).double()
    data = Batch.from_data_list(batch(options.get("edge_dim")).to_data_list() * copies)
    expected = solved(conv, data)
    found = solved(conv.cuda(), data.to("cuda"))
    assert found[2][0].startswith("compiled (CUDA")
    agree(found, expected)
