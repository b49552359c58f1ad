"""Compiled solves where users have them: without gradients, copied, in processes and threads."""

import copy
import gc
import multiprocessing
import pickle
import resource
import sys
import threading
from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE, chain
from kernel_cases import layer, needs_library, odd_graph
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from hogwild import Inputs
from hogwild.kernels.native import library
from hogwild.linalg.direct import plan_of

pytestmark = needs_library


def test_without_gradients():
    conv, inputs = layer(), odd_graph(1, [5, 8], 1.5)
    expected = conv.embed(inputs).value
    assert expected.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(conv.embed(inputs).value, expected)
    # What inference mode made first serves training, too.
    fresh = replace(inputs, edge_index=inputs.edge_index.clone())
    with torch.inference_mode():
        conv.embed(fresh)
    conv.embed(fresh).value.sum().backward()
    assert all(p.grad is not None for p in conv.parameters())


def test_copies():
    conv, inputs = layer(), odd_graph(2, [5, 8], 1.5)
    expected = conv.embed(inputs).value
    for twin in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(twin.embed(inputs).value, expected)


def test_copies_of_a_graph_make_plans_of_their_own():
    """A plan is memory of the library, and is freed once."""
    conv, inputs = layer(), odd_graph(3, [5, 8], 1.5)
    conv.embed(inputs)
    graph = inputs.graph()
    plan = plan_of(graph, library(), 2)
    for twin in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert plan_of(twin, library(), 2) is not plan
        assert plan_of(twin, library(), 2).work == plan.work
        del twin
        gc.collect()
    assert plan_of(graph, library(), 2) is plan
    conv.embed(inputs)


def test_a_second_backward_pass_through_one_solve():
    conv, inputs = layer(), odd_graph(4, [5, 8], 1.5)
    parameters = list(conv.parameters())
    loss = conv.embed(inputs).value.square().sum()
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    again = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, parameters)


def test_weights_that_change_before_the_backward_pass_are_noticed():
    conv, inputs = layer(), odd_graph(5, [5, 8], 1.5, weighted=True)
    loss = conv.embed(inputs).value.square().sum()
    inputs.edge_weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_answers_outlive_everything_else():
    """The backward pass needs the plan and the tensors; nobody else holds them by then."""
    conv = layer()
    expected, found = [], []
    for keep in (True, False):
        inputs = odd_graph(6, [5, 8], 1.5)
        inputs = replace(inputs, x=inputs.x.clone().requires_grad_())
        x, h = inputs.x, conv.embed(inputs).value
        if not keep:
            inputs.graph().analyses.clear()
            del inputs
            gc.collect()
            _ = [torch.full((64, 64), float("nan")) for _ in range(64)]
        (expected if keep else found).append(torch.autograd.grad(h.sum(), x)[0])
    assert torch.equal(expected[0], found[0])


class Embedded(torch.utils.data.Dataset):
    """Embeddings, computed where the item is read: in a worker of a loader."""

    def __init__(self, conv, inputs):
        self.conv, self.inputs = conv, inputs

    def __len__(self):
        return 4

    def __getitem__(self, index):
        edges = self.inputs.edge_index.clone()  # a graph that no plan is kept for
        with torch.no_grad():
            h = self.conv.embed(replace(self.inputs, edge_index=edges)).value
        return Data(x=h, edge_index=edges)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_workers_of_a_loader():
    """Forked from a process that has plans already."""
    conv, inputs = layer(), odd_graph(7, [5, 8], 1.5)
    expected = conv.embed(inputs).value.detach()
    workers = multiprocessing.get_context("fork")
    data = DataLoader(Embedded(conv, inputs), num_workers=2, multiprocessing_context=workers)
    assert all(torch.equal(item.x, expected) for item in data)


def test_several_threads_at_once():
    """Each with graphs of its own and with one that all share, forward and backward."""
    conv = layer()
    shared = odd_graph(0, [5, 8], 1.5)
    cases = [odd_graph(seed, [5, 8, 3], 1.5) for seed in range(1, 5)]

    def answers(case):
        out = []
        for inputs in (shared, case):
            h = conv.embed(inputs).value
            out += [h.detach(), *torch.autograd.grad(h.square().sum(), list(conv.parameters()))]
        return out

    expected = [answers(case) for case in cases]
    found = [None] * len(cases)

    def work(number):
        for _ in range(5):
            fresh = replace(cases[number], edge_index=cases[number].edge_index.clone())
            found[number] = answers(fresh)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


@pytest.mark.slow
def test_memory_does_not_grow():
    """Neither with calls, nor with graphs that are never seen again."""
    conv = layer()

    def call(seed, n=400):
        inputs = odd_graph(seed, [n], 1.5)
        conv.embed(inputs).value.sum().backward()

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB on Linux

    for seed in range(300):  # more graphs than are kept
        call(seed)
    before = peak()
    for seed in range(300, 1300):
        call(seed)
    assert peak() - before < 60
    steady = Inputs(torch.randn(400, 3, **DOUBLE), chain(400))
    before = peak()
    for _ in range(500):
        conv.embed(steady).value.sum().backward()
    assert peak() - before < 20
