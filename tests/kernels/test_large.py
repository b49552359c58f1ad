"""Large graphs on a GPU: the kernels emulated on a CPU everywhere, and themselves where there is a
GPU."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from emulated_large import EmulatedLargeKernel
from helpers import DOUBLE, grid, star
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import NAMED, assert_alike, layer, needs_library, odd_graph

from hogwild import Inputs, engines
from hogwild.engines import gpu, gpu_large
from hogwild.kernels.native import library
from hogwild.linalg.solution import Status
from hogwild.solvers import Newton
from hogwild.training.recorded import Replay


@pytest.fixture
def emulated(monkeypatch, tmp_path_factory):
    EmulatedLargeKernel.folder = tmp_path_factory.getbasetemp() / "emulated_large"
    EmulatedLargeKernel.folder.mkdir(exist_ok=True)
    monkeypatch.setattr(engines, "ENGINES", (EmulatedLargeKernel,))


@needs_library
def test_stiff_energies(emulated):
    """Larger weights make the Hessian worse conditioned."""
    inputs = Inputs(torch.randn(24, 3, **DOUBLE), grid(4, 6))
    assert_alike(layer(scale=0.3), inputs, atol=1e-8)


@needs_library
def test_single_precision_does_not_suffice(emulated, monkeypatch):
    """After too many turns in single precision conjugate gradients go on in double precision."""
    monkeypatch.setattr(EmulatedLargeKernel, "turns", 2)
    assert_alike(layer(), odd_graph(1, [40], 2.0))


@needs_library
def test_failures_have_the_statuses_of_torch(emulated):
    conv = layer()
    conv.solver, conv.on_failure = Newton(atol=1e-11, max_iter=1), "ignore"
    inputs = odd_graph(0, [20, 30])
    with torch.no_grad():
        assert conv.embed(inputs).status.tolist() == [Status.MAX_ITERATIONS] * 2
        next(conv.parameters()).fill_(torch.nan)
        assert conv.embed(inputs).status.tolist() == [Status.NOT_FINITE] * 2


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 999), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_sorted_edges(seed, sizes):
    """Every edge stands in the list of its receiver and of its sender, within its graph."""
    inputs = odd_graph(seed, sizes, 1.5)
    graph = inputs.graph()
    found = gpu_large.connectivity(graph)
    t = {name: x.tolist() for name, x in found.tensors.items()}
    seen, degree = [], 0
    for g, n in enumerate(sizes):
        first, at = t["first"][g], t["edge_first"][g]
        ptr, out_ptr = (t[name][first + g : first + g + n + 1] for name in ("ptr", "out_ptr"))
        assert t["first"][g + 1] - first == n
        assert ptr[0] == out_ptr[0] == 0
        assert ptr[n] == out_ptr[n] == t["edge_first"][g + 1] - at
        for i in range(n):
            degree = max(degree, ptr[i + 1] - ptr[i], out_ptr[i + 1] - out_ptr[i])
            for q in range(at + ptr[i], at + ptr[i + 1]):
                assert t["dst"][q] == i
                number = t["edge"][q]
                seen.append(number)
                assert graph.dst[number] == first + i
                assert graph.src[number] == first + t["src"][q]
            out = t["out_edge"][at + out_ptr[i] : at + out_ptr[i + 1]]
            assert out == sorted(out)
            assert all(t["src"][at + q] == i for q in out)
    assert sorted(seen) == list(range(graph.num_edges))
    assert (found.nodes, found.degree) == (max(sizes), degree)


@needs_library
def test_where_it_pays(monkeypatch):
    """For few large graphs without hubs, with narrow embeddings, that fit into memory."""
    fewest = 100
    monkeypatch.setattr(gpu_large, "MOST_DEGREE", 20)
    monkeypatch.setattr(gpu_large, "room", lambda graph: 10_000_000)

    def pays(edge_index, n, copies=1, replicas=1, **options):
        edge_index = torch.cat([edge_index + n * copy for copy in range(copies)], 1)
        batch = torch.arange(copies).repeat_interleave(n)
        inputs = Inputs(torch.randn(n * copies, 3, **DOUBLE), edge_index, batch=batch)
        problem = layer(replicas=replicas, **options).problem(inputs)
        rows = max(problem.graph.num_edges, n * copies)
        fast = gpu_large.LargeGpuEngine.is_fastest_for(library(), problem)
        return rows >= fewest * copies and fast

    work = 4e5  # of a grid's factorisation
    monkeypatch.setattr(gpu_large, "MOST_WORK", 2 * work)
    assert not pays(grid(10, 10), 100)  # a block of threads is fast
    monkeypatch.setattr(gpu_large, "MOST_WORK", work / 4)
    assert pays(grid(10, 10), 100)
    assert not pays(grid(10, 10), 100, replicas=9)  # blocks run side by side
    monkeypatch.setattr(gpu, "MOST_ROWS", 50)
    assert pays(grid(10, 10), 100, replicas=9)
    assert not pays(grid(4, 5), 20)
    assert not pays(grid(4, 5), 20, copies=8)
    assert pays(grid(10, 10), 100, copies=3)
    assert not pays(star(120), 120)
    assert not pays(grid(10, 10), 100, hidden_channels=20)
    monkeypatch.setattr(gpu_large, "room", lambda graph: 100_000)
    assert not pays(grid(10, 10), 100)


@pytest.fixture
def on_gpu(monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(engines, "ENGINES", (engines.CpuEngine, gpu_large.LargeGpuEngine))
    monkeypatch.setattr(gpu_large.LargeGpuEngine, "fewest", 0)
    monkeypatch.setattr(gpu_large, "MOST_WORK", -1)  # small graphs, too


def moved(inputs):
    """The same inputs on the GPU."""
    given = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    return replace(inputs, **{k: v.cuda() for k, v in given.items() if torch.is_tensor(v)})


@needs_library
@pytest.mark.cuda
@pytest.mark.parametrize("name", ["edge", "node", "replicas"])
def test_a_gpu_agrees_with_torch_on_many_nodes(name, on_gpu):
    conv = layer(**NAMED[name]).cuda()
    inputs = odd_graph(3, [20_000], 2.0, edge_dim=conv.edge_dim, weighted=True)
    assert_alike(conv, moved(inputs), apart=2)  # rounding decides the last iterations


@needs_library
@pytest.mark.cuda
def test_a_recorded_solve(on_gpu):
    """A cooperative launch can be recorded, and repeats to the last bit."""
    conv, inputs = layer().cuda(), moved(odd_graph(3, [20_000], 2.0))

    def body():
        found = conv.embed(inputs)
        return found.value, *torch.autograd.grad(found.value.sum(), list(conv.parameters()))

    replay = Replay(body, torch.device("cuda", torch.cuda.current_device()), body)
    first = [x.clone() for x in replay()]
    for one, other, plain in zip(first, replay(), body(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, plain)
