"""The kernels of a GPU, a block of threads a graph (test_engines.py compares all options)."""

import pytest
import torch
from emulated_gpu import EmulatedKernel
from kernel_cases import assert_alike, layer, needs_library, odd_graph

from hogwild import engines
from hogwild.engines import gpu

pytestmark = needs_library


@pytest.mark.parametrize(("room", "shared"), [(20_000, 0), (100_000, 1), (1_000_000, 2)])
def test_what_does_not_fit_into_shared_memory(room, shared, monkeypatch, tmp_path):
    EmulatedKernel.folder = tmp_path
    monkeypatch.setattr(gpu, "most_shared", lambda device: room)
    monkeypatch.setattr(gpu, "multiprocessors", lambda device: 100)
    used = []
    inner = EmulatedKernel._batch
    monkeypatch.setattr(EmulatedKernel, "_batch", lambda self: used.append(inner(self)) or used[-1])
    monkeypatch.setattr(engines, "ENGINES", (EmulatedKernel,))
    assert_alike(layer(), odd_graph(0, [5, 1, 9, 30], 3.0, False))
    assert {batch.shared for batch, _, _ in used} == {shared}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_more_graphs_than_multiprocessors():
    assert_alike(layer().cuda(), odd_graph(0, [5, 1, 9, 30] * 50, 3.0, False).to("cuda"))
