"""Large graphs on a CPU, which threads share: small graphs are sent the same way."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE, assert_second_derivatives, grid
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    assert_alike,
    engine_of,
    layer,
    needs_library,
    odd_graph,
    on_torch,
    solved,
    variables,
)

import hogwild
from hogwild import Inputs, engines
from hogwild.engines import cpu as compiled
from hogwild.engines.cpu import CpuEngine
from hogwild.engines.cpu_large import LargeCpuEngine, order_of
from hogwild.linalg.solution import Status
from hogwild.solvers import Newton

pytestmark = needs_library


@pytest.fixture(autouse=True)
def every_graph(monkeypatch):
    """Every graph is large."""
    monkeypatch.setattr(engines, "ENGINES", (LargeCpuEngine,))
    monkeypatch.setattr(LargeCpuEngine, "fewest", 0)
    monkeypatch.setattr(compiled, "PRODUCTS", 0.0)


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def large(seed=0, n=4000):
    """A graph of several parts and many chunks, with edges in any order."""
    return odd_graph(seed, [n], 3.0)


def test_second_derivatives():
    """The posed tensors of nodes are arranged; torch computes in the order of the graph."""
    conv = layer(normalize=True, widths=(3,))
    inputs, given = variables(odd_graph(3, [1, 4, 30], 1.7, weighted=True))
    assert conv.solver_path(inputs)[0].endswith("a graph at a time)")

    def solve(x, weight, *_):
        return conv.embed(replace(inputs, x=x, edge_weight=weight.square())).value

    assert_second_derivatives(solve, given)


def test_parts_and_chunks_agree_with_torch(threads):
    assert_alike(layer(), large())


def test_large_features():
    """Steps are refused, and secant curvature takes over."""
    conv = layer(2, 0.3, solver=Newton(patience=3))
    inputs = odd_graph(2, [40, 60], 2.0)
    inputs = replace(inputs, x=30.0 * inputs.x)
    with torch.no_grad():
        here = conv.embed(inputs)
        with on_torch():
            there = conv.embed(inputs)
    assert here.iterations.min() > 4  # not as many as there: directions are not as exact
    assert torch.equal(here.status, there.status)
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-6)


def test_a_warm_start():
    conv, inputs = layer(), large(1, 500)
    assert_alike(conv, inputs, torch.randn(500, 2, **DOUBLE))


def test_threads_change_no_bit():
    conv, inputs = layer(), large()
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        answer, gradients = solved(conv, inputs)
        found.append([answer.value, answer.residual, answer.iterations, *gradients])
    torch.set_num_threads(before)
    for other in found[1:]:
        # Sums over nodes in torch (the gradients of first layers) may depend on its threads.
        assert all(torch.equal(a, b) for a, b in zip(found[0][:3], other[:3], strict=True))
        for a, b in zip(found[0][3:], other[3:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_adjoints_do_not_depend_on_threads():
    conv, inputs = layer(), large()
    kernel = engine_of(conv, inputs)
    h = torch.randn(1, 2, 4000, **DOUBLE)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(kernel.adjoint(h, torch.ones_like(h))[1])
    torch.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0].every(), other.every(), strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_failures_have_the_statuses_of_torch():
    conv, inputs = layer(), odd_graph(0, [20, 30])
    conv.solver, conv.on_failure = Newton(atol=1e-11, max_iter=1), "ignore"
    with torch.no_grad():
        assert conv.embed(inputs).status.tolist() == [Status.MAX_ITERATIONS] * 2
    conv.validate = False
    inputs.x[3, 1] = torch.nan
    with torch.no_grad():
        here = conv.embed(inputs)
        with on_torch():
            there = conv.embed(inputs)
    assert here.status.tolist() == there.status.tolist()
    assert here.status[0] == Status.NOT_FINITE


def test_nodes_that_are_held():
    """They stay where they are, as in the other compiled solve."""
    conv, inputs = layer(), large(2, 400)
    h0, held = torch.randn(1, 2, 400, **DOUBLE), torch.rand(400) < 0.3
    kernel = engine_of(conv, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ENGINES", (CpuEngine,))
        other = engine_of(conv, inputs)
    here, there = (k.holding(held).solve(h0) for k in (kernel, other))
    torch.testing.assert_close(here.value, there.value, rtol=0, atol=1e-9)
    assert torch.equal(here.value[..., held], h0[..., held])
    pairs = (k.holding(held).gradient(h0) for k in (kernel, other))
    for mine, right in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_adjoints_that_conjugate_gradients_do_not_reach(monkeypatch):
    """A factorisation takes over, where the graph is not too large for it."""
    inputs = odd_graph(4, [80], 2.0)
    kernel = engine_of(layer(), inputs)
    h = torch.randn(1, 2, 80, **DOUBLE)
    _, expected = kernel.vjp(h, torch.ones_like(h))
    adjoint = CpuEngine.adjoint

    def failing(self, h, gradient):
        ended, found = adjoint(self, h, gradient)
        if isinstance(self, LargeCpuEngine):
            ended.status.fill_(Status.NOT_FINITE)
        return ended, found

    monkeypatch.setattr(CpuEngine, "adjoint", failing)
    ended, found = kernel.vjp(h, torch.ones_like(h))
    assert ended.converged.all()
    for mine, right in zip(found, expected, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, right, rtol=0, atol=1e-9 * float(right.abs().max()))
    monkeypatch.setattr(compiled, "LARGEST", 10)
    assert not kernel.vjp(h, torch.ones_like(h))[0].converged.any()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 999), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_order_of_nodes(seed, sizes):
    """Every node has one place, and graphs stay apart."""
    inputs = odd_graph(seed, sizes, 1.5)
    graph = inputs.graph()
    order = order_of(graph)
    assert sorted(order.tolist()) == list(range(sum(sizes)))
    assert torch.equal(graph.batch[order], graph.batch)


def test_neighbours_are_near():
    """A shuffled grid gets places whose distances are about one side."""
    shuffle = torch.randperm(900, generator=torch.Generator().manual_seed(0))
    graph = Inputs(torch.zeros(900, 3, **DOUBLE), shuffle[grid(30, 30)]).graph()
    place = order_of(graph).argsort()
    assert int((place[graph.src] - place[graph.dst]).abs().max()) <= 62


def test_where_it_pays(monkeypatch):
    monkeypatch.setattr(LargeCpuEngine, "fewest", 101)
    graph = odd_graph(0, [60], 2.0)

    def pays(inputs, **options):
        return isinstance(engine_of(layer(**options), inputs), LargeCpuEngine)

    assert pays(graph)
    assert not pays(odd_graph(0, [60, 60], 1.5))
    assert not pays(graph, hidden_channels=9)
    assert not pays(graph, hidden_channels=2, message_channels=6, heads=3)
    assert pays(graph, hidden_channels=2, message_channels=6, heads=3, concat=False)
    monkeypatch.setattr(compiled, "PRODUCTS", 1e9)  # a factorisation is cheap
    assert not pays(graph)
    monkeypatch.setattr(compiled, "LARGEST", 50)  # none is planned
    assert pays(graph)


@pytest.fixture
def ctrl_c():
    """Ctrl-C is heard, also where this process was started without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupts(ctrl_c):
    """Ctrl-C ends a long solve, and the next solve is as good as any."""
    conv = layer(solver=Newton(atol=0.0, rtol=0.0, max_iter=10**4, max_backtracks=10**4))
    conv.on_failure = "ignore"
    inputs = large()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    timer.start()
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        conv.embed(inputs)
    assert time.monotonic() - begun < 20.0
    conv.solver = Newton()
    with torch.no_grad():
        assert conv.embed(inputs).converged.all()


def test_handlers_that_raise_nothing(ctrl_c):
    """The solve goes on behind such a handler, and its answer is the undisturbed one."""
    conv = layer(solver=Newton(atol=0.0, rtol=0.0, max_iter=8))
    conv.on_failure = "ignore"
    inputs, heard = large(0, 60_000), []
    signal.signal(signal.SIGINT, lambda *_: heard.append(threading.current_thread()))
    with torch.no_grad():
        begun = time.monotonic()
        expected = conv.embed(inputs)
        seconds = time.monotonic() - begun
        timer = threading.Timer(0.5 * seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        found = conv.embed(inputs)
    timer.join()
    assert heard == [threading.main_thread()]
    assert found.value.equal(expected.value)
    assert found.iterations.equal(expected.iterations)


def test_streams_plan_no_factorisation_again(monkeypatch):
    """Where it did not pay on the graph before, it is not planned for the next one."""
    asked = []
    planned = compiled.plan_of
    monkeypatch.setattr(compiled, "plan_of", lambda *args: asked.append(0) or planned(*args))
    stream = hogwild.Stream(hogwild.EnergyGNN(3, out_channels=1).double())
    for seed in range(3):
        stream.update(large(seed, 300))
    assert len(asked) == 1
